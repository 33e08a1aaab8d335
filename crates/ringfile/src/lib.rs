//! Disk I/O over Linux io_uring.

#[cfg(not(target_os = "linux"))]
compile_error!("ringfile needs Linux: it is a layer over io_uring, which other systems do not have");

mod driver;
mod error;
mod file;
mod memory;
mod metrics;
mod ring;
mod runtime;

pub use error::{BufError, BufResult, Error, IntoParts, Result};
pub use file::{
    Advice, Alignment, AllocateMode, Control, Durability, File, Io, IoVectored, Next, OpenOptions, Reader,
    WriteDurable, sync_dir,
};
pub use memory::{
    Buffer, ClassMetrics, GetBuffer, HugePages, IoBuf, IoBufMut, Pool, PoolBuilder, PoolError, PoolMetrics,
    RegisteredMemory, StableMemory, WhenFull,
};
pub use metrics::{Metrics, metrics, thread_metrics};
pub use runtime::{JoinError, JoinHandle, Panic, Runtime, RuntimeBuilder, block_on, spawn};

/// What io_uring offers here, as a ring of this process gets it: set-up flags, what can be registered, entries.
///
/// Of the calling thread's ring, or of one made to look at.
///
/// # Errors
/// Where no ring can be made; the error says what is in the way.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// println!("{}", ringfile::ring_features()?.join(" "));
/// # Ok(())
/// # }
/// ```
pub fn ring_features() -> Result<Vec<String>> {
    driver::features()
}
