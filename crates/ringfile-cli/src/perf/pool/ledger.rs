//! The record of one thread of a run: latencies, delays, and the cost of its operations.

use std::time::Instant;

use crate::engine::Counted;
use crate::latency::Recorder;
use crate::sys::{self, Usage};

/// The record of one thread within the measured time.
#[derive(Debug)]
pub struct Ledger {
    /// Times from when a batch was due until it was done, counted once for each of its operations.
    pub latency: Recorder,
    /// Times from when it was due until it began, likewise.
    pub late: Recorder,
    /// When the last one was done.
    pub last: Instant,
    /// What the library counted on this thread for them.
    pub counted: Counted,
    /// What the thread used since its first batch; without kernel workers.
    pub usage: Option<Usage>,
    used_before: Option<Usage>,
}

impl Ledger {
    /// Returns an empty record.
    pub fn new(now: Instant) -> Ledger {
        Ledger {
            latency: Recorder::new(),
            late: Recorder::new(),
            last: now,
            counted: Counted::default(),
            usage: None,
            used_before: None,
        }
    }

    /// Begins a measured batch; returns the library's counts before it.
    pub fn begin(&mut self) -> ringfile::metrics::Metrics {
        if self.used_before.is_none() {
            self.used_before = sys::thread_usage().ok();
        }
        ringfile::thread_metrics()
    }

    /// Ends the I/O of a measured batch.
    pub fn count(&mut self, before: ringfile::metrics::Metrics) {
        self.counted += Counted::of(&(ringfile::thread_metrics() - before));
    }

    /// Records a batch of this many operations that was due, begun and done at these times.
    pub fn record(&mut self, due: Instant, began: Instant, done: Instant, operations: u64) {
        self.latency.record_many(done.saturating_duration_since(due), operations);
        self.late.record_many(began.saturating_duration_since(due), operations);
        self.last = self.last.max(done);
    }

    /// Ends the record of the thread.
    pub fn close(&mut self) {
        let since = |before: Usage| sys::thread_usage().ok().map(|now| now.since(&before));
        self.usage = self.used_before.and_then(since);
    }

    /// Returns the record of several threads together.
    pub fn of_all<'a>(ledgers: impl IntoIterator<Item = &'a Ledger>, now: Instant) -> Ledger {
        let mut all = Ledger::new(now);
        for ledger in ledgers {
            all.latency.merge(&ledger.latency);
            all.late.merge(&ledger.late);
            all.last = all.last.max(ledger.last);
            all.counted += ledger.counted;
            all.usage = [all.usage, ledger.usage].into_iter().flatten().reduce(|sum, usage| sum.and(&usage));
        }
        all
    }
}
