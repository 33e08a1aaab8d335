//! Readers of a log that is being appended to: what is new comes from the appender's memory, the rest from the file.
//!
//! A reader that waits drives the appender, as all its futures do. Invariant: a reader gives no byte of a record before all
//! of the record is appended, and none that was cut.

use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;

use super::shared::{AppenderShared, AppenderState};
use super::waiters::{Goal, WaiterPlace};
use crate::error::{Error, Result};
use crate::file::stream::Reader;

const READING: &str = "reading the tail of a log";

/// Where the readers of a log are, so that a truncation reaches those that are behind its end.
#[derive(Default)]
pub(super) struct Positions(Vec<Option<ReaderPosition>>);

#[derive(Clone, Copy)]
enum ReaderPosition {
    At(u64),
    /// The log was cut at this length, before the reader's position.
    Cut(u64),
}

impl Positions {
    fn add(&mut self, position: u64) -> usize {
        let free = self.0.iter().position(Option::is_none);
        let index = free.unwrap_or(self.0.len());
        if free.is_none() {
            self.0.push(None);
        }
        self.0[index] = Some(ReaderPosition::At(position));
        index
    }

    pub fn cut(&mut self, len: u64) {
        for position in self.0.iter_mut().flatten() {
            if matches!(position, ReaderPosition::At(at) if *at > len) {
                *position = ReaderPosition::Cut(len);
            }
        }
    }
}

/// A stream of a log's records as [`Bytes`], from [`Appender::tail`](super::Appender::tail): those that were appended, and
/// those that will be.
///
/// A piece is as much as lies together in memory, at most a [block](super::OpenAppender::block) of the appender: it may have
/// many records, and a record may begin in one piece and end in the next. What the appender
/// [keeps](super::OpenAppender::keep_tail) comes from its memory, without a copy, as soon as a record is complete, whether it
/// is written or not. What is older comes from the file, which must be open for reading, with reads ahead and memory of the
/// appender's pool.
///
/// A piece, however small, keeps the whole block of memory that it lies in, which goes back to the pool when the last clone of
/// the last piece is dropped: a program that collects pieces for long, or that waits for more while it holds them, copies
/// them or has a pool with room for them. A reader that is behind holds a few blocks that it has read ahead.
/// [`Pool::thaw`](crate::Pool::thaw) cannot turn a piece of the appender's memory into a buffer.
///
/// The stream ends when [`close`](super::Appender::close) was called and everything was read, which does not mean that closing
/// has succeeded. While it waits, a reader carries out the appender's writes, as all of its futures do: inside ringfile's loop,
/// they end when the thread runs its loop. `Send`; polled in any executor. Any number of readers, each with its own position.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let mut options = ringfile::OpenOptions::new();
/// # let file = options.read(true).write(true).create(true).open(folder.path().join("log"))?;
/// use ringfile::{Appender, Pool};
/// ringfile::block_on(async {
///     let log = Appender::open(&file, &Pool::new(16 << 20), 0).keep_tail(4 << 20).await?;
///     let mut tail = log.tail();
///     let consumer = ringfile::spawn(async move {
///         let mut read = Vec::new();
///         while let Some(piece) = tail.next().await {
///             read.extend_from_slice(&piece?);
///         }
///         ringfile::Result::Ok(read)
///     });
///     for record in ["one ", "two ", "three"] {
///         log.append(record.as_bytes()).await?;
///     }
///     log.close().await?;
///     assert_eq!(consumer.await??, b"one two three");
///     std::io::Result::Ok(())
/// })
/// # }
/// ```
///
/// # Errors
/// An error ends the stream. Those of an appender that has failed, once everything durable was read; and if its last handle
/// was dropped without `close`. `InvalidData` if the log was [truncated](super::Appender::truncate) before this reader's
/// position: begin another one where the program knows that records are right. Those of `read(2)`.
pub struct TailReader {
    shared: Arc<AppenderShared>,
    /// Its place among the [`Positions`].
    index: usize,
    position: u64,
    is_durable: bool,
    waits: Option<(Goal, WaiterPlace)>,
    /// Reads what is not in memory any more.
    behind: Option<Behind>,
    has_ended: bool,
}

struct Behind {
    reader: Reader,
    /// Where it ends.
    until: u64,
    /// How often the log had been cut when it began.
    truncations: u64,
}

