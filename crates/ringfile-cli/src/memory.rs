//! Aligned memory for plain calls with O_DIRECT.
//!
//! Engines of this library use its pool. The code that fills the test file, and the engines that the library is
//! compared with, use this, so that they do not depend on what is measured.

/// A byte buffer whose address is a multiple of [`ALIGNMENT`].
pub struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

/// No device requires more.
pub const ALIGNMENT: usize = 4096;

impl AlignedBytes {
    /// Returns `length` zeroed bytes.
    pub fn zeroed(length: usize) -> AlignedBytes {
        let bytes = vec![0; length + ALIGNMENT];
        // The vector never grows, so its memory does not move.
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        AlignedBytes { bytes, start, length }
    }

    /// Returns the bytes, to read and to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_is_aligned() {
        for length in [1, 511, 4096, 1 << 20] {
            let mut memory = AlignedBytes::zeroed(length);
            assert_eq!(memory.as_mut_slice().as_ptr().align_offset(ALIGNMENT), 0);
            assert_eq!(memory.as_mut_slice().len(), length);
        }
    }
}
