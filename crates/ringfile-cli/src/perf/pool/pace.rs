//! Decides when a thread of a run does its next batch, and when it has done enough.

use std::time::{Duration, Instant};

use super::schedule::Schedule;
use super::segments::TICK;
use super::shared::{PoolJob, Shared};

/// The pace of one thread: at a rate, or as fast as possible.
#[derive(Debug)]
pub struct Pace {
    schedule: Option<Schedule>,
    batches: u64,
    measured: u64,
}

impl Pace {
    /// Returns the pace of thread `number` of `threads`, which share the rate and the data.
    pub fn new(job: &PoolJob, number: u32, threads: u32) -> Pace {
        let threads = u64::from(threads);
        let schedule = job.rate.map(|rate| Schedule {
            rate,
            batch_bytes: job.batch_bytes(),
            producers: threads,
            producer: u64::from(number),
        });
        Pace { schedule, batches: 0, measured: 0 }
    }

    /// Returns how many batches were done.
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Counts a batch.
    pub fn count(&mut self, measured: bool) {
        self.batches += 1;
        self.measured += u64::from(measured);
    }

    /// Waits until the next batch is due, and returns when that was; `None` after the last. Batches are never skipped.
    pub fn wait_for_next(&self, shared: &Shared) -> Option<Instant> {
        let timeline = shared.timeline;
        // Unless the run is stopped, each thread measures a batch, however late it starts or the disk responds:
        // otherwise the longest stalls would have no figures.
        let has_some = self.measured > 0;
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
            if shared.stopped() || given_up {
                return None;
            }
            match due.saturating_duration_since(now) {
                Duration::ZERO => return Some(due),
                left => std::thread::sleep(left.min(TICK)),
            }
        }
    }

    /// Returns the batches that were due but not begun when the thread gave up; `None` without a rate, or if it was
    /// stopped.
    pub fn backlog(&self, shared: &Shared) -> Option<u64> {
        let timeline = shared.timeline;
        // The rest of a stopped run is no backlog.
        let schedule = self.schedule.filter(|_| !shared.stopped())?;
        Some(schedule.due_before(timeline.end - timeline.begin).saturating_sub(self.batches))
    }
}
