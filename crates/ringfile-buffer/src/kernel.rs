//! The concurrent part of the pool: stacks of cached blocks, and the count that keeps the pool alive.
//!
//! Knows only atomics (through `sync.rs`) and block numbers, so that loom can run all of it. Invariants: a block number
//! is in at most one stack, and the thread that pops it owns it; a push is its caller's last access to the pool, or is
//! refused.
//!
//! A get and a return are one atomic exchange each: counts, waiters and the pool's end are all in the word that is
//! exchanged. On a machine where an exchange takes 13 ns, separate counters made a get and a return take 53 ns.
//!
//! The proof is `RUSTFLAGS="--cfg loom" cargo test --release -p ringfile-buffer --test loom pool`.

use std::ptr::NonNull;

use super::sync::{AtomicI64, AtomicU64, Ordering};

/// A stack's head, from the low bits: the top block's number plus one (0: empty), two marks, a count of pops. The count
/// also prevents ABA: a head never looks the same twice, unless a thread sleeps through 2^32 pops.
const INDEX: u64 = (1 << 30) - 1;
/// A request waits for memory: gets must not overtake it, and returns must serve it.
const WAITING: u64 = 1 << 30;
/// The pool's last handle was dropped.
const CLOSED: u64 = 1 << 31;
const ONE_POP: u64 = 1 << 32;

/// Block numbers are below this.
pub(crate) const NUMBERS: u32 = INDEX as u32;

/// Finds a block by its number. Blocks do not move while the pool has memory, so a thread that lost a race may still read a
/// link; the count of pops then makes its exchange fail.
pub(crate) trait Blocks {
    /// A block, of which this file knows only the link.
    type Block: Linked;

    fn block(&self, index: u32) -> NonNull<Self::Block>;

    /// Returns the link of the block with this number.
    #[inline]
    fn link(&self, index: u32) -> &AtomicU64 {
        // SAFETY: blocks exist as long as `self`, and are never borrowed mutably.
        unsafe { self.block(index).as_ref() }.link()
    }
}

/// Something that can be on a stack.
pub(crate) trait Linked {
    /// Returns the link. Low half: the number plus one of the block below, 0 at the bottom. High half: the stack's
    /// height up to this block.
    fn link(&self) -> &AtomicU64;

    fn number(&self) -> u32;
}

/// A push was refused: the block must be returned under the pool's lock.
#[derive(Debug)]
pub(crate) struct PushRefused;

/// The stack of free blocks that one shard keeps for one size class.
#[repr(align(16))]
pub(crate) struct Cell {
    head: AtomicU64,
    /// How often the count of pops has passed a multiple of 2^31.
    halves: AtomicU64,
}

impl Cell {
    pub(crate) fn new() -> Self {
        Cell { head: AtomicU64::new(0), halves: AtomicU64::new(0) }
    }

    /// Takes the block that was pushed last, unless a request is waiting.
    #[inline]
    pub(crate) fn pop<B: Blocks>(&self, blocks: &B) -> Option<NonNull<B::Block>> {
        self.pop_unless(WAITING, blocks)
    }

    /// Takes a block for a waiting request, or to dissolve it. Called under the pool's lock.
    pub(crate) fn take<B: Blocks>(&self, blocks: &B) -> Option<NonNull<B::Block>> {
        self.pop_unless(0, blocks)
    }

    #[inline]
    fn pop_unless<B: Blocks>(&self, marks: u64, blocks: &B) -> Option<NonNull<B::Block>> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            if head & marks != 0 {
                return None;
            }
            let block = blocks.block(((head & INDEX) as u32).checked_sub(1)?);
            // The top block's link was stored before the push that we have seen. If others have popped it since, this
            // may be anything, and the exchange fails. SAFETY: `block` exists as long as `blocks`.
            let below = unsafe { block.as_ref() }.link().load(Ordering::Relaxed) & INDEX;
            let popped = (head & !INDEX).wrapping_add(ONE_POP) | below;
            match self.head.compare_exchange_weak(head, popped, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    if (head ^ popped) >> 63 != 0 {
                        self.count_half();
                    }
                    return Some(block);
                }
                Err(now) => head = now,
            }
        }
    }

    #[cold]
    fn count_half(&self) {
        self.halves.fetch_add(1, Ordering::Relaxed);
    }

    /// Pushes a block that the caller owns. Afterwards other threads may own it, and the pool may be freed; hence the
    /// raw pointer, which promises nothing for after the call.
    ///
    /// Refused without effect if a request is waiting or the pool is closed.
    ///
    /// # Safety
    /// `this` and `blocks` are valid for as long as the caller has the block, which is one of `blocks`.
    #[inline]
    pub(crate) unsafe fn push<B: Blocks>(
        this: *const Cell,
        blocks: *const B,
        block: NonNull<B::Block>,
    ) -> Result<(), PushRefused> {
        // Acquire, here and when the exchange fails: the top block's link, which its height is read from.
        // SAFETY: the caller still has the block. Dereferenced anew for each use: no reference outlives the exchange.
        let mut head = unsafe { (*this).head.load(Ordering::Acquire) };
        loop {
            if head & (WAITING | CLOSED) != 0 {
                return Err(PushRefused);
            }
            let below = head & INDEX;
            // SAFETY: as above; what is on the stack has a link.
            unsafe {
                let height = match (below as u32).checked_sub(1) {
                    Some(top) => ((*blocks).link(top).load(Ordering::Relaxed) >> 32) + 1,
                    None => 1,
                };
                block.as_ref().link().store(height << 32 | below, Ordering::Relaxed);
                let pushed = (head & !INDEX) | u64::from(block.as_ref().number() + 1);
                // Release: our link, and our use of the block.
                match (*this).head.compare_exchange_weak(head, pushed, Ordering::Release, Ordering::Acquire) {
                    Ok(_) => return Ok(()),
                    Err(now) => head = now,
                }
            }
        }
    }

    /// Makes gets and returns take the lock, because a request is waiting. A `take` after this sees everything pushed
    /// before.
    pub(crate) fn mark_waiting(&self) {
        self.head.fetch_or(WAITING, Ordering::AcqRel);
    }

    /// Removes the mark, since no request is waiting any more. Marks change only under the lock, so checking first
    /// avoids most exchanges.
    pub(crate) fn unmark_waiting(&self) {
        if self.head.load(Ordering::Relaxed) & WAITING != 0 {
            self.head.fetch_and(!WAITING, Ordering::AcqRel);
        }
    }

    /// Makes all further returns take the lock, permanently. A `take` after this sees everything pushed before.
    pub(crate) fn close(&self) {
        self.head.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Returns the number of pops so far, and of blocks in the stack.
    pub(crate) fn counts(&self, blocks: &impl Blocks) -> (u64, u64) {
        let halves = self.halves.load(Ordering::Relaxed);
        let head = self.head.load(Ordering::Acquire);
        let pops = head >> 32;
        // The halves are counted just after the pop: if the count's highest bit shows one more, its update is about to
        // arrive.
        let halves = halves + ((halves ^ (pops >> 31)) & 1);
        let height = match ((head & INDEX) as u32).checked_sub(1) {
            Some(top) => blocks.link(top).load(Ordering::Relaxed) >> 32,
            None => 0,
        };
        ((halves >> 1) << 32 | pops, height)
    }
}

