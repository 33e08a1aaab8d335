//! Operations: for each family, its submission entry and its plain call side by side; what a short count means.
//!
//! Knows files as [`Target`]s, memory as [`Held`], and no ring, slot or thread. What always holds: no match over [`Kind`]
//! has a wildcard, so that a new operation does not compile before every place handles it.

mod control;
pub(super) mod plain;
mod progress;
mod transfer;

use linux_raw_sys::general::RWF_DSYNC;
use linux_raw_sys::io_uring::io_uring_op as op;

use super::target::Target;
use crate::memory::Held;
use crate::ring::Sqe;

pub(super) use progress::{Progress, Rules, Step};
pub(crate) use transfer::MOST_AT_ONCE;
pub(super) use transfer::Parts;

/// What an operation does. In brackets: what of a [`Request`] it uses in a way of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
    ReadVectored,
    WriteVectored,
    /// `op_flags`: `FSYNC_DATASYNC` or 0.
    Sync,
    /// `op_flags`: `SYNC_FILE_RANGE_…`; `want`: the length.
    SyncRange,
    /// `op_flags`: the mode; `want`: the length.
    Allocate,
    /// `offset`: the length.
    Truncate,
    /// `op_flags`: the advice; `want`: the length.
    Advise,
}

impl Kind {
    #[inline]
    pub(crate) fn is_read(self) -> bool {
        match self {
            Self::Read | Self::ReadVectored => true,
            Self::Write
            | Self::WriteVectored
            | Self::Sync
            | Self::SyncRange
            | Self::Allocate
            | Self::Truncate
            | Self::Advise => false,
        }
    }

    #[inline]
    pub(crate) fn is_write(self) -> bool {
        match self {
            Self::Write | Self::WriteVectored => true,
            Self::Read
            | Self::ReadVectored
            | Self::Sync
            | Self::SyncRange
            | Self::Allocate
            | Self::Truncate
            | Self::Advise => false,
        }
    }

    #[inline]
    pub(crate) fn moves_data(self) -> bool {
        self.is_read() || self.is_write()
    }

    /// Which operation of the ring it is, whatever its memory.
    pub(super) fn opcode(self) -> u8 {
        let code = match self {
            Self::Read => op::IORING_OP_READ,
            Self::Write => op::IORING_OP_WRITE,
            Self::ReadVectored => op::IORING_OP_READV,
            Self::WriteVectored => op::IORING_OP_WRITEV,
            Self::Sync => op::IORING_OP_FSYNC,
            Self::SyncRange => op::IORING_OP_SYNC_FILE_RANGE,
            Self::Allocate => op::IORING_OP_FALLOCATE,
            Self::Truncate => op::IORING_OP_FTRUNCATE,
            Self::Advise => op::IORING_OP_FADVISE,
        };
        code as u8
    }

    /// What it does, in words.
    pub(crate) fn verb(self, op_flags: u32) -> &'static str {
        match self {
            Self::Read | Self::ReadVectored => "read",
            Self::Write | Self::WriteVectored => "write",
            Self::Sync if op_flags == 0 => "syncing",
            Self::Sync => "syncing the data",
            Self::SyncRange => "syncing a range",
            Self::Allocate => "allocating",
            Self::Truncate => "setting the size",
            Self::Advise => "advising",
        }
    }
}

/// What is asked for, without the buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub kind: Kind,
    /// The operation submitted next waits for this one, and is cancelled if it fails or is short.
    pub linked: bool,
    /// `RWF_…`, or what the kind says.
    pub op_flags: u32,
    /// Bytes into the file.
    pub offset: u64,
    /// Bytes into the buffer at which the data begins.
    pub start: usize,
    /// Bytes to move.
    pub want: usize,
}

impl Request {
    /// Whether the kernel tells by its failure that data was lost which it should have made durable: a sync, or a write that
    /// carries one.
    #[inline]
    pub(crate) fn is_sync(&self) -> bool {
        match self.kind {
            Kind::Sync | Kind::SyncRange => true,
            Kind::Write | Kind::WriteVectored => self.op_flags & RWF_DSYNC != 0,
            Kind::Read | Kind::ReadVectored | Kind::Allocate | Kind::Truncate | Kind::Advise => false,
        }
    }
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    /// Bytes moved.
    pub done: usize,
    /// 0 where it went well.
    pub errno: i32,
}

/// Completes a submission entry that has its descriptor, user data, offset and flags: what comes of the operation from byte
/// `began` on. `index` is the registered memory that the buffer lies in, where the ring has a fixed form of the operation.
///
/// The entry names memory that `held` or `parts` owns. Whether it is the fixed form.
#[inline(always)]
pub(super) fn fill<'a>(
    request: &Request,
    held: &Held,
    began: usize,
    index: Option<u16>,
    parts: impl FnOnce() -> &'a mut Parts,
    sqe: &mut Sqe,
) -> bool {
    match request.kind {
        Kind::Read | Kind::Write => transfer::fill(request, held, began, index, sqe),
        Kind::ReadVectored | Kind::WriteVectored => {
            transfer::fill_vectored(request, held, began, index, parts(), sqe)
        }
        Kind::Sync | Kind::SyncRange | Kind::Allocate | Kind::Truncate | Kind::Advise => {
            control::fill(request, sqe);
            false
        }
    }
}

/// One plain call for what comes of the operation from byte `began` on: the bytes that it moved, or the errno.
fn call(target: &Target, request: &Request, held: &Held, began: usize, nowait: u32) -> Result<usize, i32> {
    match request.kind {
        Kind::Read | Kind::Write | Kind::ReadVectored | Kind::WriteVectored => {
            transfer::call(target, request, held, began, nowait)
        }
        Kind::Sync | Kind::SyncRange | Kind::Allocate | Kind::Truncate | Kind::Advise => {
            control::call(target, request).map(|()| 0)
        }
    }
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
