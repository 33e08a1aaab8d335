//! An operation as its future holds it: polled and dropped on its own thread, or, at the price of a message, elsewhere.
//!
//! What always holds: a result is taken once, by whoever polls; a ticket that is dropped before has its operation
//! cancelled, wherever that is.

use std::task::{Context, Poll};

use super::shared::{self, Mail};
use super::start::Place;
use super::wake::Wake;
use super::{Ended, Finished, Key, with};
use crate::memory::Held;

/// An operation that was started. Dropping it cancels the operation; its buffer is dropped when the kernel is done.
pub(crate) struct Ticket {
    driver: u64,
    key: Key,
}

impl Ticket {
    pub(crate) fn new(place: Place) -> Self {
        Self { driver: place.driver, key: place.key }
    }

    /// The result, once it is there, with the buffer put into `held`; until then the task is woken when it is.
    #[inline]
    pub(crate) fn poll(&mut self, context: &Context<'_>, held: &mut Held) -> Poll<Ended> {
        let mut before = Wake::Nobody;
        let polled = with(|driver| {
            if driver.shared.id != self.driver {
                return None;
            }
            driver.poll(self.key, context, held, &mut before)
        });
        drop(before);
        match polled.flatten() {
            Some(Poll::Ready(ended)) => {
                self.key.generation = 0;
                Poll::Ready(ended)
            }
            Some(Poll::Pending) => Poll::Pending,
            None => self.poll_from_afar(context).map(|finished| {
                *held = finished.held;
                finished.ended
            }),
        }
    }

    #[cold]
    fn poll_from_afar(&mut self, context: &Context<'_>) -> Poll<Finished> {
        let Some(shared) = shared::find(self.driver) else { return Poll::Ready(lost()) };
        let mut inner = shared.lock();
        if let Some(finished) = inner.finished.remove(&self.key) {
            let waker = inner.wakers.remove(&self.key);
            drop(inner);
            drop(waker);
            self.key.generation = 0;
            shared::retire(&shared);
            return Poll::Ready(finished);
        }
        if !inner.active {
            return Poll::Ready(lost());
        }
        let before = inner.wakers.insert(self.key, context.waker().clone());
        if before.is_none() {
            shared.post(&mut inner, Mail::Watch(self.key));
        }
        // Wakers may own anything, so none is dropped under the lock.
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
        if finished.is_none() && inner.active {
            shared.post(&mut inner, Mail::Cancel(self.key));
        }
        drop(inner);
        drop((finished, waker));
        shared::retire(&shared);
    }

    #[cold]
    fn cancel(&self) {
        let cancelled =
            with(|driver| (driver.shared.id == self.driver).then(|| driver.cancel(self.key)).flatten());
        match cancelled.flatten() {
            Some(rest) => drop(rest),
            None => self.drop_from_afar(),
        }
    }
}

/// What can only be seen by a future that is polled in a forked child: its result came in the parent.
fn lost() -> Finished {
    Finished { held: Held::None, ended: Ended { done: 0, errno: libc::ECANCELED } }
}

impl Drop for Ticket {
    #[inline]
    fn drop(&mut self) {
        // Generation 0: the result was taken.
        if self.key.generation != 0 {
            self.cancel();
        }
    }
}
