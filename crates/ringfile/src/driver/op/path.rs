//! Operations that name paths: opening, renaming, removing, making directories, reading metadata.
//!
//! Relative paths start at the working directory at the time when the operation is carried out. The kernel passes these
//! operations to its worker threads, except for opening cached paths, and can cancel those that have not begun. The
//! invariant behind all of it: an entry and a call name only memory of `held`, whose addresses do not change when it
//! moves ([`Paths`](crate::memory::Paths)). Knows no other family.

use std::os::fd::{FromRawFd, OwnedFd};

use linux_raw_sys::general::{STATX_BASIC_STATS, STATX_BTIME, STATX_DIOALIGN, STATX_WRITE_ATOMIC};
use linux_raw_sys::io_uring::io_uring_op as op;

use super::parts::last_errno;
use crate::memory::Held;
use crate::ring::Sqe;

/// The requested metadata; the kernel leaves out what it does not have.
const ASKED: u32 = STATX_BASIC_STATS | STATX_BTIME | STATX_DIOALIGN | STATX_WRITE_ATOMIC;

/// The kinds of this family; [`Kind`](super::request::Kind) says which fields of a request each uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PathKind {
    Open,
    Rename,
    Remove,
    CreateDir,
    Stat,
}

impl PathKind {
    /// Returns the ring's opcode.
    pub(super) fn opcode(self) -> u8 {
        let code = match self {
            Self::Open => op::IORING_OP_OPENAT,
            Self::Rename => op::IORING_OP_RENAMEAT,
            Self::Remove => op::IORING_OP_UNLINKAT,
            Self::CreateDir => op::IORING_OP_MKDIRAT,
            Self::Stat => op::IORING_OP_STATX,
        };
        code as u8
    }

    /// Returns the operation's name in words.
    pub(super) fn verb(self, op_flags: u32) -> &'static str {
        match self {
            Self::Open => "opening",
            Self::Rename => "renaming",
            Self::Remove if op_flags == 0 => "removing",
            Self::Remove => "removing the directory",
            Self::CreateDir => "making the directory",
            Self::Stat => "reading the metadata",
        }
    }

    /// Fills the fields of a submission entry that depend on the kind of operation.
    #[cold]
    pub(super) fn fill(self, held: &Held, sqe: &mut Sqe) {
        sqe.opcode = self.opcode();
        sqe.fd = libc::AT_FDCWD;
        sqe.offset = 0;
        // Without a path the kernel answers EFAULT.
        let Held::Paths(paths) = held else { return };
        sqe.fd = paths.from();
        sqe.addr = paths.path().as_ptr().expose_provenance() as u64;
        match self {
            Self::Open | Self::CreateDir => sqe.len = paths.mode,
            Self::Rename => {
                let to = paths.to().map_or(std::ptr::null(), |to| to.as_ptr());
                // The second address is in the field that other operations use for the offset.
                sqe.offset = to.expose_provenance() as u64;
                sqe.len = libc::AT_FDCWD.cast_unsigned();
            }
            Self::Remove => {}
            Self::Stat => {
                sqe.offset = paths.stat_address().expose_provenance() as u64;
                sqe.len = ASKED;
            }
        }
    }

    /// Makes the plain call. A file that it opened is kept in `held`, see [`keep_opened`](Self::keep_opened).
    #[cold]
    pub(super) fn call(self, op_flags: u32, held: &mut Held) -> Result<usize, i32> {
        let answer = self.call_with(op_flags, held);
        // SAFETY: the answer is that of the call for this operation.
        unsafe { self.keep_opened(held, answer) };
        answer
    }

    fn call_with(self, op_flags: u32, held: &Held) -> Result<usize, i32> {
        let Held::Paths(paths) = held else { return Err(libc::EFAULT) };
        let (from, path, flags) = (paths.from(), paths.path().as_ptr(), op_flags.cast_signed());
        let to = paths.to().map_or(std::ptr::null(), |to| to.as_ptr());
        // SAFETY: the paths end in NUL; they and the room for the metadata belong to `held`, which is borrowed.
        let answer = unsafe {
            match self {
                Self::Open => libc::openat(from, path, flags, paths.mode),
                Self::Rename => libc::renameat(from, path, from, to),
                Self::Remove => libc::unlinkat(from, path, flags),
                Self::CreateDir => libc::mkdirat(from, path, paths.mode),
                Self::Stat => libc::statx(from, path, flags, ASKED, paths.stat_address()),
            }
        };
        usize::try_from(answer).map_err(|_| last_errno())
    }

    /// Keeps the descriptor of an opened file in `held`: dropping `held` closes it.
    ///
    /// # Safety
    /// `answer` is the answer to an operation of this kind with `held`, and is passed here only once.
    pub(super) unsafe fn keep_opened(self, held: &mut Held, answer: Result<usize, i32>) {
        if self == Self::Open
            && let (Ok(descriptor), Held::Paths(paths)) = (answer, held)
        {
            // SAFETY: the kernel has just made the descriptor for this operation, and the answer comes here once.
            paths.opened = Some(unsafe { OwnedFd::from_raw_fd(descriptor as i32) });
        }
    }
}