/// The count that keeps a pool alive: one for all its handles together, one for each thread that returns a block under
/// the lock, and, once the handles are gone, one for each block that is still in use. Removing the last one frees the
/// pool.
///
/// A thread that pushes without the lock needs none: before the push, its block counts as in use (or will, when the
/// pool is closed); after it, the thread does not access the pool.
pub(crate) struct Anchors(AtomicI64);

impl Anchors {
    /// Creates the count with the anchor of the handles.
    pub(crate) fn new() -> Self {
        Anchors(AtomicI64::new(1))
    }

    /// Adds anchors. Something else keeps the pool alive meanwhile.
    pub(crate) fn add(&self, n: i64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Removes anchors, and returns whether the caller must free the pool. If not, the pool may already be freed.
    ///
    /// # Safety
    /// `this` is valid until the anchors are taken away: they are the caller's.
    pub(crate) unsafe fn release(this: *const Anchors, n: i64) -> bool {
        // SAFETY: as above. AcqRel: all uses of the pool happen before it is freed.
        unsafe { (*this).0.fetch_sub(n, Ordering::AcqRel) == n }
    }
}

// Loom runs this file with its own atomics, which work only in a model.
#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    struct Node(u32, AtomicU64);

    struct Nodes(Vec<Node>);

    impl Linked for Node {
        fn link(&self) -> &AtomicU64 {
            &self.1
        }

        fn number(&self) -> u32 {
            self.0
        }
    }

    impl Blocks for Nodes {
        type Block = Node;

        fn block(&self, index: u32) -> NonNull<Node> {
            NonNull::from(&self.0[index as usize])
        }
    }

    fn nodes(n: u32) -> Nodes {
        Nodes((0..n).map(|index| Node(index, AtomicU64::new(0))).collect())
    }

    fn push(cell: &Cell, nodes: &Nodes, index: u32) -> Result<(), PushRefused> {
        // SAFETY: all outlive the call.
        unsafe { Cell::push(cell, nodes, nodes.block(index)) }
    }

    fn number(block: Option<NonNull<Node>>) -> Option<u32> {
        // SAFETY: nodes outlive the calls.
        block.map(|block| unsafe { block.as_ref() }.0)
    }

    #[test]
    fn a_stack_counts_its_height_and_its_pops_past_32_bits() {
        for before in [0, (1 << 31) - 3, (1 << 32) - 3, (5 << 32) - 3, (5 << 31) - 1] {
            let nodes = nodes(4);
            // As if it had seen so many pops.
            let cell = Cell { head: AtomicU64::new(before << 32), halves: AtomicU64::new(before >> 31) };
            for index in 0..4 {
                push(&cell, &nodes, index).unwrap();
                assert_eq!(cell.counts(&nodes), (before, u64::from(index) + 1));
            }
            for popped in 1..=4 {
                assert_eq!(number(cell.pop(&nodes)), Some(4 - popped as u32));
                assert_eq!(cell.counts(&nodes), (before + popped, 4 - popped));
            }
            assert_eq!(cell.pop(&nodes), None);
        }
    }

    #[test]
    fn marks_refuse_threads_without_the_lock() {
        let nodes = nodes(2);
        let cell = Cell::new();
        push(&cell, &nodes, 0).unwrap();
        cell.mark_waiting();
        assert!(push(&cell, &nodes, 1).is_err());
        assert_eq!(cell.pop(&nodes), None);
        assert_eq!(number(cell.take(&nodes)), Some(0));
        cell.unmark_waiting();
        push(&cell, &nodes, 1).unwrap();
        cell.close();
        assert!(push(&cell, &nodes, 0).is_err());
        assert_eq!(number(cell.take(&nodes)), Some(1));
    }
}
