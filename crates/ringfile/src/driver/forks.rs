//! What a fork meets: the locks that are held over it, and what a child may do.

use super::refused::{Lack, after_fork};
use super::target::HeldOverForks;
use crate::error::Error;
use std::any::Any;

use super::state::{Driver, with};
use super::{filler, iothreads, shared, target, timer, workers};
use crate::ring::{RingOptions, fork};

/// Takes the locks of the whole process, for [`crate::ring::fork`]. A driver that retires may drop files, so the files'
/// lock comes last. One-time initialisations are completed before a fork: a child would wait forever for the thread
/// that had begun one.
pub(super) fn hold_locks() -> Box<dyn Any> {
    let (workers, making) = (workers::hold(), iothreads::hold());
    let (timers, filler) = (timer::hold(), filler::hold());
    let (all, drivers) = shared::hold(with(|driver| driver.id).unwrap_or_default());
    Box::new((
        workers,
        making,
        timers,
        filler,
        drivers,
        all,
        target::numbers(),
        crate::ring::registry::holder(),
    ))
}

/// Returns why another thread did not start an operation, if this number, in place of an errno, means that.
#[cold]
pub(crate) fn why_refused(errno: i32) -> Option<Error> {
    if errno == libc::EOPNOTSUPP && is_forked_child() {
        return Some(after_fork());
    }
    Lack::of_errno(errno).map(Lack::into_error)
}

/// Creates the driver of this thread.
pub(super) fn new_driver(options: RingOptions) -> Box<Driver> {
    let HeldOverForks(()) = hold_over_forks();
    Driver::new(options)
}

/// Arranges that the locks are held over each fork.
pub(crate) fn hold_over_forks() -> HeldOverForks {
    fork::hold_over_forks(&fork::DRIVER, hold_locks);
    HeldOverForks(())
}

/// Returns whether this thread's driver, or the threads that carry operations out for others, are of another process.
pub(super) fn is_forked_child() -> bool {
    with(|driver| driver.shared.is_inherited()) == Some(true) || workers::are_of_another_process()
}
