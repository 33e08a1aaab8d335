//! Memory: the only code that allocates memory for I/O.
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
//! Files import each other downwards only, and none imports this one. From the top: what users call (`pool`, `waiters`,
//! `growing`, `frozen` and the buffers of other kinds); `slow` and `metrics`, which work under the lock; `home`, which
//! returns a block to the pool's `core` or to the lender (`lend`); what the core's lock guards (`inner`, `queue`,
//! `parts`); `buffer`; `block`, `kernel` and `region`.
//!
//! Knows nothing of io_uring, files or tasks. Invariants: each byte of a region is in one free extent or one block;
//! mapped regions never add up to more than the capacity; memory is unmapped only when nothing can refer to it.

mod any;
mod block;
mod borrowed;
mod buffer;
mod class;
mod core;
mod count;
mod destination;
mod error;
mod extents;
#[cfg(any(feature = "compio-buf-08", feature = "monoio-02", feature = "tokio-uring-05"))]
mod foreign;
mod frozen;
mod growing;
mod held;
mod home;
mod inner;
mod iobuf;
mod kernel;
mod lend;
mod locks;
mod mapping;
mod metrics;
mod parts;
mod paths;
mod pool;
mod queue;
mod region;
mod regions;
mod slow;
mod sync;
#[cfg(test)]
pub(crate) mod testing;
mod waiters;

pub use self::any::AnyBuffer;
#[doc(hidden)]
pub use self::borrowed::Borrowed;
pub use self::borrowed::{ReadMemory, RequestMemory, WriteMemory};
pub use self::buffer::Buffer;
pub use self::core::WhenFull;
pub use self::error::PoolError;
#[cfg(feature = "compio-buf-08")]
pub use self::foreign::compio::CompioBuffer;
#[doc(hidden)]
pub use self::held::Held;
pub use self::iobuf::{IoBuf, IoBufMut};
pub use self::lend::{RegisteredMemory, StableMemory};
pub use self::mapping::HugePages;
pub use self::metrics::{ClassMetrics, PoolMetrics};
pub use self::pool::{Pool, PoolBuilder};
pub use self::waiters::GetBuffer;

pub(crate) use self::borrowed::{Counter, Lending};
pub(crate) use self::class::LARGEST;
pub(crate) use self::destination::Destination;
pub(crate) use self::held::{Part, copy_by_words, copy_in_pieces};
pub(crate) use self::mapping::{MapOptions, MappedMemory, meminfo, page_size};
pub(crate) use self::paths::Paths;
pub(crate) use self::pool::{ahead, reserve};
pub(crate) use self::queue::wake_all;
pub(crate) use self::region::{Region, Registration};
pub(crate) use self::regions::KnownRegions;
pub(crate) use self::waiters::set_thread_must_not_block;
