//! Forks: the locks that the forking thread holds, and what the child may do.

use std::any::Any;

use super::state::{Driver, with};
use crate::driver::elsewhere::worker_queue;
use crate::driver::mail::shared;
use crate::driver::refused::{Lack, after_fork};
use crate::driver::target::{self, ForkLocks};
use crate::error::Error;
use crate::lock::Lock;
use crate::ring::RingOptions;
use crate::timer;
use ringfile_buffer::internal::fork;

/// Held while the I/O threads are started: a fork can wait for a lock, but not for a `OnceLock`.
pub(crate) static STARTING_IO_THREADS: Lock<()> = Lock::new(());

/// Takes the locks of the whole process, for [`ringfile_buffer::internal::fork`]. A driver that retires may drop files, so the files'
/// lock comes last. One-time initialisations are completed before a fork: a child would wait forever for the thread
/// that had begun one.
fn hold_locks() -> Box<dyn Any> {
    let workers = worker_queue::hold();
    let starting = STARTING_IO_THREADS.lock();
    let timers = timer::TIMERS.lock();
    let (all, drivers) = shared::hold(with(|driver| driver.id).unwrap_or_default());
    Box::new((
        workers,
        starting,
        timers,
        drivers,
        all,
        target::NUMBERS.lock(),
        crate::ring::registry::HOLDER.lock(),
    ))
}

/// Returns why another thread has refused to start an operation, if `errno` is a number that stands for such a reason;
/// `None` for any other.
#[cold]
pub(crate) fn why_refused(errno: i32) -> Option<Error> {
    if errno == libc::EOPNOTSUPP && is_forked_child() {
        return Some(after_fork());
    }
    Lack::of_errno(errno).map(Lack::into_error)
}

/// Creates the driver of this thread.
pub(super) fn new_driver(options: RingOptions) -> Box<Driver> {
    let ForkLocks(()) = hold_over_forks();
    Driver::new(options)
}

/// Makes each thread that forks hold the locks.
pub(crate) fn hold_over_forks() -> ForkLocks {
    fork::hold_over_forks(&fork::DRIVER, hold_locks);
    ForkLocks(())
}

/// Returns whether this is a forked child whose parent has this thread's driver, or the workers.
pub(crate) fn is_forked_child() -> bool {
    with(|driver| driver.shared.is_inherited()) == Some(true) || worker_queue::are_of_another_process()
}
