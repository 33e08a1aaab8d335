//! Counters of one file.
//!
//! Hits are counted by each thread in a cache line of its own, with a plain load and store: an atomic addition would
//! cost a third of a hit. Invariant: a line has one owner at a time, except the last, which threads without a line
//! share.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

const LINES: usize = 64;
const SHARED: usize = LINES - 1;
const UNKNOWN: usize = usize::MAX;

/// The lines that have an owner, as bits.
static OWNED: AtomicU64 = AtomicU64::new(1 << SHARED);

thread_local! {
    static LINE: Cell<usize> = const { Cell::new(UNKNOWN) };
    /// Gives the line back when the thread ends.
    static OWNER: Owner = const { Owner };
}

struct Owner;

impl Drop for Owner {
    fn drop(&mut self) {
        let line = LINE.replace(SHARED);
        if line < SHARED {
            // Release: the next owner goes on from this one's counts.
            OWNED.fetch_and(!(1 << line), Ordering::Release);
        }
    }
}

#[cold]
fn choose_line() -> usize {
    // In a thread that is ending, the owner may be gone.
    let is_alive = OWNER.try_with(|_| ()).is_ok();
    let free = |owned: u64| (is_alive && owned != u64::MAX).then(|| owned | (owned + 1));
    let line = match OWNED.fetch_update(Ordering::Acquire, Ordering::Relaxed, free) {
        Ok(owned) => owned.trailing_ones() as usize,
        Err(_) => SHARED,
    };
    LINE.set(line);
    line
}

#[repr(align(128))]
struct Line(AtomicU64);

/// See the top of this file.
pub(crate) struct Counts {
    hits: Box<[Line; LINES]>,
    misses: AtomicU64,
    shared: AtomicU64,
    evictions: AtomicU64,
}

impl Counts {
    pub(crate) fn new() -> Self {
        Self {
            hits: Box::new([const { Line(AtomicU64::new(0)) }; LINES]),
            misses: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    #[inline(always)]
    pub(crate) fn hit(&self) {
        let mut line = LINE.get();
        if line >= SHARED {
            if line == UNKNOWN {
                line = choose_line();
            }
            if line == SHARED {
                self.hits[SHARED].0.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        let Line(hits) = &self.hits[line];
        hits.store(hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
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
