//! Explains why an operation is not started: no ring, a forked child, a thread outside every loop.
//!
//! Knows the routes and the workers; starts nothing.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::target::route::{self, Backend};
use crate::error::Error;
use ringfile_buffer::internal::event;

/// Why an operation cannot be started on a thread's own ring.
pub(super) enum Refused {
    /// The thread is in no loop of ringfile's.
    Outside,
    /// The thread's driver belongs to the process that forked this one.
    Forked,
    /// The ring has no such operation: a worker makes the plain call.
    Unsupported,
    /// There is no ring, or no AIO although the route asks for it.
    NoRing(Lack),
    /// There is no ring of the kind that the file needs, and no other way.
    Finally(Lack),
}

impl Refused {
    /// Returns the error if the operation cannot take another route, because its file `insists` on this one.
    #[cold]
    pub(super) fn or_another_route(self, insists: bool) -> Result<(), Error> {
        match self {
            Self::Finally(lack) => Err(lack.into_error()),
            Self::NoRing(lack) if insists => Err(lack.into_error()),
            Self::NoRing(_) | Self::Outside | Self::Forked | Self::Unsupported => Ok(()),
        }
    }

    /// Returns the number that replaces the errno where only an errno fits, as in the end of a remote request.
    /// [`why_refused`](super::turn::forks::why_refused) explains it.
    #[cold]
    pub(super) fn to_errno(&self) -> i32 {
        match self {
            // A forked child cannot use its parent's ring.
            Self::Outside | Self::Forked | Self::Unsupported => libc::EOPNOTSUPP,
            Self::NoRing(lack) | Self::Finally(lack) => lack.to_errno(),
        }
    }
}

/// What is missing, and why. It becomes a text only when it is shown: without a ring, each operation may make one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lack {
    /// The environment forbids it.
    Forbidden(Backend),
    /// A ring; the errno.
    Ring(i32),
    /// An AIO context; the errno.
    Aio(i32),
    /// Turns of the simulation's loop.
    Turns,
}

/// Numbers that replace an errno: above all errnos of Linux, and below the statuses of drives
/// ([`Status`](super::Status)). The lower 12 bits of the first two are the errno.
const NO_RING: i32 = 0x2000;
const NO_AIO: i32 = 0x3000;
const FORBIDDEN_BY_WORKERS: i32 = 0x4000;
const FORBIDDEN_BY_AIO: i32 = 0x4001;
pub(crate) const NO_TURNS: i32 = 0x4002;
const ERRNO: i32 = 0xfff;

impl Lack {
    pub(super) fn to_errno(self) -> i32 {
        match self {
            Self::Forbidden(Backend::Any | Backend::Workers) => FORBIDDEN_BY_WORKERS,
            Self::Forbidden(Backend::Aio) => FORBIDDEN_BY_AIO,
            Self::Ring(errno) => NO_RING | errno & ERRNO,
            Self::Aio(errno) => NO_AIO | errno & ERRNO,
            Self::Turns => NO_TURNS,
        }
    }

    /// Returns what a number means that [`to_errno`](Self::to_errno) returned; `None` for any other.
    pub(super) fn of_errno(errno: i32) -> Option<Self> {
        match (errno, errno & !ERRNO) {
            (FORBIDDEN_BY_WORKERS, _) => Some(Self::Forbidden(Backend::Workers)),
            (FORBIDDEN_BY_AIO, _) => Some(Self::Forbidden(Backend::Aio)),
            (NO_TURNS, _) => Some(Self::Turns),
            (_, NO_RING) => Some(Self::Ring(errno & ERRNO)),
            (_, NO_AIO) => Some(Self::Aio(errno & ERRNO)),
            _ => None,
        }
    }

    /// Returns whether the environment forbids rings.
    pub(super) fn forbidden() -> Option<Self> {
        match route::backend() {
            Backend::Any => None,
            backend @ (Backend::Workers | Backend::Aio) => Some(Self::Forbidden(backend)),
        }
    }

    #[cold]
    pub(super) fn into_error(self) -> Error {
        let forbidden = |what, why| Error::new(io::ErrorKind::Unsupported, what).because(why);
        match self {
            Self::Forbidden(Backend::Aio) => {
                forbidden("setting up io_uring", "RINGFILE_DISABLE=io_uring forbids it")
            }
            Self::Forbidden(Backend::Any | Backend::Workers) => {
                forbidden("setting up io_uring or AIO", "RINGFILE_DISABLE=io_uring,aio forbids it")
            }
            Self::Ring(errno) => set_up_failed(errno),
            Self::Aio(errno) => aio_failed(errno),
            Self::Turns => forbidden(
                "an operation in a simulation",
                "a tokio runtime runs inside the simulated program, and would wait for ever: await in the program \
                 itself, and start tasks with ringfile::spawn",
            ),
        }
    }
}

