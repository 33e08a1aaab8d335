//! Measures how long the operations of a file take: which of them are timed, and what becomes of their time.
//!
//! The time begins when an operation is put into the queue of a ring or an AIO context, or when its plain call is made, and
//! ends when the completion is collected, or the call returns. Invariant: neither allocates, unless it reports a slow
//! operation.

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::copy_time;
use crate::error::OneLine;
use crate::latency::{Latencies, OperationKind};
use ringfile_buffer::internal::event;

/// While operations of a kind take little time, one in this many is timed, and counts for all: reading the clock twice and
/// counting takes 0.1 µs, a fifth of the time of a cached read of 4 KiB.
const SAMPLED: u32 = 16;

/// In units of a copy of 4 KiB ([`copy_time`]): from this time on, all operations are timed, which then takes two
/// per cent of it.
const WORTH_TIMING: u32 = 25;

/// How the latencies of a file's operations are measured.
pub(crate) struct Timing {
    pub(crate) latencies: Option<Latencies>,
    /// An operation that takes longer is reported. All operations are timed then.
    pub(crate) slow_after: Option<Duration>,
}

/// An operation that is timed.
#[derive(Clone, Copy)]
pub(crate) struct Timed {
    began: Instant,
    kind: OperationKind,
    /// The number of operations that it counts for.
    weight: u32,
    /// The operations that were in flight then, this one among them.
    in_flight: u32,
}

/// The threads that have had an operation that might have been timed.
static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The number of this thread's next operation that might be timed; 0 before the first.
    static OPERATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Numbers an operation of this thread.
fn number() -> u64 {
    let number = match OPERATIONS.get() {
        // Each thread starts elsewhere: otherwise the same operation of each would be timed, and of threads that have but
        // one, all or none.
        0 => THREADS.fetch_add(1, Ordering::Relaxed) + 1,
        number => number,
    };
    OPERATIONS.set(number.wrapping_add(1));
    number
}

/// Returns whether the operation with this number is one of those that are sampled: one in `every`, which is a power of
/// two. Needs no counter that threads share.
#[inline]
pub(super) fn is_one_in(every: u64, number: u64) -> bool {
    // Fibonacci hashing: the upper bits of the product depend on all bits of the number.
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - every.ilog2()) == 0
}

impl Timed {
    /// Begins an operation, while its thread has `in_flight` operations, this one among them; `None` if it is not timed.
    pub(crate) fn begin(timing: &Timing, kind: OperationKind, in_flight: u32) -> Option<Self> {
        let are_short = timing.slow_after.is_none()
            && timing.latencies.as_ref().is_some_and(|latencies| latencies.of(kind).are_short());
        if are_short && !is_one_in(SAMPLED.into(), number()) {
            return None;
        }
        Some(Self { began: Instant::now(), kind, weight: if are_short { SAMPLED } else { 1 }, in_flight })
    }

    /// Ends the operation, while its thread has `in_flight` operations, this one among them. Returns how long it took
    /// if that is to be reported.
    pub(super) fn end(self, timing: &Timing, in_flight: usize) -> Option<Duration> {
        let took = self.began.elapsed();
        if let Some(latencies) = &timing.latencies {
            // With many in flight, the thread has ended as many in this time. Of those that are submitted together, the
            // first find few in flight when they begin, and the last when they end.
            let in_flight = u32::try_from(in_flight).unwrap_or(u32::MAX).max(self.in_flight);
            let limit = copy_time::get().saturating_mul(WORTH_TIMING.saturating_mul(in_flight));
            latencies.of(self.kind).record(took, self.weight, took < limit);
        }
        timing.slow_after.filter(|limit| took > *limit).map(|_| took)
    }

    /// Reports a slow operation, once neither a driver is borrowed nor a lock is held.
    #[cold]
    pub(super) fn report(self, took: Duration, file: Option<&Path>, offset: u64, bytes: usize, errno: i32) {
        let file = file.map(ToOwned::to_owned).unwrap_or_default();
        let kind = self.kind.name();
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        event::defer(move || {
            let file = OneLine(file.display());
            tracing::warn!(target: "ringfile::slow", %file, kind, bytes, offset, micros, errno, "slow operation");
        });
    }
}
