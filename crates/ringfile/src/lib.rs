//! Disk I/O over Linux io_uring.

// Parts of it are for the layers above.
#[allow(dead_code, unused_imports)]
mod memory;

pub use memory::{
    Buffer, ClassMetrics, GetBuffer, HugePages, IoBuf, IoBufMut, Pool, PoolBuilder, PoolError, PoolMetrics,
    RegisteredMemory, StableMemory, WhenFull,
};
