//! Histograms of latencies: which bucket counts a duration, and what can be read from the counts.
//!
//! Invariant: counting changes three atomics and allocates nothing. The buckets are those of an HDR histogram: 16 for each
//! power of two, each 6 % wide.

use std::fmt;
use std::ops::Sub;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The number of buckets for each power of two, as a power of two.
const SHIFT: u32 = 4;
/// The number of buckets for each power of two.
const IN_OCTAVE: usize = 1 << SHIFT;
/// The last bucket counts durations from 2<sup>40</sup> ns on, which is 18 minutes.
const OCTAVES: u32 = 40;
const BUCKETS: usize = IN_OCTAVE * (OCTAVES - SHIFT + 1) as usize + 1;

/// Returns the bucket of a duration.
#[inline]
fn bucket(nanos: u64) -> usize {
    if nanos < IN_OCTAVE as u64 {
        return nanos as usize;
    }
    let octave = nanos.ilog2() - SHIFT;
    let within = (nanos >> octave) as usize - IN_OCTAVE;
    (IN_OCTAVE * (octave as usize + 1) + within).min(BUCKETS - 1)
}

/// Returns the shortest duration that is too long for a bucket, in nanoseconds.
fn end(bucket: usize) -> u64 {
    let octave = (bucket / IN_OCTAVE).saturating_sub(1);
    let first = if bucket < IN_OCTAVE { bucket } else { bucket % IN_OCTAVE + IN_OCTAVE };
    if bucket == BUCKETS - 1 { u64::MAX } else { (first as u64 + 1) << octave }
}

/// The kinds of operations whose latencies are counted apart.
///
/// ```
/// use ringfile::metrics::OperationKind;
/// assert_eq!(OperationKind::ALL.map(OperationKind::name), ["read", "write", "sync", "other"]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum OperationKind {
    /// Reads, also vectored ones.
    Read,
    /// Writes, also vectored, atomic and durable ones. If a durable write is followed by a sync, that counts by itself.
    Write,
    /// Syncs of all kinds.
    Sync,
    /// Allocating, truncating and advising.
    Other,
}

impl OperationKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Sync, Self::Other];

    /// Returns the name in lower case, as metrics and events have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Other => "other",
        }
    }
}

/// The latencies of one kind, which all threads count together.
pub(crate) struct Counts {
    /// Whether the last operation that was timed took so little time that only a sample is timed.
    are_short: AtomicBool,
    nanos: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Counts {
    const fn new() -> Self {
        Self {
            are_short: AtomicBool::new(false),
            nanos: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }

    #[inline]
    pub(crate) fn are_short(&self) -> bool {
        self.are_short.load(Ordering::Relaxed)
    }

    /// Counts an operation that stands for `weight` of them.
    #[inline]
    pub(crate) fn record(&self, took: Duration, weight: u32, is_short: bool) {
        let (nanos, weight) = (u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), u64::from(weight));
        self.buckets[bucket(nanos)].fetch_add(weight, Ordering::Relaxed);
        self.nanos.fetch_add(nanos.wrapping_mul(weight), Ordering::Relaxed);
        // Checked first: a store would take the cache line from other threads.
        if self.are_short() != is_short {
            self.are_short.store(is_short, Ordering::Relaxed);
        }
    }
}

/// Histograms of how long operations take, by [kind](OperationKind), of the files that are opened
/// [with it](crate::OpenOptions::latencies): one file, or several, such as all segments of a log.
///
/// Cheap to clone; clones share the counts. Takes 19 KiB and never grows. Counting takes no lock and does not allocate.
///
/// The latency of an operation begins when it is put into the queue of a ring, or when its plain call is made, and ends when
/// its thread collects the completion, or the call returns. Waiting for a free worker does not count. An operation that is
/// carried out in steps (unaligned reads, durable writes with a sync) counts once for each, as in
/// [`Metrics::ops`](crate::metrics::Metrics::ops). Operations on paths, copies of ranges, cancelled operations, and pipes, sockets and
/// terminals do not count.
///
/// While operations of a kind take a few microseconds or less, a random sample is timed and weighted, because timing each
/// would cost too much. Longer ones are all timed. So the number of operations in a histogram is an estimate, but each
/// part of the distribution has its share.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// # std::fs::write(&path, vec![7; 8192])?;
/// use ringfile::metrics::{Latencies, OperationKind};
/// use ringfile::OpenOptions;
/// let latencies = Latencies::new();
/// let file = OpenOptions::new().read(true).latencies(&latencies).open_blocking(&path)?;
/// ringfile::block_on(file.read_at(Vec::with_capacity(4096), 0))?;
/// let reads = latencies.histogram(OperationKind::Read);
/// println!("{} reads, p99 {:?}", reads.count(), reads.quantile(0.99));
/// # assert_eq!(reads.count(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Latencies(Arc<[Counts; OperationKind::ALL.len()]>);

impl Latencies {
    /// Creates empty histograms.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new([const { Counts::new() }; OperationKind::ALL.len()]))
    }

    #[inline]
    pub(crate) fn of(&self, kind: OperationKind) -> &Counts {
        &self.0[kind as usize]
    }

