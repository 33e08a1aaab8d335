//! Blocks: headers for the pieces of memory that are handed out, kept apart from the memory itself.
//!
//! Knows that a block has a home, and nothing of what that is: `home.rs` does. Invariants: a header lives as long as its
//! home; while `refs` is above zero, the memory it describes exists and the fields that describe it do not change; no
//! `&mut` to a header ever exists, because a thread that lost a race may still read its link.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use once_cell::race::OnceBox;

use super::count::Count;
use super::kernel::{Blocks, Linked, NUMBERS};
use super::region::Region;
use super::sync::AtomicU64;

/// What happens to a block when its last reference is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BlockKind {
    /// The block goes onto the stack of its class.
    Cached,
    /// The block is smaller than its class, because no larger one fitted. It returns to its region.
    Exact,
    /// The block was allocated outside the pool, and is unmapped.
    Outside,
    /// The block is the user's memory: its range may be lent again.
    Lent,
    /// The block is memory that its owner keeps: nothing happens.
    Nobodys,
    /// The block is memory that a call borrows, which counts the buffers made of it and holds a reference itself.
    Borrowed,
}

/// A block's header. It fills one cache line, so that threads that use neighbouring headers do not slow each other.
#[repr(C, align(64))]
pub(crate) struct Block {
    /// The number of buffers and owners of `Bytes` that refer to the block.
    pub(super) refs: Count,
    link: AtomicU64,
    index: AtomicU32,
    kind: AtomicU8,
    class: AtomicU8,
    base: AtomicPtr<u8>,
    size: AtomicUsize,
    region: AtomicPtr<Region>,
    home: AtomicPtr<()>,
    /// While `refs` is frozen: where the frozen buffer's capacity ends, in bytes from `base`.
    frozen_end: AtomicUsize,
}

const _: () = assert!(size_of::<Block>() == 64);

impl Block {
    pub(super) fn new(home: *mut (), index: u32) -> Self {
        Block {
            refs: Count::new(),
            link: AtomicU64::new(0),
            index: AtomicU32::new(index),
            kind: AtomicU8::new(BlockKind::Cached as u8),
            class: AtomicU8::new(0),
            base: AtomicPtr::new(ptr::null_mut()),
            size: AtomicUsize::new(0),
            region: AtomicPtr::new(ptr::null_mut()),
            home: AtomicPtr::new(home),
            frozen_end: AtomicUsize::new(0),
        }
    }

    /// Sets which memory the header describes. Only while there are no references.
    pub(super) fn describe(
        &self,
        kind: BlockKind,
        class: usize,
        base: *mut u8,
        size: usize,
        region: *const Region,
    ) {
        self.kind.store(kind as u8, Ordering::Relaxed);
        self.class.store(class as u8, Ordering::Relaxed);
        self.base.store(base, Ordering::Relaxed);
        self.size.store(size, Ordering::Relaxed);
        self.region.store(region.cast_mut(), Ordering::Relaxed);
    }

