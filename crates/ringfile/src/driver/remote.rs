//! An operation that any thread may carry out, and the receiver of its result.
//!
//! Invariants: a remote request owns its buffer until it has ended, and ends exactly once, on any thread, while no
//! driver is borrowed and no lock is held. If it is dropped, for instance by a panic of its thread, it ends with an
//! error.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::op::Progress;
use super::{Ended, Finished, Kept, Request, Shared, Target, workers};
use crate::memory::Held;
use crate::ring::fork;

/// The receiver of results of remote requests, which it distinguishes by an index.
pub(crate) trait Handler: Send + Sync {
    /// Takes a result.
    fn done(self: Arc<Self>, index: u32, finished: Finished);

    /// Returns whether the result is still wanted; otherwise a remote request that has not begun is not carried out.
    fn is_wanted(&self, index: u32) -> bool;

    /// Returns whether a thread may leave its loop while its ring has such remote requests: true for those of a queue,
    /// until the queue is dropped.
    fn outlives_loops(&self) -> bool {
        false
    }

    /// Returns whether the thread with this driver stays in its loop until the result arrives.
    fn holds(&self, _driver: u64) -> bool {
        false
    }

    /// Returns the identity of the handler: one handler may wrap another.
    fn address(&self) -> *const ();
}

/// Keeps a thread from leaving its loop.
pub(super) struct Hold(Arc<Shared>);

impl Hold {
    pub(super) fn on(owner: Arc<Shared>) -> Self {
        owner.remotes.fetch_add(1, Ordering::Relaxed);
        Self(owner)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.0.remotes.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.notify();
        }
    }
}

/// Wraps a handler, and keeps a hold until its one remote request has ended.
struct Holding {
    handler: Arc<dyn Handler>,
    hold: Hold,
}

impl Handler for Holding {
    fn done(self: Arc<Self>, index: u32, finished: Finished) {
        // The hold is dropped even if that panics.
        Arc::clone(&self.handler).done(index, finished);
    }

    fn is_wanted(&self, index: u32) -> bool {
        self.handler.is_wanted(index)
    }

    fn holds(&self, driver: u64) -> bool {
        self.hold.0.id == driver
    }

    fn address(&self) -> *const () {
        self.handler.address()
    }
}

pub(crate) struct RemoteRequest {
    pub target: Arc<Target>,
    pub request: Request,
    pub held: Held,
    /// What a worker has written to a pipe, a socket or a terminal that was full then.
    pub(super) progress: Progress,
    /// Taken when it ends, or when a ring has taken it over.
    pub(super) handler: Option<Arc<dyn Handler>>,
    pub index: u32,
    /// Keeps the sending thread in its loop until the request has ended.
    pub(super) hold: Option<Hold>,
}

impl RemoteRequest {
    pub(super) fn new(
        target: &Arc<Target>,
        request: &Request,
        held: Held,
        handler: Arc<dyn Handler>,
        index: u32,
    ) -> Self {
        Self {
            target: Arc::clone(target),
            request: *request,
            held,
            progress: Progress::default(),
            handler: Some(handler),
            index,
            hold: None,
        }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        // An operation that may wait forever must not keep a thread from leaving its loop.
        let waits_in_vain = self.target.may_wait_forever(self.request.kind)
            && self.hold.as_ref().is_some_and(|hold| hold.0.leaving.load(Ordering::Relaxed));
        self.handler.as_ref().is_some_and(|handler| handler.is_wanted(self.index)) && !waits_in_vain
    }

    pub(crate) fn end(mut self, ended: Ended) {
        self.end_once(ended);
    }

    /// Ends it without having begun, or where a worker has left it.
    pub(crate) fn refuse(mut self, errno: i32) {
        self.refuse_once(errno);
    }

    fn end_once(&mut self, ended: Ended) {
        // Dropped after the handler is done, or has panicked.
        let _hold = self.hold.take();
        if let Some(handler) = self.handler.take() {
            handler.done(self.index, Finished { held: std::mem::take(&mut self.held), ended });
        }
    }

    fn refuse_once(&mut self, errno: i32) {
        if self.request.kind.is_read() {
            // Nothing was read, and the buffer's length says so.
            self.held.copy_in(self.request.start, &[]);
        }
        self.end_once(Ended { done: self.progress.done(), errno });
    }