    /// Returns the counts of one kind as they are now. Copies 5 KiB; takes no lock.
    #[must_use]
    pub fn histogram(&self, kind: OperationKind) -> Histogram {
        let counts = self.of(kind);
        let buckets = counts.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        Histogram { nanos: counts.nanos.load(Ordering::Relaxed), buckets }
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let histograms = OperationKind::ALL.map(|kind| (kind.name(), self.histogram(kind)));
        f.debug_map().entries(histograms).finish()
    }
}

/// The latencies of one kind of operation, since their [`Latencies`] were created. Subtract two of them to measure an
/// interval.
///
/// A bucket is 6 % wide; durations below 16 ns are exact, and those from 18 minutes on have one bucket.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    nanos: u64,
    buckets: Box<[u64]>,
}

impl Histogram {
    /// Returns the number of operations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of all latencies.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// Returns the latency that this share of the operations, from 0 to 1, did not exceed; 0 if there are none. It is the upper
    /// end of its bucket, so at most 6 % too long.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = (share.clamp(0.0, 1.0) * self.count() as f64).ceil() as u64;
        let mut below = 0;
        let reaches = |&(_, count): &(Duration, u64)| {
            below += count;
            below >= wanted
        };
        self.buckets().find(reaches).map_or(Duration::ZERO, |(end, _)| end)
    }

    /// Returns how many operations took less than `limit`, as far as the buckets tell: those of a bucket that reaches
    /// beyond the limit are left out. Exact for powers of two of nanoseconds up to 2<sup>40</sup>.
    #[must_use]
    pub fn count_below(&self, limit: Duration) -> u64 {
        self.buckets().take_while(|&(end, _)| end <= limit).map(|(_, count)| count).sum()
    }

    /// Returns the buckets that have counted something: each with the latency that is just too long for it, and its count,
    /// the shortest first.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// use ringfile::metrics::{Latencies, OperationKind};
    /// use ringfile::OpenOptions;
    /// let latencies = Latencies::new();
    /// let file = OpenOptions::new().write(true).create(true).latencies(&latencies).open_blocking(&path)?;
    /// ringfile::block_on(file.sync_all())?;
    /// for (end, count) in latencies.histogram(OperationKind::Sync).buckets() {
    ///     println!("{count} syncs took less than {end:?}");
    /// #   assert_eq!(count, 1);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let all = self.buckets.iter().enumerate();
        all.filter(|&(_, &count)| count > 0)
            .map(|(bucket, &count)| (Duration::from_nanos(end(bucket)), count))
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.buckets()).finish()
    }
}

impl Sub for Histogram {
    type Output = Self;

    fn sub(mut self, earlier: Self) -> Self {
        self.nanos = self.nanos.wrapping_sub(earlier.nanos);
        // So that no sum of them overflows, whichever is the earlier.
        let both = self.buckets.iter_mut().zip(&earlier.buckets);
        both.for_each(|(now, then)| *now = now.saturating_sub(*then));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_lies_in_its_bucket_which_is_six_per_cent_wide() {
        let mut nanos = 0;
        while nanos < 1 << OCTAVES {
            let at = bucket(nanos);
            let from = if at == 0 { 0 } else { end(at - 1) };
            assert!((from..end(at)).contains(&nanos), "{nanos} in bucket {at}");
            assert!(end(at) - from <= (from / IN_OCTAVE as u64).max(1), "{nanos} in bucket {at}");
            nanos += nanos / 50 + 1;
        }
        assert_eq!(bucket((1 << OCTAVES) - 1), BUCKETS - 2);
        assert_eq!([1 << OCTAVES, u64::MAX].map(bucket), [BUCKETS - 1; 2]);
    }

    #[test]
    fn quantiles_and_counts_agree_with_what_was_recorded() {
        let latencies = Latencies::new();
        for micros in 1..=1000 {
            latencies.of(OperationKind::Write).record(Duration::from_micros(micros), 1, false);
        }
        let before = latencies.histogram(OperationKind::Write);
        assert_eq!((before.count(), before.sum()), (1000, Duration::from_micros(500_500)));
        for (share, exact) in [(0.001, 1000), (0.5, 500_000), (0.99, 990_000), (1.0, 1_000_000)] {
            let found = before.quantile(share).as_nanos() as u64;
            assert!((exact..=exact + exact / 16 + 1).contains(&found), "{share}: {found}");
        }
        assert_eq!(
            before.count_below(Duration::from_nanos(1 << 17)),
            131,
            "1 to 131 µs are below 131.072 µs"
        );
        latencies.of(OperationKind::Write).record(Duration::from_secs(3600), 16, false);
        let after = latencies.histogram(OperationKind::Write);
        assert_eq!((before.clone() - after.clone()).count(), 0, "the wrong way round");
        let more = after - before;
        assert_eq!((more.count(), more.sum()), (16, Duration::from_secs(16 * 3600)));
        assert_eq!(more.count_below(Duration::from_secs(4000)), 0, "the last bucket has no end");
        assert_eq!(latencies.histogram(OperationKind::Read).count(), 0);
        assert_eq!(latencies.histogram(OperationKind::Read).quantile(0.5), Duration::ZERO);
    }
}
