//! Errors of getting memory, and what to do about them.
//!
//! Knows only the figures it is given.

use std::fmt;
use std::io;

/// The reason why a pool or registered memory returned no buffer.
///
/// Its text says what was requested, what is available, and what to try. Turns into an [`std::io::Error`] of kind
/// `OutOfMemory`, `WouldBlock`, `InvalidInput`, `ResourceBusy`, `WriteZero` (no room) or, for [`PoolError::System`],
/// that of its errno.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolError {
    /// The whole pool is in use, or its free memory is in pieces that are too small. Try again after buffers were
    /// dropped.
    #[non_exhaustive]
    Full {
        /// The requested number of bytes.
        requested: usize,
        /// The pool's capacity in bytes.
        capacity: usize,
        /// Bytes in use in the pool when the request failed.
        in_use: usize,
        /// The limit in bytes for memory outside the pool, 0 if none is allowed.
        outside_limit: usize,
    },
    /// The request is larger than any piece that this pool can provide.
    #[non_exhaustive]
    TooLarge {
        /// The requested number of bytes.
        requested: usize,
        /// The largest possible request, in bytes.
        largest: usize,
    },
    /// The pool is full and set to wait, but this thread runs ringfile's tasks: while it waits, none of them can
    /// return memory. Use [`Pool::get_async`](crate::Pool::get_async) there.
    #[non_exhaustive]
    WouldDeadlock {
        /// The requested number of bytes.
        requested: usize,
    },
    /// Huge pages were required, and the system has too few free, or gives this process no more.
    #[non_exhaustive]
    NoHugePages {
        /// Bytes that were to be mapped.
        bytes: usize,
        /// The size of one huge page in bytes.
        page: usize,
        /// The system's errno.
        errno: i32,
    },
    /// The system refused memory although the pool is below its capacity.
    #[non_exhaustive]
    System {
        /// Bytes that were to be mapped.
        bytes: usize,
        /// The system's errno.
        errno: i32,
    },
    /// An option is invalid, or a range cannot be lent.
    #[non_exhaustive]
    Invalid {
        /// What is wrong, and what is allowed.
        what: String,
    },
    /// A buffer has too little room to append to, and does not [grow](crate::Buffer#growing).
    #[non_exhaustive]
    NoRoom {
        /// The capacity that would be needed, in bytes.
        requested: usize,
        /// The buffer's capacity, in bytes.
        capacity: usize,
        /// Why it does not grow.
        why: &'static str,
    },
    /// A part of the range is already lent. Drop the buffers over it first.
    #[non_exhaustive]
    Lent {
        /// The requested range, in bytes from the start of the memory.
        requested: (usize, usize),
        /// A lent range that it overlaps.
        lent: (usize, usize),
    },
}

impl PoolError {
    pub(super) fn invalid(what: impl Into<String>) -> Self {
        PoolError::Invalid { what: what.into() }
    }
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::Full { requested, capacity, in_use, outside_limit } => {
                write!(
                    f,
                    "no memory for a buffer of {requested} bytes: {in_use} of the pool's {capacity} bytes are in use"
                )?;
                if *outside_limit > 0 {
                    write!(f, ", and the {outside_limit} bytes allowed outside of it")?;
                }
                f.write_str(
                    "; drop buffers, make the pool larger, or wait with get_async until another task drops \
                     some",
                )
            }
            PoolError::TooLarge { requested, largest } => write!(
                f,
                "this pool cannot provide a buffer of {requested} bytes: its largest buffer has {largest} bytes; \
                 split the request or make the pool larger"
            ),
            PoolError::WouldDeadlock { requested } => write!(
                f,
                "the pool is full, and waiting for {requested} bytes here would stop the tasks of this thread that \
                 could give memory back; use get_async"
            ),
            PoolError::NoHugePages { bytes, page, errno } => write!(
                f,
                "no huge pages for {bytes} bytes of pool memory: {}; reserve at least {} pages of {} KiB with `sysctl \
                 vm.nr_hugepages=N`, raise the limit of the process's control group (hugetlb), or use HugePages::Auto",
                io::Error::from_raw_os_error(*errno),
                bytes / page,
                page >> 10
            ),
            PoolError::System { bytes, errno } => write!(
                f,
                "the system refused {bytes} bytes of memory: {}; make the pool smaller, or see ulimit -v and \
                 vm.overcommit_memory",
                io::Error::from_raw_os_error(*errno)
            ),
            PoolError::Invalid { what } => f.write_str(what),
            PoolError::NoRoom { requested, capacity, why } => write!(
                f,
                "a buffer of {capacity} bytes can't hold {requested}, and does not grow: {why}; get a larger one \
                 from a pool"
            ),
            PoolError::Lent { requested, lent } => write!(
                f,
                "bytes {}..{} can't be lent: {}..{} is lent already; drop the buffers over it first",
                requested.0, requested.1, lent.0, lent.1
            ),
        }
    }
}

impl std::error::Error for PoolError {}

impl From<PoolError> for io::Error {
    fn from(error: PoolError) -> Self {
        let kind = match &error {
            PoolError::Full { .. } | PoolError::NoHugePages { .. } => io::ErrorKind::OutOfMemory,
            PoolError::WouldDeadlock { .. } => io::ErrorKind::WouldBlock,
            PoolError::TooLarge { .. } | PoolError::Invalid { .. } => io::ErrorKind::InvalidInput,
            PoolError::Lent { .. } => io::ErrorKind::ResourceBusy,
            PoolError::NoRoom { .. } => io::ErrorKind::WriteZero,
            PoolError::System { errno, .. } => io::Error::from_raw_os_error(*errno).kind(),
        };
        io::Error::new(kind, error)
    }
}
