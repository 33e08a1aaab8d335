//! A producer: takes buffers, fills them, writes them together when they are due, and announces them to a consumer.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::Instant;

use ringfile::Appender;

use super::ledger::Ledger;
use super::memory::MemorySource;
use super::messages::Messages;
use super::pace::Pace;
use super::segments::{Log, Segment};
use super::shared::{Shared, outcome_of};
use crate::content::Label;
use crate::engine::window::Until;
use crate::error::{Failure, library};

/// A batch that was written.
pub struct Written {
    /// Its segment, which is kept until the batch was read.
    pub segment: Arc<Segment>,
    /// The appender that has it in memory, while the producer keeps it.
    pub log: Weak<Appender>,
    /// Its first block.
    pub first: Label,
    /// When it was written.
    pub at: Instant,
}

/// One producer of a run.
pub struct Producer<S> {
    shared: Arc<Shared>,
    source: S,
    number: u32,
    /// Batches so far.
    batches: u64,
    log: Log,
    messages: Messages,
    /// The inboxes of all consumers; `None` says that this producer is done with a phase.
    consumers: Vec<Sender<Option<Written>>>,
}

impl<S: MemorySource> Producer<S> {
    /// Returns a producer that hands its batches to all consumers in turn.
    pub fn new(
        shared: &Arc<Shared>,
        source: S,
        number: u32,
        consumers: Vec<Sender<Option<Written>>>,
    ) -> Producer<S> {
        let (log, messages) = (Log::new(shared.store.clone()), Messages::default());
        Producer { shared: shared.clone(), source, number, batches: 0, log, messages, consumers }
    }

    /// Writes batches until the phase is over, and waits until everything is in the files.
    pub async fn phase(&mut self, until: &Until, ledger: &mut Ledger) -> Result<(), Failure> {
        let done = self.write_all(until, ledger).await;
        // A consumer that is gone has failed, and has stopped the run.
        self.consumers.iter().for_each(|consumer| drop(consumer.send(None)));
        done.and(self.finish().await)
    }

    async fn write_all(&mut self, until: &Until, ledger: &mut Ledger) -> Result<(), Failure> {
        let pace = Pace::of(&self.shared.job, self.number, ledger.begin, until);
        let first = self.batches;
        while let Some(due) = pace.wait_for(self.batches - first) {
            // Each producer starts with another consumer, so that they do not all use the same.
            let turn = self.batches + u64::from(self.number);
            let Some(written) = self.write(due, &|| until.stopped(), ledger).await? else { break };
            if !self.consumers.is_empty() {
                let consumer = &self.consumers[(turn % self.consumers.len() as u64) as usize];
                drop(consumer.send(Some(written)));
            }
        }
        ledger.backlog =
            pace.backlog(self.batches - first).map(|left| left * u64::from(self.shared.job.batch));
        Ok(())
    }

    /// Waits until everything is in the files.
    pub async fn finish(&mut self) -> Result<(), Failure> {
        // Its appender has ended.
        self.log.leave_segment();
        self.messages.finish().await
    }

    /// Writes the next batch; `None` if the run was stopped before there was room for it.
    pub async fn write(
        &mut self,
        due: Instant,
        stopped: &dyn Fn() -> bool,
        ledger: &mut Ledger,
    ) -> Result<Option<Written>, Failure> {
        let (shared, began) = (self.shared.clone(), Instant::now());
        let job = &shared.job;
        let placed = self.log.place(job.batch_bytes(), stopped).await?;
        let Some((segment, offset)) = placed else { return Ok(None) };
        let number = self.batches * u64::from(job.batch);
        let first = Label { producer: self.number, number, offset };
        let counts = ringfile::thread_metrics();
        let log = self.write_batch(&segment, first).await?;
        ledger.count(counts);
        let done = Instant::now();
        self.batches += 1;
        shared.count_written(u64::from(job.batch));
        ledger.record(due, began, done, u64::from(job.batch));
        Ok(Some(Written { segment, log, first, at: done }))
    }

    async fn write_batch(&mut self, segment: &Arc<Segment>, first: Label) -> Result<Weak<Appender>, Failure> {
        let job = &self.shared.job;
        if job.messages {
            return self.messages.write(&self.shared, &self.source, segment, first).await;
        }
        let mut writes = Vec::with_capacity(job.batch as usize);
        for label in job.labels(first) {
            let mut block = self.source.take(job.block as usize).await?;
            self.shared.content.fill(&mut block, label);
            let file = segment.file().clone();
            writes.push(ringfile::spawn(async move { file.write_at(block, label.offset).await }));
        }
        let mut failed = None;
        for write in writes {
            // This releases the buffer.
            if let Err(error) = outcome_of(write.await) {
                failed.get_or_insert(library(error.error()));
            }
        }
        failed.map_or(Ok(()), Err)?;
        if job.sync {
            segment.file().sync_data().await.map_err(|error| library(&error))?;
        }
        Ok(Weak::new())
    }
}