#[cold]
pub(crate) fn after_fork() -> Error {
    Error::new(io::ErrorKind::Unsupported, "file operation in a forked child")
        .because("its ring and threads belong to the parent; use exec, or use ringfile only after the fork")
}

/// Warns once why there is no ring, unless the environment asked for that.
#[cold]
pub(super) fn warn_of_no_ring(lack: Lack) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if route::backend() == Backend::Any && !WARNED.swap(true, Ordering::Relaxed) {
        let error = lack.into_error().to_string();
        event::defer(move || {
            tracing::warn!(%error, "io_uring is not available: Linux AIO carries out direct I/O, and worker threads \
                the rest");
        });
    }
}

/// Warns once why there is no AIO, if there is no ring either.
#[cold]
pub(super) fn warn_of_no_aio(lack: Lack) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        let error = lack.into_error().to_string();
        event::defer(move || {
            tracing::warn!(%error, "Linux AIO is not available: worker threads carry out direct I/O \
            too")
        });
    }
}

/// Returns the error for buffered I/O with `Route::Aio`.
#[cold]
pub(crate) fn aio_is_for_direct_io() -> Error {
    Error::new(io::ErrorKind::InvalidInput, "an operation with Route::Aio").because(
        "AIO would block the thread until a buffered operation has finished; open the file with direct(true), or \
         with another route",
    )
}

fn aio_failed(errno: i32) -> Error {
    let why = match errno {
        libc::EAGAIN => {
            "the limit fs.aio-max-nr is reached (fs.aio-nr is the number in use); raise it (sysctl -w \
             fs.aio-max-nr=1048576)"
        }
        libc::ENOSYS => "the kernel has no AIO, or a seccomp filter blocks it",
        libc::EPERM => "AIO is not allowed here: see the seccomp profile of the container",
        libc::EINVAL => "the kernel's AIO is older than Linux 4.19",
        _ => "AIO is not available",
    };
    let error = Error::from_errno(errno, "setting up AIO").because(why);
    let is_missing = matches!(errno, libc::ENOSYS | libc::EPERM | libc::EINVAL);
    if is_missing { error.of_kind(io::ErrorKind::Unsupported) } else { error }
}

/// What to do about `EMFILE` and `ENFILE`.
pub(crate) const TOO_MANY_FILES: &str = "too many open files; raise RLIMIT_NOFILE (ulimit -n)";

/// Returns the errno of a failed set-up; a kernel with an incomplete io_uring counts as one without.
pub(super) fn set_up_errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::ENOSYS)
}

pub(super) fn set_up_failed(errno: i32) -> Error {
    let why = match errno {
        libc::ENOSYS => "the kernel has no io_uring, or a seccomp filter blocks it",
        libc::EPERM => {
            "io_uring is not allowed here: see the sysctl kernel.io_uring_disabled (0 allows it) and the seccomp \
             profile of the container"
        }
        libc::ENOMEM => "RLIMIT_MEMLOCK is too small for a ring; raise it (ulimit -l)",
        libc::EMFILE | libc::ENFILE => TOO_MANY_FILES,
        _ => "io_uring is not available",
    };
    let error = Error::from_errno(errno, "setting up io_uring").because(why);
    let is_missing = matches!(errno, libc::ENOSYS | libc::EPERM);
    if is_missing { error.of_kind(io::ErrorKind::Unsupported) } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Status;
    use crate::driver::turn::forks::why_refused;

    #[test]
    fn a_refusal_passed_as_an_errno_keeps_its_reason() {
        let lacks = [
            (Lack::Ring(libc::ENOMEM), "RLIMIT_MEMLOCK"),
            (Lack::Ring(libc::EMFILE), "RLIMIT_NOFILE"),
            (Lack::Aio(libc::EAGAIN), "fs.aio-max-nr"),
            (Lack::Aio(4095), "AIO is not available"),
            (Lack::Forbidden(Backend::Workers), "RINGFILE_DISABLE=io_uring,aio"),
            (Lack::Forbidden(Backend::Aio), "RINGFILE_DISABLE=io_uring"),
            (Lack::Turns, "a tokio runtime"),
        ];
        for (lack, why) in lacks {
            for refused in [Refused::NoRing(lack), Refused::Finally(lack)] {
                let errno = refused.to_errno();
                assert!(
                    errno > 4096 && Status::of_errno(errno).is_none(),
                    "{lack:?}: {errno:#x} has a meaning"
                );
                assert_eq!(Lack::of_errno(errno), Some(lack));
                let error = why_refused(errno).unwrap().to_string();
                assert!(error.contains(why), "{lack:?}: {error}");
            }
        }
        for errno in [0, libc::EIO, libc::ENOMEM, 4095, 4096, Status::to_errno(0x7ff), Status::to_errno(0)] {
            assert!(why_refused(errno).is_none(), "{errno:#x} is no refusal");
        }
    }
}
