//! An operation as its future holds it. It is polled and dropped on the thread that started it, or on another one at
//! the cost of a message.
//!
//! Invariants: a result is taken once, by the polling thread; a ticket that is dropped earlier cancels its operation,
//! on whichever thread that is. In a forked child the operation ends at once.

use std::task::{Context, Poll};

use super::deferred::Deferred;
use super::kept::Kept;
use super::key::{Key, Place};
use super::op::Ended;
use super::shared::{self, Mail};
use super::state::{Polled, with};
use super::wake::Wake;

/// An operation that was started. Dropping the ticket cancels the operation; its buffer is dropped when the kernel has
/// finished with it.
pub(crate) struct Ticket {
    driver: u64,
    key: Key,
}

impl Ticket {
    #[inline]
    pub(crate) fn new(place: Place) -> Self {
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

    /// Returns the result when it has arrived, and puts the buffer into `held`; until then, arranges that the task is
    /// woken.
    #[inline]
    pub(crate) fn poll(&mut self, context: &Context<'_>, held: &mut Kept) -> Poll<Ended> {
        // Afterwards it holds the previous waker, which is dropped while the driver is not borrowed.
        let mut wake = Wake::Nobody;
        loop {
            let polled = with(|driver| {
                if driver.id != self.driver {
                    return None;
                }
                driver.poll(self.key, context.waker(), held, &mut wake)
            });
            match polled.flatten() {
                Some(Polled::Over(ended)) => {
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
        self.poll_from_afar(context, held)
    }

    #[cold]
    fn poll_from_afar(&mut self, context: &Context<'_>, held: &mut Kept) -> Poll<Ended> {
        let Some(shared) = shared::find(self.driver) else { return Poll::Ready(LOST) };
        // Wakers may run user code and own anything, so none is cloned or dropped under the lock.
        let mut clone = Some(context.waker().clone());
        let mut inner = shared.lock();
        if let Some(finished) = inner.finished.remove(&self.key) {
            let waker = inner.wakers.remove(&self.key);
            drop(inner);
            drop(waker);
            self.key = Key::NONE;
            shared::retire(&shared);
            held.put(finished.held);
            return Poll::Ready(finished.ended);
        }
        if shared.has_gone() {
            drop(inner);
            self.key = Key::NONE;
            // SAFETY: the thread whose driver holds the buffer does not exist in this process, and the buffer is not among the
            // results that it has left: nobody else uses or drops it.
            return Poll::Ready(unsafe { held.reclaim() });
        }
        if !inner.in_loop {
            return Poll::Ready(LOST);
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
    fn drop_from_afar(&self) {
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
            Some(rest) => drop(rest),
            None => self.drop_from_afar(),
        }
    }
}

/// A thread that leaves its loop stores every result that was not taken, so this does not happen.
const LOST: Ended = Ended { done: 0, errno: libc::ECANCELED };

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
