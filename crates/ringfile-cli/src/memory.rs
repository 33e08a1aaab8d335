//! Aligned memory for I/O with O_DIRECT.
//!
//! Engines of this library use its pool. The code that fills the test file, and the engines that the library is
//! compared with, use this, so that they do not depend on what is measured.

use bytes::{Buf, BytesMut};

/// No device requires more.
pub const ALIGNMENT: usize = 4096;

/// Returns empty memory for exactly `length` bytes, whose address is a multiple of [`ALIGNMENT`].
///
/// It is aligned as an allocator does it: more is allocated, and the part before the first aligned byte is skipped.
/// `BytesMut` does that in safe code; `posix_memalign` would need `unsafe` here.
pub fn aligned(length: usize) -> BytesMut {
    aligned_at(length, ALIGNMENT)
}

fn aligned_at(length: usize, alignment: usize) -> BytesMut {
    let mut memory = BytesMut::with_capacity(length + alignment);
    let before = memory.as_ptr().align_offset(alignment);
    memory.resize(before, 0);
    memory.advance(before);
    // A read fills all of the capacity.
    drop(memory.split_off(length));
    memory
}

/// Returns `length` zeroed bytes that are aligned in the same way.
pub fn zeroed(length: usize) -> BytesMut {
    zeroed_at(length, ALIGNMENT)
}

/// Returns `length` zeroed bytes whose address is a multiple of `alignment`.
pub fn zeroed_at(length: usize, alignment: usize) -> BytesMut {
    let mut memory = aligned_at(length, alignment);
    memory.resize(length, 0);
    memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_is_aligned() {
        for length in [1, 511, 4096, 1 << 20] {
            let memory = zeroed(length);
            assert_eq!((memory.as_ptr().align_offset(ALIGNMENT), memory.len()), (0, length));
        }
    }
}
