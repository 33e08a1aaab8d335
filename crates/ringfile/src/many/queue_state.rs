//! What both kinds of queues do: operations and the engine that carries them out.
//!
//! Invariant: each operation that was added gives one result, even if it was cancelled.

use std::os::fd::OwnedFd;
use std::panic::resume_unwind;

use rustix::event::epoll;

use super::done::{Completion, Token};
use super::engine::{Source, ThreadEngine};
use super::entries::Entries;
use crate::descriptor::above_standard;
use crate::driver::{AfterUse, TOO_MANY_FILES};
use crate::error::{Error, Result};
use crate::file::op::{Op, Output};

const TOO_LATE: &str = "before Linux 5.18, a thread's first descriptor must be created before its first operation waits: \
    create it together with the queue";

/// See the module. Several threads may use it in turn, together with its driver.
pub(super) struct QueueState {
    pub(super) entries: Entries,
    pub(super) engine: ThreadEngine,
}

impl QueueState {
    /// Creates an empty queue; `then` says what becomes of its driver afterwards.
    pub(super) fn new(operations: usize, then: AfterUse) -> Self {
        let (entries, engine) = (Entries::with_capacity(operations), ThreadEngine::new(then));
        Self { entries, engine }
    }

    #[inline(always)]
    pub(super) fn add(&mut self, op: Op<'_, impl Output>, user_data: u64) -> Token {
        op.ask(|file, asked| self.entries.add(file, asked, user_data))
    }

    #[inline]
    pub(super) fn submit(&mut self) {
        self.look();
    }

    /// Submits the added operations. Returns false if, in a loop, other tasks must run before the rest is started.
    #[inline]
    pub(super) fn look(&mut self) -> bool {
        self.look_and(|_, went_on| went_on)
    }

    /// Submits the added operations, and calls `take`, before the descriptor tells of what is left.
    #[inline]
    pub(super) fn look_and<R>(&mut self, take: impl FnOnce(&mut Self, bool) -> R) -> R {
        let went_on = self.engine.look(&mut self.entries);
        let taken = take(self, went_on);
        self.tell();
        taken
    }

    /// Carries out, in place, reads that nothing runs beside, see [`Entries::read_in_place`].
    pub(super) fn read_in_place(&mut self) {
        if let Err(payload) = self.entries.read_in_place(&mut self.engine) {
            self.tell();
            resume_unwind(payload);
        }
    }

    /// Takes the result of the operation that finished first.
    pub(super) fn next(&mut self) -> Option<Completion> {
        let first = self.entries.take_first();
        if self.entries.done == 0 {
            self.tell();
        }
        first
    }

    /// Takes the result of one operation, if it has finished.
    #[inline]
    pub(super) fn take(&mut self, token: Token) -> Option<Completion> {
        self.engine.engine.take_in(&mut self.entries);
        let taken = self.entries.take(token);
        self.tell();
        taken
    }

    #[inline]
    pub(super) fn is_done(&mut self, token: Token) -> bool {
        self.engine.engine.take_in(&mut self.entries);
        self.contains(token) && !self.entries.is_open(token)
    }

    #[inline]
    pub(super) fn contains(&self, token: Token) -> bool {
        self.entries.find(token).is_some()
    }

    pub(super) fn cancel(&mut self, token: Token) -> bool {
        self.engine.engine.take_in(&mut self.entries);
        let Some(index) = self.entries.mark_cancelled(token) else { return false };
        self.engine.cancel(&mut self.entries, &[index]);
        self.tell();
        true
    }

    pub(super) fn cancel_all(&mut self) {
        let open = self.entries.mark_all_cancelled();
        self.engine.cancel(&mut self.entries, &open);
        self.tell();
    }

    pub(super) fn descriptor(&mut self) -> Result<OwnedFd> {
        let made = self.make_descriptor();
        self.tell();
        made.map_err(|io| {
            let error = Error::from_io(&io, "creating a descriptor for a queue");
            match io.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE) => error.because(TOO_MANY_FILES),
                Some(libc::EBUSY) => error.because(TOO_LATE),
                _ => error,
            }
        })
    }

    fn make_descriptor(&mut self) -> std::io::Result<OwnedFd> {
        let set = above_standard(epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
        let add = |source: std::os::fd::BorrowedFd<'_>| {
            epoll::add(&set, source, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
        };
        add(self.engine.engine.remote.signal()?)?;
        // Completions of the ring itself, and of AIO, which this thread must collect.
        self.engine.completion_signals()?.each().try_for_each(add)?;
        Ok(set)
    }

    /// Keeps the descriptor, if it was created, readable as long as there are results.
    #[inline]
    pub(super) fn tell(&mut self) {
        let entries = &mut self.entries;
        // Nothing announces completions that must be polled for, or operations that the next call must begin or submit
        // again.
        let is_ready =
            entries.done > 0 || entries.polled > 0 || entries.begins_again || self.engine.engine.must_submit;
        self.engine.engine.remote.set_signal(is_ready);
    }

    /// Returns how many operations are open, and how many have ended and were not taken.
    #[inline]
    pub(super) fn counts(&mut self) -> (usize, usize) {
        self.engine.engine.take_in(&mut self.entries);
        (self.entries.open, self.entries.done)
    }

    /// Returns the number of operations whose results were not taken.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.entries.open + self.entries.done
    }
}

impl Drop for QueueState {
    fn drop(&mut self) {
        if self.engine.is_inherited() {
            return;
        }
        self.cancel_all();
        // Inside a loop, the end of the loop waits for them.
        if !crate::runtime::is_in_loop() {
            self.engine.wait(&mut self.entries, None, |entries| entries.open);
        }
    }
}

impl std::fmt::Debug for QueueState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let entries = &self.entries;
        f.debug_struct("Queue").field("open", &entries.open).field("done", &entries.done).finish()
    }
}
