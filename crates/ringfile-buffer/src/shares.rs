//! `Shares`: many buffers over the memory of one, with references that are taken in advance.
//!
//! Knows buffers and their blocks. Invariant: `spare` references of the block belong to this value, besides that of `whole`;
//! each buffer that it hands out gets one of them for its own.

use std::mem::ManuallyDrop;

use super::buffer::Buffer;

/// References are taken in advance by so many.
const AT_ONCE: u32 = 256;

/// Makes buffers over parts of a buffer's memory, as [`Buffer::share`] does, without a locked instruction for each: the
/// references are taken in advance, many at once, and those of buffers that [`take_back`](Self::take_back) gets are used
/// again. So while a `Shares` exists, [`Buffer::is_shared`] is true.
///
/// ```
/// let pool = ringfile_buffer::Pool::new(1 << 20);
/// let mut page = pool.get(4096)?;
/// page.resize(4096, 7);
/// // SAFETY: all are only looked at.
/// let mut shares = unsafe { ringfile_buffer::Shares::new(&page) };
/// // SAFETY: as above.
/// let part = unsafe { shares.share(1024, 512) };
/// assert_eq!((part.len(), part[0]), (512, 7));
/// assert!(shares.has(&part));
/// shares.take_back(part);
/// drop(shares);
/// assert!(!page.is_shared());
/// # Ok::<(), ringfile_buffer::PoolError>(())
/// ```
pub struct Shares {
    whole: Buffer,
    spare: u32,
}

impl Shares {
    /// Creates the means to share a buffer's memory.
    ///
    /// # Safety
    /// As [`Buffer::share`], for all bytes of the buffer: only those that [`share`](Self::share) hands out are accessed.
    #[must_use]
    pub unsafe fn new(whole: &Buffer) -> Self {
        // SAFETY: by this function's contract.
        Self { whole: unsafe { whole.share(0, whole.capacity()) }, spare: 0 }
    }

    /// Returns the address and the length in bytes of the memory.
    #[inline]
    #[must_use]
    pub fn range(&self) -> (*const u8, usize) {
        (self.whole.as_ptr(), self.whole.capacity())
    }

    /// Creates a buffer over `len` bytes of the memory, starting at `at`, with that capacity and length.
    ///
    /// # Safety
    /// As [`Buffer::share`].
    ///
    /// # Panics
    /// If the range is not within the memory.
    #[inline]
    pub unsafe fn share(&mut self, at: usize, len: usize) -> Buffer {
        let (_, size) = self.range();
        assert!(at <= size && len <= size - at, "a part lies within the whole");
        if self.spare == 0 {
            self.whole.header().add_refs(AT_ONCE);
            self.spare = AT_ONCE;
        }
        self.spare -= 1;
        // SAFETY: by this function's contract; the buffer gets a reference that was this value's.
        unsafe { self.whole.part(at, len) }
    }

    /// Returns whether a buffer shares this memory.
    #[inline]
    #[must_use]
    pub fn has(&self, buffer: &Buffer) -> bool {
        buffer.is_of_block(&self.whole)
    }

    /// Takes the reference of a buffer that shares this memory, to use it again. Drops any other.
    #[inline]
    pub fn take_back(&mut self, buffer: Buffer) {
        if self.has(&buffer) && self.spare < 2 * AT_ONCE {
            // Its reference is this value's now.
            let _ = ManuallyDrop::new(buffer);
            self.spare += 1;
        }
    }
}

impl Drop for Shares {
    fn drop(&mut self) {
        // `whole` has one more, so these are not the last.
        self.whole.header().drop_refs(self.spare);
    }
}

impl std::fmt::Debug for Shares {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shares").field("of", &self.range()).field("spare", &self.spare).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pool, RegisteredMemory};

    #[test]
    fn references_come_back_whatever_becomes_of_the_buffers() {
        let memory = RegisteredMemory::new(vec![7_u8; 8192]);
        let (whole, other) = (memory.lend(..4096).unwrap(), memory.lend(4096..).unwrap());
        // SAFETY: the bytes are only looked at.
        let mut shares = unsafe { Shares::new(&whole) };
        let mut kept = Vec::new();
        for round in 0..3 * AT_ONCE as usize {
            // SAFETY: as above.
            let part = unsafe { shares.share(round, 1) };
            assert_eq!((part.as_ptr().addr() - whole.as_ptr().addr(), part[0]), (round, 7));
            match round % 3 {
                0 => shares.take_back(part),
                1 => drop(part),
                _ => kept.push(part),
            }
        }
        // SAFETY: as above.
        let foreign = unsafe { other.share(0, 1) };
        assert!(!shares.has(&foreign), "it is of other memory");
        shares.take_back(foreign);
        drop(shares);
        assert!(whole.is_shared());
        kept.truncate(1);
        assert!(whole.is_shared(), "one is left");
        kept.clear();
        assert!(!whole.is_shared() && !other.is_shared());
    }

    #[test]
    fn memory_returns_when_the_last_share_is_dropped() {
        let pool = Pool::new(1 << 20);
        let page = pool.get(4096).unwrap();
        // SAFETY: nothing accesses the bytes.
        let mut shares = unsafe { Shares::new(&page) };
        // SAFETY: as above.
        let part = unsafe { shares.share(0, 4096) };
        drop((page, shares));
        assert_eq!(pool.metrics().in_use, 4096);
        drop(part);
        assert_eq!(pool.metrics().in_use, 0);
    }
}
