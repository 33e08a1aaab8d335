//! Memory for the sides that have no aligned memory of their own.
//!
//! Knows nothing of rings or files. Every byte is initialised from the start, so a slice of it is always sound.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Deref;
use std::ptr::NonNull;

const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed memory with a chosen alignment, freed on drop.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: `Memory` owns its bytes alone, as a `Box<[u8]>` does.
unsafe impl Send for Memory {}

impl Memory {
    fn new(len: usize, align: usize) -> Memory {
        let layout =
            Layout::from_size_align(len.max(1), align).expect("block sizes are far below isize::MAX");
        // SAFETY: the layout's size is at least 1.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Memory { start, layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc_zeroed` with this very layout, and is freed only here.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// One block for O_DIRECT: page-aligned, with a length that a read sets.
#[derive(Debug)]
pub struct AlignedBuf {
    memory: Memory,
    capacity: usize,
    filled: usize,
}

impl AlignedBuf {
    /// A block of `capacity` bytes, of which none is filled yet.
    pub fn new(capacity: usize) -> AlignedBuf {
        AlignedBuf { memory: Memory::new(capacity, PAGE), capacity, filled: 0 }
    }

    /// Returns how many bytes fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the start of the memory, which does not move while the value lives.
    pub fn start(&self) -> *mut u8 {
        self.memory.start.as_ptr()
    }

    /// Sets how many bytes from the start hold data.
    pub fn set_filled(&mut self, filled: usize) {
        assert!(filled <= self.capacity, "filled {filled} of {} bytes", self.capacity);
        self.filled = filled;
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `filled <= capacity` (kept by `set_filled`), and all of the memory is initialised.
        unsafe { std::slice::from_raw_parts(self.start(), self.filled) }
    }
}

/// All blocks of a hand-written loop in one region, aligned to a huge page, so that the kernel may use huge pages for it,
/// as it may for a pool's regions.
#[derive(Debug)]
pub struct Region {
    memory: Memory,
    len: usize,
}

impl Region {
    /// Allocates a region of `len` bytes.
    pub fn new(len: usize) -> Region {
        let memory = Memory::new(len.next_multiple_of(HUGE_PAGE), HUGE_PAGE);
        // SAFETY: this value owns the whole range; the advice changes the size of its pages, not its content. A refusal is
        // harmless.
        unsafe {
            libc::madvise(memory.start.as_ptr().cast(), memory.layout.size(), libc::MADV_HUGEPAGE);
        }
        Region { memory, len }
    }

    /// Returns the address of byte `at`.
    pub fn at(&self, at: usize) -> *mut u8 {
        assert!(at < self.len, "byte {at} of a region of {}", self.len);
        // SAFETY: checked to lie inside the allocation.
        unsafe { self.memory.start.as_ptr().add(at) }
    }

    /// Returns bytes `at..at + len`.
    ///
    /// # Safety
    /// Nothing, the kernel included, writes to these bytes while the slice lives.
    pub unsafe fn slice(&self, at: usize, len: usize) -> &[u8] {
        assert!(at + len <= self.len, "bytes {at}..{} of a region of {}", at + len, self.len);
        // SAFETY: checked to lie inside the allocation, initialised when it was allocated; the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(self.at(at), len) }
    }

    /// Returns the whole region in the form that the kernel registers.
    pub fn iovec(&self) -> libc::iovec {
        libc::iovec { iov_base: self.memory.start.as_ptr().cast(), iov_len: self.len }
    }
}
