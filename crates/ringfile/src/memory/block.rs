//! Blocks: the headers of the pieces of memory that are handed out, kept apart from the memory itself.
//!
//! Knows who a block may belong to (a pool's core, a lender), and nothing of how they work. What always holds: a
//! header lives as long as its home; while `refs` is above zero the memory it describes is there and the fields
//! that describe it don't change; a header is never seen through `&mut`, as overtaken threads may read its link.

use std::ptr::{self, NonNull};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use super::core::Core;
use super::count::Count;
use super::kernel::{Blocks, Linked, NUMBERS};
use super::lend::Lender;
use super::region::Region;
use super::sync::AtomicU64;

/// What becomes of a block when nobody refers to it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Goes on a stack of its class.
    Cached,
    /// Smaller than its class, made where only that fitted: goes back to its region.
    Exact,
    /// Allocated outside the pool: unmapped.
    Outside,
    /// Memory of the user's: the range may be lent again.
    Lent,
    /// Memory that somebody else keeps: nothing.
    Nobodys,
}

/// A header. One cache line, so that neighbours in use by different threads don't slow each other.
#[repr(C, align(64))]
pub(crate) struct Block {
    /// Buffers and owners of `Bytes` that refer to it.
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
            kind: AtomicU8::new(Kind::Cached as u8),
            class: AtomicU8::new(0),
            base: AtomicPtr::new(ptr::null_mut()),
            size: AtomicUsize::new(0),
            region: AtomicPtr::new(ptr::null_mut()),
            home: AtomicPtr::new(home),
            frozen_end: AtomicUsize::new(0),
        }
    }

    /// Says which memory it stands for. Only while nobody refers to it.
    pub(super) fn describe(
        &self,
        kind: Kind,
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

    // Relaxed loads suffice: a header reaches another thread through a stack, a lock or the caller's own hand-over,
    // each of which orders them.
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
    pub(super) fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn kind(&self) -> Kind {
        match self.kind.load(Ordering::Relaxed) {
            0 => Kind::Cached,
            1 => Kind::Exact,
            2 => Kind::Outside,
            3 => Kind::Lent,
            _ => Kind::Nobodys,
        }
    }

    /// The region it lies in; null where there is none that could be registered.
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
        // Memory of others is not counted: see `of_nobody`.
        if self.kind() != Kind::Nobodys {
            self.refs.add();
        }
    }

    /// Whether others than the caller, who owns a reference, have one too. If not, what they did to the memory is seen.
    pub(super) fn is_shared(&self) -> bool {
        !self.refs.is_one()
    }

    /// Marks the block as frozen if the caller's reference is the only one: until it is thawed, all references are owners
    /// of `Bytes`. `end` is where the frozen buffer's capacity ends, in bytes from the block's base.
    pub(super) fn freeze(&self, end: usize) -> bool {
        let alone = self.refs.is_one();
        if alone {
            self.frozen_end.store(end, Ordering::Relaxed);
            self.refs.freeze();
        }
        alone
    }

    /// Whether the block was frozen whole. The caller keeps a reference from being dropped.
    pub(super) fn is_frozen(&self) -> bool {
        self.refs.is_frozen()
    }

    /// Adds a reference to a block that was frozen whole, if it has only one. The caller keeps that from being dropped.
    pub(super) fn join(&self) -> bool {
        self.refs.join()
    }

    /// Takes the mark away if the caller's reference is the only one, and gives the `end` it was frozen with.
    pub(super) fn thaw(&self) -> Option<usize> {
        self.refs.thaw().then(|| self.frozen_end.load(Ordering::Relaxed))
    }
}

