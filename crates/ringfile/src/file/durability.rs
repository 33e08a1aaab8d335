//! How durable writes of a file become durable: `RWF_DSYNC`, or a write and an fdatasync after it.
//!
//! Which is cheaper depends on the device: forced unit access is faster than flushing the whole cache on data-centre
//! drives, and slower on consumer drives. `Auto` measures the file's first writes, many of one kind and many of the
//! other in turns, and how many of each end in the same time: where many are in flight, one flush serves many of them.
//! [`DurabilityChoice`] decides for futures, batches and queues; it does not know which of them asks.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use linux_raw_sys::general::RWF_DSYNC;
use linux_raw_sys::io_uring::IORING_FSYNC_DATASYNC;

use crate::driver::{Kind, Request};
use once_cell::race::OnceBox;

/// Selects how durable writes ([`File::write_durable_at`](crate::File::write_durable_at), awaited or added to a batch
/// or a queue) make their data durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Durability {
    /// The one with which more writes end in the same time. The file's first 128 durable writes try both. With `O_APPEND`,
    /// `Fsync`.
    #[default]
    Auto,
    /// Each write is durable by itself (`RWF_DSYNC`). With `O_APPEND`, a write that a full disk refuses counts as a failed
    /// sync: the same write without the flag would show the difference, but might append a second time.
    Dsync,
    /// Each write is followed by an `fdatasync`. Awaited on a ringfile thread, the two are submitted
    /// together; a batch or a queue submits the `fdatasync` when the write has finished.
    Fsync,
}

/// Writes of each kind that `Auto` measures.
const TRIALS: u64 = 64;
/// How many of a kind follow each other. Those that are in flight when the kind changes blur the measurement, so they
/// should be few of all.
const BLOCK: u64 = 32;

/// The `fdatasync` after a write.
pub(crate) const SYNC: Request = Request { op_flags: IORING_FSYNC_DATASYNC, ..Request::of(Kind::Sync) };

/// The choice for one file, and its measurements of each kind.
pub(crate) struct DurabilityChoice {
    fixed: Durability,
    started: AtomicU64,
    dsync: Measured,
    fsync: Measured,
}

/// Writes of one kind that have become durable, and the time in which at least one of them was in flight. In units of
/// 256 ns.
#[derive(Default)]
struct Measured {
    writes: AtomicU64,
    time: AtomicU64,
    /// When the last one ended.
    last: AtomicU32,
}

impl Measured {
    /// Adds a write. What it took while others of its kind had not ended yet is counted once.
    fn add(&self, began: u32, now: u32) {
        let since_last = now.wrapping_sub(self.last.swap(now, Ordering::Relaxed));
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.time.fetch_add(now.wrapping_sub(began).min(since_last).into(), Ordering::Relaxed);
    }

    /// Returns the time for a thousand writes. Writes that never succeeded, such as those with an `fdatasync` of a
    /// pipe, are the dearest.
    fn dearness(&self) -> u64 {
        let time = self.time.load(Ordering::Relaxed).saturating_mul(1000);
        time.checked_div(self.writes.load(Ordering::Relaxed)).unwrap_or(u64::MAX)
    }
}

impl DurabilityChoice {
    pub(super) fn new(fixed: Durability) -> Self {
        let (dsync, fsync) = (Measured::default(), Measured::default());
        Self { fixed, started: AtomicU64::new(0), dsync, fsync }
    }

    /// Makes a write durable: with `RWF_DSYNC`, or `synced`, which the caller then carries out with [`SYNC`]. Returns
    /// what is left to do for it.
    pub(crate) fn decide(&self, request: &mut Request) -> AfterWrite {
        let started = self.started.load(Ordering::Relaxed);
        let is_measured = self.fixed == Durability::Auto && started < 2 * TRIALS;
        request.synced = match self.fixed {
            Durability::Dsync => false,
            Durability::Fsync => true,
            Durability::Auto if is_measured => {
                self.started.fetch_add(1, Ordering::Relaxed);
                !(started / BLOCK).is_multiple_of(2)
            }
            Durability::Auto => self.fsync.dearness() < self.dsync.dearness(),
        };
        if !request.synced {
            request.op_flags |= RWF_DSYNC;
        }
        match (is_measured, request.synced) {
            (true, _) => AfterWrite::MEASURED,
            (false, true) => AfterWrite::SYNCED,
            (false, false) => AfterWrite::NOTHING,
        }
    }

    /// Notes that a write has become durable, if it is measured.
    pub(crate) fn note(&self, request: &Request, rest: AfterWrite) {
        if rest.0 > AfterWrite::MEASURED.0 {
            let measured = if request.synced { &self.fsync } else { &self.dsync };
            measured.add(rest.0, AfterWrite::now());
        }
    }
}

/// What is left to do for a durable write besides the write: to sync, or to measure it. Otherwise the time when it
/// began, in units of 256 ns.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct AfterWrite(u32);

/// 32 bits of the units hold 18 minutes.
const SHIFT: u32 = 8;

impl AfterWrite {
    pub(crate) const NOTHING: Self = Self(0);
    const SYNCED: Self = Self(1);
    const MEASURED: Self = Self(2);

    /// Notes that the write begins.
    pub(crate) fn begin(&mut self) {
        if *self == Self::MEASURED {
            self.0 = Self::now().max(Self::MEASURED.0 + 1);
        }
    }

    fn now() -> u32 {
        static BEGAN: OnceBox<Instant> = OnceBox::new();
        (BEGAN.get_or_init(|| Box::new(Instant::now())).elapsed().as_nanos() >> SHIFT) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_that_serves_many_writes_is_cheaper_than_one_for_each() {
        let choice = DurabilityChoice::new(Durability::Auto);
        // Sixteen at once: each of the first kind flushes by itself, in turn; one flush serves all of the second kind,
        // which are as long under way as most of the first.
        (1..=16).for_each(|at| choice.dsync.add(1000, 1000 + at * 10));
        (1..=16).for_each(|_| choice.fsync.add(2000, 2120));
        let mut request = Request::of(Kind::Write);
        choice.started.store(2 * TRIALS, Ordering::Relaxed);
        choice.decide(&mut request);
        assert!(request.synced);
        assert_eq!((choice.dsync.dearness(), choice.fsync.dearness()), (10_000, 7500));
        // One at a time, with pauses between them, which cost nothing.
        let alone = Measured::default();
        (1..=16).for_each(|at| alone.add(at * 1000, at * 1000 + 10));
        assert_eq!(alone.dearness(), 10_000);
    }

    #[test]
    fn a_kind_of_write_that_never_succeeded_is_not_chosen() {
        for fails in [true, false] {
            let choice = DurabilityChoice::new(Durability::Auto);
            let write = |is_measured| {
                let mut request = Request::of(Kind::Write);
                let mut rest = choice.decide(&mut request);
                rest.begin();
                assert_eq!(rest.0 > AfterWrite::MEASURED.0, is_measured);
                if request.synced != fails {
                    std::thread::sleep(std::time::Duration::from_micros(1));
                    choice.note(&request, rest);
                }
                request.synced
            };
            let synced = (0..2 * TRIALS).filter(|_| write(true)).count() as u64;
            assert_eq!(synced, TRIALS);
            assert_eq!(write(false), !fails, "with an fdatasync");
        }
    }
}
