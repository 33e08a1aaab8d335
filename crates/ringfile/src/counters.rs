//! Counters of operations, per thread and for the process.
//!
//! A driver counts in plain integers and publishes them once per turn of its loop, so that counting has no visible
//! cost. Process-wide counters are the sum over running and ended threads.

use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of counts that a driver publishes with each turn.
const FIELDS: usize = 17;

/// The number of counts of adaptive files.
const CACHE_EVENTS: usize = 6;

/// The first index of these counts, which follow one counter for each bucket of the two histograms.
const CACHE: usize = FIELDS + 2 * ENTER_BUCKETS;

const ALL: usize = CACHE + CACHE_EVENTS;

/// The counters of an adaptive file, in the order in which [`Metrics`] has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CacheEvent {
    Hit,
    Miss,
    Partial,
    Admitted,
    AheadUsed,
    AheadUnused,
}

/// Number of buckets of [`Metrics::submitted_per_enter`] and [`Metrics::completed_per_enter`].
///
/// Bucket 0 counts calls with none, bucket `n` those with 2<sup>n-1</sup> to 2<sup>n</sup> - 1, and the last one all
/// calls with more.
pub const ENTER_BUCKETS: usize = 12;

/// Counters of operations since the process, or the thread, began. Subtract two of them to measure an interval.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("ringfile-doc-metrics-{}", std::process::id()));
/// # std::fs::write(&path, vec![7; 8192])?;
/// let pool = ringfile::Pool::new(1 << 20);
/// let file = ringfile::File::open_blocking(&path)?;
/// let counts = ringfile::block_on(async {
///     let before = ringfile::thread_metrics();
///     file.read_at(pool.get(8192)?, 0).await?;
///     std::io::Result::Ok(ringfile::thread_metrics() - before)
/// })?;
/// # if std::env::var_os("RINGFILE_DISABLE").is_none() {
/// assert_eq!((counts.ops, counts.bytes_read), (1, 8192));
/// # }
/// # std::fs::remove_file(&path)
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Operations that finished, successfully or not.
    pub ops: u64,
    /// Operations all of whose submissions used a registered buffer.
    pub fixed_ops: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Calls of `io_uring_enter`.
    pub enters: u64,
    /// Submissions beyond the first of an operation: after a short count, `EINTR` or `EAGAIN`.
    pub resubmitted: u64,
    /// Operations whose future was dropped before they finished.
    pub cancelled: u64,
    /// Operations that ended with an errno.
    pub failed: u64,
    /// Completions that belonged to no operation. Any value but 0 is a defect: please report it.
    pub stray: u64,
    /// Times that registering memory was refused (RLIMIT_MEMLOCK, an old kernel); I/O on that memory is unregistered.
    pub refused_registrations: u64,
    /// Operations that were plain calls on the calling thread ([`Route::Inline`](crate::Route::Inline)).
    pub inline_ops: u64,
    /// Operations that a worker carried out; they count on the worker's thread ([`Route::Workers`](crate::Route::Workers)).
    pub worker_ops: u64,
    /// Operations that Linux AIO carried out ([`Route::Aio`](crate::Route::Aio)). All operations that are not counted
    /// as inline, worker or AIO operations went through a ring.
    pub aio_ops: u64,
    /// Calls of `io_submit` and `io_getevents`.
    pub aio_calls: u64,
    /// Times that AIO was refused (`fs.aio-max-nr` used up, a seccomp filter); workers carry out direct I/O then.
    pub refused_contexts: u64,
    /// Operations that went to an NVMe drive as its own commands (see
    /// [`OpenOptions::allow_raw_nvme_writes`](crate::OpenOptions::allow_raw_nvme_writes)).
    pub passthrough_ops: u64,
    /// Operations that an I/O thread took over from a thread without a ring
    /// ([`set_io_threads`](crate::runtime::set_io_threads)); they count on the I/O thread.
    pub io_thread_ops: u64,
    /// Calls of `io_uring_enter`, by the number of entries that each submitted (see [`ENTER_BUCKETS`]), except calls
    /// for a ring that polls the device.
    pub submitted_per_enter: [u64; ENTER_BUCKETS],
    /// The same calls, by the number of completions that the thread collected between the previous call and this one.
    /// So the completions of one call are counted with the next.
    pub completed_per_enter: [u64; ENTER_BUCKETS],
    /// Reads of [adaptive](crate::OpenOptions::adaptive) files whose data was in the page cache. Estimated by sampling.
    /// Reads of a scan that passes through a full cache are counted neither here nor as misses.
    pub cache_hits: u64,
    /// Reads of adaptive files whose data, or a part of it, was not in the page cache.
    pub cache_misses: u64,
    /// Misses whose beginning was read from the cache, and only the rest directly from the drive.
    pub cache_partial: u64,
    /// Misses that were read through the cache, because memory was free, or the data had been read before.
    pub cache_admitted: u64,
    /// Bytes that adaptive files read ahead, and that were used.
    pub ahead_used: u64,
    /// Bytes that adaptive files read ahead in vain: they were not read, or the file may have changed meanwhile.
    pub ahead_unused: u64,
}