/// Drops one reference; with the last one the memory goes back to where it came from.
///
/// # Safety
/// The caller owns the reference and gives it up: it touches neither header nor memory any more.
#[inline]
pub(super) unsafe fn release(block: NonNull<Block>) {
    // SAFETY: the reference that is given up has kept the header and its home alive.
    let header = unsafe { block.as_ref() };
    if header.kind() == Kind::Nobodys || !header.refs.drop_one() {
        return;
    }
    match header.kind() {
        // SAFETY: a lent block's home is its lender, and this was the last reference.
        Kind::Lent => unsafe { Lender::take_back(block) },
        Kind::Nobodys => {}
        // SAFETY: any other block's home is a pool's core, and this was the last reference.
        _ => unsafe { Core::give_back(block) },
    }
}

/// The header of all memory that somebody else keeps. References to it are not counted: threads that use such memory write
/// to nothing they share, and forgotten parts add up to nothing.
pub(super) fn of_nobody() -> NonNull<Block> {
    static BLOCK: LazyLock<Block> = LazyLock::new(|| {
        let block = Block::new(ptr::null_mut(), 0);
        block.describe(Kind::Nobodys, 0, ptr::null_mut(), 0, ptr::null());
        block.refs.set_one();
        block
    });
    NonNull::from(&*BLOCK)
}

const FIRST_CHUNK: u32 = 64;
/// 64 headers, then twice as many, and so on: 2^30 headers are 512 GiB of the smallest blocks, 4 TiB of pages.
const CHUNKS: usize = 25;

/// A pool's headers: found by number without a lock, never moved, freed with the pool.
pub(crate) struct Arena {
    chunks: [AtomicPtr<Block>; CHUNKS],
}

/// Which numbers of an [`Arena`] are free. Lies under the pool's lock.
#[derive(Default)]
pub(crate) struct Numbers {
    unused: u32,
    free: Vec<u32>,
}

/// Where header `index` lies: its chunk, its place in there, and the length of that chunk.
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

    /// A header by its number, which came from [`Arena::number`].
    #[inline]
    pub(super) fn get(&self, index: u32) -> NonNull<Block> {
        let (chunk, at, _) = place(index);
        let first = self.chunks[chunk].load(Ordering::Acquire);
        // SAFETY: `number` gave this index out, so its chunk was made before and `at` is within it.
        unsafe { NonNull::new_unchecked(first.add(at)) }
    }

    /// As [`Arena::get`], to look at.
    #[inline]
    pub(super) fn header(&self, index: u32) -> &Block {
        // SAFETY: headers live and stay in place as long as the arena, and are never borrowed mutably.
        unsafe { self.get(index).as_ref() }
    }

    /// A free number, or none when all are in use.
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

    /// Gives a number back whose block is in no stack and that nobody refers to.
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
        self.index()
    }
}

impl Blocks for Arena {
    type Block = Block;

    #[inline]
    fn block(&self, index: u32) -> NonNull<Block> {
        self.get(index)
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

    /// Adds the last references that fit into a count, and forgets them, in a process of its own that is to abort.
    #[test]
    fn f34_leaked_references_abort_before_their_count_wraps() {
        const IN_CHILD: &str = "RINGFILE_TEST_LEAKED_REFERENCES";
        if std::env::var_os(IN_CHILD).is_some() {
            let pool = Pool::new(4096);
            let mut buffer = pool.get(4096).unwrap();
            // As if so many parts had been split off and forgotten.
            buffer.header().refs.set(u32::MAX >> 2);
            for _ in 0..3 {
                std::mem::forget(buffer.split_to(0));
            }
            return;
        }
        let name = "memory::block::tests::f34_leaked_references_abort_before_their_count_wraps";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", name, "--nocapture"]).env(IN_CHILD, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{}: {text}", output.status);
    }

    #[test]
    fn references_to_memory_of_others_are_not_counted() {
        let mut memory = [7_u8; 8];
        // SAFETY: the memory outlives the buffers, which alone touch it.
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
            assert_eq!(arena.header(index).index(), index);
        }
        arena.free(&mut numbers, 77);
        assert_eq!(arena.number(&mut numbers, ptr::null_mut()), Some(77));
        assert_eq!(arena.number(&mut numbers, ptr::null_mut()), Some(10_000));
    }
}
