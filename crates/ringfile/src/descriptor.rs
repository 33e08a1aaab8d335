//! How descriptors are made and closed: none of the library's is 0, 1 or 2.
//!
//! A program may have closed these. What then gets such a number is read and written as standard input, output or error by
//! all code that knows no better, such as a library that writes a warning, and replaced by whoever opens them again. The
//! kernel gives an open file the lowest free number, so it has that one until it is moved, at once. A file that is opened,
//! read and closed within a function, for reading only, stays where it is.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::path::Path;

use rustix::event::EventfdFlags;
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::{Errno, Result, fcntl_dupfd_cloexec, retry_on_intr};

/// The first number behind standard error.
const FIRST: i32 = 3;

/// Returns a descriptor that was just made, or a duplicate in its place if its number is below 3.
///
/// # Errors
/// `EMFILE` if there is no other number.
pub fn above_standard(made: OwnedFd) -> Result<OwnedFd> {
    if made.as_raw_fd() < FIRST { duplicate(made) } else { Ok(made) }
}

pub(crate) fn duplicate(of: impl AsFd) -> Result<OwnedFd> {
    fcntl_dupfd_cloexec(of, FIRST)
}

/// Opens a file. `mode`: the permissions of one that is created.
pub(crate) fn open(path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    above_standard(retry_on_intr(|| rustix::fs::open(path, flags | OFlags::CLOEXEC, mode))?)
}

/// Opens the file of a descriptor again. The two share neither position nor flags.
pub(crate) fn open_again(file: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
    open(format!("/proc/thread-self/fd/{}", file.as_raw_fd()).as_ref(), flags, Mode::empty())
}

/// Returns the status of an open file, also where a sandbox knows only one of the two calls.
pub(crate) fn status(file: impl AsFd) -> Result<Stat> {
    rustix::fs::fstat(&file)
        .or_else(|errno| rustix::fs::statat(&file, c"", AtFlags::EMPTY_PATH).map_err(|_| errno))
}

/// Closes a descriptor. It is closed in any case.
///
/// # Errors
/// Those of `close(2)`, which std and rustix ignore.
pub fn close(descriptor: OwnedFd) -> Result<()> {
    // SAFETY: the descriptor was owned, so nothing else uses or closes it.
    match unsafe { libc::close(descriptor.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Makes an eventfd that never blocks.
pub(crate) fn eventfd() -> Result<OwnedFd> {
    above_standard(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}
