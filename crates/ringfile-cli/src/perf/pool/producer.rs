//! One producer: takes buffers, fills them, writes them together when they are due, and tells a consumer.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::content::Label;
use super::ledger::Ledger;
use super::memory::Source;
use super::run::{Shared, TICK, outcome_of};
use super::schedule::Schedule;
use super::segments::{Log, Segment};
use crate::error::{Failure, library};

/// A batch that was written.
pub struct Written {
    /// Where it is; the segment is kept until it was read.
    pub segment: Arc<Segment>,
    /// Its first block.
    pub first: Label,
    /// When it was written.
    pub at: Instant,
    /// Whether it counts.
    pub measured: bool,
}

/// One producer of a run.
pub struct Producer<S> {
    shared: Arc<Shared>,
    source: S,
    number: u32,
    schedule: Option<Schedule>,
    log: Log,
    consumers: Vec<Sender<Written>>,
    batches: u64,
    ledger: Ledger,
}

/// What came of a producer.
pub struct Produced {
    /// What it saw.
    pub ledger: Ledger,
    /// Batches that were due and not begun when it gave up; `None` without a rate, and where it was stopped.
    pub backlog: Option<u64>,
}

impl<S: Source> Producer<S> {
    /// A producer that hands its batches to all consumers in turn.
    pub fn new(shared: &Arc<Shared>, source: S, number: u32, consumers: Vec<Sender<Written>>) -> Producer<S> {
        let job = &shared.job;
        let schedule = job.rate.map(|rate| Schedule {
            rate,
            batch_bytes: job.batch_bytes(),
            producers: u64::from(job.producers),
            producer: u64::from(number),
        });
        Producer {
            shared: shared.clone(),
            source,
            number,
            schedule,
            log: Log::new(shared.store.clone()),
            consumers,
            batches: 0,
            ledger: Ledger::new(shared.timeline.measured),
        }
    }

    /// Writes batches until the run is over.
    pub async fn run(mut self) -> Result<Produced, Failure> {
        while let Some(due) = self.wait_for_next() {
            let Some(written) = self.write(due).await? else { break };
            // Begun by another one for each producer, so that they do not all turn to the same.
            let turn = self.batches + u64::from(self.number);
            let consumer = &self.consumers[(turn % self.consumers.len() as u64) as usize];
            self.batches += 1;
            // A consumer that is gone has failed, and has stopped the run.
            let _ = consumer.send(written);
        }
        self.ledger.close();
        let timeline = self.shared.timeline;
        let due = self.schedule.map(|schedule| schedule.due_before(timeline.end - timeline.begin));
        // What a run that was stopped has left undone says nothing.
        let due = due.filter(|_| !self.shared.stopped());
        let backlog = due.map(|due| due.saturating_sub(self.batches));
        Ok(Produced { ledger: self.ledger, backlog })
    }

    /// When the next batch is due, once that is now or past; `None` when there is none any more. None is ever skipped.
    fn wait_for_next(&self) -> Option<Instant> {
        let timeline = self.shared.timeline;
        // Short of a stop there is a batch that counts, however late the thread got its turn, or the disk came back: what
        // stalled most would else have no figures.
        let has_some = self.ledger.latency.count() > 0;
        let due = match self.schedule {
            Some(schedule) => {
                timeline.begin.checked_add(schedule.due(self.batches)?).filter(|&due| due < timeline.end)?
            }
            None => {
                let now = Instant::now().max(timeline.begin);
                if now >= timeline.end && has_some {
                    return None;
                }
                now
            }
        };
        loop {
            let now = Instant::now();
            let given_up = self.schedule.is_some() && now >= timeline.give_up() && has_some;
            if self.shared.stopped() || given_up {
                return None;
            }
            match due.saturating_duration_since(now) {
                Duration::ZERO => return Some(due),
                left => std::thread::sleep(left.min(TICK)),
            }
        }
    }

    /// Writes the next batch; `None` where the run was stopped before there was room for it.
    async fn write(&mut self, due: Instant) -> Result<Option<Written>, Failure> {
        let shared = self.shared.clone();
        let job = &shared.job;
        let began = Instant::now();
        // Not by when it was due: of a rate that is far from carried all would belong to the warm-up.
        let measured = began >= shared.timeline.measured;
        let placed = self.log.place(job.batch_bytes(), &|| shared.stopped()).await?;
        let Some((segment, offset)) = placed else { return Ok(None) };
        let number = self.batches * u64::from(job.batch);
        let first = Label { producer: self.number, number, offset };
        let before = measured.then(|| self.ledger.begin());
        let mut writes = Vec::with_capacity(job.batch as usize);
        for label in job.labels(first) {
            let mut block = self.source.take(job.block as usize).await?;
            shared.content.fill(&mut block, label);
            let file = segment.file().clone();
            writes.push(ringfile::spawn(async move { file.write_at(block, label.offset).await }));
        }
        let mut failed = None;
        for write in writes {
            // The buffer goes back here.
            if let Err(error) = outcome_of(write.await) {
                failed.get_or_insert(library(error.error()));
            }
        }
        let done = Instant::now();
        if let Some(before) = before {
            self.ledger.count(before);
        }
        if let Some(failure) = failed {
            return Err(failure);
        }
        shared.count_written(u64::from(job.batch));
        if measured {
            self.ledger.record(due, began, done, u64::from(job.batch));
        }
        Ok(Some(Written { segment, first, at: done, measured }))
    }
}
