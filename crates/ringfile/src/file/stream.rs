//! `Reader`: reads a file from front to back, with several reads in flight ahead of the program.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;

use super::File;
use super::memory_wait::WaitForMemory;
use super::op::OperationFuture;
use crate::driver::{FileKind, Kind, Request};
use crate::error::{Error, Result};
use crate::memory::{Buffer, IoMemory, LARGEST, Pool};

/// A stream of a file's content as [`Bytes`], with several reads in flight ahead of the program.
///
/// Each piece is a buffer of the pool, without a copy; its memory goes back to the pool when the last clone of the
/// piece is dropped. If the pool is full, the reader waits until memory comes back, whatever
/// [`WhenFull`](crate::WhenFull) says; it never blocks the thread that polls it. The pool needs room for `depth` + 1
/// blocks. `Send` and `'static`; polled in any executor. Dropping it cancels its reads.
///
/// A program without an executor iterates over it: `for piece in file.reader(&pool)`. The reads ahead go on between
/// two pieces. With [`block_on`](crate::block_on) for each piece they would not: leaving its loop waits for them.
///
/// An error comes after everything that was read before it, and ends the stream.
///
/// For a pipe, a socket, a terminal or another device, a piece is the data of one read, at most a block, and the stream
/// ends with a read of 0 bytes. Only one read is in flight there, since several would not end in order; dropping the
/// reader may lose the data of that read. A range counts the bytes of the stream.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("ringfile-doc-reader-{}", std::process::id()));
/// # std::fs::write(&path, vec![1; 300_000])?;
/// let pool = ringfile::Pool::new(4 << 20);
/// let file = ringfile::File::open_blocking(&path)?;
/// ringfile::block_on(async {
///     let mut reader = file.reader(&pool).block(64 << 10).depth(4);
///     let mut sum = 0;
///     while let Some(piece) = reader.next().await {
///         sum += piece?.len();
///     }
///     assert_eq!(sum, 300_000);
///     std::io::Result::Ok(())
/// })?;
/// # std::fs::remove_file(&path)
/// # }
/// ```
pub struct Reader {
    file: File,
    pool: Pool,
    block: usize,
    depth: usize,
    /// Whether a short read does not mean the end of the file, as for a pipe, so that reads must follow each other.
    gives_what_is_there: bool,
    next: u64,
    end: u64,
    in_flight: VecDeque<ReadInTurn>,
    memory: WaitForMemory,
}

/// A read ahead: in flight, or finished before its turn.
struct ReadInTurn {
    read: OperationFuture<File>,
    /// What was read, and the error after it, if there was one.
    ended: Option<(Bytes, Option<Error>)>,
    wanted: usize,
}

impl Reader {
    pub(super) fn new(file: File, pool: Pool) -> Self {
        Self {
            gives_what_is_there: file.target().kind == FileKind::Other,
            file,
            pool,
            block: 256 << 10,
            depth: 4,
            next: 0,
            end: u64::MAX,
            in_flight: VecDeque::new(),
            memory: WaitForMemory::default(),
        }
    }

    /// Sets the size of one read: 256 KiB by default, at most 1 GiB, the largest buffer of any pool. It is rounded up
    /// to the file's alignment. The first piece is shorter if the range does not begin at a multiple of the alignment.
    #[must_use]
    pub fn block(mut self, bytes: usize) -> Self {
        self.block = bytes.clamp(1, LARGEST);
        self
    }

    /// Sets how many reads may be in flight; 4 by default. On a pipe, a socket or a device it is always one.
    #[must_use]
    pub fn depth(mut self, reads: usize) -> Self {
        self.depth = reads.max(1);
        self
    }

    /// Restricts the stream to a range of the file, in bytes. On a pipe, a socket or a terminal, which have no offsets,
    /// only its length counts. Cancels the reads that have begun.
    #[must_use]
    pub fn range(mut self, range: Range<u64>) -> Self {
        self.in_flight.clear();
        (self.next, self.end) = (range.start, range.end.max(range.start));
        self
    }

