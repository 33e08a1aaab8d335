//! Memory of operations: what the library holds while the kernel works on it.
//!
//! Pools and buffers are a crate of their own, `ringfile-buffer`, which knows nothing of io_uring, files or tasks; this
//! module exports all of it. Here are the traits for other memory ([`IoBuf`]), and the forms in which the driver holds
//! memory ([`IoMemory`]) or borrows it ([`Borrowed`]).

mod any;
mod borrowed;
mod destination;
mod io_memory;
mod iobuf;
mod own;
mod paths;

#[cfg(feature = "compio-buf-08")]
#[doc(inline)]
pub use ringfile_buffer::CompioBuffer;
#[doc(inline)]
pub use ringfile_buffer::{
    Buffer, ClassMetrics, GetBuffer, HugePages, Pool, PoolBuilder, PoolError, PoolMetrics, RegisteredMemory,
    Shares, StableMemory, WhenFull,
};

pub use self::any::AnyBuffer;
#[doc(hidden)]
pub use self::borrowed::Borrowed;
pub use self::borrowed::{ReadMemory, RequestMemory, WriteMemory};
#[doc(hidden)]
pub use self::io_memory::IoMemory;
pub use self::iobuf::{IoBuf, IoBufMut, Slice};

pub(crate) use self::borrowed::Lending;
pub(crate) use self::destination::Destination;
pub(crate) use self::io_memory::{Part, copy_by_words, copy_in_pieces};
pub(crate) use self::own::{ahead, reserve};
pub(crate) use self::paths::{Found, Left, Listing, Paths};
pub(crate) use ringfile_buffer::internal::{
    Counter, KnownRegions, LARGEST, Region, Registration, meminfo, page_size, set_thread_must_not_block,
    wake_all,
};
