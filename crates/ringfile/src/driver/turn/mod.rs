//! A driver and its turns: what is started is submitted, and what was answered is collected.
//!
//! Only the files of this folder know what a [`Driver`](state::Driver) consists of. The others start, poll and cancel
//! operations, turn it, and read its counts.

pub(super) mod alone;
pub(super) mod cancel;
pub(super) mod complete;
pub(super) mod counts;
pub(super) mod deferred;
pub(super) mod forks;
pub(super) mod in_place;
pub(super) mod leave;
pub(super) mod linked;
mod mail;
pub(super) mod state;
pub(super) mod submit;
#[cfg(test)]
mod tests;
pub(super) mod thread_ring;
pub(super) mod threads;
pub(super) mod ticket;

use std::sync::Arc;
use std::time::Instant;

use super::mail::shared::Shared;
use super::slots::handler::Handler;
use super::slots::key::LocalHandler;
use super::slots::wake::polled_task;
use crate::ring::RingOptions;
use deferred::Deferred;
use forks::new_driver;
use ringfile_buffer::internal::event;
use state::{DRIVER, Others, with};

/// Returns the shared part of this thread's driver, which is created if there is none. A thread that is ending has that
/// driver until it [leaves](leave::leave).
pub(super) fn own_shared(options: RingOptions) -> Arc<Shared> {
    DRIVER.with(|cell| {
        let mut driver = cell.borrow_mut();
        Arc::clone(&driver.get_or_insert_with(|| new_driver(options)).shared)
    })
}

/// Returns the shared part of this thread's driver if the thread is in its loop.
pub(super) fn own_loop() -> Option<Arc<Shared>> {
    with(|driver| driver.in_loop.then(|| Arc::clone(&driver.shared))).flatten()
}

/// Counts the polled task among those of this turn. Returns how many other tasks started operations that may be plain calls
/// in the turn before.
#[inline]
pub(super) fn other_tasks() -> Others {
    let task = polled_task();
    with(|driver| driver.other_tasks(task)).unwrap_or(Others::Some)
}

/// Adds a handler to this thread's driver; `None` if the thread has no driver.
pub(crate) fn add_local(handler: Arc<dyn Handler>) -> Option<LocalHandler> {
    with(|driver| driver.local_handlers.add(handler))
}

/// Removes a handler from the list: at once if none of its operations is in flight, otherwise when the last one has
/// ended. Does nothing if the number belongs to another handler by now, because the driver was created anew since.
pub(crate) fn remove_local(number: LocalHandler, handler: &Arc<dyn Handler>) {
    let removed = with(|driver| {
        let left = if driver.in_flight == 0 { 0 } else { driver.slots.unanswered_of(number.0) };
        driver.local_handlers.remove(number, handler, left)
    });
    // Dropped while the driver is not borrowed.
    drop(removed);
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
