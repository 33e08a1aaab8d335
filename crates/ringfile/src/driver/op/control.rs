//! Operations that move no data: syncing, allocating, truncating, advising.
//!
//! The kernel carries them out on its worker threads, and can cancel those that have not begun. Knows descriptors, and
//! no other family.

use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use linux_raw_sys::io_uring::io_uring_op as op;
use rustix::fs::{Advice, FallocateFlags, OFlags};
use rustix::io::Errno;

use super::parts::{is_refused, last_errno};
use crate::ring::Sqe;

/// The meaning of an allocation's `op_flags`: `FALLOC_FL_…`.
pub(crate) const DISCARD: u32 = linux_raw_sys::general::FALLOC_FL_NO_HIDE_STALE;

/// The same: later writes of the range need not change what the file system knows of the file's blocks.
pub(crate) const WRITTEN: u32 = linux_raw_sys::general::FALLOC_FL_WRITE_ZEROES;

pub(super) const PUNCH_HOLE: u32 = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE).cast_unsigned();

/// The kinds of this family; [`Kind`](super::request::Kind) says which fields of a request each uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ControlKind {
    Sync,
    SyncRange,
    Allocate,
    Truncate,
    Advise,
}

impl ControlKind {
    /// Returns the ring's opcode.
    pub(super) fn opcode(self) -> u8 {
        let code = match self {
            Self::Sync => op::IORING_OP_FSYNC,
            Self::SyncRange => op::IORING_OP_SYNC_FILE_RANGE,
            Self::Allocate => op::IORING_OP_FALLOCATE,
            Self::Truncate => op::IORING_OP_FTRUNCATE,
            Self::Advise => op::IORING_OP_FADVISE,
        };
        code as u8
    }

    /// Returns the operation's name in words.
    pub(super) fn verb(self, op_flags: u32) -> &'static str {
        match self {
            Self::Sync if op_flags == 0 => "syncing",
            Self::Sync => "syncing the data",
            Self::SyncRange => "syncing a range",
            Self::Allocate => "allocating",
            Self::Truncate => "setting the size",
            Self::Advise => "advising",
        }
    }

    /// Fills the fields of a submission entry that depend on the kind of operation. The entry has its offset.
    #[cold]
    pub(super) fn fill(self, op_flags: u32, want: usize, sqe: &mut Sqe) {
        sqe.opcode = self.opcode();
        sqe.op_flags = op_flags;
        match self {
            // With an offset and no length, the kernel would sync the one page there (`io_fsync` in io_uring/sync.c).
            // The sync of a durable write has the offset of the write.
            Self::Sync => sqe.offset = 0,
            Self::Truncate => {}
            // The length has 32 bits: longer ranges are synced to the end of the file. Longer advice does not come
            // here, see `Request::fits_an_entry`.
            Self::SyncRange | Self::Advise => sqe.len = u32::try_from(want).unwrap_or(0),
            Self::Allocate => {
                sqe.addr = want as u64;
                sqe.len = mode(std::mem::take(&mut sqe.op_flags));
            }
        }
    }

    /// Makes the plain call.
    pub(super) fn call(self, fd: BorrowedFd<'_>, op_flags: u32, offset: u64, want: usize) -> Result<(), i32> {
        let len = want as u64;
        let done = match self {
            Self::Sync if op_flags == 0 => rustix::fs::fsync(fd),
            Self::Sync => rustix::fs::fdatasync(fd),
            Self::SyncRange => sync_range(fd, op_flags, offset, want),
            Self::Allocate if op_flags == WRITTEN => written(fd, offset..offset.saturating_add(len)),
            Self::Allocate => {
                let mode = FallocateFlags::from_bits_retain(mode(op_flags));
                rustix::fs::fallocate(fd, mode, offset, len)
            }
            Self::Truncate => rustix::fs::ftruncate(fd, offset),
            Self::Advise => advice(op_flags)
                .and_then(|advice| rustix::fs::fadvise(fd, offset, NonZeroU64::new(len), advice)),
        };
        done.or_else(|errno| self.call_instead(fd, op_flags, errno)).map_err(Errno::raw_os_error)
    }

    /// Makes the call that does more where `fdatasync` or `sync_file_range` is refused or missing, or returns the errno.
    #[cold]
    fn call_instead(self, fd: BorrowedFd<'_>, op_flags: u32, errno: Errno) -> Result<(), Errno> {
        let may_be_refused = matches!(errno, Errno::PERM | Errno::NOSYS);
        match self {
            Self::Sync if may_be_refused && op_flags != 0 && is_refused(libc::SYS_fdatasync, 0) => {
                rustix::fs::fsync(fd)
            }
            Self::SyncRange if may_be_refused && is_refused(libc::SYS_sync_file_range, 0) => {
                rustix::fs::fdatasync(fd)
            }
            Self::Sync | Self::SyncRange | Self::Allocate | Self::Truncate | Self::Advise => Err(errno),
        }
    }
}

