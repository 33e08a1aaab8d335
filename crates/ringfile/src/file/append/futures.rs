//! The futures of an appender: a record that waits for room, and tasks that wait for the file.
//!
//! Each drives the appender while it is polled. Invariants: a future leaves the list of waiters when it is ready or
//! dropped; a record of at most a chunk is appended in one step.

use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BufMut;

use super::chunks::{Chunks, Record};
use super::plan::Plan;
use super::shared::AppenderShared;
use super::waiters::{Goal, WaiterPlace};
use crate::error::{Error, Result};
use crate::file::check;
use crate::memory::{Buffer, PoolError};
use crate::runtime;

/// Waits for memory of the pool.
type MemoryFuture = dyn Future<Output = std::result::Result<Buffer, PoolError>> + Send;

/// What an [`Appending`] appends.
pub(super) trait Content {
    /// Whether it may be appended in pieces.
    const IN_PIECES: bool;

    /// Returns how many bytes are left to append, at most.
    fn left(&self) -> usize;

    /// Appends `piece` bytes, or at most that many if it can't be appended in pieces. Returns whether all is appended.
    fn put(&mut self, piece: usize, chunks: &mut Chunks, plan: &mut Plan) -> bool;
}

impl Content for &[u8] {
    const IN_PIECES: bool = true;

    #[inline]
    fn left(&self) -> usize {
        self.len()
    }

    #[inline]
    fn put(&mut self, piece: usize, chunks: &mut Chunks, plan: &mut Plan) -> bool {
        let (now, later) = self.split_at(piece);
        chunks.append(piece, plan, |record| record.put_slice(now));
        *self = later;
        later.is_empty()
    }
}

/// A record of at most so many bytes, and the function that writes it in place.
pub(super) struct InPlaceRecord<F>(pub usize, pub Option<F>);

impl<F: FnOnce(&mut Record<'_>)> Content for InPlaceRecord<F> {
    const IN_PIECES: bool = false;

    #[inline]
    fn left(&self) -> usize {
        self.0
    }

    #[inline]
    fn put(&mut self, most: usize, chunks: &mut Chunks, plan: &mut Plan) -> bool {
        let Some(fill) = self.1.take() else { panic!("an append was polled again after it had ended") };
        chunks.append(most, plan, fill);
        true
    }
}

/// The future of [`Appender::append`](super::Appender::append). If it is dropped before it is ready, nothing of a
/// record of at most a block is appended.
#[must_use = "nothing is appended until the future is awaited"]
pub struct Append<'a>(Appending<'a, &'a [u8]>);

impl<'a> Append<'a> {
    pub(super) fn new(shared: &'a AppenderShared, record: &'a [u8]) -> Self {
        Self(Appending::new(shared, record))
    }

    /// Does not let the thread's loop turn first.
    pub(super) fn at_once(mut self) -> Self {
        self.0.may_yield = false;
        self
    }
}

impl Future for Append<'_> {
    type Output = Result<u64>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

/// A future's place in the list of waiters, which it leaves at the end.
struct Waits<'a> {
    shared: &'a AppenderShared,
    place: Option<WaiterPlace>,
}

impl Waits<'_> {
    /// Returns the result of the future. If it is ready, the place is left.
    fn polled<T>(&mut self, polled: Poll<T>) -> Poll<T> {
        if polled.is_ready() {
            self.shared.leave(&mut self.place);
        }
        polled
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if self.place.is_some() && self.shared.is_ours() {
            self.shared.leave(&mut self.place);
            self.shared.pass_on();
        }
    }
}

/// Waits until a record is appended.
pub(super) struct Appending<'a, R> {
    waits: Waits<'a>,
    record: R,
    /// How many bytes of the record have been appended. Only a record longer than a chunk is appended in several steps.
    done: usize,
    offset: Option<u64>,
    memory: Option<Pin<Box<MemoryFuture>>>,
    /// Whether it lets the thread's loop turn first, if appends have started writes: a task that appends without end never
    /// waits, and nothing would be submitted. All that is polled first in such a turn does so, which keeps their order.
    may_yield: bool,
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

impl<'a, R: Content> Appending<'a, R> {
    pub fn new(shared: &'a AppenderShared, record: R) -> Self {
        Self {
            waits: Waits { shared, place: None },
            record,
            done: 0,
            offset: None,
            memory: None,
            may_yield: true,
        }
    }

