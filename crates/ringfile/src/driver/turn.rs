//! A thread's loop: entering it, and its turns.

use std::sync::Arc;
use std::time::Instant;

use super::deferred::Deferred;
use super::forks::new_driver;
use super::shared::{self, Mail, Shared};
use super::state::{DRIVER, with};
use super::target::Target;
use crate::ring::RingOptions;
use ringfile_buffer::internal::event;

/// Returns the shared part of this thread's driver, which is created if there is none. A thread that is ending has that
/// driver until it [leaves](super::leave::leave).
pub(super) fn own_shared(options: RingOptions) -> Arc<Shared> {
    DRIVER.with(|cell| {
        let mut driver = cell.borrow_mut();
        Arc::clone(&driver.get_or_insert_with(|| new_driver(options)).shared)
    })
}

/// Begins the loop of this thread. `options` apply only if the thread has no ring yet.
pub(crate) fn enter(options: RingOptions) -> Arc<Shared> {
    let shared = own_shared(options);
    with(|driver| {
        driver.in_loop = true;
        driver.ops_at_entry = driver.counts.ops;
        driver.shared.lock().in_loop = true;
    });
    shared
}

/// Submits started operations and collects completions; with `may_sleep`, sleeps until there is one, or the thread is
/// notified. Wakes tasks.
pub(crate) fn turn(may_sleep: bool, deferred: &mut Deferred) {
    turn_with(may_sleep, None, 1, deferred);
}

/// Does what [`turn`] does, but sleeps until there are `wanted` completions, and at most until the deadline.
#[inline]
pub(super) fn turn_with(may_sleep: bool, deadline: Option<Instant>, wanted: u32, deferred: &mut Deferred) {
    let need_not_park = with(|driver| {
        driver.turn(may_sleep, deadline, wanted, deferred);
        // A subscriber of a deferred event may wake a task of this thread, and that does not notify the thread.
        driver.can_sleep_in_ring() || deferred.may_wake_someone() || event::are_deferred()
    });
    deferred.settle();
    if may_sleep
        && need_not_park == Some(false)
        && let Some(shared) = with(|driver| Arc::clone(&driver.shared))
    {
        shared.park(deadline);
    }
}

/// Makes every driver that uses a file release it, after its last handle was dropped.
pub(crate) fn close(target: &Arc<Target>) {
    target.is_to_close();
    for user in target.users() {
        let own = with(|driver| (driver.id == user).then(|| driver.close_file(target.number)));
        if own.flatten().is_none()
            && let Some(shared) = shared::find(user)
            // A forked child does not have the thread, which may hold its lock.
            && !shared.is_inherited()
        {
            shared.post(Mail::Close(target.number));
        }
    }
}
