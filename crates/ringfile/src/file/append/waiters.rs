//! The tasks that wait for an appender, with what each waits for.
//!
//! It is used under the appender's lock, so it never clones, calls or drops a waker: wakers are moved in and out.

use std::collections::VecDeque;
use std::task::Waker;

use super::plan::{Goal, Plan};

/// A task's place in the list of [`Waiters`], if it is there.
pub(super) type WaiterPlace = Option<WaiterIndex>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WaiterIndex(usize);

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

/// Returns a number for this thread that no other running thread has, and that is not 0.
pub(super) fn this_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

impl Waiters {
    /// Adds a task, or replaces the waker of one in the list, which keeps its place if it waits for the same kind of
    /// goal. The caller drops the returned value without the lock.
    #[must_use]
    pub fn register(&mut self, place: &mut WaiterPlace, goal: Goal, waker: Option<Waker>) -> Option<Waker> {
        let thread = this_thread();
        if let Some((waits_for, kept, on)) = place.and_then(|place| self.all.get_mut(place.0)?.as_mut())
            && std::mem::discriminant(waits_for) == std::mem::discriminant(&goal)
        {
            (*waits_for, *on) = (goal, thread);
            return std::mem::replace(kept, waker);
        }
        let before = self.leave(place);
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
        *place = Some(WaiterIndex(index));
        before
    }

    /// Removes a task from the list. The caller drops the returned value without the lock.
    #[must_use]
    pub fn leave(&mut self, place: &mut WaiterPlace) -> Option<Waker> {
        let WaiterIndex(index) = place.take()?;
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
    pub fn is_first(&self, place: WaiterPlace) -> bool {
        self.appending.front().map(|&first| WaiterIndex(first)) == place || self.appending.is_empty()
    }

    /// Returns whether a task waits for records.
    pub fn has_readers(&self) -> bool {
        self.readers > 0
    }

    /// Returns whether there is a task to wake.
    pub fn has_wakers(&self) -> bool {
        self.all.iter().flatten().any(|(_, waker, _)| waker.is_some())
    }

    /// Takes the waker of one task: of one that waits on this thread, if there is one. Returns whether there are more.
    pub fn take_one(&mut self) -> Option<(Waker, bool)> {
        let thread = this_thread();
        let mut can_wake = self.all.iter_mut().flatten().filter(|(_, waker, _)| waker.is_some());
        let (first, second) = (can_wake.next()?, can_wake.next());
        let has_more = second.is_some();
        let is_here = |(_, _, on): &&mut (Goal, Option<Waker>, usize)| *on == thread;
        let here = if is_here(&first) { None } else { second.into_iter().chain(can_wake).find(is_here) };
        Some((here.unwrap_or(first).1.take()?, has_more))
    }

    /// Takes wakers from `cursor` on: of all tasks, or of those that have reached their goals. Returns true if there
    /// may be more.
    pub fn take(&mut self, cursor: &mut usize, everyone: bool, plan: &Plan, into: &mut Wakers) -> bool {
        let first = self.appending.front().copied();
        let woken = self.all.iter_mut().enumerate().skip(*cursor).filter_map(|(index, waiter)| {
            *cursor = index + 1;
            let (goal, waker, _) = waiter.as_mut()?;
            let is_next = *goal != Goal::Turn || first == Some(index);
            let wakes = waker.is_some() && (everyone || is_next && plan.has_reached(*goal));
            if wakes { waker.take() } else { None }
        });
        into.iter_mut().zip(woken).for_each(|(slot, waker)| *slot = Some(waker));
        matches!(into, [.., Some(_)])
    }
}
