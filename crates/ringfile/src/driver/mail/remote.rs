//! An operation that any thread may carry out, and the receiver of its result.
//!
//! Invariants: a remote request owns its buffer until it has ended, and ends exactly once, on any thread, while no
//! driver is borrowed and no lock is held; when its receiver learns of that, it does not keep its file any more. If it is
//! dropped, for instance by a panic of its thread, it ends with an error.

use std::sync::Arc;

use crate::driver::op::plain::{self, CallOutcome};
use crate::driver::op::{OpResult, Progress, Request};
use crate::driver::slots::handler::{Finished, Handler};
use crate::driver::target::Target;
use crate::memory::IoMemory;

/// Keeps the thread that has sent a request in its loop until this is dropped.
pub(crate) trait Sender: Send + Sync + 'static {
    /// Returns the number of the thread's driver.
    fn id(&self) -> u64;

    /// Returns whether the thread is leaving its loop, and waits for its requests.
    fn is_leaving(&self) -> bool;
}

/// Wraps a handler, and keeps a loop guard until its one remote request has ended.
struct WithLoopGuard<S> {
    handler: Arc<dyn Handler>,
    loop_guard: S,
}

impl<S: Sender> Handler for WithLoopGuard<S> {
    fn done(self: Arc<Self>, index: u32, finished: Finished) {
        // The loop guard is dropped even if that panics.
        Arc::clone(&self.handler).done(index, finished);
    }

    fn is_wanted(&self, index: u32) -> bool {
        self.handler.is_wanted(index)
    }

    fn guards_loop_of(&self, driver: u64) -> bool {
        self.loop_guard.id() == driver
    }

    fn address(&self) -> *const () {
        self.handler.address()
    }
}

pub(crate) struct SentRequest<S: Sender> {
    pub target: Arc<Target>,
    pub request: Request,
    pub memory: IoMemory,
    /// How much a worker has written to a pipe, a socket or a terminal until that was full.
    pub(crate) progress: Progress,
    /// `None` once the request has ended, or a ring has taken it over.
    pub(crate) handler: Option<Arc<dyn Handler>>,
    pub index: u32,
    /// Keeps the sending thread in its loop until the request has ended.
    pub(crate) loop_guard: Option<S>,
}

impl<S: Sender> SentRequest<S> {
    pub(crate) fn new(
        target: &Arc<Target>,
        request: &Request,
        memory: IoMemory,
        handler: Arc<dyn Handler>,
        index: u32,
    ) -> Self {
        Self {
            target: Arc::clone(target),
            request: *request,
            memory,
            progress: Progress::default(),
            handler: Some(handler),
            index,
            loop_guard: None,
        }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        // An operation that may wait forever must not keep a thread from leaving its loop.
        let waits_in_vain = self.target.may_wait_forever(self.request.kind)
            && self.loop_guard.as_ref().is_some_and(|loop_guard| loop_guard.is_leaving());
        self.handler.as_ref().is_some_and(|handler| handler.is_wanted(self.index)) && !waits_in_vain
    }

    /// Carries it out by calls on this thread, which may wait, or makes one call of a copy: returns
    /// [`CallOutcome::WouldWait`] if more is left. If it was cancelled, it ends after a call that has moved a part.
    pub(crate) fn carry_out(&mut self) -> CallOutcome {
        let Self { target, request, memory, progress, handler, index, .. } = self;
        let is_wanted = || handler.as_ref().is_some_and(|handler| handler.is_wanted(*index));
        if request.kind.is_copy() {
            return plain::call_once(target, request, memory, progress, is_wanted);
        }
        CallOutcome::Done(plain::run(target, request, memory, is_wanted))
    }

    pub(crate) fn end(mut self, ended: OpResult) {
        let tell = self.take_end(ended);
        // If nothing else uses its file, this closes it.
        drop(self);
        tell();
    }

    /// Ends a request that was not begun, or of which a worker has done only a part.
    pub(crate) fn refuse(mut self, errno: i32) {
        let refused = self.refused(errno);
        self.end(refused);
    }

    /// Returns a function that tells the handler how the request has ended.
    fn take_end(&mut self, ended: OpResult) -> impl FnOnce() + use<S> {
        let (handler, loop_guard, index) = (self.handler.take(), self.loop_guard.take(), self.index);
        let finished = Finished { memory: std::mem::take(&mut self.memory), ended };
        move || {
            // Dropped after the handler is done, or has panicked.
            let _loop_guard = loop_guard;
            if let Some(handler) = handler {
                handler.done(index, finished);
            }
        }
    }

    fn refused(&mut self, errno: i32) -> OpResult {
        if self.request.kind.is_read() {
            // Nothing was read, and the buffer's length says so.
            self.memory.copy_in(self.request.start, &[]);
        }
        OpResult { done: self.progress.done(), errno }
    }

    /// Gives the handler to a ring, which ends the operation from here on.
    pub(crate) fn take_handler(&mut self) -> Option<Arc<dyn Handler>> {
        let handler = self.handler.take()?;
        match self.loop_guard.take() {
            Some(loop_guard) => Some(Arc::new(WithLoopGuard { handler, loop_guard })),
            None => Some(handler),
        }
    }
}

impl<S: Sender> Drop for SentRequest<S> {
    fn drop(&mut self) {
        if self.handler.is_some() {
            // It is not known whether the operation began, and how far it got.
            let refused = self.refused(libc::EIO);
            self.take_end(refused)();
        }
    }
}
