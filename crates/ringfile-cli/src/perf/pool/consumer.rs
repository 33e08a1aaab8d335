//! A consumer: reads back the batches that producers announce, checks every byte, and releases the buffers.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use bytes::Bytes;
use ringfile::Appender;

use super::ledger::Ledger;
use super::memory::MemorySource;
use super::messages;
use super::producer::Written;
use super::segments::TICK;
use super::shared::{Shared, outcome_of};
use crate::content::Label;
use crate::engine::window::Until;
use crate::error::{Failure, library, mismatch};

/// One consumer of a run.
pub struct Consumer<S> {
    shared: Arc<Shared>,
    source: S,
    inbox: Receiver<Option<Written>>,
}

impl<S: MemorySource> Consumer<S> {
    /// Returns a consumer of the batches in this inbox.
    pub fn new(shared: &Arc<Shared>, source: S, inbox: Receiver<Option<Written>>) -> Consumer<S> {
        Consumer { shared: shared.clone(), source, inbox }
    }

    /// Reads batches until all producers are done and everything is read, or the run was stopped.
    pub async fn phase(&mut self, until: &Until, ledger: &mut Ledger) -> Result<(), Failure> {
        let mut writing = self.shared.job.producers;
        while writing > 0 && !until.stopped() {
            match self.inbox.recv_timeout(TICK) {
                Ok(Some(written)) => self.read(written, ledger).await?,
                Ok(None) => writing -= 1,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(())
    }

    /// Reads one batch, which was due when it was written.
    async fn read(&mut self, written: Written, ledger: &mut Ledger) -> Result<(), Failure> {
        let (job, began, counts) = (&self.shared.job, Instant::now(), ringfile::thread_metrics());
        if job.messages {
            self.read_messages(&written).await?;
        } else {
            self.read_blocks(&written).await?;
        }
        ledger.count(counts);
        ledger.record(written.at, began, Instant::now(), u64::from(job.batch));
        Ok(())
    }

    async fn read_blocks(&self, written: &Written) -> Result<(), Failure> {
        let job = &self.shared.job;
        let mut reads = Vec::with_capacity(job.batch as usize);
        for label in job.labels(written.first) {
            let block = self.source.take(job.block as usize).await?;
            let file = written.segment.file().clone();
            let read = ringfile::spawn(async move { file.read_at(block, label.offset).await });
            reads.push((label, read));
        }
        let mut wrong = None;
        for (label, read) in reads {
            let checked = match outcome_of(read.await) {
                Ok(block) => self.check(&block, written, label),
                Err(error) => Err(library(error.error())),
            };
            if let Err(failure) = checked {
                wrong.get_or_insert(failure);
            }
        }
        wrong.map_or(Ok(()), Err)
    }

    /// Reads a batch of messages from the appender's memory.
    async fn read_tail(&self, log: &Appender, written: &Written) -> Result<(), Failure> {
        let job = &self.shared.job;
        let (size, mut tail) = (job.block as usize, log.tail().from(written.first.offset));
        let mut piece = Bytes::new();
        for label in job.labels(written.first) {
            if piece.len() >= size {
                self.check(&piece.split_to(size), written, label)?;
                continue;
            }
            // It continues in the next piece.
            let mut message = piece.to_vec();
            while message.len() < size {
                piece = match tail.next().await {
                    Some(next) => next.map_err(|error| library(&error))?,
                    None => break,
                };
                let more = piece.split_to(piece.len().min(size - message.len()));
                message.extend_from_slice(&more);
            }
            self.check(&message, written, label)?;
        }
        Ok(())
    }

    /// Reads a batch of messages: with one read, if no appender has it in memory.
    async fn read_messages(&self, written: &Written) -> Result<(), Failure> {
        if let Some(log) = written.log.upgrade() {
            return self.read_tail(&log, written).await;
        }
        let job = &self.shared.job;
        let (start, length, before) = messages::around(job, written.first);
        let memory = self.source.take(length).await?;
        let read = written.segment.file().read_at(memory, start).await;
        let read = read.map_err(|error| library(error.error()))?;
        for (index, label) in job.labels(written.first).enumerate() {
            let at = before + index * job.block as usize;
            let message = read.get(at..at + job.block as usize).unwrap_or(&[]);
            self.check(message, written, label)?;
        }
        Ok(())
    }

    fn check(&self, block: &[u8], written: &Written, label: Label) -> Result<(), Failure> {
        let checked = self.shared.content.check(block, label).map_err(|why| {
            let folder = written.segment.file().path().unwrap_or(&self.shared.job.folder);
            let what = format!("{why} (a segment of producer {})", label.producer);
            mismatch(folder, label.offset, &what)
        });
        checked.inspect(|()| self.shared.count_checked(1))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::{Weak, mpsc};

    use super::super::memory::Plain;
    use super::super::run::tests::shared;
    use super::super::segments::Log;
    use super::*;

    /// Two blocks in a segment, the second changed by `corrupt`, read by a consumer.
    fn consume(corrupt: impl Fn(&std::fs::File, u64)) -> (Result<Ledger, Failure>, u64) {
        let folder = tempfile::tempdir().expect("temporary folder");
        let shared = shared(folder.path());
        let first = Label { producer: 1, number: 8, offset: 0 };
        let (segment, _) = ringfile::block_on(Log::new(shared.store.clone()).place(8192, &|| false))
            .expect("a segment")
            .expect("not stopped");
        for label in shared.job.labels(first) {
            let mut block = Vec::new();
            shared.content.fill(&mut block, label);
            ringfile::block_on(segment.file().write_at(block, label.offset)).expect("written");
        }
        let descriptor = std::os::fd::AsFd::as_fd(segment.file()).try_clone_to_owned().expect("a descriptor");
        corrupt(&descriptor.into(), 4096);
        let mut ledger = Ledger::begin(Instant::now());
        let written = Written { segment, log: Weak::new(), first, at: Instant::now() };
        let mut consumer = Consumer::new(&shared, Plain, mpsc::channel().1);
        let consumed = ringfile::block_on(consumer.read(written, &mut ledger));
        (consumed.map(|()| ledger), shared.checked())
    }

    #[test]
    fn written_blocks_are_counted_and_a_changed_byte_is_an_error_with_its_position() {
        let (consumed, checked) = consume(|_, _| {});
        assert_eq!((consumed.expect("all is well").latency.count(), checked), (2, 2));
        let (consumed, checked) = consume(|file, offset| {
            file.write_all_at(b"x", offset + 4000).expect("written");
        });
        let error = consumed.expect_err("corrupt").to_string();
        assert!(error.contains("offset 4096") && error.contains("checksum"), "{error}");
        assert_eq!(checked, 1, "the other block is well");
    }

    #[test]
    fn a_segment_that_got_shorter_is_an_error() {
        let (consumed, checked) = consume(|file, offset| file.set_len(offset).expect("cut"));
        let error = consumed.expect_err("cut").to_string();
        assert!(error.contains("0 of 4096 bytes"), "{error}");
        assert_eq!(checked, 1);
    }
}
