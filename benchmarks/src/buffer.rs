//! Memory for the sides that have no aligned memory of their own.
//!
//! Knows nothing of rings or files. Every byte is initialised from the start, so a slice of it is always sound.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Deref;
use std::ptr::NonNull;

use bytes::BytesMut;
use ringfile_cli::shared::zeroed_at;

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

/// Returns memory for all blocks of a hand-written loop, aligned to a huge page, so that the kernel may use huge pages
/// for it, as it may for a pool's regions.
pub fn region(len: usize) -> BytesMut {
    let mut memory = zeroed_at(len.next_multiple_of(HUGE_PAGE), HUGE_PAGE);
    // SAFETY: `memory` owns the whole range; the advice changes the size of its pages, not its content. A refusal is
    // harmless.
    unsafe {
        libc::madvise(memory.as_mut_ptr().cast(), memory.len(), libc::MADV_HUGEPAGE);
    }
    memory.truncate(len);
    memory
}
