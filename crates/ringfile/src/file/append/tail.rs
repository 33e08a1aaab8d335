//! Readers of a log that is being appended to: what is new comes from the appender's memory, the rest from the file.
//!
//! A reader that waits drives the appender, as all its futures do. Invariant: a reader gives no byte of a record before all
//! of the record is appended, and none that was cut.

use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;

use super::plan::Goal;
use super::shared::{AppenderShared, AppenderState};
use super::waits::{Look, Waits};
use crate::error::Result;
use crate::file::stream::Reader;

const READING: &str = "reading the tail of a log";

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
/// # let file = options.read(true).write(true).create(true).open_blocking(folder.path().join("log"))?;
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
    waits: Waits<Arc<AppenderShared>>,
    tail: Tail,
}

/// What a reader has read.
struct Tail {
    /// Its place among the positions of all readers.
    index: usize,
    position: u64,
    is_durable: bool,
    /// Reads what is not in memory any more.
    behind: Option<Behind>,
    has_ended: bool,
}

/// A piece, or the end.
type TailLook = Look<Option<Bytes>>;

struct Behind {
    reader: Reader,
    /// Where it ends.
    until: u64,
    /// How often the log had been cut when it began.
    truncations: u64,
}

impl TailReader {
    pub(super) fn new(shared: &Arc<AppenderShared>) -> Self {
        let (mut index, mut position) = (0, 0);
        if shared.is_ours() {
            let mut state = shared.lock();
            position = state.plan.complete();
            index = state.positions.add(position);
        }
        let tail = Tail { index, position, is_durable: false, behind: None, has_ended: false };
        Self { waits: Waits::new(Arc::clone(shared), false), tail }
    }

    /// Sets where to begin, in bytes of the log: by default where it ended when [`tail`](super::Appender::tail) was called.
    /// The reader waits if the log is shorter.
    #[must_use]
    pub fn from(mut self, offset: u64) -> Self {
        self.tail.behind = None;
        self.tail.position = offset;
        if self.waits.shared.is_ours() {
            self.waits.shared.lock().positions.set(self.tail.index, Some(offset));
        }
        self
    }

    /// Sets whether to give only what is durable: false by default.
    #[must_use]
    pub fn durable(mut self, only: bool) -> Self {
        self.tail.behind = None;
        self.tail.is_durable = only;
        self
    }

    /// Returns the offset in the log at which the next piece begins.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.tail.position
    }

    /// Returns the next piece, and waits for it if there is none; `None` once the appender was closed and everything was read,
    /// and after an error. Dropping the future loses no data.
    #[expect(clippy::should_implement_trait, reason = "the name that streams use; this is no iterator")]
    pub fn next(&mut self) -> impl Future<Output = Option<Result<Bytes>>> + Send + use<'_> {
        let waiting = Waiting(self);
        std::future::poll_fn(move |context| Pin::new(&mut *waiting.0).poll_next(context))
    }
}

impl Tail {
    fn give(&mut self, piece: Bytes, state: &mut AppenderState) -> TailLook {
        self.position += piece.len() as u64;
        state.positions.set(self.index, Some(self.position));
        Look::Ready(Some(piece))
    }

    /// Returns an error if the reader's position was cut off.
    fn check_cut(&self, shared: &AppenderShared, state: &AppenderState) -> Result<()> {
        let Some(len) = state.positions.was_cut(self.index) else { return Ok(()) };
        let why = format!("the log was cut to {len} bytes, and this reader had come to {}", self.position);
        Err(shared.error(ErrorKind::InvalidData, READING, why))
    }

