//! The futures of an appender: a record that waits for room, and tasks that wait for the file.
//!
//! Each drives the appender while it is polled. Invariants: a future leaves the list of waiters when it is ready or
//! dropped; a record of at most a chunk is appended in one step.

use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BufMut;

use super::chunks::Reservation;
use super::plan::Goal;
use super::shared::{AppenderShared, AppenderState};
use super::waits::{Look, Waits};
use crate::error::Result;
use crate::file::check;
use crate::file::memory_wait::WaitForMemory;
use crate::runtime;

/// What an [`Appending`] appends.
pub(super) trait Content {
    /// Whether it may be appended in pieces.
    const IN_PIECES: bool;

    /// Writes as much as `record` has room for, or at most that much if it can't be appended in pieces. Called under
    /// the lock of the appender.
    fn put(&mut self, record: &mut Reservation<'_>, shared: &AppenderShared);
}

impl Content for &[u8] {
    const IN_PIECES: bool = true;

    #[inline]
    fn put(&mut self, record: &mut Reservation<'_>, _: &AppenderShared) {
        let (now, later) = self.split_at(record.remaining_mut());
        record.put_slice(now);
        *self = later;
    }
}

/// The function that writes a record in place.
pub(super) struct InPlaceRecord<F>(pub Option<F>);

impl<F: FnOnce(&mut Reservation<'_>)> Content for InPlaceRecord<F> {
    const IN_PIECES: bool = false;

    #[inline]
    fn put(&mut self, record: &mut Reservation<'_>, shared: &AppenderShared) {
        let Some(fill) = self.0.take() else { panic!("an append was polled again after it had ended") };
        let _filling = shared.begin_filling();
        fill(record);
    }
}

/// Waits until a record is appended. If it is dropped before it is ready, nothing of a record of at most a block is
/// appended.
pub(super) struct Appending<'a, R> {
    waits: Waits<&'a AppenderShared>,
    record: Unappended<R>,
}

/// A record, and how much of it has been appended.
struct Unappended<R> {
    content: R,
    /// How many bytes it has, at most.
    len: usize,
    /// How many bytes have been appended. Only a record longer than a chunk is appended in several steps.
    done: usize,
    memory: WaitForMemory,
}

/// The result of an attempt to append.
enum AppendAttempt {
    /// The whole record was appended, at this offset; the flags say whether to drive writes that can now start, and whether
    /// readers wait for it.
    Done(u64, bool, bool),
    /// It is not this task's turn, or there is no room.
    NoRoom,
    NoMemory,
}

const APPENDING: &str = "appending to a file";
const CLOSED: &str = "the appender was closed";
const LARGER: &str =
    "a record that is written in place has at most a block of the appender: open it with a larger block";

impl<'a, R: Content> Appending<'a, R> {
    /// Appends at most `len` bytes. With `may_yield`, it lets the thread's loop turn first, if appends have started
    /// writes: a task that appends without end never waits, and nothing would be submitted. All that is polled first in
    /// such a turn does so, which keeps their order.
    pub fn new(shared: &'a AppenderShared, len: usize, content: R, may_yield: bool) -> Self {
        let record = Unappended { content, len, done: 0, memory: WaitForMemory::default() };
        Self { waits: Waits::new(shared, may_yield), record }
    }
}

impl<R: Content> Unappended<R> {
    /// Returns why a record can't be appended to an appender that works.
    fn refusal(&self, state: &AppenderState) -> Option<&'static str> {
        let left = self.len - self.done;
        if state.plan.is_closing() {
            Some(CLOSED)
        } else if !check::range_ends_in_a_file(state.plan.appended(), left) {
            Some(check::BEYOND)
        } else if !R::IN_PIECES && left > state.chunks.size {
            Some(LARGER)
        } else {
            None
        }
    }

    fn attempt(&mut self, waits: &mut Waits<&AppenderShared>) -> Result<AppendAttempt> {
        let shared = waits.shared;
        // Dropped after the lock.
        let mut leaves = Waits::new(shared, false);
        let mut state = shared.lock();
        if let Some(error) = shared.refusal(&state, APPENDING) {
            return Err(error.after(self.done));
        }
        let state = &mut *state;
        if state.has_failed() || !state.waiters.is_first(waits.place) {
            return Ok(AppendAttempt::NoRoom);
        }
        if let Some(why) = self.refusal(state) {
            return Err(shared.error(ErrorKind::InvalidInput, APPENDING, why).after(self.done));
        }
        loop {
            let piece = (self.len - self.done).min(state.chunks.size);
            if !state.plan.has_room(piece) {
                return Ok(AppendAttempt::NoRoom);
            }
            if !state.chunks.has_memory(piece) {
                return Ok(AppendAttempt::NoMemory);
            }
            let offset = state.plan.appended() - self.done as u64;
            if !R::IN_PIECES {
                // Left also if the program's function panics and the future is kept.
                leaves.place = waits.place.take();
            }
            let put = |record: &mut Reservation<'_>| self.content.put(record, shared);
            let has_filled = state.chunks.append(piece, &mut state.plan, put);
            self.done += piece;
            shared.publish_appended(state);
            if self.done == self.len {
                state.metrics.appends += 1;
                state.plan.completed_record();
                let has_work = state.has_work() || has_filled;
                return Ok(AppendAttempt::Done(offset, has_work, state.waiters.has_readers()));
            }
            if waits.place.is_none() {
                // No other task appends before this record is complete. A new place in the list has no waker to return.
                let _ = state.waiters.register(&mut waits.place, Goal::Turn, None);
            }
        }
    }

    fn look(&mut self, waits: &mut Waits<&AppenderShared>, context: &mut Context<'_>) -> Result<Look<u64>> {
        let (shared, before) = (waits.shared, self.done);
        match self.attempt(waits)? {
            AppendAttempt::Done(offset, has_work, has_readers) => {
                if has_work {
                    shared.drive(false);
                    runtime::note_started();
                }
                if has_readers {
                    shared.wake(false);
                }
                return Ok(Look::Ready(offset));
            }
            AppendAttempt::NoMemory => {
                if let Some(chunk) = self.memory.poll(&shared.pool, shared.chunk, context)? {
                    shared.lock().chunks.add(chunk);
                    return Ok(Look::Again);
                }
            }
            AppendAttempt::NoRoom => {}
        }
        if !waits.has_waited {
            shared.lock().metrics.waits += 1;
        }
        Ok(if self.done > before { Look::Drive(Goal::Turn) } else { Look::Wait(Goal::Turn) })
    }
}

