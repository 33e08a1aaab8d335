//! Operations that name paths: opening, renaming, linking, removing, making and reading directories, reading and
//! changing metadata. Those for which rings have no opcode are plain calls of workers.
//!
//! Relative paths start at the working directory at the time when the operation is carried out. The kernel passes these
//! operations to its worker threads, except for opening cached paths, and can cancel those that have not begun. The
//! invariant behind all of it: an entry and a call name only memory of `memory`, whose addresses do not change when it
//! moves ([`Paths`](crate::memory::Paths)). Knows no other family.

use std::fs::{DirBuilder, Permissions};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

use linux_raw_sys::general::{STATX_BASIC_STATS, STATX_BTIME, STATX_DIOALIGN, STATX_WRITE_ATOMIC};
use linux_raw_sys::io_uring::io_uring_op as op;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::parts::last_errno;
use crate::descriptor::above_standard;
use crate::memory::{IoMemory, Left, Listing, Paths};
use crate::ring::Sqe;

/// The requested metadata; the kernel leaves out what it does not have.
const ASKED: u32 = STATX_BASIC_STATS | STATX_BTIME | STATX_DIOALIGN | STATX_WRITE_ATOMIC;

/// The kinds of this family; [`Kind`](super::request::Kind) says which fields of a request each uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PathKind {
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
    pub(super) fn fill(self, memory: &IoMemory, sqe: &mut Sqe) {
        // Rings get no operation without an opcode, see `Ports::take_unusual`.
        let Some(opcode) = self.opcode() else { return };
        sqe.opcode = opcode;
        sqe.fd = libc::AT_FDCWD;
        sqe.offset = 0;
        // Without a path the kernel answers EFAULT.
        let IoMemory::Paths(paths) = memory else { return };
        sqe.fd = paths.from().as_raw_fd();
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

    /// Makes the plain call. A file that it opened is kept in `memory`, see [`keep_opened`](Self::keep_opened).
    #[cold]
    pub(super) fn call(self, op_flags: u32, memory: &mut IoMemory) -> Result<usize, i32> {
        let answer = self.call_with(op_flags, memory);
        // SAFETY: the answer is that of the call for this operation.
        unsafe { self.keep_opened(memory, answer) };
        answer
    }

    fn call_with(self, op_flags: u32, memory: &mut IoMemory) -> Result<usize, i32> {
        let IoMemory::Paths(paths) = memory else { return Err(libc::EFAULT) };
        let (from, path) = (paths.from(), paths.path());
        let (at_flags, mode) = (AtFlags::from_bits_retain(op_flags), Mode::from_bits_retain(paths.mode));
        let to = || paths.to().ok_or(Errno::FAULT);
        let done = match self {
            Self::Open => {
                let flags = OFlags::from_bits_retain(op_flags);
                let opened = rustix::fs::openat(from, path, flags, mode).map_err(Errno::raw_os_error)?;
                return Ok(opened.into_raw_fd() as usize);
            }
            Self::Rename if op_flags == 0 => to().and_then(|to| rustix::fs::renameat(from, path, from, to)),
            Self::Rename => to().and_then(|to| {
                rustix::fs::renameat_with(from, path, from, to, RenameFlags::from_bits_retain(op_flags))
            }),
            Self::HardLink => to().and_then(|to| rustix::fs::linkat(from, path, from, to, at_flags)),
            Self::Symlink => to().and_then(|to| rustix::fs::symlinkat(to, from, path)),
            Self::Remove => rustix::fs::unlinkat(from, path, at_flags),
            Self::CreateDir => rustix::fs::mkdirat(from, path, mode),
            Self::Stat => statx(paths, op_flags),
            Self::ReadLink | Self::SetMode | Self::CreateDirs | Self::ReadDir => {
                return self.call_of_std(paths).map(|()| 0).map_err(|error| errno_of(&error));
            }
        };
        done.map(|()| 0).map_err(Errno::raw_os_error)
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

    /// Keeps the descriptor of an opened file in `memory`: dropping `memory` closes it.
    ///
    /// # Safety
    /// `answer` is the answer to an operation of this kind with `memory`, and is passed here only once.
    pub(super) unsafe fn keep_opened(self, memory: &mut IoMemory, answer: Result<usize, i32>) {
        if self == Self::Open
            && let (Ok(descriptor), IoMemory::Paths(paths)) = (answer, memory)
        {
            // SAFETY: the kernel has just made the descriptor for this operation, and the answer comes here once.
            let opened = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
            paths.left = Left::File(above_standard(opened));
        }
    }
}

/// Returns the errno of a failure; for one that the standard library itself has found, the errno for its cause.
fn errno_of(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::ENOENT)
}

/// Reads the metadata.
fn statx(paths: &Paths, op_flags: u32) -> Result<(), Errno> {
    let (from, path, flags) = (paths.from().as_raw_fd(), paths.path().as_ptr(), op_flags.cast_signed());
    // SAFETY: the path ends in NUL; it and the room for the metadata belong to `paths`, which is borrowed.
    if unsafe { libc::statx(from, path, flags, ASKED, paths.stat_address()) } == 0 {
        return Ok(());
    }
    match Errno::from_raw_os_error(last_errno()) {
        Errno::PERM | Errno::NOSYS => stat(paths, op_flags),
        errno => Err(errno),
    }
}

/// Reads the metadata where `statx` is refused or missing: without the time of creation and what direct I/O needs.
#[cold]
fn stat(paths: &Paths, op_flags: u32) -> Result<(), Errno> {
    let flags = AtFlags::from_bits_truncate(op_flags) & (AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW);
    let found = rustix::fs::statat(paths.from(), paths.path(), flags)?;
    // SAFETY: the record belongs to `paths`, which is borrowed, and consists of integers.
    let stat = unsafe { paths.stat_address().as_mut() }.ok_or(Errno::FAULT)?;
    stat.stx_mask = STATX_BASIC_STATS;
    (stat.stx_mode, stat.stx_nlink) = (found.st_mode as u16, found.st_nlink as u32);
    (stat.stx_uid, stat.stx_gid, stat.stx_ino) = (found.st_uid, found.st_gid, found.st_ino);
    (stat.stx_size, stat.stx_blocks) = (found.st_size as u64, found.st_blocks as u64);
    (stat.stx_dev_major, stat.stx_dev_minor) =
        (rustix::fs::major(found.st_dev), rustix::fs::minor(found.st_dev));
    (stat.stx_atime.tv_sec, stat.stx_atime.tv_nsec) = (found.st_atime, found.st_atime_nsec as u32);
    (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec) = (found.st_mtime, found.st_mtime_nsec as u32);
    (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec) = (found.st_ctime, found.st_ctime_nsec as u32);
    Ok(())
}
