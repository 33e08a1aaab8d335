//! The concurrent heart of the pool: stacks of cached blocks, counts of who holds what, the pool's end, and the
//! gate that keeps a returner from missing a waiter.
//!
//! Knows only atomics (through `sync.rs`) and block numbers, so that loom can run all of it. What always holds:
//! a block number is in at most one stack, and whoever pops it owns it; every get is counted before the block is
//! used and every return after the last touch, so gets minus returns is never less than the blocks in use.
//!
//! The proof is `RUSTFLAGS="--cfg loom" cargo test --release -p ringfile --test loom_pool`.

use super::sync::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering, store_load_fence};

/// Set in a cell's count of returns when the last handle of the pool is gone.
const CLOSED: u64 = 1 << 63;
/// The upper half of a stack's head: counts pops, so that a head never looks the same twice (ABA).
const TAG: u64 = !0 << 32;
const ONE_POP: u64 = 1 << 32;

/// Finds the link of a block by its number. Links stay where they are for as long as the pool has memory, so a
/// thread that was overtaken while popping may still read one: its exchange then fails by the tag.
pub(crate) trait Links {
    /// The number plus one of the block under this one; 0 at the bottom.
    fn next(&self, index: u32) -> &AtomicU32;
}

/// What one shard keeps for one size class: a stack of free blocks and two counts that only grow.
// 32 bytes, so that a cell never lies across two cache lines.
#[repr(align(32))]
pub(crate) struct Cell {
    head: AtomicU64,
    gets: AtomicU64,
    returns: AtomicU64,
}

impl Cell {
    pub(crate) fn new() -> Self {
        Cell { head: AtomicU64::new(0), gets: AtomicU64::new(0), returns: AtomicU64::new(0) }
    }

    /// Takes the block that was pushed last.
    #[inline]
    pub(crate) fn pop(&self, links: &impl Links) -> Option<u32> {
        // Sequentially consistent for `Gate`: a waiter that has announced itself must see earlier pushes.
        let mut head = self.head.load(Ordering::SeqCst);
        loop {
            let index = (head as u32).checked_sub(1)?;
            let next = u64::from(links.next(index).load(Ordering::Relaxed));
            let popped = (head & TAG).wrapping_add(ONE_POP) | next;
            match self.head.compare_exchange_weak(head, popped, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
    }

    /// Puts a block that the caller owns on the stack. From here on others own it.
    #[inline]
    pub(crate) fn push(&self, links: &impl Links, index: u32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            links.next(index).store(head as u32, Ordering::Relaxed);
            let pushed = (head & TAG) | u64::from(index + 1);
            match self.head.compare_exchange_weak(head, pushed, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Counts a get. The caller has a handle of the pool, so this never races with `close`.
    #[inline]
    pub(crate) fn count_get(&self) {
        self.gets.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a return, and tells whether the pool's last handle is gone.
    ///
    /// It must be the returner's last touch of the pool: after it, unless it answers true, the pool's memory may
    /// be gone. Hence the raw pointer, which promises nothing for after the call.
    ///
    /// # Safety
    /// `this` is valid until the count is made: the caller has not counted the return of a block it got.
    #[inline]
    pub(crate) unsafe fn count_return(this: *const Cell) -> bool {
        // SAFETY: valid until the addition, says the caller. AcqRel: the owner's use of the block happens before
        // the memory is unmapped by whoever counts last.
        unsafe { (*this).returns.fetch_add(1, Ordering::AcqRel) & CLOSED != 0 }
    }

    /// Marks the end of the pool; gives the gets that were not returned until now. Those that are returned later
    /// see the mark.
    pub(crate) fn close(&self) -> i64 {
        let returns = self.returns.fetch_or(CLOSED, Ordering::AcqRel);
        self.gets.load(Ordering::Relaxed).wrapping_sub(returns).cast_signed()
    }

    /// (gets, returns) of this cell. Returns are read first, so that in sums over a pool gets are not fewer.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let returns = self.returns.load(Ordering::Acquire) & !CLOSED;
        (self.gets.load(Ordering::Relaxed), returns)
    }
}

/// Finds who frees the pool after its last handle is gone: the closer adds the blocks that were out, each late
/// returner takes one off, and whoever makes it zero is the only one left.
///
/// Before the closer's addition it is zero or less and each step takes it further from zero, so nobody frees too
/// early; after it, it reaches zero once.
pub(crate) struct Remaining(AtomicI64);

impl Remaining {
    pub(crate) fn new() -> Self {
        Remaining(AtomicI64::new(0))
    }

    /// Adds to the count and tells whether the caller now has to free the pool. If not, the pool may be gone.
    ///
    /// # Safety
    /// `this` is valid until the addition is made: the caller's own step is not yet in the count.
    pub(crate) unsafe fn settle(this: *const Remaining, delta: i64) -> bool {
        // SAFETY: as above. AcqRel: all uses of the pool happen before it is freed.
        unsafe { (*this).0.fetch_add(delta, Ordering::AcqRel) + delta == 0 }
    }
}

/// How many wait for memory: read by each get (nobody overtakes a waiter) and by each return.
///
/// A waiter announces itself and *then* looks for a block; a returner pushes its block and *then* looks for
/// waiters. With all four steps in one total order (Dekker), at least one of the two sees the other, so a block is
/// never left lying while somebody waits for it.
pub(crate) struct Gate(AtomicUsize);

impl Gate {
    pub(crate) fn new() -> Self {
        Gate(AtomicUsize::new(0))
    }

    /// Before the waiter looks for a block the last time.
    pub(crate) fn announce(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        store_load_fence();
    }

    /// A waiter was served or has given up.
    pub(crate) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// After a returner's push: must somebody be served?
    #[inline]
    pub(crate) fn anyone_after_push(&self) -> bool {
        store_load_fence();
        self.0.load(Ordering::SeqCst) != 0
    }

    /// Before a get takes a cached block: would it overtake somebody?
    #[inline]
    pub(crate) fn anyone(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}
