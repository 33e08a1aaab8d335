//! An operation as its future holds it. It is polled and dropped on the thread that started it, or on another one at
//! the cost of a message.
//!
//! Invariants: a result is taken once, by the polling thread; a ticket that is dropped earlier cancels its operation,
//! on whichever thread that is. In a forked child the operation ends at once.

use std::task::{Context, Poll, Waker};

use super::deferred::Deferred;
use super::state::{Driver, with};
use crate::driver::mail::shared::{self, Mail};
use crate::driver::op::OpResult;
use crate::driver::slots::key::{Key, OperationId};
use crate::driver::slots::loan::Loan;
use crate::driver::slots::slot::{Owner, State};
use crate::driver::slots::wake::Wake;

/// The result of polling an operation.
enum Polled {
    Done(OpResult),
    /// The task will be woken when the operation has ended.
    Pending,
    /// The waker must be cloned, which may run user code, so it is not done while the driver is borrowed.
    NeedsWaker,
    /// This is a forked child, and the operation belongs to its parent: the caller must disown it.
    Inherited,
}

impl Driver {
    /// Takes the result if there is one; otherwise ensures that `waker`'s task is woken. `wake` holds a clone of
    /// `waker` if an earlier call asked for it; after the call it holds the previous value.
    #[inline]
    fn poll(&mut self, key: Key, waker: &Waker, memory: &mut Loan, wake: &mut Wake) -> Option<Polled> {
        let slot = self.slots.get(key)?;
        if slot.marks.owner() == Owner::Remote {
            return None;
        }
        if slot.state == State::Done {
            memory.put_from(&mut slot.memory);
            return Some(Polled::Done(self.slots.free(key.slot())));
        }
        if self.shared.is_inherited() {
            return Some(Polled::Inherited);
        }
        if slot.wake.wakes(waker) {
            return Some(Polled::Pending);
        }
        if matches!(wake, Wake::None) {
            return Some(Polled::NeedsWaker);
        }
        std::mem::swap(&mut slot.wake, wake);
        Some(Polled::Pending)
    }
}

/// An operation that was started. Dropping the ticket cancels the operation; its buffer is dropped when the kernel has
/// finished with it.
pub(crate) struct Ticket {
    driver: u64,
    key: Key,
}

impl Ticket {
    #[inline]
    pub(crate) fn new(place: OperationId) -> Self {
        Self { driver: place.driver, key: place.key }
    }

    /// Returns whether the operation is another thread's, and ends only when that thread runs its loop.
    pub(crate) fn needs_another_loop(&self) -> bool {
        if with(|driver| driver.id == self.driver) == Some(true) {
            return false;
        }
        shared::find(self.driver).is_some_and(|shared| {
            let inner = shared.lock();
            inner.in_loop && !inner.finished.contains_key(&self.key)
        })
    }

    /// Returns the result when it has arrived, and puts the buffer into `memory`; until then, arranges that the task is
    /// woken.
    #[inline]
    pub(crate) fn poll(&mut self, context: &Context<'_>, memory: &mut Loan) -> Poll<OpResult> {
        // Afterwards it holds the previous waker, which is dropped while the driver is not borrowed.
        let mut wake = Wake::None;
        loop {
            let polled = with(|driver| {
                if driver.id != self.driver {
                    return None;
                }
                driver.poll(self.key, context.waker(), memory, &mut wake)
            });
            match polled.flatten() {
                Some(Polled::Done(ended)) => {
                    self.key = Key::NONE;
                    return Poll::Ready(ended);
                }
                Some(Polled::Pending) => return Poll::Pending,
                // The operation may have ended by then: cloning the waker may have turned the driver.
                Some(Polled::NeedsWaker) => wake = Wake::new(context.waker()),
                Some(Polled::Inherited) => disown(),
                None => break,
            }
        }
        self.poll_remotely(context, memory)
    }

    #[cold]
    fn poll_remotely(&mut self, context: &Context<'_>, memory: &mut Loan) -> Poll<OpResult> {
        let Some(shared) = shared::find(self.driver) else { return Poll::Ready(NOWHERE) };
        // Wakers may run user code and own anything, so none is cloned or dropped under the lock.
        let mut clone = Some(context.waker().clone());
        let mut inner = shared.lock();
        if let Some(finished) = inner.finished.remove(&self.key) {
            let waker = inner.wakers.remove(&self.key);
            drop(inner);
            drop(waker);
            self.key = Key::NONE;
            shared::retire(&shared);
            memory.put(finished.memory);
            return Poll::Ready(finished.ended);
        }
        if shared.has_gone() {
            drop(inner);
            self.key = Key::NONE;
            // SAFETY: the thread whose driver holds the buffer does not exist in this process, and the buffer is not among the
            // results that it has left: nobody else uses or drops it.
            return Poll::Ready(unsafe { memory.reclaim() });
        }
        if !inner.in_loop {
            return Poll::Ready(NOWHERE);
        }
        let before = clone.take().and_then(|waker| inner.wakers.insert(self.key, waker));
        if before.is_none() {
            shared.post_locked(&mut inner, Mail::Watch(self.key));
        }
        drop(inner);
        drop(before);
        Poll::Pending
    }

    #[cold]
    fn drop_remotely(&self) {
        let Some(shared) = shared::find(self.driver) else { return };
        let mut inner = shared.lock();
        let waker = inner.wakers.remove(&self.key);
        let finished = inner.finished.remove(&self.key);
        if finished.is_none() {
            shared.post_locked(&mut inner, Mail::Cancel(self.key));
        }
        drop(inner);
        drop((finished, waker));
        shared::retire(&shared);
    }

    #[cold]
    fn cancel(&self) {
        let cancelled = with(|driver| (driver.id == self.driver).then(|| driver.cancel(self.key)).flatten());
        match cancelled.flatten() {
            Some(remainder) => drop(remainder),
            None => self.drop_remotely(),
        }
    }
}

/// A thread that leaves its loop stores every result that was not taken, so this does not happen.
const NOWHERE: OpResult = OpResult { done: 0, errno: libc::ECANCELED };

/// Ends the operations of this thread's driver, in a forked child.
#[cold]
pub(crate) fn disown() {
    let mut deferred = Deferred::default();
    with(|driver| driver.disown(&mut deferred));
    deferred.settle();
}

impl Drop for Ticket {
    #[inline]
    fn drop(&mut self) {
        // Generation 0: the result was taken.
        if self.key != Key::NONE {
            self.cancel();
        }
    }
}
