//! Pools of aligned memory for I/O.
//!
//! A [`Pool`] hands out [`Buffer`]s: owned, aligned pieces of memory in size classes, with a limit, metrics, and a choice
//! of what happens when the pool is full. A get and a drop take no lock and call no system function. A buffer can grow,
//! be split, be frozen to [`Bytes`](bytes::Bytes) and be thawed again, all without copying.
//!
//! ```
//! use ringfile_buffer::Pool;
//! let pool = Pool::new(64 << 20); // at most 64 MiB
//! let mut buffer = pool.get(4096)?; // aligned for direct I/O
//! buffer.extend_from_slice(b"message");
//! let bytes = buffer.freeze(); // `Bytes`, without a copy: the memory returns when the last clone is dropped
//! assert_eq!(&bytes[..], b"message");
//! # Ok::<(), ringfile_buffer::PoolError>(())
//! ```
//!
//! This crate does no I/O, and runs wherever Rust's standard library and 64-bit atomics do. The crate `ringfile` does I/O on the same buffers
//! over Linux io_uring, registers their memory with the kernel, and exports everything from here. So a client library and
//! its server can share code that takes and returns buffers.
//!
//! # Platforms
//!
//! | | Linux | other Unix | Windows |
//! |---|---|---|---|
//! | memory | mapped, in regions of 2 MiB and more | allocated and zeroed in such regions | same |
//! | alignment ([`PoolBuilder::alignment`]) | any power of two up to 1 GiB | same | same |
//! | [`HugePages::Auto`], `Never` | transparent huge pages, or none | the system's choice | the system's choice |
//! | [`HugePages::Require`] | reserved huge pages | refused | refused |
//! | [`PoolBuilder::dont_fork`] | children see zeros | refused | no effect: there is no fork |
//!
//! What is refused is an error of [`PoolBuilder::build`] or of the first get, which names the cause.
//!
//! # How it works
//!
//! ```text
//!  Pool ── Pool ──▶ Core ─┬─ shards: a stack of free blocks for each size class   (kernel, core: no lock)
//!  (counted handles)      └─ under a lock, when nothing is cached                 (slow, waiters)
//!                              │
//!     region  2 MiB            ▼            4 MiB, 8 MiB, … 1 GiB: mapped as needed, registered as one
//!     ┌────────┬────────┬─────────────┬───────────────────────┐     buffer each, released when free
//!     │ block  │ block  │ block       │ free extent           │
//!     │ 4 KiB  │ 4 KiB  │ 16 KiB      │ (neighbours join)     │
//!     └───▲────┴───▲────┴───▲─────▲───┴───────────────────────┘
//!         │        │        │     │         a block's header (references, class, region) lies apart, and
//!       Buffer   Bytes   Buffer Buffer      counts who refers to it: buffers, parts of a split one, and
//!                        (split: parts)     the owners behind frozen `Bytes`
//! ```
//!
//! A get pops a block of the class from the stack of this thread's shard, or steals from another shard; dropping the
//! last reference pushes it to the shard of the dropping thread. A get takes the lock only if no shard has a block. It
//! then tries, in this order: to cut a block from an extent, map a region, dissolve cached blocks, unmap free regions,
//! and finally what [`WhenFull`] says.
//!
//! # Other runtimes' buffers
//!
//! [`Buffer`] implements the buffer traits of compio 0.19 (feature `compio-buf-08`), monoio 0.2 (`monoio-02`) and
//! tokio-uring 0.5 (`tokio-uring-05`). Each feature needs the Rust version that its runtime needs.

// Files import each other downwards only, and none imports this one. From the top: what users call (`pool`, `waiters`,
// `growing`, `frozen`, `shares`, `traits` and the buffers of other kinds); `slow` and `metrics`, which work under the lock; `home`, which
// returns a block to the pool's `core` or to the lender (`lend`); what the core's lock guards (`inner`, `queue`, `parts`);
// `buffer`; `block`, `kernel` and `region`; and below these what knows nothing of memory (`panics`, `event`, `blocking`),
// with `fork`, which needs a mapping.
//
// Invariants: each byte of a region is in one free extent or one block; mapped regions never add up to more than the
// capacity; memory is unmapped only when nothing can refer to it.

#[cfg(all(feature = "for-ringfile", not(all(target_os = "linux", target_pointer_width = "64"))))]
compile_error!(
    "ringfile needs 64-bit Linux: it is a layer over io_uring, and maps files and memory of any size"
);

mod block;
mod blocking;
mod buffer;
mod class;
mod core;
mod count;
mod counter;
mod error;
mod event;
mod extents;
#[cfg(any(
    feature = "compio-buf-08",
    feature = "monoio-02",
    all(feature = "tokio-uring-05", target_os = "linux")
))]
mod foreign;
mod fork;
mod frozen;
mod growing;
mod home;
mod inner;
mod kernel;
mod lend;
mod locks;
mod mapping;
mod metrics;
mod panics;
mod parts;
mod pool;
mod queue;
mod region;
mod regions;
mod shares;
mod slow;
mod sync;
#[cfg(test)]
mod testing;
mod traits;
mod waiters;

pub use self::buffer::Buffer;
pub use self::core::WhenFull;
pub use self::error::PoolError;
#[cfg(feature = "compio-buf-08")]
pub use self::foreign::compio::CompioBuffer;
pub use self::lend::{RegisteredMemory, StableMemory};
pub use self::mapping::HugePages;
pub use self::metrics::{ClassMetrics, PoolMetrics};
pub use self::pool::{Pool, PoolBuilder};
pub use self::shares::Shares;
pub use self::waiters::GetBuffer;

/// What the crate `ringfile` needs of a pool's memory, and shares with this crate. Not for users: it changes without notice,
/// and `ringfile` depends on exactly one version.
#[doc(hidden)]
pub mod internal {
    pub use crate::class::LARGEST;
    #[cfg(feature = "poison")]
    pub use crate::core::set_thread_poisons;
    pub use crate::counter::Counter;
    pub use crate::home::region;
    pub use crate::inner::Spare;
    pub use crate::lend::regions;
    #[cfg(target_os = "linux")]
    pub use crate::mapping::meminfo;
    pub use crate::mapping::page_size;
    pub use crate::pool::quiet;
    pub use crate::queue::wake_all;
    pub use crate::region::{Region, Registration};
    pub use crate::regions::KnownRegions;
    pub use crate::waiters::{add_spare, is_wanted, set_thread_must_not_block};

    /// Blocks a thread for a future.
    pub mod blocking {
        pub use crate::blocking::*;
    }
    /// Emits events where no lock is held.
    pub mod event {
        pub use crate::event::*;
    }
    /// Detects forked children, and holds locks over forks.
    pub mod fork {
        pub use crate::fork::*;
    }
    /// Ends panics of user code.
    pub mod panics {
        pub use crate::panics::*;
    }
}
