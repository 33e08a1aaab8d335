//! The counters of a thread.

use std::task::Waker;

use super::forks::new_driver;
use super::state::{DRIVER, is_ending, with};
use crate::counters::{self, CacheEvent, Counters, Metrics};
use crate::driver::mail::shared;
use crate::driver::op::{Kind, OpResult, Request};
use crate::driver::refused::{set_up_errno, set_up_failed};
use crate::error::Error;
use crate::ring::{Ring, RingOptions};

/// Counts an operation that has ended.
#[inline(always)]
pub(super) fn count_end(counts: &mut Metrics, kind: Kind, ended: OpResult) {
    counts.ops += 1;
    counts.failed += u64::from(ended.errno != 0);
    if kind.is_read() {
        counts.bytes_read += ended.done as u64;
    } else if kind.is_write() {
        counts.bytes_written += ended.done as u64;
    }
}

/// Counts an operation that this thread carried out with a plain call, and adds it to the counter of its route.
pub(crate) fn count(of_route: impl FnOnce(&mut Metrics) -> &mut u64, request: &Request, ended: OpResult) {
    add_to_counts(|counts| {
        count_end(counts, request.kind, ended);
        *of_route(counts) += 1;
    });
}

/// Publishes this thread's counters now. A loop publishes them with each turn; other threads may see the result of a
/// plain call before that, and must find it counted.
pub(crate) fn publish_counts() {
    with(|driver| driver.shared.counters.publish(driver.current_counts()));
}

#[inline]
pub(crate) fn add_to_counts(add: impl FnOnce(&mut Metrics)) {
    let late = DRIVER.with(|cell| {
        let mut driver = cell.try_borrow_mut().ok()?;
        let is_late = driver.is_none() && is_ending();
        let own = driver.get_or_insert_with(|| new_driver(RingOptions::default()));
        add(&mut own.counts);
        if !own.in_loop && own.guards == 0 {
            own.shared.counters.publish(own.current_counts());
        }
        if is_late { driver.take() } else { None }
    });
    drop(late);
}

/// Counts hits, misses and read-ahead of adaptive files, on this thread.
pub(crate) fn count_cache(event: CacheEvent, more: u64) {
    // This creates the thread's driver if it has none.
    add_to_counts(|_| {});
    with(|driver| driver.shared.counters.count_cache(event, more));
}

/// Returns the counters of the calling thread, exact at this moment; all 0 if it did no I/O yet.
#[must_use]
pub fn thread_metrics() -> Metrics {
    with(|driver| driver.shared.counters.with_counts_in_place(driver.current_counts())).unwrap_or_default()
}

/// Returns what a ring of this process can do: set-up flags, kinds of registration, number of entries.
///
/// Describes the calling thread's ring, or a temporary one if the thread has none.
///
/// # Errors
/// If no ring can be created; the error says why.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// println!("{}", ringfile::metrics::ring_features()?.join(" "));
/// # Ok(())
/// # }
/// ```
pub fn ring_features() -> Result<Vec<String>, Error> {
    if let Some(Some(features)) = with(|driver| driver.ports.main.as_ref().map(|main| main.ring.features())) {
        return Ok(features);
    }
    let ring = Ring::new(&RingOptions::default(), Waker::noop().clone())
        .map_err(|error| set_up_failed(set_up_errno(&error)))?;
    Ok(ring.features())
}

/// Returns the counters of the whole process. Those of a running thread are as of its last turn of the loop.
///
/// Takes a lock for a moment; does no I/O.
#[must_use]
pub fn metrics() -> Metrics {
    let sum = Counters::new();
    // Both sums are made under one lock: a thread that ended in between would be counted twice.
    shared::for_each_driver(|counters| sum.add(counters), || counters::add_ended(&sum));
    sum.load()
}
