//! The reference count of one block, with a mark that all references are owners of frozen `Bytes`.
//!
//! Knows only atomics (through `sync.rs`), so that loom and Miri can run it. Invariants:
//!
//! - adding a reference needs a reference, or something that owns one; so a count of one cannot grow unless its only
//!   owner does it;
//! - the count never wraps: above [`MOST`] the process aborts, as `Arc` does;
//! - the owner of the only reference sets and removes the mark.
//!
//! The proof is `RUSTFLAGS="--cfg loom" cargo test --release -p ringfile-buffer --test loom thaw`.

use super::sync::{AtomicU32, Ordering};

const FROZEN: u32 = 1 << 31;

/// More references abort the process. The limit is so far below the mark that threads cannot reach it before the first
/// of them aborts.
const MOST: u32 = 1 << 30;

/// A count of references with the mark of frozen ones.
pub(crate) struct Count(AtomicU32);

impl Count {
    pub(crate) fn new() -> Self {
        Count(AtomicU32::new(0))
    }

    /// Resets the count to one reference, not frozen. Only while there are no references.
    #[inline]
    pub(crate) fn set_one(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    /// Adds a reference; aborts the process if there are too many. The caller owns one, or keeps one from being dropped.
    #[inline]
    pub(crate) fn add(&self) {
        self.add_many(1);
    }

    /// Adds so many references, few against [`MOST`]; otherwise as [`add`](Self::add).
    #[inline]
    pub(crate) fn add_many(&self, count: u32) {
        if self.0.fetch_add(count, Ordering::Relaxed) & !FROZEN >= MOST {
            std::process::abort();
        }
    }

    /// Drops so many of the caller's references, who has one more.
    #[inline]
    pub(crate) fn drop_many(&self, count: u32) {
        self.0.fetch_sub(count, Ordering::Release);
    }

    /// Drops the caller's reference. Returns true if it was the last; all accesses through others then happened before.
    #[inline]
    pub(crate) fn drop_one(&self) -> bool {
        // The usual case, a buffer that was never split, needs no locked instruction.
        self.is_one() || self.0.fetch_sub(1, Ordering::AcqRel) & !FROZEN == 1
    }

    /// Returns whether the caller's reference is the only one; all accesses through others then happened before.
    #[inline]
    pub(crate) fn is_one(&self) -> bool {
        self.0.load(Ordering::Acquire) & !FROZEN == 1
    }

    /// Marks the only reference, which is the caller's, as frozen.
    #[inline]
    pub(crate) fn freeze(&self) {
        // Release: a thread that sees the mark also sees the data stored for it.
        self.0.store(1 | FROZEN, Ordering::Release);
    }

    /// Returns whether all references are frozen. This stays true until a `thaw`, which cannot happen while the caller
    /// keeps a reference alive.
    #[inline]
    pub(crate) fn is_frozen(&self) -> bool {
        self.0.load(Ordering::Acquire) & FROZEN != 0
    }

    /// Adds a reference to a frozen count of one. The existing reference is not the caller's, but the caller keeps it
    /// alive.
    #[inline]
    pub(crate) fn join(&self) -> bool {
        let alone = self.is_frozen() && self.is_one();
        if alone {
            self.add();
        }
        alone
    }

    /// Removes the mark if the caller's reference is the only one.
    #[inline]
    pub(crate) fn thaw(&self) -> bool {
        let only = self.is_one();
        if only {
            self.0.store(1, Ordering::Relaxed);
        }
        only
    }

    /// Sets the number of references, for a test.
    #[cfg(test)]
    pub(crate) fn set(&self, count: u32) {
        self.0.store(count, Ordering::Relaxed);
    }
}
