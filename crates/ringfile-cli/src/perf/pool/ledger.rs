//! The record of one thread in a phase of a run: latencies, delays, and the cost of its operations.

use std::time::Instant;

use crate::engine::Counted;
use crate::latency::Recorder;
use crate::sys::{self, Usage};

/// The record of one thread, or of several.
#[derive(Debug)]
pub struct Ledger {
    /// When the phase began.
    pub begin: Instant,
    /// Times from when a batch was due until it was done, counted once for each of its operations.
    pub latency: Recorder,
    /// Times from when it was due until it began, likewise.
    pub late: Recorder,
    /// When the last one was done.
    pub last: Instant,
    /// Operations that were due but not begun when a producer gave up; `None` without a rate, or if it was stopped.
    pub backlog: Option<u64>,
    /// What the library counted.
    pub counted: Counted,
    /// What was used, without kernel workers.
    pub usage: Option<Usage>,
}

impl Ledger {
    /// Returns an empty record of a phase that began at this time.
    pub fn begin(begin: Instant) -> Ledger {
        Ledger {
            begin,
            latency: Recorder::new(),
            late: Recorder::new(),
            last: begin,
            backlog: None,
            counted: Counted::default(),
            usage: None,
        }
    }

    /// Records what this thread does in `work`, and the CPU time of that.
    pub fn of_thread<T>(begin: Instant, work: impl FnOnce(&mut Ledger) -> T) -> (Ledger, T) {
        let (mut ledger, used) = (Ledger::begin(begin), sys::thread_usage().ok());
        let done = work(&mut ledger);
        ledger.usage = used.and_then(|before| Some(sys::thread_usage().ok()?.since(&before)));
        (ledger, done)
    }

    /// Adds what the library counted in this thread since `before`: in a batch, but not while a segment is made for it.
    pub fn count(&mut self, before: ringfile::metrics::Metrics) {
        self.counted += Counted::of(&(ringfile::thread_metrics() - before));
    }

    /// Records a batch of this many operations that was due, begun and done at these times.
    pub fn record(&mut self, due: Instant, began: Instant, done: Instant, operations: u64) {
        self.latency.record_many(done.saturating_duration_since(due), operations);
        self.late.record_many(began.saturating_duration_since(due), operations);
        self.last = self.last.max(done);
    }

    /// Returns the record of several threads together.
    pub fn of_all(ledgers: impl IntoIterator<Item = Ledger>, begin: Instant) -> Ledger {
        let mut all = Ledger::begin(begin);
        for ledger in ledgers {
            all.latency.merge(&ledger.latency);
            all.late.merge(&ledger.late);
            all.last = all.last.max(ledger.last);
            all.backlog = [all.backlog, ledger.backlog].into_iter().flatten().reduce(u64::saturating_add);
            all.counted += ledger.counted;
            all.usage = [all.usage, ledger.usage].into_iter().flatten().reduce(|sum, usage| sum.and(&usage));
        }
        all
    }
}
