//! A task that waits for an appender: it drives the appender until what it looks for is there.
//!
//! One loop for all futures and readers. Invariant: a task registers its waker before it looks for the last time.

use std::ops::Deref;
use std::task::{Context, Poll};

use super::plan::Goal;
use super::shared::AppenderShared;
use super::waiters::WaiterPlace;
use crate::error::Result;
use crate::runtime;

/// A place in the list of waiting tasks. Dropping it leaves the list.
pub(super) struct Waits<S: Deref<Target = AppenderShared>> {
    pub shared: S,
    pub place: WaiterPlace,
    /// Whether the task has been in the list.
    pub has_waited: bool,
    may_yield: bool,
}

/// What a look at the appender has found.
pub(super) enum Look<T> {
    Ready(T),
    /// Nothing yet: the task waits for this.
    Wait(Goal),
    /// Nothing yet, but there is more to drive than before.
    Drive(Goal),
    /// Nothing yet, and another look may find something.
    Again,
    /// Nothing yet, and something other than the appender wakes the task.
    Leave,
}

impl<S: Deref<Target = AppenderShared>> Waits<S> {
    /// With `may_yield`, the first poll lets the thread's loop turn if appends have started writes.
    pub fn new(shared: S, may_yield: bool) -> Self {
        Self { shared, place: None, has_waited: false, may_yield }
    }

    /// Looks and drives by turns, until there is a result or nothing to do but wait. With `first_ends`, it looks after
    /// each step that has ended. `what` is for errors.
    ///
    /// # Errors
    /// Those of `look`, and if this is a forked child.
    pub fn poll<T>(
        &mut self,
        what: &'static str,
        first_ends: bool,
        context: &mut Context<'_>,
        mut look: impl FnMut(&mut Self, &mut Context<'_>) -> Result<Look<T>>,
    ) -> Poll<Result<T>> {
        self.shared.check_process(what)?;
        if std::mem::take(&mut self.may_yield) && runtime::should_turn() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        // The kind of goal for which it is registered, if there was nothing to drive then.
        let mut driven_for = None;
        loop {
            let goal = match look(self, context)? {
                Look::Ready(result) => return Poll::Ready(Ok(result)),
                Look::Again => continue,
                Look::Leave => {
                    self.stop();
                    return Poll::Pending;
                }
                Look::Wait(goal) if driven_for == Some(std::mem::discriminant(&goal)) => {
                    return Poll::Pending;
                }
                Look::Wait(goal) | Look::Drive(goal) => goal,
            };
            // Cloned, and the previous one dropped, without the lock.
            let waker = Some(context.waker().clone());
            let before = self.shared.lock().waiters.register(&mut self.place, goal, waker);
            drop(before);
            self.has_waited = true;
            // What came before the registration woke nobody, so it looks again in any case.
            driven_for = (!self.shared.drive(first_ends)).then_some(std::mem::discriminant(&goal));
        }
    }

    /// Leaves the list, if the task is in it. Returns whether it was.
    #[inline]
    pub fn leave(&mut self) -> bool {
        self.place.is_some() && self.shared.leave(&mut self.place)
    }

    /// Leaves the list, for a task that waits no more. It may have been woken to drive.
    #[inline]
    pub fn stop(&mut self) {
        if self.leave() {
            self.shared.hand_over();
        }
    }

    /// Leaves the list, for a task that is polled no more: another one drives.
    #[inline]
    pub fn give_up(&mut self) {
        if self.leave() {
            self.shared.pass_on();
        }
    }
}

impl<S: Deref<Target = AppenderShared>> Drop for Waits<S> {
    #[inline]
    fn drop(&mut self) {
        self.give_up();
    }
}
