//! The ring of a thread outside a loop, for blocking batches, queues and C handles.
//!
//! Invariants: the driver accepts operations only while a [`RingGuard`] lives, and only those that the thread itself
//! waits for. Operations of other futures on this thread go to other threads, since nothing might submit them here.
//! When the last [`ThreadRing`] of a thread is dropped, the driver is drained and released, or, if it keeps the ring,
//! idle. A `ThreadRing` is used on one thread only, unless its driver moves with it
//! ([`crate::driver::shared`]).

use std::cell::OnceCell;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use super::deferred::Deferred;
use super::leave::{THREAD_RINGS, leave};
use super::state::{is_ending, with};
use super::threads::is_own_swapped_out;
use super::{own_shared, turn, turn_with};
use crate::driver::CompletionSignals;
use crate::driver::mail::shared::Shared;
use crate::ring::RingOptions;

pub(crate) struct ThreadRing {
    /// The thread, after its driver was created.
    shared: OnceCell<Arc<Shared>>,
    then: AfterUse,
}

/// What becomes of a driver after its last [`ThreadRing`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterUse {
    /// It is drained and released.
    Leave,
    /// The thread keeps its ring, and the ring its share of registered memory, for the next `ThreadRing`.
    KeepRing,
    /// Nothing: it belongs to no thread ([`SharedDriver`](crate::driver::shared::driver::SharedDriver)).
    Nothing,
}

impl ThreadRing {
    pub(crate) fn new(then: AfterUse) -> Self {
        if then != AfterUse::Nothing {
            let _ = THREAD_RINGS.try_with(|count| count.set(count.get() + 1));
        }
        Self { shared: OnceCell::new(), then }
    }

    /// Makes the driver accept operations while the guard lives. `None` if it is not in its place: the thread is ending, or
    /// uses [a shared one](super::threads).
    #[inline]
    pub(crate) fn guard(&self) -> Option<RingGuard<'_>> {
        let shared = match self.shared.get() {
            Some(shared) => shared,
            // This must not bind a queue to the driver that is in the place of the thread's own.
            None if self.then == AfterUse::Leave && is_own_swapped_out() => return None,
            None => {
                let shared = own_shared(RingOptions::default());
                self.shared.get_or_init(|| shared)
            }
        };
        with(|driver| {
            // A thread that is ending may have created another one since.
            let is_same = driver.id == shared.id;
            driver.guards += u32::from(is_same);
            is_same
        })
        .filter(|&is_same| is_same)?;
        Some(RingGuard { shared })
    }
}

impl Drop for ThreadRing {
    fn drop(&mut self) {
        if self.then == AfterUse::Nothing {
            return;
        }
        let last = THREAD_RINGS.try_with(|count| count.replace(count.get() - 1) == 1) == Ok(true);
        // If the thread has entered a loop meanwhile, the end of the loop drains the driver.
        if last && with(|driver| driver.in_loop) == Some(false) {
            let is_idle = with(|driver| driver.is_idle());
            if self.then != AfterUse::KeepRing || is_idle != Some(true) || is_ending() {
                leave(&mut Deferred::default());
            }
        }
    }
}

/// A period in which the thread waits for its ring.
pub(crate) struct RingGuard<'a> {
    shared: &'a Arc<Shared>,
}

impl RingGuard<'_> {
    /// Returns what other threads may touch of the thread's driver.
    pub(crate) fn thread(&self) -> &Arc<Shared> {
        self.shared
    }

    /// Wakes the thread while it waits.
    pub(crate) fn waker(&self) -> Waker {
        self.shared.waker()
    }

    /// Turns the driver until the deadline, or until `wanted` returns 0. `wanted` is called before each turn, and
    /// returns how many completions of this thread's ring the kernel collects before it wakes the thread. Messages of
    /// other threads wait as long, unless an operation is on a pipe or a socket.
    pub(crate) fn wait(
        &self,
        deferred: &mut Deferred,
        deadline: Option<Instant>,
        mut wanted: impl FnMut(&mut Deferred) -> Option<u32>,
    ) {
        let mut turned = false;
        loop {
            // The notification is cleared before its causes are checked, so that none is missed.
            self.shared.sleep.take_notification();
            let Some(to_end) = wanted(deferred) else { return };
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                if !turned {
                    // Unsubmitted entries are submitted and completions collected even if there is no time to wait for
                    // more.
                    turn(false, deferred);
                    wanted(deferred);
                }
                return;
            }
            turn_with(true, deadline, to_end, deferred);
            turned = true;
        }
    }

    /// Returns whether the thread is in a loop, which turns the driver by itself.
    pub(crate) fn is_in_loop(&self) -> bool {
        with(|driver| driver.in_loop) == Some(true)
    }

    /// Returns whether another turn must follow at once, because it has work that no completion or message announces.
    pub(crate) fn must_turn_again(&self) -> bool {
        with(|driver| driver.must_turn_again()) == Some(true)
    }

    /// Returns whether the kernel has refused to take operations for now.
    pub(crate) fn is_refused(&self) -> bool {
        with(|driver| driver.ports.are_refused()) == Some(true)
    }

    /// Turns the driver once, without waiting.
    pub(crate) fn look(&self, deferred: &mut Deferred) {
        turn(false, deferred);
    }
}

impl Drop for RingGuard<'_> {
    fn drop(&mut self) {
        with(|driver| {
            // Includes plain calls made since the last turn.
            driver.publish_counts();
            // On a thread that is ending, user code may have made another driver.
            driver.guards -= u32::from(driver.id == self.shared.id);
        });
    }
}

/// Returns the descriptors of the calling thread, created on first use. The thread must be in its loop, or have a
/// guard.
///
/// # Errors
/// Those of `eventfd(2)`, and of registering the descriptor with the ring.
pub(crate) fn completion_signals() -> std::io::Result<CompletionSignals> {
    let signals = with(|driver| driver.ports.completion_signals(driver.in_flight));
    signals.unwrap_or_else(|| Ok(CompletionSignals::default()))
}
