//! The multiples that direct I/O on a file requires, and whether an operation fits them.

use crate::driver::op::Request;
use crate::memory::IoMemory;

/// The multiples that direct I/O on a file requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Alignment {
    /// Offsets and lengths must be multiples of this, in bytes; 1 for buffered I/O.
    pub bytes: usize,
    /// Memory addresses must be multiples of this, in bytes; 1 for buffered I/O. Buffers of a [`Pool`](crate::Pool)
    /// always are.
    pub memory: usize,
    /// The limits of [atomic](crate::File::write_atomic_at) writes; `None` if the file does not support them.
    pub atomic: Option<AtomicLimits>,
}

/// Limits of the atomic writes that a file accepts: see [`File::write_atomic_at`](crate::File::write_atomic_at).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct AtomicLimits {
    /// The shortest length, in bytes; a power of two.
    pub min: usize,
    /// The longest length, in bytes; a power of two.
    pub max: usize,
    /// How many pieces of memory the kernel accepts for one write. The library's atomic writes have one piece.
    pub segments: usize,
}

impl AtomicLimits {
    /// Makes the limits of `statx`'s three fields; none if the shortest is 0.
    pub(crate) fn of_statx(min: u32, max: u32, segments: u32) -> Option<Self> {
        (min != 0).then_some(Self { min: min as usize, max: max as usize, segments: segments as usize })
    }
}

impl Alignment {
    /// Returns whether offset, length and memory of an operation are aligned for direct I/O.
    #[inline]
    pub(crate) fn fits(self, request: &Request, memory: &IoMemory) -> bool {
        let is_read = request.kind.is_read();
        let fits = |ptr: *mut u8, len: usize| self.fits_piece(request.offset, ptr, len);
        if memory.count() == 1 {
            // The range of the request, which may be the aligned part of a buffer.
            return memory
                .part(0)
                .is_some_and(|part| fits(part.ptr.wrapping_add(request.start), request.want));
        }
        memory.parts().all(|part| fits(part.ptr, if is_read { part.capacity } else { part.len }))
    }

    /// Returns whether one piece of memory, and the offset, are.
    #[inline]
    pub(crate) fn fits_piece(self, offset: u64, ptr: *mut u8, len: usize) -> bool {
        let (mask, memory_mask) = (self.bytes - 1, self.memory - 1);
        (offset as usize & mask) | (ptr.addr() & memory_mask) | (len & mask) == 0
    }
}
