//! Operations that name paths: opening, renaming, linking, removing, making and reading directories, reading and
//! changing metadata. Those for which rings have no opcode are plain calls of workers.
//!
//! Relative paths start at the working directory at the time when the operation is carried out. The kernel passes these
//! operations to its worker threads, except for opening cached paths, and can cancel those that have not begun. The
//! invariant behind all of it: an entry and a call name only memory of `held`, whose addresses do not change when it
//! moves ([`Paths`](crate::memory::Paths)). Knows no other family.

use std::fs::{DirBuilder, Permissions};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

use linux_raw_sys::general::{STATX_BASIC_STATS, STATX_BTIME, STATX_DIOALIGN, STATX_WRITE_ATOMIC};
use linux_raw_sys::io_uring::io_uring_op as op;

use super::parts::last_errno;
use crate::memory::{Held, Left, Listing, Paths};
use crate::ring::Sqe;

/// The requested metadata; the kernel leaves out what it does not have.
const ASKED: u32 = STATX_BASIC_STATS | STATX_BTIME | STATX_DIOALIGN | STATX_WRITE_ATOMIC;

/// The kinds of this family; [`Kind`](super::request::Kind) says which fields of a request each uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PathKind {
    Open,
    Rename,
    HardLink,
    Symlink,
    ReadLink,
    SetMode,
    Remove,
    CreateDir,
    CreateDirs,
    ReadDir,
    Stat,
}

impl PathKind {
    /// Returns the ring's opcode; `None` if rings have none.
    pub(super) fn opcode(self) -> Option<u8> {
        let code = match self {
            Self::Open => op::IORING_OP_OPENAT,
            Self::Rename => op::IORING_OP_RENAMEAT,
            Self::HardLink => op::IORING_OP_LINKAT,
            Self::Symlink => op::IORING_OP_SYMLINKAT,
            Self::Remove => op::IORING_OP_UNLINKAT,
            Self::CreateDir => op::IORING_OP_MKDIRAT,
            Self::Stat => op::IORING_OP_STATX,
            Self::ReadLink | Self::SetMode | Self::CreateDirs | Self::ReadDir => return None,
        };
        Some(code as u8)
    }

    /// Returns the operation's name in words.
    pub(super) fn verb(self, op_flags: u32) -> &'static str {
        match self {
            Self::Open => "opening",
            Self::Rename if op_flags & libc::RENAME_EXCHANGE != 0 => "exchanging",
            Self::Rename => "renaming",
            Self::HardLink => "linking",
            Self::Symlink => "making the symbolic link",
            Self::ReadLink => "reading the symbolic link",
            Self::SetMode => "setting the permissions",
            Self::Remove if op_flags == 0 => "removing",
            Self::Remove => "removing the directory",
            Self::CreateDir | Self::CreateDirs => "making the directory",
            Self::ReadDir => "reading the directory",
            Self::Stat => "reading the metadata",
        }
    }

    /// Fills the fields of a submission entry that depend on the kind of operation.
    #[cold]
    pub(super) fn fill(self, held: &Held, sqe: &mut Sqe) {
        // Rings get no operation without an opcode, see `Rings::take`.
        let Some(opcode) = self.opcode() else { return };
        sqe.opcode = opcode;
        sqe.fd = libc::AT_FDCWD;
        sqe.offset = 0;
        // Without a path the kernel answers EFAULT.
        let Held::Paths(paths) = held else { return };
        sqe.fd = paths.from();
        let path = paths.path().as_ptr().expose_provenance() as u64;
        let to = paths.to().map_or(std::ptr::null(), |to| to.as_ptr()).expose_provenance() as u64;
        sqe.addr = path;
        // The second address is in the field that other operations use for the offset.
        match self {
            Self::Open | Self::CreateDir => sqe.len = paths.mode,
            Self::Rename | Self::HardLink => {
                sqe.offset = to;
                sqe.len = libc::AT_FDCWD.cast_unsigned();
            }
            // The first is where the link points.
            Self::Symlink => (sqe.addr, sqe.offset) = (to, path),
            Self::Remove | Self::ReadLink | Self::SetMode | Self::CreateDirs | Self::ReadDir => {}
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

    fn call_with(self, op_flags: u32, held: &mut Held) -> Result<usize, i32> {
        let Held::Paths(paths) = held else { return Err(libc::EFAULT) };
        let (from, path, flags) = (paths.from(), paths.path().as_ptr(), op_flags.cast_signed());
        let to = paths.to().map_or(std::ptr::null(), |to| to.as_ptr());
        // SAFETY: the paths end in NUL; they and the room for the metadata belong to `held`, which is borrowed.
        let answer = unsafe {
            match self {
                Self::Open => libc::openat(from, path, flags, paths.mode),
                Self::Rename if flags == 0 => libc::renameat(from, path, from, to),
                // Not every C library has a function for it.
                Self::Rename => libc::syscall(libc::SYS_renameat2, from, path, from, to, op_flags) as i32,
                Self::HardLink => libc::linkat(from, path, from, to, flags),
                Self::Symlink => libc::symlinkat(to, from, path),
                Self::Remove => libc::unlinkat(from, path, flags),
                Self::CreateDir => libc::mkdirat(from, path, paths.mode),
                Self::Stat => libc::statx(from, path, flags, ASKED, paths.stat_address()),
                Self::ReadLink | Self::SetMode | Self::CreateDirs | Self::ReadDir => {
                    return self.call_of_std(paths).map(|()| 0).map_err(|error| errno_of(&error));
                }
            }
        };
        usize::try_from(answer).map_err(|_| last_errno())
    }

    /// Makes the calls of an operation that rings lack.
    fn call_of_std(self, paths: &mut Paths) -> std::io::Result<()> {
        match self {
            Self::ReadLink => paths.left = Left::Link(std::fs::read_link(paths.as_path())?),
            Self::SetMode => {
                std::fs::set_permissions(paths.as_path(), Permissions::from_mode(paths.mode))?;
            }
            Self::CreateDirs => {
                DirBuilder::new().recursive(true).mode(paths.mode).create(paths.as_path())?;
            }
            Self::ReadDir => {
                let mut listing = match std::mem::take(&mut paths.left) {
                    Left::Listing(listing) => listing,
                    _ => Listing::open(paths.as_path())?,
                };
                listing.go_on();
                paths.left = Left::Listing(listing);
            }
            // Rings have these.
            Self::Open | Self::Rename | Self::HardLink | Self::Symlink => {}
            Self::Remove | Self::CreateDir | Self::Stat => {}
        }
        Ok(())
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
            paths.left = Left::File(unsafe { OwnedFd::from_raw_fd(descriptor as i32) });
        }
    }
}

/// Returns the errno of a failure; for one that the standard library itself has found, the errno for its cause.
fn errno_of(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::ENOENT)
}
