//! The kinds of memory that are compared. All other code of a run is the same for all of them.
//!
//! Each kind hands out empty, owned memory for one block; dropping it returns it to its source.

use std::ops::Deref;

use bytes::{BufMut, BytesMut};
use ringfile::{Buffer, IoBufMut, Pool};

use crate::error::{Failure, library};
use crate::memory::aligned;

/// A source of memory.
pub trait MemorySource: Clone + Send + Sync + 'static {
    /// The memory of one operation.
    type Block: IoBufMut + BufMut + Deref<Target = [u8]>;

    /// Gets room for exactly `length` bytes.
    fn take(&self, length: usize) -> impl Future<Output = Result<Self::Block, Failure>>;

    /// Returns the library's pool, if this source is one.
    fn pool(&self) -> Option<&Pool> {
        None
    }
}

/// The library's pool.
impl MemorySource for Pool {
    type Block = Buffer;

    fn pool(&self) -> Option<&Pool> {
        Some(self)
    }

    async fn take(&self, length: usize) -> Result<Buffer, Failure> {
        self.get_async(length).await.map_err(|error| library(&error.into()))
    }
}

/// The allocator, [aligned]. Aligning costs a few more small allocations for each operation, some tens of nanoseconds
/// each.
#[derive(Debug, Clone, Copy)]
pub struct Malloc;

impl MemorySource for Malloc {
    type Block = BytesMut;

    async fn take(&self, length: usize) -> Result<BytesMut, Failure> {
        Ok(aligned(length))
    }
}

/// The allocator, without alignment.
#[derive(Debug, Clone, Copy)]
pub struct Plain;

impl MemorySource for Plain {
    type Block = Vec<u8>;

    async fn take(&self, length: usize) -> Result<Vec<u8>, Failure> {
        Ok(Vec::with_capacity(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::ALIGNMENT;

    fn check(source: &impl MemorySource, length: usize, aligned: bool) {
        let mut block = ringfile::block_on(source.take(length)).expect("memory");
        assert_eq!((block.len(), IoBufMut::capacity(&block)), (0, length));
        let address = block.as_mut_ptr();
        block.put_slice(&vec![7; length]);
        assert!(block.iter().all(|&byte| byte == 7) && block.as_mut_ptr() == address, "it has not moved");
        assert!(!aligned || address.align_offset(ALIGNMENT) == 0);
    }

    #[test]
    fn each_has_room_for_just_the_length_and_direct_memory_is_aligned() {
        for length in [512, 4096, 12_288, 65_536, 1 << 20] {
            check(&Pool::new(4 << 20), length, length >= 4096);
            check(&Malloc, length, true);
            check(&Plain, length, false);
        }
    }
}
