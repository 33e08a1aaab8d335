//! The end of a file, for callers that wait for it.
//!
//! Whichever thread gives up the last reference to a target closes its descriptor. Invariants: a wait ends once all
//! descriptors of the file are closed, with the first error; the closing thread calls no waker, since it may have a lock; a
//! forked child, which closes only its own copies of the descriptors, takes no lock here and does not wait.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::caught::caught;
use crate::lock::Lock;
use crate::timer::{now, wake_at};
use ringfile_buffer::internal::fork;

/// What those that wait for the end of a file share.
pub(crate) struct Closing {
    state: Lock<ClosingState>,
    process: fork::Mark,
}

#[derive(Default)]
struct ClosingState {
    is_over: bool,
    /// The first errno, or 0.
    errno: i32,
    waiting: Vec<Waker>,
}

impl Closing {
    /// Returns the errno of the close, or 0, once the file is closed; until then, arranges that the task is woken. `place` is
    /// `None` at first, and kept by the caller.
    pub(crate) fn poll(&self, context: &Context<'_>, place: &mut Option<usize>) -> Poll<i32> {
        if !self.process.is_current() {
            return Poll::Ready(0);
        }
        // Wakers may run user code and own anything, so none is cloned or dropped under the lock.
        let mut waker = context.waker().clone();
        let mut state = self.state.lock();
        if state.is_over {
            return Poll::Ready(state.errno);
        }
        match *place {
            Some(place) => std::mem::swap(&mut state.waiting[place], &mut waker),
            None => {
                *place = Some(state.waiting.len());
                state.waiting.push(waker);
                return Poll::Pending;
            }
        }
        drop(state);
        Poll::Pending
    }
}

impl Wake for Closing {
    fn wake(self: Arc<Self>) {
        let waiting = std::mem::take(&mut self.state.lock().waiting);
        for waker in waiting {
            caught("a waker panicked when a file was closed", || waker.wake());
        }
    }
}

/// Kept by each target of the file until its descriptor is closed.
pub(super) struct Closes(Arc<Closing>);

impl Closes {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Arc::new(Closing { state: Lock::default(), process: fork::Mark::current() })))
    }

    pub(super) fn closing(&self) -> Arc<Closing> {
        Arc::clone(&self.0)
    }

    /// Notes why closing a descriptor has failed.
    pub(super) fn note(&self, errno: i32) {
        if self.0.process.is_current() {
            let mut state = self.0.state.lock();
            state.errno = if state.errno == 0 { errno } else { state.errno };
        }
    }
}

impl Drop for Closes {
    fn drop(&mut self) {
        let Self(closing) = self;
        if !closing.process.is_current() {
            return;
        }
        let mut state = closing.state.lock();
        state.is_over = true;
        let has_waiting = !state.waiting.is_empty();
        drop(state);
        if has_waiting {
            match wake_at(now(), Waker::from(Arc::clone(closing))) {
                // Dropping it would cancel it.
                Some(timer) => std::mem::forget(timer),
                // No thread can be started.
                None => Arc::clone(closing).wake(),
            }
        }
    }
}
