//! The future's side of a remote request.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::workers;
use crate::driver::mail::shared::Shared;
use crate::driver::op::OpResult;
use crate::driver::slots::handler::{Finished, Handler};
use crate::driver::slots::loan::Loan;
use crate::lock::Lock;
use ringfile_buffer::internal::fork;

/// An operation that another thread carries out, as held by its future. Dropping it withdraws the operation if it has
/// not begun, and cancels it if a ring has it; its buffer is dropped when it has ended.
pub(crate) struct RemoteOperation {
    outcome: Arc<RemoteOutcome>,
    /// The I/O thread that has the request.
    carrier: Option<Arc<Shared>>,
}

struct RemoteOutcome {
    state: Lock<RemoteState>,
    process: fork::Mark,
}

enum RemoteState {
    /// The waker to call at the end.
    Open(Waker),
    Ended(Finished),
    /// The future was dropped, or has its result.
    Closed,
}

impl Handler for RemoteOutcome {
    fn done(self: Arc<Self>, _: u32, finished: Finished) {
        let mut state = self.state.lock();
        let RemoteState::Open(_) = *state else {
            // The result is not wanted: the buffer is dropped outside the lock, since that may run user code.
            return drop(state);
        };
        let before = std::mem::replace(&mut *state, RemoteState::Ended(finished));
        drop(state);
        if let RemoteState::Open(waker) = before {
            waker.wake();
        }
    }

    fn is_wanted(&self, _: u32) -> bool {
        !matches!(*self.state.lock(), RemoteState::Closed)
    }

    fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }
}

impl RemoteOperation {
    /// Creates a remote operation; `send` takes its handler, and returns the I/O thread that has the request.
    pub(crate) fn new(waker: &Waker, send: impl FnOnce(Arc<dyn Handler>) -> Option<Arc<Shared>>) -> Self {
        let state = Lock::new(RemoteState::Open(waker.clone()));
        let outcome = Arc::new(RemoteOutcome { state, process: fork::Mark::current() });
        let mut operation = Self { outcome, carrier: None };
        operation.carrier = send(Arc::clone(&operation.outcome) as Arc<dyn Handler>);
        operation
    }

    /// Returns the result when it has arrived, and puts the buffer into `memory`; until then, arranges that the task is
    /// woken.
    pub(crate) fn poll(&mut self, context: &Context<'_>, memory: &mut Loan) -> Poll<OpResult> {
        // A batch's function may fork on the I/O thread, which then has the request in the child too.
        let has_gone = || self.carrier.as_ref().is_none_or(|carrier| carrier.has_gone());
        if !self.outcome.process.is_current() && has_gone() {
            // The result arrives in the parent. SAFETY: the thread that had the request does not exist here, a shared
            // driver that has it is neither used nor dropped here, and the outcome, which may hold it by now, is leaked: no
            // other code uses or drops the buffer.
            return Poll::Ready(unsafe { memory.reclaim() });
        }
        // Wakers may run user code and own anything, so none is cloned or dropped under the lock.
        let mut waker = None;
        let mut state = self.outcome.state.lock();
        if let RemoteState::Open(known) = &*state {
            if known.will_wake(context.waker()) {
                return Poll::Pending;
            }
            drop(state);
            waker = Some(context.waker().clone());
            state = self.outcome.state.lock();
        }
        let is_open = matches!(*state, RemoteState::Open(_));
        let next = waker.take_if(|_| is_open).map_or(RemoteState::Closed, RemoteState::Open);
        let before = std::mem::replace(&mut *state, next);
        drop(state);
        match before {
            RemoteState::Ended(finished) => {
                memory.put(finished.memory);
                Poll::Ready(finished.ended)
            }
            RemoteState::Open(_) | RemoteState::Closed => Poll::Pending,
        }
    }
}

impl Drop for RemoteOperation {
    fn drop(&mut self) {
        if !self.outcome.process.is_current() {
            // The outcome and its lock belong to the parent: leaked, see `poll`.
            std::mem::forget(Arc::clone(&self.outcome));
            return;
        }
        let before = std::mem::replace(&mut *self.outcome.state.lock(), RemoteState::Closed);
        if let RemoteState::Open(_) = &before {
            workers::withdraw(&*self.outcome, None);
            if let Some(carrier) = &self.carrier {
                carrier.post_cancellation(Arc::clone(&self.outcome) as Arc<dyn Handler>);
            }
        }
        drop(before);
    }
}