/// Zeros of which as many are written at once, aligned for direct I/O.
pub(crate) struct Zeros(Vec<u8>);

impl Zeros {
    const PIECE: usize = 1 << 20;
    const ALIGNED: usize = 64 << 10;

    pub(crate) fn new() -> Self {
        // Never written, so it takes no memory: the kernel reads its page of zeros.
        Self(vec![0; Self::PIECE + Self::ALIGNED])
    }

    /// Writes zeros over a range, in large pieces.
    pub(crate) fn write(&self, fd: BorrowedFd<'_>, range: Range<u64>) -> Result<(), Errno> {
        let zeros = &self.0[self.0.as_ptr().align_offset(Self::ALIGNED).min(Self::ALIGNED)..][..Self::PIECE];
        let Range { mut start, end } = range;
        while start < end {
            let left = zeros.len().min(usize::try_from(end - start).unwrap_or(usize::MAX));
            match rustix::io::retry_on_intr(|| rustix::io::pwrite(fd, &zeros[..left], start))? {
                0 => return Err(Errno::IO),
                done => start += done as u64,
            }
        }
        Ok(())
    }
}

/// Lets the kernel fill a range with zeros (from Linux 6.17 on, where the drive helps), or writes them.
fn written(fd: BorrowedFd<'_>, range: Range<u64>) -> Result<(), Errno> {
    if range.is_empty() {
        return Err(Errno::INVAL);
    }
    let mode = FallocateFlags::from_bits_retain(WRITTEN);
    match rustix::fs::fallocate(fd, mode, range.start, range.end - range.start) {
        // Through a description with O_APPEND, zeros would be written at the end.
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::PERM)
            if !rustix::fs::fcntl_getfl(fd)?.contains(OFlags::APPEND) =>
        {
            Zeros::new().write(fd, range)
        }
        done => done,
    }
}

/// Calls `sync_file_range`, which rustix does not have.
fn sync_range(fd: BorrowedFd<'_>, flags: u32, offset: u64, want: usize) -> Result<(), Errno> {
    // SAFETY: the call takes no memory.
    match unsafe { libc::sync_file_range(fd.as_raw_fd(), offset.cast_signed(), want as i64, flags) } {
        0.. => Ok(()),
        _ => Err(Errno::from_raw_os_error(last_errno())),
    }
}

/// Returns the advice with this number (`POSIX_FADV_...`).
fn advice(op_flags: u32) -> Result<Advice, Errno> {
    use Advice::{DontNeed, NoReuse, Normal, Random, Sequential, WillNeed};
    let all = [Normal, Random, Sequential, WillNeed, DontNeed, NoReuse];
    all.into_iter().find(|advice| *advice as u32 == op_flags).ok_or(Errno::INVAL)
}

/// Returns the kernel's mode of an allocation: discarding punches a hole.
pub(crate) fn mode(op_flags: u32) -> u32 {
    if op_flags == DISCARD { PUNCH_HOLE } else { op_flags }
}
