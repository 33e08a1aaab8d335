//! Why an operation is not begun, in words: no ring to be had, a forked child, a thread outside of every loop.
//!
//! Knows what the routes and the workers are, and starts nothing.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use super::route::{self, Route};
use super::{Target, with, workers};
use crate::error::Error;
use crate::event;

/// Why an operation can't be started on a thread's own ring.
pub(super) enum Refused {
    /// The thread is in no loop of ringfile's.
    Outside,
    /// The thread's driver is that of the process which forked this one.
    Forked,
    /// The ring has no such operation: a worker makes the plain call.
    Unsupported,
    /// There is no ring to be had.
    NoRing(Error),
    /// Nothing else will do either.
    Finally(Error),
}

impl Refused {
    /// The error, where a file on this route has no other way.
    #[cold]
    pub(super) fn or_another_route(self, route: Route) -> Result<(), Error> {
        match self {
            Self::Finally(error) => Err(error),
            Self::NoRing(error) if route == Route::Ring => Err(error),
            Self::NoRing(_) | Self::Outside | Self::Forked | Self::Unsupported => Ok(()),
        }
    }

    #[cold]
    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Outside => {
                Error::new(io::ErrorKind::Unsupported, "file operation outside a ringfile thread")
            }
            Self::Forked => after_fork(),
            Self::Unsupported => Error::new(io::ErrorKind::Unsupported, "file operation on this ring"),
            Self::NoRing(error) | Self::Finally(error) => error,
        }
    }
}

#[cold]
pub(crate) fn after_fork() -> Error {
    Error::new(io::ErrorKind::Unsupported, "file operation in a forked child")
        .because("its ring and threads belong to the parent; use exec, or use ringfile only after the fork")
}

/// Says once what is in the way of a ring.
#[cold]
pub(super) fn warn_of_no_ring(error: &Error) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        let error = error.to_string();
        event::defer(move || tracing::warn!(%error, "workers carry operations out, as no ring can be had"));
    }
}

/// With which errno an I/O thread refused a remote request last, for want of a ring. An errno is all that a remote request's end tells.
pub(super) static REFUSED_REMOTES: AtomicI32 = AtomicI32::new(0);

/// Why an operation that another thread was to carry out was not begun, where that is what this errno means.
#[cold]
pub(crate) fn why_refused(target: &Target, errno: i32) -> Option<Error> {
    let inherited = || with(|driver| driver.shared.is_inherited()) == Some(true);
    if errno == libc::EOPNOTSUPP && (workers::are_of_another_process() || inherited()) {
        return Some(after_fork());
    }
    let refused = target.lanes.route() == Route::Ring && REFUSED_REMOTES.load(Ordering::Relaxed) == errno;
    refused.then(|| if route::workers_are_forced() { workers_are_forced() } else { set_up_failed(errno) })
}

#[cold]
pub(super) fn workers_are_forced() -> Error {
    Error::new(io::ErrorKind::Unsupported, "setting up io_uring")
        .because("RINGFILE_BACKEND=workers forbids it")
}

/// The errno of a failed set-up; a kernel that has too little of io_uring is as one that has none.
pub(super) fn set_up_errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::ENOSYS)
}

pub(super) fn set_up_failed(errno: i32) -> Error {
    let why = match errno {
        libc::ENOSYS => "this kernel or a seccomp filter has no io_uring",
        libc::EPERM => {
            "io_uring is not allowed here: see the sysctl kernel.io_uring_disabled (0 allows it) and the seccomp \
             profile of the container"
        }
        libc::ENOMEM => "RLIMIT_MEMLOCK is too small for a ring; raise it (ulimit -l)",
        libc::EMFILE | libc::ENFILE => "too many open files; raise RLIMIT_NOFILE (ulimit -n)",
        _ => "io_uring can't be set up",
    };
    let mut error = Error::from_errno(errno, "setting up io_uring").because(why);
    if matches!(errno, libc::ENOSYS | libc::EPERM) {
        error = error.of_kind(io::ErrorKind::Unsupported);
    }
    error
}