impl Metrics {
    /// Returns all counts, in the order of [`Counters`].
    fn places(&mut self) -> impl Iterator<Item = &mut u64> {
        let (published, histograms, cache) = self.parts();
        published.into_iter().chain(histograms).chain(cache)
    }

    /// Returns the counts that a driver publishes with each turn, the histograms, and the counts of adaptive files.
    #[inline]
    fn parts(&mut self) -> ([&mut u64; FIELDS], impl Iterator<Item = &mut u64>, [&mut u64; CACHE_EVENTS]) {
        let published = [
            &mut self.ops,
            &mut self.fixed_ops,
            &mut self.bytes_read,
            &mut self.bytes_written,
            &mut self.enters,
            &mut self.resubmitted,
            &mut self.cancelled,
            &mut self.failed,
            &mut self.stray,
            &mut self.refused_registrations,
            &mut self.inline_ops,
            &mut self.worker_ops,
            &mut self.aio_ops,
            &mut self.aio_calls,
            &mut self.refused_contexts,
            &mut self.passthrough_ops,
            &mut self.io_thread_ops,
        ];
        // In the order of `CacheEvent`.
        let cache: [_; CACHE_EVENTS] = [
            &mut self.cache_hits,
            &mut self.cache_misses,
            &mut self.cache_partial,
            &mut self.cache_admitted,
            &mut self.ahead_used,
            &mut self.ahead_unused,
        ];
        let histograms = self.submitted_per_enter.iter_mut().chain(&mut self.completed_per_enter);
        (published, histograms, cache)
    }
}

/// Returns the bucket that counts calls with `number` entries or completions.
fn bucket(number: u32) -> usize {
    ((u32::BITS - number.leading_zeros()) as usize).min(ENTER_BUCKETS - 1)
}

impl Sub for Metrics {
    type Output = Self;

    fn sub(mut self, mut earlier: Self) -> Self {
        self.places().zip(earlier.places()).for_each(|(now, then)| *now = now.wrapping_sub(*then));
        self
    }
}

/// A thread's counts, which only that thread writes.
pub(crate) struct Counters([AtomicU64; ALL]);

impl Counters {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; ALL])
    }

    /// Publishes the counts that a driver has in plain integers. Outside a loop this is done for each operation.
    #[inline]
    pub(crate) fn publish(&self, mut counts: Metrics) {
        // Arrays of a known length, so that the compiler turns this into plain copies.
        let values = counts.parts().0.map(|count| *count);
        for (place, value) in values.into_iter().enumerate() {
            self.0[place].store(value, Ordering::Relaxed);
        }
    }

    /// Counts one `io_uring_enter` in the histograms. They are written in place: publishing two dozen more counts with each
    /// turn would cost more than this does with each call.
    pub(crate) fn entered(&self, submitted: u32, completed: u32) {
        for place in [FIELDS + bucket(submitted), FIELDS + ENTER_BUCKETS + bucket(completed)] {
            let count = self.0[place].load(Ordering::Relaxed);
            self.0[place].store(count.wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Counts reads of adaptive files; written in place, like the histograms.
    pub(crate) fn count_cache(&self, event: CacheEvent, more: u64) {
        let place = &self.0[CACHE + event as usize];
        place.store(place.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// Adds the counters that are written in place to the counts of the same thread.
    pub(crate) fn with_counts_in_place(&self, mut counts: Metrics) -> Metrics {
        let mut all = self.load();
        all.places().zip(counts.places()).take(FIELDS).for_each(|(place, own)| *place = *own);
        all
    }

    pub(crate) fn load(&self) -> Metrics {
        let mut counts = Metrics::default();
        counts.places().zip(&self.0).for_each(|(place, count)| *place = count.load(Ordering::Relaxed));
        counts
    }

    pub(crate) fn add(&self, more: &Self) {
        for (sum, part) in self.0.iter().zip(&more.0) {
            sum.fetch_add(part.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

static OF_ENDED_THREADS: Counters = Counters::new();

/// Adds those of ended threads.
pub(crate) fn add_ended(sum: &Counters) {
    sum.add(&OF_ENDED_THREADS);
}

/// Adds the counters of an ended thread to the process's.
pub(crate) fn retire(counters: &Counters) {
    OF_ENDED_THREADS.add(counters);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers_of_two() {
        let numbers = [0, 1, 2, 3, 4, 7, 8, 511, 512, 1023, 1024, u32::MAX];
        assert_eq!(numbers.map(bucket), [0, 1, 2, 2, 3, 3, 4, 9, 10, 10, 11, 11]);
    }

    #[test]
    fn a_difference_covers_the_histograms() {
        let counters = Counters::new();
        counters.entered(3, 0);
        let before = counters.load();
        counters.entered(3, 128);
        counters.publish(Metrics { enters: 2, ..Metrics::default() });
        let difference = counters.load() - before;
        assert_eq!((difference.enters, difference.submitted_per_enter[2]), (2, 1));
        assert_eq!((difference.completed_per_enter[0], difference.completed_per_enter[8]), (0, 1));
    }
}