// The record is never pinned.
impl<R> Unpin for Appending<'_, R> {}

impl<R: Content> Future for Appending<'_, R> {
    type Output = Result<u64>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { waits, record } = &mut *self;
        let result =
            ready!(waits.poll(APPENDING, false, context, |waits, context| record.look(waits, context)));
        if result.is_err() {
            // It may have been woken to drive others' writes, which it has not.
            waits.stop();
        } else {
            waits.leave();
        }
        Poll::Ready(result)
    }
}

/// What a [`Settle`] waits for.
#[derive(Clone, Copy)]
pub(super) enum AppendRequest {
    Flush,
    Sync,
    Truncate(u64),
    Close,
}

/// Waits until everything appended is in the file, durable or cut. May be dropped at any point.
pub(super) struct Settle<'a> {
    waits: Waits<&'a AppenderShared>,
    asks: Asks,
}

struct Asks {
    /// What is being done, for errors.
    what: &'static str,
    request: AppendRequest,
    /// Set once the plan was asked for it.
    goal: Option<Goal>,
}

impl<'a> Settle<'a> {
    pub(super) fn new(shared: &'a AppenderShared, what: &'static str, request: AppendRequest) -> Self {
        // A truncation is ordered with appends, which may yield.
        let may_yield = matches!(request, AppendRequest::Truncate(_));
        Self { waits: Waits::new(shared, may_yield), asks: Asks { what, request, goal: None } }
    }
}

impl Asks {
    /// Returns whether the goal is reached. Asks for it when it is this task's turn.
    fn look(&mut self, waits: &Waits<&AppenderShared>) -> Result<Look<()>> {
        let (shared, what) = (waits.shared, self.what);
        let mut state = shared.lock();
        if self.goal.is_some_and(|goal| state.plan.has_reached(goal)) {
            return Ok(Look::Ready(()));
        }
        if let Some(error) = shared.refusal(&state, what) {
            return Err(error);
        }
        let may_ask = self.goal.is_none() && !state.has_failed();
        let AppenderState { plan, waiters, .. } = &mut *state;
        let end = plan.appended();
        let asked = match self.request {
            _ if !may_ask => None,
            AppendRequest::Flush => Some(plan.want_written()),
            AppendRequest::Sync => Some(plan.want_durable()),
            AppendRequest::Close => Some(plan.close()),
            // An append, or another truncation, comes first.
            AppendRequest::Truncate(_) if !waiters.is_first(waits.place) || plan.truncating().is_some() => {
                None
            }
            AppendRequest::Truncate(len) if !plan.is_closing() && len <= end => Some(plan.truncate(len)),
            AppendRequest::Truncate(len) => {
                let too_long = || format!("the length is to be {len} bytes, but only {end} were appended");
                let why = if plan.is_closing() { CLOSED.into() } else { too_long() };
                return Err(shared.error(ErrorKind::InvalidInput, what, why));
            }
        };
        self.goal = self.goal.or(asked);
        let waits_for = match self.request {
            AppendRequest::Truncate(_) => self.goal.unwrap_or(Goal::Turn),
            // After a failure there is nothing to wait for but the writes that are in flight, as for closing.
            AppendRequest::Flush | AppendRequest::Sync | AppendRequest::Close => {
                self.goal.unwrap_or(Goal::Closed)
            }
        };
        let Some(asked) = asked else { return Ok(Look::Wait(waits_for)) };
        let is_reached = plan.has_reached(asked);
        drop(state);
        if asked == Goal::Closed {
            // Appends that wait fail now, even if closing has nothing else to do.
            shared.wake(false);
        }
        Ok(if is_reached { Look::Ready(()) } else { Look::Drive(waits_for) })
    }
}

impl Future for Settle<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { waits, asks } = &mut *self;
        let result = ready!(waits.poll(asks.what, true, context, |waits, _| asks.look(waits)));
        waits.leave();
        if waits.shared.is_ours() {
            waits.shared.hand_over();
        }
        Poll::Ready(result)
    }
}