    fn attempt(&mut self) -> Result<AppendAttempt> {
        let shared = self.waits.shared;
        // Dropped after the lock.
        let mut leaves = Waits { shared, place: None };
        let mut state = shared.lock();
        if let Some(error) = shared.refusal(&state, APPENDING) {
            return Err(error.after(self.done));
        }
        let state = &mut *state;
        if state.has_failed() || !state.waiters.is_first(self.waits.place) {
            return Ok(AppendAttempt::NoRoom);
        }
        let left = self.record.left();
        let why = if state.plan.is_closing() {
            Some("the appender was closed")
        } else if !check::range_ends_in_a_file(state.plan.appended(), left) {
            Some(check::BEYOND)
        } else if !R::IN_PIECES && left > state.chunks.size() {
            Some(
                "a record that is written in place has at most a block of the appender: open it with a larger block",
            )
        } else {
            None
        };
        if let Some(why) = why {
            let error = Error::new(ErrorKind::InvalidInput, APPENDING).on(shared.file.path());
            return Err(error.because(why).after(self.done));
        }
        loop {
            let piece = self.record.left().min(state.chunks.size());
            if !state.plan.has_room(piece) {
                return Ok(AppendAttempt::NoRoom);
            }
            if !state.chunks.has_memory(piece) {
                return Ok(AppendAttempt::NoMemory);
            }
            let (before, full) = (state.plan.appended(), state.chunks.full());
            let filling = if R::IN_PIECES {
                None
            } else {
                // Left also if the program's function panics and the future is kept.
                leaves.place = self.waits.place.take();
                Some(shared.begin_filling())
            };
            let is_whole = self.record.put(piece, &mut state.chunks, &mut state.plan);
            drop(filling);
            let offset = *self.offset.get_or_insert(before);
            self.done += piece;
            shared.publish_appended(state);
            if is_whole {
                state.metrics.appends += 1;
                state.plan.completed_record();
                let has_work = state.has_work() || state.chunks.full() > full;
                return Ok(AppendAttempt::Done(offset, has_work, state.waiters.has_readers()));
            }
            if self.waits.place.is_none() {
                // No other task appends before this record is complete. A new place in the list has no waker to return.
                let _ = state.waiters.register(&mut self.waits.place, Goal::Turn, None, 0);
            }
        }
    }

    /// Gets memory for one more chunk.
    fn poll_memory(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let shared = self.waits.shared;
        while self.memory.is_none() {
            match shared.pool.try_get(shared.chunk) {
                Ok(chunk) => {
                    shared.add_memory(chunk);
                    return Poll::Ready(Ok(()));
                }
                Err(PoolError::Full { .. }) => {
                    let (pool, len) = (shared.pool.clone(), shared.chunk);
                    self.memory = Some(Box::pin(async move { pool.get_async(len).await }));
                }
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        let Some(memory) = self.memory.as_mut() else { return Poll::Pending };
        let chunk = ready!(memory.as_mut().poll(context));
        self.memory = None;
        self.waits.shared.add_memory(chunk?);
        Poll::Ready(Ok(()))
    }

    fn poll_offset(&mut self, context: &mut Context<'_>) -> Poll<Result<u64>> {
        self.waits.shared.check_process(APPENDING)?;
        if std::mem::take(&mut self.may_yield) && runtime::should_turn() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut waits = self.waits.place.is_some();
        loop {
            match self.attempt()? {
                AppendAttempt::Done(offset, has_work, has_readers) => {
                    if has_work {
                        self.waits.shared.drive();
                        runtime::note_started();
                    }
                    if has_readers {
                        self.waits.shared.wake(false);
                    }
                    return Poll::Ready(Ok(offset));
                }
                AppendAttempt::NoMemory => {
                    if self.poll_memory(context)?.is_ready() {
                        continue;
                    }
                }
                AppendAttempt::NoRoom => {}
            }
            if !std::mem::replace(&mut waits, true) {
                self.waits.shared.lock().metrics.waits += 1;
            }
            self.waits.shared.register(&mut self.waits.place, Goal::Turn, context.waker());
            if !self.waits.shared.drive() && !self.may_go_on() {
                return Poll::Pending;
            }
        }
    }

    /// Returns whether another attempt may succeed, now that the waker is registered.
    fn may_go_on(&self) -> bool {
        let state = self.waits.shared.lock();
        let piece = self.record.left().min(state.chunks.size());
        if state.has_failed() {
            return self.waits.shared.refusal(&state, APPENDING).is_some();
        }
        let has_room = self.memory.is_none() && state.plan.has_room(piece);
        state.waiters.is_first(self.waits.place) && (has_room || state.plan.is_closing())
    }
}

// The record is never pinned.
impl<R> Unpin for Appending<'_, R> {}

impl<R: Content> Future for Appending<'_, R> {
    type Output = Result<u64>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.poll_offset(context);
        self.waits.polled(polled)
    }
}