    // Relaxed loads suffice: a header reaches another thread through a stack, a lock or the caller's own
    // synchronisation, each of which orders them.
    #[inline]
    pub(super) fn base(&self) -> *mut u8 {
        self.base.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn class(&self) -> usize {
        usize::from(self.class.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn kind(&self) -> BlockKind {
        match self.kind.load(Ordering::Relaxed) {
            0 => BlockKind::Cached,
            1 => BlockKind::Exact,
            2 => BlockKind::Outside,
            3 => BlockKind::Lent,
            4 => BlockKind::Nobodys,
            _ => BlockKind::Borrowed,
        }
    }

    /// Returns the region that contains it; null if no region could be registered.
    #[inline]
    pub(super) fn region(&self) -> *const Region {
        self.region.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn home(&self) -> *mut () {
        self.home.load(Ordering::Relaxed)
    }

    pub(super) fn set_home(&self, home: *mut ()) {
        self.home.store(home, Ordering::Relaxed);
    }

    /// Adds a reference. The caller has one.
    pub(super) fn add_ref(&self) {
        // References to memory without a home are not counted: see `of_nobody`.
        if self.kind() != BlockKind::Nobodys {
            self.refs.add();
        }
    }

    /// Adds so many references. The caller has one.
    #[cold]
    pub(super) fn add_refs(&self, count: u32) {
        if self.kind() != BlockKind::Nobodys {
            self.refs.add_many(count);
        }
    }

    /// Drops so many references, which the caller has, and of which none is the last.
    pub(super) fn drop_refs(&self, count: u32) {
        if self.kind() != BlockKind::Nobodys {
            self.refs.drop_many(count);
        }
    }

    /// Returns whether there are references besides the caller's. If not, all earlier accesses through others are
    /// visible.
    pub(super) fn is_shared(&self) -> bool {
        !self.refs.is_one()
    }

    /// Marks the block as frozen if the caller's reference is the only one: all references are then owners of `Bytes`,
    /// until it is thawed. `end` is the end of the frozen buffer's capacity, in bytes from the block's base.
    pub(super) fn freeze(&self, end: usize) -> bool {
        let alone = self.refs.is_one();
        if alone {
            self.frozen_end.store(end, Ordering::Relaxed);
            self.refs.freeze();
        }
        alone
    }

    /// Removes the mark if the caller's reference is the only one, and returns the `end` it was frozen with.
    pub(super) fn thaw(&self) -> Option<usize> {
        self.refs.thaw().then(|| self.frozen_end.load(Ordering::Relaxed))
    }
}

/// Returns the one header of all memory without a home. References to it are not counted: threads that use such memory
/// do not write to a shared counter, and leaked parts cannot overflow it.
pub(super) fn of_nobody() -> NonNull<Block> {
    static BLOCK: OnceBox<Block> = OnceBox::new();
    NonNull::from(BLOCK.get_or_init(|| {
        let block = Block::new(ptr::null_mut(), 0);
        block.describe(BlockKind::Nobodys, 0, ptr::null_mut(), 0, ptr::null());
        block.refs.set_one();
        Box::new(block)
    }))
}

const FIRST_CHUNK: u32 = 64;
/// The number of chunks of headers. The first has 64 headers, each further one twice as many: 2^30 headers are enough for
/// 512 GiB of the smallest blocks, or 4 TiB of pages.
const CHUNKS: usize = 25;

/// A pool's headers. They are found by number without a lock, never move, and are freed with the pool.
pub(crate) struct Arena {
    chunks: [AtomicPtr<Block>; CHUNKS],
}

/// Which numbers of an [`Arena`] are free. Protected by the pool's lock.
#[derive(Default)]
pub(crate) struct Numbers {
    unused: u32,
    free: Vec<u32>,
}

/// Locates header `index`: its chunk, its position there, and the length of that chunk.
#[inline]
fn place(index: u32) -> (usize, usize, usize) {
    let from_first = index + FIRST_CHUNK;
    let chunk = (from_first.ilog2() - FIRST_CHUNK.ilog2()) as usize;
    let len = (FIRST_CHUNK as usize) << chunk;
    (chunk, from_first as usize - len, len)
}

impl Arena {
    pub(super) fn new() -> Self {
        Arena { chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS] }
    }

    /// Returns a header as [`block`](Blocks::block) does, by reference.
    #[inline]
    pub(super) fn header(&self, index: u32) -> &Block {
        // SAFETY: headers live and stay in place as long as the arena, and are never borrowed mutably.
        unsafe { self.block(index).as_ref() }
    }

    /// Returns a free number, or none if all are in use.
    pub(super) fn number(&self, numbers: &mut Numbers, home: *mut ()) -> Option<u32> {
        if let Some(index) = numbers.free.pop() {
            return Some(index);
        }
        let index = numbers.unused;
        if index >= NUMBERS {
            return None;
        }
        let (chunk, at, len) = place(index);
        if at == 0 {
            let headers: Box<[Block]> = (index..index + len as u32).map(|i| Block::new(home, i)).collect();
            self.chunks[chunk].store(Box::into_raw(headers).cast(), Ordering::Release);
        }
        numbers.unused += 1;
        Some(index)
    }

    /// Returns a number whose block is in no stack and has no references.
    pub(super) fn free(&self, numbers: &mut Numbers, index: u32) {
        numbers.free.push(index);
    }
}

impl Linked for Block {
    #[inline]
    fn link(&self) -> &AtomicU64 {
        &self.link
    }

    #[inline]
    fn number(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }
}

impl Blocks for Arena {
    type Block = Block;

    #[inline]
    fn block(&self, index: u32) -> NonNull<Block> {
        let (chunk, at, _) = place(index);
        let first = self.chunks[chunk].load(Ordering::Acquire);
        // SAFETY: `number` has returned this index, so its chunk exists, and `at` is within it.
        unsafe { NonNull::new_unchecked(first.add(at)) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for (chunk, first) in self.chunks.iter_mut().enumerate() {
            let first = *first.get_mut();
            if !first.is_null() {
                let len = (FIRST_CHUNK as usize) << chunk;
                // SAFETY: made by `number` from a boxed slice of this length; the arena's end is the headers' end.
                drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(first, len)) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;
    use crate::Pool;

    /// Adds the last references that fit into a count, and forgets them, in a separate process that is expected to
    /// abort.
    #[test]
    fn f34_leaked_references_abort_before_their_count_wraps() {
        const IN_CHILD: &str = "RINGFILE_TEST_LEAKED_REFERENCES";
        if std::env::var_os(IN_CHILD).is_some() {
            let pool = Pool::new(4096);
            let mut buffer = pool.get(4096).unwrap();
            // Sets the count as if this many parts had been split off and forgotten.
            buffer.header().refs.set(u32::MAX >> 2);
            for _ in 0..3 {
                std::mem::forget(buffer.split_to(0));
            }
            return;
        }
        let name = "block::tests::f34_leaked_references_abort_before_their_count_wraps";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", name, "--nocapture"]).env(IN_CHILD, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{}: {text}", output.status);
    }

    #[test]
    fn references_to_memory_of_others_are_not_counted() {
        let mut memory = [7_u8; 8];
        // SAFETY: the memory outlives the buffers, and nothing else touches it.
        let mut buffer = unsafe { crate::Buffer::from_raw(memory.as_mut_ptr(), 8) };
        std::mem::forget(buffer.split_to(4));
        assert!(!buffer.is_shared());
        drop(buffer.split_to(2));
        assert_eq!(buffer[..], [7; 2]);
    }

    #[test]
    fn headers_are_found_by_number_and_numbers_are_used_again() {
        let arena = Arena::new();
        let mut numbers = Numbers::default();
        for expected in 0..10_000 {
            let index = arena.number(&mut numbers, ptr::null_mut()).unwrap();
            assert_eq!(index, expected);
            assert_eq!(arena.header(index).number(), index);
        }
        arena.free(&mut numbers, 77);
        assert_eq!(arena.number(&mut numbers, ptr::null_mut()), Some(77));
        assert_eq!(arena.number(&mut numbers, ptr::null_mut()), Some(10_000));
    }
}
