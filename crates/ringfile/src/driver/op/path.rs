//! Operations that name paths: opening, renaming, removing, making directories, reading metadata.
//!
//! Relative paths start at the working directory at the time when the operation is carried out. The kernel passes these
//! operations to its worker threads, except for opening cached paths, and can cancel those that have not begun. The
//! invariant behind all of it: an entry and a call name only memory of `held`, whose addresses do not change when it
//! moves ([`Paths`](crate::memory::Paths)).

use std::os::fd::{FromRawFd, OwnedFd};

use linux_raw_sys::general::{STATX_BASIC_STATS, STATX_BTIME, STATX_DIOALIGN, STATX_WRITE_ATOMIC};

use super::request::{Kind, Request, last_errno};
use crate::memory::Held;
use crate::ring::Sqe;

/// The requested metadata; the kernel leaves out what it does not have.
const ASKED: u32 = STATX_BASIC_STATS | STATX_BTIME | STATX_DIOALIGN | STATX_WRITE_ATOMIC;

/// Fills the fields of a submission entry that depend on the kind of operation.
#[cold]
pub(super) fn fill(request: &Request, held: &Held, sqe: &mut Sqe) {
    sqe.opcode = request.kind.opcode();
    sqe.fd = libc::AT_FDCWD;
    sqe.offset = 0;
    // Without a path the kernel answers EFAULT.
    let Held::Paths(paths) = held else { return };
    sqe.addr = paths.path().as_ptr().expose_provenance() as u64;
    match request.kind {
        Kind::Open | Kind::CreateDir => sqe.len = paths.mode,
        Kind::Rename => {
            let to = paths.to().map_or(std::ptr::null(), |to| to.as_ptr());
            // The second address is in the field that other operations use for the offset.
            sqe.offset = to.expose_provenance() as u64;
            sqe.len = libc::AT_FDCWD.cast_unsigned();
        }
        Kind::Remove => {}
        Kind::Stat => {
            sqe.offset = paths.stat_address().expose_provenance() as u64;
            sqe.len = ASKED;
        }
        Kind::Read | Kind::Write | Kind::ReadVectored | Kind::WriteVectored | Kind::WriteAtomic => {}
        Kind::Sync | Kind::SyncRange | Kind::Allocate | Kind::Truncate | Kind::Advise | Kind::Copy => {}
    }
}

/// Makes the plain call. A file that it opened is kept in `held`, see [`keep_opened`].
#[cold]
pub(super) fn call(request: &Request, held: &mut Held) -> Result<usize, i32> {
    let answer = call_with(request, held);
    // SAFETY: the answer is that of the call for this request.
    unsafe { keep_opened(request, held, answer) };
    answer
}

fn call_with(request: &Request, held: &Held) -> Result<usize, i32> {
    let Held::Paths(paths) = held else { return Err(libc::EFAULT) };
    let (from, path, flags) = (libc::AT_FDCWD, paths.path().as_ptr(), request.op_flags.cast_signed());
    let to = paths.to().map_or(std::ptr::null(), |to| to.as_ptr());
    // SAFETY: the paths end in NUL; they and the room for the metadata belong to `held`, which is borrowed.
    let answer = unsafe {
        match request.kind {
            Kind::Open => libc::openat(from, path, flags, paths.mode),
            Kind::Rename => libc::renameat(from, path, from, to),
            Kind::Remove => libc::unlinkat(from, path, flags),
            Kind::CreateDir => libc::mkdirat(from, path, paths.mode),
            Kind::Stat => libc::statx(from, path, flags, ASKED, paths.stat_address()),
            Kind::Read
            | Kind::Write
            | Kind::ReadVectored
            | Kind::WriteVectored
            | Kind::WriteAtomic
            | Kind::Sync
            | Kind::SyncRange
            | Kind::Allocate
            | Kind::Truncate
            | Kind::Advise
            | Kind::Copy => return Err(libc::EINVAL),
        }
    };
    usize::try_from(answer).map_err(|_| last_errno())
}

/// Keeps the descriptor of an opened file in `held`: dropping `held` closes it.
///
/// # Safety
/// `answer` is the answer to `request`, and is passed here only once.
pub(crate) unsafe fn keep_opened(request: &Request, held: &mut Held, answer: Result<usize, i32>) {
    if request.kind == Kind::Open
        && let (Ok(descriptor), Held::Paths(paths)) = (answer, held)
    {
        // SAFETY: the kernel has just made the descriptor for this operation, and the answer comes here once.
        paths.opened = Some(unsafe { OwnedFd::from_raw_fd(descriptor as i32) });
    }
}
