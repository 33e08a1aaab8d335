//! A producer: takes buffers, fills them, writes them together when they are due, and announces them to a consumer.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::Instant;

use ringfile::Appender;

use super::content::Label;
use super::ledger::Ledger;
use super::memory::MemorySource;
use super::messages::Messages;
use super::pace::Pace;
use super::segments::{Log, Segment};
use super::shared::{Shared, outcome_of};
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
    /// Whether it is measured.
    pub measured: bool,
}

/// One producer of a run.
pub struct Producer<S> {
    shared: Arc<Shared>,
    source: S,
    number: u32,
    pace: Pace,
    log: Log,
    messages: Messages,
    consumers: Vec<Sender<Written>>,
    ledger: Ledger,
}

/// The result of a producer.
pub struct Produced {
    /// Its record.
    pub ledger: Ledger,
    /// Batches that were due but not begun when it gave up; `None` without a rate, or if it was stopped.
    pub backlog: Option<u64>,
}

impl<S: MemorySource> Producer<S> {
    /// Returns a producer that hands its batches to all consumers in turn.
    pub fn new(shared: &Arc<Shared>, source: S, number: u32, consumers: Vec<Sender<Written>>) -> Producer<S> {
        let job = &shared.job;
        let pace = Pace::new(job, number, job.producers);
        Producer {
            shared: shared.clone(),
            source,
            number,
            pace,
            log: Log::new(shared.store.clone()),
            messages: Messages::default(),
            consumers,
            ledger: Ledger::new(shared.timeline.measured),
        }
    }

    /// Writes batches until the run is over.
    pub async fn run(mut self) -> Result<Produced, Failure> {
        while let Some(due) = self.pace.wait_for_next(&self.shared) {
            // Each producer starts with another consumer, so that they do not all use the same.
            let turn = self.pace.batches() + u64::from(self.number);
            let Some(written) = self.write(due).await? else { break };
            if !self.consumers.is_empty() {
                let consumer = &self.consumers[(turn % self.consumers.len() as u64) as usize];
                // A consumer that is gone has failed, and has stopped the run.
                let _ = consumer.send(written);
            }
        }
        self.finish().await?;
        self.ledger.close();
        let backlog = self.pace.backlog(&self.shared);
        Ok(Produced { ledger: self.ledger, backlog })
    }

    /// Waits until everything is in the files.
    pub async fn finish(&mut self) -> Result<(), Failure> {
        self.messages.finish().await
    }

    /// Writes the next batch; `None` if the run was stopped before there was room for it.
    pub async fn write(&mut self, due: Instant) -> Result<Option<Written>, Failure> {
        let shared = self.shared.clone();
        let job = &shared.job;
        let began = Instant::now();
        // Not by its due time: if the rate is far from reached, all batches would belong to the warm-up.
        let measured = began >= shared.timeline.measured;
        let placed = self.log.place(job.batch_bytes(), &|| shared.stopped()).await?;
        let Some((segment, offset)) = placed else { return Ok(None) };
        let number = self.pace.batches() * u64::from(job.batch);
        let first = Label { producer: self.number, number, offset };
        let before = measured.then(|| self.ledger.begin());
        let result = self.write_batch(&segment, first).await;
        let done = Instant::now();
        if let Some(before) = before {
            self.ledger.count(before);
        }
        let log = result?;
        self.pace.count(measured);
        shared.count_written(u64::from(job.batch));
        if measured {
            self.ledger.record(due, began, done, u64::from(job.batch));
        }
        Ok(Some(Written { segment, log, first, at: done, measured }))
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
            let (file, block) = (segment.file().clone(), S::to_write(block));
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
