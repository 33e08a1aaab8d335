//! Counters of one file.
//!
//! Hits are counted by each thread in a cache line of its own, with a plain load and store: an atomic addition would
//! cost a third of a hit.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::threads::{NUMBERS, SHARED};

#[repr(align(128))]
struct Line(AtomicU64);

/// See the top of this file.
pub(crate) struct Counts {
    hits: Box<[Line; NUMBERS]>,
    misses: AtomicU64,
    shared: AtomicU64,
    evictions: AtomicU64,
}

impl Counts {
    pub(crate) fn new() -> Self {
        Self {
            hits: Box::new([const { Line(AtomicU64::new(0)) }; NUMBERS]),
            misses: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    /// Counts a hit of the thread that has this number.
    #[inline(always)]
    pub(crate) fn hit(&self, number: usize) {
        let Line(hits) = &self.hits[number];
        if number == SHARED {
            hits.fetch_add(1, Ordering::Relaxed);
        } else {
            hits.store(hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    pub(crate) fn missed(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn shared(&self) {
        self.shared.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn evicted(&self) {
        self.evictions.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the counts to `metrics`.
    pub(crate) fn add_to(&self, metrics: &mut Metrics) {
        metrics.hits += self.hits.iter().map(|line| line.0.load(Ordering::Relaxed)).sum::<u64>();
        metrics.misses += self.misses.load(Ordering::Relaxed);
        metrics.shared_misses += self.shared.load(Ordering::Relaxed);
        metrics.evictions += self.evictions.load(Ordering::Relaxed);
    }
}

/// What a cache, or one file of it, has done and holds: the result of [`Cache::metrics`](crate::Cache::metrics) and
/// [`CachedFile::metrics`](crate::CachedFile::metrics).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Pages that were found.
    pub hits: u64,
    /// Pages that were read from the file, prefetched ones too.
    pub misses: u64,
    /// Calls that waited for the read of another one.
    pub shared_misses: u64,
    /// Pages whose memory was taken for others, or given back.
    pub evictions: u64,
    /// Pages that are pinned now.
    pub pinned: usize,
    /// Bytes of memory that hold pages now, without those that are being read.
    pub bytes: usize,
}
