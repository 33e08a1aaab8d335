//! What reaches an engine from other threads: results, and orders to cancel; also results from this thread's driver while it is
//! turned for another engine.
//!
//! Invariants: the descriptor, if one was asked for, is readable while there are results. A forked child waits for no
//! lock here, and does not touch the descriptor, which belongs to the parent.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use super::done::Token;
use super::mailbox::{Mailbox, Raised};
use crate::descriptor;
use crate::driver::{Finished, Handler, Shared};
use crate::lock::Lock;
use ringfile_buffer::internal::fork;

/// A message to an engine.
pub(super) enum Message {
    /// The result of the operation with this index.
    Ended(u32, Finished),
    /// Another thread wants this operation of a queue cancelled.
    Cancel(Token),
}

/// See the module.
pub(super) struct RemoteResults {
    pub(super) mailbox: Mailbox<Message>,
    /// The thread of a queue, once it has turned its driver for the queue.
    thread: OnceLock<Arc<Shared>>,
    /// Cancelled operations: other threads need not begin them, and ask the kernel to cancel those on their rings.
    cancelled: Lock<BTreeSet<u32>>,
    /// Readable while a result is available; created when first asked for.
    signal: OnceLock<OwnedFd>,
    /// Whether `signal` was made readable.
    raised: Raised,
    /// True for a queue, whose thread may leave a loop while its operations continue.
    outlive_loops: bool,
    /// Called when this is dropped, after the last operation has ended.
    at_end: OnceLock<Waker>,
    process: fork::Mark,
}

impl RemoteResults {
    pub(super) fn new(outlive_loops: bool) -> Arc<Self> {
        Arc::new(Self {
            mailbox: Mailbox::new(),
            thread: OnceLock::new(),
            cancelled: Lock::default(),
            signal: OnceLock::new(),
            raised: Raised::new(),
            outlive_loops,
            at_end: OnceLock::new(),
            process: fork::Mark::current(),
        })
    }

    /// Notes that an operation on another thread is cancelled.
    pub(super) fn cancel(&self, index: u32) {
        self.cancelled.lock().insert(index);
    }

    /// Notes that the result of an operation on another thread has arrived.
    pub(super) fn is_over(&self, index: u32) {
        if self.process.is_current() {
            self.cancelled.lock().remove(&index);
        }
    }

    /// Notes the thread of a queue, before it may sleep in its driver.
    #[cold]
    pub(super) fn set_thread(&self, thread: &Arc<Shared>) {
        let _ = self.thread.set(Arc::clone(thread));
        // Either this thread sees an order before it sleeps, or the sender of the order sees this thread.
        fence(Ordering::SeqCst);
    }

    /// Orders the engine to cancel an operation of a queue, from any thread. Returns false if the engine is gone, or belongs
    /// to the process that forked this one.
    pub(super) fn order_to_cancel(&self, token: Token) -> bool {
        let is_taken = self.process.is_current()
            && self.mailbox.put(Message::Cancel(token), || self.raise_signal()).is_ok();
        fence(Ordering::SeqCst);
        if let Some(thread) = self.thread.get().filter(|_| is_taken) {
            thread.notify();
        }
        is_taken
    }

    /// Calls `waker` when the last reference to this is dropped: the engine has one, and each operation in flight.
    pub(super) fn tell_end(&self, waker: Waker) {
        let _ = self.at_end.set(waker);
    }

    /// Returns the descriptor that is readable while there are results.
    ///
    /// # Errors
    /// Those of `eventfd(2)`.
    pub(super) fn signal(&self) -> std::io::Result<BorrowedFd<'_>> {
        if self.signal.get().is_none() {
            let made = descriptor::eventfd()?;
            let _ = self.signal.set(made);
            if self.process.is_current() {
                // A thread that adds a result either finds the descriptor, or has added the result before the caller
                // calls `set_signal`.
                self.mailbox.let_others_pass();
            }
        }
        self.signal.get().map(AsFd::as_fd).ok_or_else(|| std::io::ErrorKind::Other.into())
    }

    /// Makes the descriptor readable if there are results here or `has_more` says so, and otherwise resets it. Called
    /// by the thread that takes results, after taking them.
    #[inline]
    pub(super) fn set_signal(&self, has_more: bool) {
        if let Some(signal) = self.signal.get()
            && self.process.is_current()
        {
            self.set_signal_to(has_more, signal);
        }
    }

    #[cold]
    fn set_signal_to(&self, has_more: bool, signal: &OwnedFd) {
        if !has_more {
            self.raised.lower(|| _ = rustix::io::read(signal, &mut [0; 8]));
        }
        if has_more || self.mailbox.has_some() {
            self.raise_signal();
        }
    }

    fn raise_signal(&self) {
        if let Some(signal) = self.signal.get() {
            // It cannot block: the counter would have to be near its 64-bit limit.
            self.raised.raise(|| _ = rustix::io::write(signal, &1u64.to_ne_bytes()));
        }
    }
}

impl Drop for RemoteResults {
    fn drop(&mut self) {
        if let Some(waker) = self.at_end.take().filter(|_| self.process.is_current()) {
            waker.wake();
        }
    }
}

impl Handler for RemoteResults {
    fn done(self: Arc<Self>, index: u32, finished: Finished) {
        let refused = if self.process.is_current() {
            // Signalled under the lock: otherwise the descriptor could become readable after the result was taken, and
            // stay so.
            self.mailbox.put(Message::Ended(index, finished), || self.raise_signal())
        } else {
            self.mailbox.put_if_free(Message::Ended(index, finished))
        };
        // A buffer's destructor may be user code: it is dropped here, where nothing is locked.
        drop(refused);
    }

    fn is_wanted(&self, index: u32) -> bool {
        let is_cancelled = || self.cancelled.lock().contains(&index);
        !self.mailbox.is_closed() && !is_cancelled()
    }

    fn outlives_loops(&self) -> bool {
        self.outlive_loops && !self.mailbox.is_closed()
    }

    fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }
}
