//! What one thread of a run writes down: latencies, how late it was, and what its operations cost.

use std::time::Instant;

use crate::latency::Recorder;
use crate::sys::{self, Usage};

/// What one thread saw; only what is within the measured time.
#[derive(Debug)]
pub struct Ledger {
    /// From when a batch was due until it was done, counted once for each of its operations.
    pub latency: Recorder,
    /// From when it was due until it was begun, likewise.
    pub late: Recorder,
    /// When the last one was done.
    pub last: Instant,
    /// What the library counted on this thread for them.
    pub counts: Counts,
    /// What the thread used since its first batch; without kernel workers.
    pub usage: Option<Usage>,
    used_before: Option<Usage>,
}

/// What the library counted on one thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Operations, but for those that a worker did.
    pub ops: u64,
    /// Calls of `io_uring_enter`, and of what AIO takes in its place.
    pub enters: u64,
    /// Operations on registered memory.
    pub fixed_ops: u64,
    /// Plain calls on the thread.
    pub inline_ops: u64,
    /// By Linux AIO.
    pub aio_ops: u64,
}

impl Ledger {
    /// Empty.
    pub fn new(now: Instant) -> Ledger {
        Ledger {
            latency: Recorder::new(),
            late: Recorder::new(),
            last: now,
            counts: Counts::default(),
            usage: None,
            used_before: None,
        }
    }

    /// A batch that counts is begun; gives what the library has counted before it.
    pub fn begin(&mut self) -> ringfile::Metrics {
        if self.used_before.is_none() {
            self.used_before = sys::thread_usage().ok();
        }
        ringfile::thread_metrics()
    }

    /// The I/O of a batch that was begun is over.
    pub fn count(&mut self, before: ringfile::Metrics) {
        let counted = ringfile::thread_metrics() - before;
        self.counts.add(Counts {
            ops: counted.ops,
            enters: counted.enters + counted.aio_calls,
            fixed_ops: counted.fixed_ops,
            inline_ops: counted.inline_ops,
            aio_ops: counted.aio_ops,
        });
    }

    /// A batch of so many operations that was due, begun and done at these times.
    pub fn record(&mut self, due: Instant, began: Instant, done: Instant, operations: u64) {
        self.latency.record_many(done.saturating_duration_since(due), operations);
        self.late.record_many(began.saturating_duration_since(due), operations);
        self.last = self.last.max(done);
    }

    /// The thread has no more to do.
    pub fn close(&mut self) {
        let since = |before: Usage| sys::thread_usage().ok().map(|now| now.since(&before));
        self.usage = self.used_before.and_then(since);
    }

    /// Adds what another thread of the same side saw.
    pub fn merge(&mut self, other: &Ledger) {
        self.latency.merge(&other.latency);
        self.late.merge(&other.late);
        self.last = self.last.max(other.last);
        self.counts.add(other.counts);
        self.usage = match (self.usage, other.usage) {
            (Some(own), Some(other)) => Some(own.and(&other)),
            (own, other) => own.or(other),
        };
    }
}

impl Counts {
    fn add(&mut self, more: Counts) {
        self.ops += more.ops;
        self.enters += more.enters;
        self.fixed_ops += more.fixed_ops;
        self.inline_ops += more.inline_ops;
        self.aio_ops += more.aio_ops;
    }
}
