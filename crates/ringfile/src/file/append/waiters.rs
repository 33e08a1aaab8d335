//! The tasks that wait for an appender, with what each waits for.
//!
//! It is used under the appender's lock, so it never clones, calls or drops a waker: wakers are moved in and out.

use std::collections::VecDeque;
use std::task::Waker;

use super::plan::{Plan, Point};

/// The event that a task waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Goal {
    /// The task waits for its turn to append, and for room. Tasks are served in order of arrival.
    Turn,
    /// The file has everything up to this point.
    Written(Point),
    /// Everything up to this point is durable.
    Durable(Point),
    /// The appender is closed.
    Closed,
    /// A reader of the log's tail waits until everything up to this point was appended, or nothing more will be.
    Appended(Point),
}

impl Goal {
    /// Returns whether the goal is reached; for [`Turn`](Self::Turn), whether the first task may try.
    pub fn is_reached(self, plan: &Plan) -> bool {
        match self {
            Self::Turn => plan.has_room(1) || plan.is_closing(),
            Self::Written(point) => plan.has_written(point),
            // A reader may wait for more than there ever is.
            Self::Durable(point) => plan.has_made_durable(point) || plan.is_closed(),
            Self::Closed => plan.is_closed(),
            Self::Appended(point) => plan.has_appended(point),
        }
    }
}

/// A place in the list of [`Waiters`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WaiterPlace(usize);

#[derive(Default)]
pub(super) struct Waiters {
    /// Free places are `None`. The number is that of the thread on which the task waits.
    all: Vec<Option<(Goal, Option<Waker>, usize)>>,
    free: Vec<usize>,
    /// Tasks that wait to append, in order.
    appending: VecDeque<usize>,
    /// How many wait for records.
    readers: usize,
}

/// Wakers to call once the lock is free. If more tasks are to be woken, this is filled and called several times.
pub(super) type Wakers = [Option<Waker>; 16];

impl Waiters {
    /// Adds a task, or replaces the waker of one in the list. The caller drops the returned value without the lock.
    #[must_use]
    pub fn register(
        &mut self,
        place: &mut Option<WaiterPlace>,
        goal: Goal,
        waker: Option<Waker>,
        thread: usize,
    ) -> Option<Waker> {
        if let Some((waits_for, kept, on)) = place.and_then(|place| self.all.get_mut(place.0)?.as_mut()) {
            debug_assert!(std::mem::discriminant(waits_for) == std::mem::discriminant(&goal));
            (*waits_for, *on) = (goal, thread);
            return std::mem::replace(kept, waker);
        }
        let index = self.free.pop().unwrap_or(self.all.len());
        if index == self.all.len() {
            self.all.push(None);
            // Reserved here, so that leaving never allocates.
            self.free.reserve(self.all.len());
        }
        self.all[index] = Some((goal, waker, thread));
        match goal {
            Goal::Turn => self.appending.push_back(index),
            Goal::Appended(_) => self.readers += 1,
            Goal::Written(_) | Goal::Durable(_) | Goal::Closed => {}
        }
        *place = Some(WaiterPlace(index));
        None
    }

    /// Removes a task from the list. The caller drops the returned value without the lock.
    #[must_use]
    pub fn leave(&mut self, place: &mut Option<WaiterPlace>) -> Option<Waker> {
        let WaiterPlace(index) = place.take()?;
        let (goal, waker, _) = self.all.get_mut(index)?.take()?;
        self.free.push(index);
        match goal {
            Goal::Turn => self.appending.retain(|&other| other != index),
            Goal::Appended(_) => self.readers -= 1,
            Goal::Written(_) | Goal::Durable(_) | Goal::Closed => {}
        }
        waker
    }

    /// Returns whether the task at `place`, or a new one, may append before all others.
    pub fn is_first(&self, place: Option<WaiterPlace>) -> bool {
        self.appending.front().map(|&first| WaiterPlace(first)) == place || self.appending.is_empty()
    }

    /// Returns whether a task waits for records.
    pub fn has_readers(&self) -> bool {
        self.readers > 0
    }

    /// Returns whether there is a task to wake.
    pub fn has_wakers(&self) -> bool {
        self.all.iter().any(|waiter| matches!(waiter, Some((_, Some(_), _))))
    }

    /// Takes the waker of one task: of one that waits on this thread, if there is one. Returns whether there are more.
    pub fn take_one(&mut self, thread: usize) -> Option<(Waker, bool)> {
        let mut can_wake = self.all.iter().enumerate().filter_map(|(index, waiter)| match waiter {
            Some((_, Some(_), on)) => Some((index, *on)),
            _ => None,
        });
        let first = can_wake.next()?;
        let has_more = can_wake.next().is_some();
        let is_here = |waiter: &Option<(Goal, Option<Waker>, usize)>| {
            waiter.as_ref().is_some_and(|(_, waker, on)| waker.is_some() && *on == thread)
        };
        let here = if first.1 == thread { None } else { self.all.iter().position(is_here) };
        let waker = self.all.get_mut(here.unwrap_or(first.0))?.as_mut()?.1.take()?;
        Some((waker, has_more))
    }

    /// Takes wakers from `cursor` on: of all tasks, or of those that have reached their goals. Returns true if there
    /// may be more.
    pub fn take(&mut self, cursor: &mut usize, everyone: bool, plan: &Plan, into: &mut Wakers) -> bool {
        let first = self.appending.front().copied();
        for slot in into {
            *slot = loop {
                let Some(waiter) = self.all.get_mut(*cursor) else { return false };
                let index = *cursor;
                *cursor += 1;
                let Some((goal, waker, _)) = waiter else { continue };
                let is_next = *goal != Goal::Turn || first == Some(index);
                if waker.is_some() && (everyone || is_next && goal.is_reached(plan)) {
                    break waker.take();
                }
            };
        }
        true
    }
}
