//! The kinds of memory that are compared. The rest of a run is the same code for all of them.
//!
//! Each hands out owned memory for one block, with nothing in it; dropping it gives it back to where it came from.

use std::ops::Deref;

use bytes::{Buf, BytesMut};
use ringfile::{Buffer, IoBuf, IoBufMut, Pool};

use crate::error::{Failure, library};
use crate::memory::ALIGNMENT;

/// Where memory comes from.
pub trait Source: Clone + Send + Sync + 'static {
    /// The memory of one operation.
    type Block: Block;

    /// Room for just `length` bytes.
    fn take(&self, length: usize) -> impl Future<Output = Result<Self::Block, Failure>>;

    /// Returns a block that was filled, as it is written.
    fn to_write(block: Self::Block) -> impl IoBuf {
        block
    }

    /// Returns the library's pool, if it is that.
    fn pool(&self) -> Option<&Pool> {
        None
    }
}

/// The memory of one operation.
pub trait Block: IoBufMut + Deref<Target = [u8]> {
    /// Adds bytes behind those that are there; there is room for them.
    fn append(&mut self, bytes: &[u8]);
}

/// The library's pool.
impl Source for Pool {
    type Block = Buffer;

    fn pool(&self) -> Option<&Pool> {
        Some(self)
    }

    async fn take(&self, length: usize) -> Result<Buffer, Failure> {
        self.get_async(length).await.map_err(|error| library(&error.into()))
    }
}

impl Block for Buffer {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// The allocator, aligned.
///
/// Aligned as the allocator itself does it: with room to spare, of which the part before the first aligned byte is left
/// out. `BytesMut` can do that and is memory that the library takes, all of it safe code; `posix_memalign` would need
/// `unsafe` here. It costs a few small allocations more for each operation, some tens of nanoseconds each.
#[derive(Debug, Clone, Copy)]
pub struct Malloc;

impl Source for Malloc {
    type Block = BytesMut;

    async fn take(&self, length: usize) -> Result<BytesMut, Failure> {
        Ok(aligned(length))
    }
}

fn aligned(length: usize) -> BytesMut {
    let mut memory = BytesMut::with_capacity(length + ALIGNMENT);
    let before = memory.as_ptr().align_offset(ALIGNMENT);
    memory.resize(before, 0);
    memory.advance(before);
    // A read fills all of the capacity.
    drop(memory.split_off(length));
    memory
}

fn aligned_copy(block: &[u8]) -> BytesMut {
    let mut memory = aligned(block.len());
    memory.extend_from_slice(block);
    memory
}

impl Block for BytesMut {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// The allocator, as it comes.
#[derive(Debug, Clone, Copy)]
pub struct Plain;

impl Source for Plain {
    type Block = Vec<u8>;

    async fn take(&self, length: usize) -> Result<Vec<u8>, Failure> {
        Ok(Vec::with_capacity(length))
    }
}

/// The allocator, as it comes, for direct I/O: what is written is copied to aligned memory, and reads go through
/// aligned memory of the library's.
#[derive(Debug, Clone, Copy)]
pub struct Copied;

impl Source for Copied {
    type Block = Vec<u8>;

    fn to_write(block: Vec<u8>) -> impl IoBuf {
        aligned_copy(&block)
    }

    async fn take(&self, length: usize) -> Result<Vec<u8>, Failure> {
        Plain.take(length).await
    }
}

impl Block for Vec<u8> {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &impl Source, length: usize, aligned: bool) {
        let mut block = ringfile::block_on(source.take(length)).expect("memory");
        assert_eq!((block.len(), IoBufMut::capacity(&block)), (0, length));
        let address = block.as_mut_ptr();
        block.append(&vec![7; length]);
        assert!(block.iter().all(|&byte| byte == 7) && block.as_mut_ptr() == address, "it has not moved");
        assert!(!aligned || address.align_offset(ALIGNMENT) == 0);
    }

    #[test]
    fn each_has_room_for_just_the_length_and_direct_memory_is_aligned() {
        for length in [512, 4096, 12_288, 65_536, 1 << 20] {
            check(&Pool::new(4 << 20), length, length >= 4096);
            check(&Malloc, length, true);
            check(&Plain, length, false);
            check(&Copied, length, false);
            let written = aligned_copy(&vec![7; length]);
            assert!(written.as_ptr().align_offset(ALIGNMENT) == 0 && written[..] == vec![7; length]);
        }
    }
}