    /// Gives the handler to a ring, which ends the operation from here on.
    pub(super) fn take_handler(&mut self) -> Option<Arc<dyn Handler>> {
        let handler = self.handler.take()?;
        match self.hold.take() {
            Some(hold) => Some(Arc::new(Holding { handler, hold })),
            None => Some(handler),
        }
    }
}

impl Drop for RemoteRequest {
    fn drop(&mut self) {
        if self.handler.is_some() {
            // It is not known whether the operation began, and how far it got.
            self.refuse_once(libc::EIO);
        }
    }
}

/// An operation that another thread carries out, as held by its future. Dropping it withdraws the operation if it has
/// not begun, and cancels it if a ring has it; its buffer is dropped when it has ended.
pub(crate) struct RemoteOperation {
    outcome: Arc<Outcome>,
    /// The I/O thread that has the request.
    carrier: Option<Arc<Shared>>,
}

struct Outcome {
    state: Mutex<State>,
    process: fork::Mark,
}

enum State {
    /// The waker to call at the end.
    Open(Waker),
    Ended(Finished),
    /// The future was dropped, or has its result.
    Closed,
}

impl Outcome {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handler for Outcome {
    fn done(self: Arc<Self>, _: u32, finished: Finished) {
        let mut state = self.lock();
        let rest = match std::mem::replace(&mut *state, State::Closed) {
            State::Open(waker) => {
                *state = State::Ended(finished);
                drop(state);
                return waker.wake();
            }
            // The result is not wanted: the buffer is dropped outside the lock, since that may run user code.
            _ => finished,
        };
        drop(state);
        drop(rest);
    }

    fn is_wanted(&self, _: u32) -> bool {
        !matches!(*self.lock(), State::Closed)
    }

    fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }
}

impl RemoteOperation {
    /// Creates a remote operation; `send` takes its handler, and returns the I/O thread that has the request.
    pub(super) fn new(waker: &Waker, send: impl FnOnce(Arc<dyn Handler>) -> Option<Arc<Shared>>) -> Self {
        let state = Mutex::new(State::Open(waker.clone()));
        let outcome = Arc::new(Outcome { state, process: fork::Mark::current() });
        let mut operation = Self { outcome, carrier: None };
        operation.carrier = send(Arc::clone(&operation.outcome) as Arc<dyn Handler>);
        operation
    }

    /// Returns the result when it has arrived, and puts the buffer into `held`; until then, arranges that the task is
    /// woken.
    pub(crate) fn poll(&mut self, context: &Context<'_>, held: &mut Kept) -> Poll<Ended> {
        // A batch's function may fork on the I/O thread, which then has the request in the child too.
        let has_gone = || self.carrier.as_ref().is_none_or(|carrier| carrier.has_gone());
        if !self.outcome.process.is_current() && has_gone() {
            // The result arrives in the parent. SAFETY: the thread that had the request does not exist here, and the
            // outcome, which may hold it by now, is leaked: no other code uses or drops the buffer.
            return Poll::Ready(unsafe { held.reclaim() });
        }
        if matches!(&*self.outcome.lock(), State::Open(waker) if waker.will_wake(context.waker())) {
            return Poll::Pending;
        }
        // Wakers may run user code and own anything, so none is cloned or dropped under the lock.
        let waker = context.waker().clone();
        let mut state = self.outcome.lock();
        let before = if matches!(*state, State::Open(_)) {
            std::mem::replace(&mut *state, State::Open(waker))
        } else {
            std::mem::replace(&mut *state, State::Closed)
        };
        drop(state);
        match before {
            State::Ended(finished) => {
                held.put(finished.held);
                Poll::Ready(finished.ended)
            }
            State::Open(_) | State::Closed => Poll::Pending,
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
        let before = std::mem::replace(&mut *self.outcome.lock(), State::Closed);
        if let State::Open(_) = &before {
            workers::withdraw(&*self.outcome, None);
            if let Some(carrier) = &self.carrier {
                carrier.post_cancellation(Arc::clone(&self.outcome) as Arc<dyn Handler>);
            }
        }
        drop(before);
    }
}