/// What a reader finds.
enum Found {
    Piece(Bytes),
    /// The bytes up to here are only in the file; and how often the log was cut.
    InFile(u64, u64),
    Nothing(Goal),
    End,
    Failed(Error),
}

impl TailReader {
    pub(super) fn new(shared: &Arc<AppenderShared>) -> Self {
        let (mut index, mut position) = (0, 0);
        if shared.is_ours() {
            let mut state = shared.lock();
            position = state.plan.complete();
            index = state.positions.add(position);
        }
        let shared = Arc::clone(shared);
        Self { shared, index, position, is_durable: false, waits: None, behind: None, has_ended: false }
    }

    /// Sets where to begin, in bytes of the log: by default where it ended when [`tail`](super::Appender::tail) was called.
    /// The reader waits if the log is shorter.
    #[must_use]
    pub fn from(mut self, offset: u64) -> Self {
        self.behind = None;
        self.position = offset;
        if self.shared.is_ours() {
            self.moves(&mut self.shared.lock());
        }
        self
    }

    /// Sets whether to give only what is durable: false by default.
    #[must_use]
    pub fn durable(mut self, only: bool) -> Self {
        self.behind = None;
        self.is_durable = only;
        self
    }

    /// Returns the offset in the log at which the next piece begins.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the next piece, and waits for it if there is none; `None` once the appender was closed and everything was read,
    /// and after an error. Dropping the future loses no data.
    #[expect(clippy::should_implement_trait, reason = "the name that streams use; this is no iterator")]
    pub fn next(&mut self) -> impl Future<Output = Option<Result<Bytes>>> + Send + use<'_> {
        let waiting = Waiting(self);
        std::future::poll_fn(move |context| Pin::new(&mut *waiting.0).poll_next(context))
    }

    fn moves(&self, state: &mut AppenderState) {
        state.positions.0[self.index] = Some(ReaderPosition::At(self.position));
    }

    fn advance(&mut self, piece: &Bytes, state: &mut AppenderState) {
        self.position += piece.len() as u64;
        self.moves(state);
    }

    /// Returns the error of a reader whose position was cut off.
    fn was_cut(&self, state: &AppenderState) -> Option<Error> {
        let Some(ReaderPosition::Cut(len)) = state.positions.0[self.index] else { return None };
        let why = format!("the log was cut to {len} bytes, and this reader had come to {}", self.position);
        Some(Error::new(ErrorKind::InvalidData, READING).on(self.shared.file.path()).because(why))
    }

    fn find(&mut self) -> Found {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        if let Some(error) = self.was_cut(&state) {
            return Found::Failed(error);
        }
        let plan = &state.plan;
        let has_failed = state.has_failed();
        let only_durable = self.is_durable || has_failed;
        let limit = if only_durable { plan.complete().min(plan.durable()) } else { plan.complete() };
        let point = (plan.truncations(), self.position.saturating_add(1));
        if self.position < limit {
            if let Some(piece) = state.chunks.at(self.position, limit, plan.appended()) {
                self.advance(&piece, &mut state);
                return Found::Piece(piece);
            }
            let in_file = plan.written().min(state.chunks.kept_from(plan.appended()));
            let until = limit.min(in_file).min(state.will_end_at().unwrap_or(u64::MAX));
            return if self.position < until {
                Found::InFile(until, plan.truncations())
            } else {
                Found::Nothing(Goal::Written(point))
            };
        }
        if let Some(error) = shared.refusal(&state, READING) {
            Found::Failed(error)
        } else if has_failed {
            Found::Nothing(Goal::Closed)
        } else if plan.is_closing() && self.position >= plan.complete() {
            Found::End
        } else if self.is_durable {
            Found::Nothing(Goal::Durable(point))
        } else {
            Found::Nothing(Goal::Appended(point))
        }
    }

    /// Polls the reader of the file, until it has a piece or there is nothing to read with it.
    fn poll_behind(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        let Some(Behind { reader, until, truncations }) = &mut self.behind else { return Poll::Ready(None) };
        let (until, truncations) = (*until, *truncations);
        let polled = Pin::new(&mut *reader).poll_next(context);
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        if let Some(error) = self.was_cut(&state) {
            return Poll::Ready(Some(Err(error)));
        }
        if state.plan.truncations() != truncations || state.will_end_at().is_some_and(|len| len < until) {
            // It may have read what has been cut, or overwritten, meanwhile.
            drop(state);
            self.behind = None;
            return Poll::Ready(None);
        }
        match &polled {
            Poll::Ready(Some(Ok(piece))) => self.advance(piece, &mut state),
            Poll::Ready(None) if self.position < until => {
                let why = format!("the file ends at {}, but {until} bytes were written", self.position);
                let error = Error::new(ErrorKind::UnexpectedEof, READING).on(shared.file.path());
                return Poll::Ready(Some(Err(error.because(why))));
            }
            Poll::Ready(None) => {
                drop(state);
                self.behind = None;
            }
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        polled
    }

    fn reads_file(&mut self, until: u64, truncations: u64) {
        let AppenderShared { file, pool, chunk, .. } = &*self.shared;
        let reader = file.reader(pool).block(*chunk).range(self.position..until);
        self.behind = Some(Behind { reader, until, truncations });
    }

    fn waits_for_memory(&self) -> bool {
        self.behind.as_ref().is_some_and(|behind| behind.reader.waits_for_memory())
    }

    fn register(&mut self, goal: Goal, context: &Context<'_>) {
        let is_other = |(before, _): &(Goal, WaiterPlace)| {
            std::mem::discriminant(before) != std::mem::discriminant(&goal)
        };
        if self.waits.as_ref().is_some_and(is_other) {
            self.leave();
        }
        let mut place = self.waits.map(|(_, place)| place);
        self.shared.register(&mut place, goal, context.waker());
        self.waits = place.map(|place| (goal, place));
    }

    /// Leaves the list, for a task that is polled no more: another one drives.
    fn gives_up(&mut self) {
        if self.waits.is_some() && self.shared.is_ours() && !self.shared.is_filled_here() {
            self.leave();
            self.shared.pass_on();
        }
    }

    fn leave(&mut self) {
        let mut place = self.waits.take().map(|(_, place)| place);
        self.shared.leave(&mut place);
    }

    /// Leaves the list of waiting tasks. The task may have been woken to drive.
    fn stop_waiting(&mut self) {
        if self.waits.is_some() && self.shared.is_ours() {
            self.leave();
            self.shared.hand_over();
        }
    }

    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        if let Err(error) = self.shared.check_process(READING) {
            return Poll::Ready(Some(Err(error)));
        }
        let mut has_looked = false;
        loop {
            let found = match self.poll_behind(context) {
                Poll::Ready(None) => self.find(),
                // What is kept is given up as it is written.
                Poll::Pending if self.waits_for_memory() => Found::Nothing(self.shared.next_write()),
                polled => {
                    self.stop_waiting();
                    return polled;
                }
            };
            match found {
                Found::Piece(piece) => return Poll::Ready(Some(Ok(piece))),
                Found::End => return Poll::Ready(None),
                Found::Failed(error) => return Poll::Ready(Some(Err(error))),
                Found::InFile(until, truncations) => self.reads_file(until, truncations),
                Found::Nothing(_) if has_looked => return Poll::Pending,
                Found::Nothing(goal) => {
                    self.register(goal, context);
                    // What came before the registration woke nobody.
                    has_looked = !self.shared.drive();
                }
            }
        }
    }
}

/// A reader that a task waits for. It leaves the list of waiting tasks when the task gives up.
struct Waiting<'a>(&'a mut TailReader);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.gives_up();
    }
}

impl Stream for TailReader {
    type Item = Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.has_ended {
            return Poll::Ready(None);
        }
        let polled = this.poll_piece(context);
        if let Poll::Ready(result) = &polled {
            this.stop_waiting();
            if !matches!(result, Some(Ok(_))) {
                this.has_ended = true;
                this.behind = None;
            }
        }
        polled
    }
}

impl Drop for TailReader {
    fn drop(&mut self) {
        // One that the function drops which writes a record in place cannot have the lock: its entries are never used again.
        if self.shared.is_ours() && !self.shared.is_filled_here() {
            self.gives_up();
            self.shared.lock().positions.0[self.index] = None;
        }
    }
}

impl std::fmt::Debug for TailReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TailReader").field("position", &self.position).finish_non_exhaustive()
    }
}
