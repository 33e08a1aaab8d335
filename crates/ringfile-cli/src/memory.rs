//! Aligned memory for the plain calls, so that O_DIRECT takes it.
//!
//! The ring's engines use the library's pool; what fills the file and what the library is compared with does
//! not, so that neither depends on what is measured.

/// Bytes whose first one lies on a multiple of [`ALIGNMENT`].
pub struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

/// More than any device asks for.
pub const ALIGNMENT: usize = 4096;

impl AlignedBytes {
    /// `length` bytes, all 0.
    pub fn zeroed(length: usize) -> AlignedBytes {
        let bytes = vec![0; length + ALIGNMENT];
        // Never moves again: the vector is not grown.
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        AlignedBytes { bytes, start, length }
    }

    /// The bytes, to read and to write.
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