    /// Returns the next piece; `None` at the end, and after an error.
    #[expect(clippy::should_implement_trait, reason = "the name that streams use; this is no iterator")]
    pub fn next(&mut self) -> Next<'_> {
        Next(self)
    }

    /// Starts reads until enough are in flight, or there is no memory for more.
    fn read_ahead(&mut self, context: &mut Context<'_>) -> Result<()> {
        let depth = if self.gives_what_is_there { 1 } else { self.depth };
        while self.in_flight.len() < depth && self.next < self.end {
            let alignment = self.file.alignment().bytes;
            // If the first read begins inside a block, it ends at the block's end, so that the others are aligned.
            let past = (self.next % alignment as u64) as usize;
            let most = self.block.next_multiple_of(alignment) - past;
            let wanted = (self.end - self.next).min(most as u64) as usize;
            let Some(buffer) = self.take_memory(wanted.next_multiple_of(alignment), context)? else {
                return Ok(());
            };
            let request = Request {
                offset: self.next,
                want: if past == 0 && !self.gives_what_is_there { buffer.capacity() } else { wanted },
                ..Request::of(Kind::Read)
            };
            let read = OperationFuture::new(self.file.clone(), request, IoMemory::Pooled(buffer));
            self.next += wanted as u64;
            let mut ahead = ReadInTurn { read, ended: None, wanted };
            ahead.poll(context);
            self.in_flight.push_back(ahead);
        }
        Ok(())
    }

    /// Gets at least `len` bytes of memory for a read; `None` if the pool has none now and a wake-up will follow.
    fn take_memory(&mut self, len: usize, context: &mut Context<'_>) -> Result<Option<Buffer>> {
        // The wait may be for a shorter block, from before the settings were changed.
        if !self.in_flight.is_empty() && !self.memory.waits_for(len) {
            // The reads in flight wake the task. Their pieces are what it waits for if the pool is full, and come
            // before any other error, which the next attempt after them meets again.
            self.memory = WaitForMemory::default();
            return Ok(self.pool.try_get(len).ok());
        }
        Ok(self.memory.poll(&self.pool, len, context)?)
    }

    /// Returns whether it waits for memory of the pool, and has no reads in flight.
    pub(super) fn waits_for_memory(&self) -> bool {
        self.memory.is_waiting()
    }

    fn fail(&mut self, error: Error) -> Poll<Option<Result<Bytes>>> {
        self.end = self.next;
        self.in_flight.clear();
        self.memory = WaitForMemory::default();
        Poll::Ready(Some(Err(error)))
    }
}

impl Stream for Reader {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Err(error) = self.read_ahead(context) {
            return self.fail(error);
        }
        for ahead in &mut self.in_flight {
            ahead.poll(context);
        }
        let Some(first) = self.in_flight.front_mut() else {
            return if self.waits_for_memory() { Poll::Pending } else { Poll::Ready(None) };
        };
        let Some((piece, error)) = first.ended.take() else { return Poll::Pending };
        if let Some(error) = error {
            if piece.is_empty() {
                return self.fail(error);
            }
            // The next call returns the error.
            first.ended = Some((Bytes::new(), Some(error)));
            return Poll::Ready(Some(Ok(piece)));
        }
        let missing = first.wanted.saturating_sub(piece.len());
        self.in_flight.pop_front();
        if missing > 0 && self.gives_what_is_there && !piece.is_empty() {
            // The next read continues there; no other is in flight.
            self.next -= missing as u64;
        } else if missing > 0 {
            // The end of the file: further reads are dropped.
            self.end = self.next;
            self.in_flight.clear();
        }
        Poll::Ready((!piece.is_empty()).then_some(Ok(piece)))
    }
}

/// Iterates over the pieces on a thread without an executor, with the reads ahead in flight between them.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("ringfile-doc-pieces-{}", std::process::id()));
/// # std::fs::write(&path, vec![1; 300_000])?;
/// let pool = ringfile::Pool::new(4 << 20);
/// let mut sum = 0;
/// for piece in ringfile::File::open_blocking(&path)?.reader(&pool).block(64 << 10) {
///     sum += piece?.len();
/// }
/// assert_eq!(sum, 300_000);
/// # std::fs::remove_file(&path)
/// # }
/// ```
impl IntoIterator for Reader {
    type Item = Result<Bytes>;
    type IntoIter = Pieces;

    fn into_iter(self) -> Pieces {
        Pieces(self)
    }
}

/// A blocking iterator over the pieces of a [`Reader`].
///
/// [`next`](Iterator::next) blocks the thread until the next piece has been read. What is cached is read by the calling
/// thread, everything else by one of the library's [I/O threads](crate::runtime::set_io_threads), which reads ahead while the
/// program uses a piece.
pub struct Pieces(Reader);

impl Iterator for Pieces {
    type Item = Result<Bytes>;

    /// Returns the next piece; `None` at the end, and after an error.
    ///
    /// # Panics
    /// On a thread that is inside [`block_on`](crate::block_on) or a [`Runtime`](crate::Runtime), whose tasks could not
    /// run meanwhile.
    fn next(&mut self) -> Option<Self::Item> {
        assert!(
            !crate::runtime::is_in_loop(),
            "a reader was iterated over inside a ringfile thread: await `Reader::next` instead"
        );
        ringfile_buffer::internal::blocking::block_on(self.0.next())
    }
}

impl ReadInTurn {
    fn poll(&mut self, context: &mut Context<'_>) {
        if self.ended.is_some() {
            return;
        }
        let Poll::Ready(ended) = self.read.poll_control(context) else { return };
        let error = ended.err();
        let read = error.as_ref().map_or(self.wanted, |error| error.done().min(self.wanted));
        let piece = match self.read.take_held() {
            IoMemory::Pooled(mut buffer) if read > 0 => {
                buffer.truncate(read);
                buffer.freeze()
            }
            _ => Bytes::new(),
        };
        self.ended = Some((piece, error));
    }
}

/// The future of [`Reader::next`]. Dropping it loses no data.
#[must_use = "nothing is read until the future is awaited"]
pub struct Next<'a>(&'a mut Reader);

impl Future for Next<'_> {
    type Output = Option<Result<Bytes>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut *self.0).poll_next(context)
    }
}