/// Waits until the log is truncated.
pub(super) struct Truncating<'a> {
    waits: Waits<'a>,
    len: u64,
    /// How often the log has been cut then. Set when it is this task's turn.
    goal: Option<u64>,
    /// As in [`Appending`].
    may_yield: bool,
}

const TRUNCATING: &str = "truncating an appender's file";

impl<'a> Truncating<'a> {
    pub fn new(shared: &'a AppenderShared, len: u64) -> Self {
        Self { waits: Waits { shared, place: None }, len, goal: None, may_yield: true }
    }

    /// Returns whether the log is truncated. Asks for that once no append, and no other truncation, comes first.
    fn look(&mut self) -> Poll<Result<()>> {
        let shared = self.waits.shared;
        let mut state = shared.lock();
        if self.goal.is_some_and(|goal| state.plan.has_truncated(goal)) {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = shared.refusal(&state, TRUNCATING) {
            return Poll::Ready(Err(error));
        }
        let is_first = state.waiters.is_first(self.waits.place);
        if self.goal.is_some() || state.has_failed() || !is_first || state.plan.is_truncating() {
            return Poll::Pending;
        }
        let appended = state.plan.appended();
        let why = if state.plan.is_closing() {
            "the appender was closed".into()
        } else if self.len > appended {
            format!("the length is to be {} bytes, but only {appended} were appended", self.len)
        } else {
            self.goal = Some(state.plan.truncate(self.len));
            return Poll::Pending;
        };
        let error = Error::new(ErrorKind::InvalidInput, TRUNCATING).on(shared.file.path());
        Poll::Ready(Err(error.because(why)))
    }

    fn poll_truncated(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.waits.shared.check_process(TRUNCATING)?;
        if std::mem::take(&mut self.may_yield) && runtime::should_turn() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            if let Poll::Ready(result) = self.look() {
                return Poll::Ready(result);
            }
            self.waits.shared.register(&mut self.waits.place, Goal::Turn, context.waker());
            // Registered before it looks again.
            let asked = self.goal.is_some();
            if !self.waits.shared.drive() {
                let looked = self.look();
                if looked.is_ready() || self.goal.is_some() == asked {
                    return looked;
                }
            }
        }
    }
}

impl Future for Truncating<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.poll_truncated(context);
        self.waits.polled(polled)
    }
}

/// The future of [`Appender::flush`](super::Appender::flush), [`sync`](super::Appender::sync) and
/// [`close`](super::Appender::close). May be dropped at any point.
#[must_use = "nothing is written until the future is awaited"]
pub struct Settle<'a> {
    waits: Waits<'a>,
    /// What is being done, for errors.
    what: &'static str,
    /// Asks the plan for it.
    ask: fn(&mut Plan) -> Goal,
    goal: Option<Goal>,
}

impl<'a> Settle<'a> {
    pub(super) fn new(shared: &'a AppenderShared, what: &'static str, ask: fn(&mut Plan) -> Goal) -> Self {
        Self { waits: Waits { shared, place: None }, what, ask, goal: None }
    }

    /// Returns whether the goal is reached. The first call sets the goal.
    fn look(&mut self) -> Poll<Result<()>> {
        let mut state = self.waits.shared.lock();
        if let Some(goal) = self.goal
            && goal.is_reached(&state.plan)
        {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = self.waits.shared.refusal(&state, self.what) {
            return Poll::Ready(Err(error));
        }
        if self.goal.is_none() && !state.has_failed() {
            let goal = (self.ask)(&mut state.plan);
            self.goal = Some(goal);
            if goal.is_reached(&state.plan) {
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    }

    fn poll_settled(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.waits.shared.check_process(self.what)?;
        let mut had_goal = self.goal.is_some();
        loop {
            let looked = self.look();
            if !std::mem::replace(&mut had_goal, true) && self.goal == Some(Goal::Closed) {
                // Appends that wait fail now, even if closing has nothing else to do.
                self.waits.shared.wake(false);
            }
            if let Poll::Ready(result) = looked {
                return Poll::Ready(result);
            }
            // After a failure there is nothing to wait for but the writes that are in flight, as for closing.
            let goal = self.goal.unwrap_or(Goal::Closed);
            self.waits.shared.register(&mut self.waits.place, goal, context.waker());
            if !self.waits.shared.drive_until(true) {
                // Another task may have taken results from the lanes since the check.
                return self.look();
            }
        }
    }
}

impl Future for Settle<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.poll_settled(context);
        let polled = self.waits.polled(polled);
        if polled.is_ready() && self.waits.shared.is_ours() {
            self.waits.shared.hand_over();
        }
        polled
    }
}