    fn look(&mut self, shared: &AppenderShared, context: &mut Context<'_>) -> Result<TailLook> {
        if let Some(found) = self.look_behind(shared, context)? {
            return Ok(found);
        }
        self.behind = None;
        let mut state = shared.lock();
        self.check_cut(shared, &state)?;
        let plan = &state.plan;
        let has_failed = state.has_failed();
        let only_durable = self.is_durable || has_failed;
        let limit = if only_durable { plan.complete().min(plan.durable()) } else { plan.complete() };
        let point = (plan.truncations(), self.position.saturating_add(1));
        if self.position < limit {
            let kept_from = match state.chunks.at(self.position, limit, plan.appended()) {
                Ok(piece) => return Ok(self.give(piece, &mut state)),
                Err(kept_from) => kept_from,
            };
            let end = state.will_end_at().unwrap_or(u64::MAX);
            let until = limit.min(plan.written()).min(kept_from).min(end);
            if self.position >= until {
                return Ok(Look::Wait(Goal::Written(point)));
            }
            let truncations = plan.truncations();
            drop(state);
            let reader = shared.file.reader(&shared.pool).block(shared.chunk).range(self.position..until);
            self.behind = Some(Behind { reader, until, truncations });
            return Ok(Look::Again);
        }
        if let Some(error) = shared.refusal(&state, READING) {
            return Err(error);
        }
        Ok(if has_failed {
            Look::Wait(Goal::Closed)
        } else if plan.is_closing() && self.position >= plan.complete() {
            Look::Ready(None)
        } else if self.is_durable {
            Look::Wait(Goal::Durable(point))
        } else {
            Look::Wait(Goal::Appended(point))
        })
    }

    /// Polls the reader of the file. Returns `None` if there is nothing to read with it, or no more.
    fn look_behind(
        &mut self,
        shared: &AppenderShared,
        context: &mut Context<'_>,
    ) -> Result<Option<TailLook>> {
        let Some(Behind { reader, until, truncations }) = &mut self.behind else { return Ok(None) };
        let (until, truncations) = (*until, *truncations);
        let polled = Pin::new(&mut *reader).poll_next(context);
        let waits_for_memory = reader.waits_for_memory();
        let mut state = shared.lock();
        self.check_cut(shared, &state)?;
        if state.plan.truncations() != truncations || state.will_end_at().is_some_and(|len| len < until) {
            // It may have read what has been cut, or overwritten, meanwhile.
            return Ok(None);
        }
        Ok(match polled {
            Poll::Ready(Some(piece)) => Some(self.give(piece?, &mut state)),
            Poll::Ready(None) if self.position < until => {
                let why = format!("the file ends at {}, but {until} bytes were written", self.position);
                return Err(shared.error(ErrorKind::UnexpectedEof, READING, why));
            }
            Poll::Ready(None) => None,
            // What is kept is given up as it is written.
            Poll::Pending if waits_for_memory => {
                Some(Look::Wait(Goal::Written((truncations, state.plan.written() + 1))))
            }
            Poll::Pending => Some(Look::Leave),
        })
    }
}

/// A reader that a task waits for. It leaves the list of waiting tasks when the task gives up.
struct Waiting<'a>(&'a mut TailReader);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.0.waits.place.is_some() && !self.0.waits.shared.is_filled_here() {
            self.0.waits.give_up();
        }
    }
}

impl Stream for TailReader {
    type Item = Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { waits, tail } = self.get_mut();
        if tail.has_ended {
            return Poll::Ready(None);
        }
        let result =
            ready!(waits.poll(READING, false, context, |waits, context| tail.look(&waits.shared, context)));
        waits.stop();
        if !matches!(result, Ok(Some(_))) {
            (tail.has_ended, tail.behind) = (true, None);
        }
        Poll::Ready(result.transpose())
    }
}

impl Drop for TailReader {
    fn drop(&mut self) {
        let Self { waits, tail } = self;
        if waits.shared.is_filled_here() {
            // The function that writes a record in place drops it, and cannot have the lock: its entries are never used
            // again.
            waits.place = None;
        } else if waits.shared.is_ours() {
            waits.give_up();
            waits.shared.lock().positions.set(tail.index, None);
        }
    }
}

impl std::fmt::Debug for TailReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TailReader").field("position", &self.position()).finish_non_exhaustive()
    }
}
