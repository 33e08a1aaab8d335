//! An operation that any thread may carry out, and the receiver of its result.
//!
//! Invariants: a remote request owns its buffer until it has ended, and ends exactly once, on any thread, while no
//! driver is borrowed and no lock is held. If it is dropped, for instance by a panic of its thread, it ends with an
//! error.

use std::sync::Arc;

use super::op::plain::{self, Attempt};
use super::op::{Ended, Progress, Request};
use super::result::{Finished, Handler};
use super::target::Target;
use crate::memory::Held;

/// Keeps the thread that has sent a request in its loop until this is dropped.
pub(crate) trait Sender: Send + Sync + 'static {
    /// Returns the number of the thread's driver.
    fn id(&self) -> u64;

    /// Returns whether the thread is leaving its loop, and waits for its requests.
    fn is_leaving(&self) -> bool;
}

/// Wraps a handler, and keeps a hold until its one remote request has ended.
struct Holding<S> {
    handler: Arc<dyn Handler>,
    hold: S,
}

impl<S: Sender> Handler for Holding<S> {
    fn done(self: Arc<Self>, index: u32, finished: Finished) {
        // The hold is dropped even if that panics.
        Arc::clone(&self.handler).done(index, finished);
    }

    fn is_wanted(&self, index: u32) -> bool {
        self.handler.is_wanted(index)
    }

    fn holds(&self, driver: u64) -> bool {
        self.hold.id() == driver
    }

    fn address(&self) -> *const () {
        self.handler.address()
    }
}

pub(crate) struct RemoteRequest<S: Sender> {
    pub target: Arc<Target>,
    pub request: Request,
    pub held: Held,
    /// How much a worker has written to a pipe, a socket or a terminal until that was full.
    pub(super) progress: Progress,
    /// `None` once the request has ended, or a ring has taken it over.
    pub(super) handler: Option<Arc<dyn Handler>>,
    pub index: u32,
    /// Keeps the sending thread in its loop until the request has ended.
    pub(super) hold: Option<S>,
}

impl<S: Sender> RemoteRequest<S> {
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

    pub(super) fn is_wanted(&self) -> bool {
        // An operation that may wait forever must not keep a thread from leaving its loop.
        let waits_in_vain = self.target.may_wait_forever(self.request.kind)
            && self.hold.as_ref().is_some_and(|hold| hold.is_leaving());
        self.handler.as_ref().is_some_and(|handler| handler.is_wanted(self.index)) && !waits_in_vain
    }

    /// Carries it out by calls on this thread, which may wait, or makes one call of a copy: returns
    /// [`Attempt::WouldWait`] if more is left. If it was cancelled, it ends after a call that has moved a part.
    pub(super) fn carry_out(&mut self) -> Attempt {
        let Self { target, request, held, progress, handler, index, .. } = self;
        let is_wanted = || handler.as_ref().is_some_and(|handler| handler.is_wanted(*index));
        if request.kind.is_copy() {
            return plain::call_once(target, request, held, progress, is_wanted);
        }
        Attempt::Over(plain::run(target, request, held, is_wanted))
    }

    pub(super) fn end(mut self, ended: Ended) {
        self.end_once(ended);
    }

    /// Ends a request that was not begun, or of which a worker has done only a part.
    pub(super) fn refuse(mut self, errno: i32) {
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

impl<S: Sender> Drop for RemoteRequest<S> {
    fn drop(&mut self) {
        if self.handler.is_some() {
            // It is not known whether the operation began, and how far it got.
            self.refuse_once(libc::EIO);
        }
    }
}
