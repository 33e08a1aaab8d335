//! Counts the buffers that were made of borrowed memory.
//!
//! Knows buffers and block headers.

use std::ptr::{self, NonNull};

use super::block::{Block, BlockKind};
use super::buffer::Buffer;

/// A block header of its own, to which each buffer that it makes refers.
pub struct Counter(NonNull<Block>);

impl Default for Counter {
    fn default() -> Self {
        let header = Box::new(Block::new(ptr::null_mut(), 0));
        header.describe(BlockKind::Borrowed, 0, ptr::null_mut(), 0, ptr::null());
        header.refs.set_one();
        Self(NonNull::from(Box::leak(header)))
    }
}

impl Counter {
    fn header(&self) -> &Block {
        // SAFETY: it is freed only when this is dropped.
        unsafe { self.0.as_ref() }
    }

    /// Makes a buffer of borrowed memory, with that capacity and length.
    ///
    /// # Safety
    /// Until the buffer is dropped, the `len` bytes are valid and initialised, and nothing else accesses them; if the
    /// buffer is only written to files, others may read them.
    pub unsafe fn buffer(&self, start: NonNull<u8>, len: usize) -> Buffer {
        self.header().add_ref();
        // SAFETY: by this function's contract; the reference is the buffer's.
        unsafe { Buffer::new(start, len, len, self.0) }
    }

    /// Returns whether a buffer that it made still exists.
    pub fn is_in_use(&self) -> bool {
        self.header().is_shared()
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // In a forked child, operations of its parent may keep buffers for ever: the header stays for them.
        if !self.is_in_use() {
            // SAFETY: made from a box, and no buffer refers to it.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}
