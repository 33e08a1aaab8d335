//! The future of a read or a write.
//!
//! Hands its buffer to the driver on its first poll and gets it back with the result. Checks what the kernel would
//! refuse with a bare errno, and sends reads that do not fit direct I/O through [`super::unaligned`].

use std::borrow::Cow;
use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{File, FileRef, unaligned};
use crate::driver::{self, Finished, Kind, Request, Ticket};
use crate::error::{BufError, BufResult, Error};
use crate::memory::{Held, IoBuf, IoBufMut};

/// The future of a read or a write; gives the buffer back, with its length set, or inside the error.
///
/// `Send` and `Unpin`. It may be polled on another thread than the one it began on, at the price of a message between
/// the two. Dropping it cancels the operation where the kernel still can.
#[must_use = "nothing is read or written until the future is awaited"]
pub struct Io<'a, B> {
    operation: Operation<'a>,
    /// All of it, or an error.
    exact: bool,
    release: fn(Held) -> B,
}

/// An operation on held memory, whose type was put aside.
pub(super) struct Operation<'a> {
    file: FileRef<'a>,
    request: Request,
    stage: Stage<'a>,
}

type Boxed<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// What an operation gave, or why it could not begin.
pub(super) type Outcome = Result<Finished, (Error, Held)>;

enum Stage<'a> {
    Start(Held),
    Running(Ticket),
    Unaligned(Boxed<'a>),
    Ended,
}

impl<'a, B> Io<'a, B> {
    fn new(file: &'a File, kind: Kind, held: Held, offset: u64, release: fn(Held) -> B) -> Self {
        let want = match kind.is_read() {
            true => held.parts().map(|part| part.capacity).sum(),
            false => held.parts().map(|part| part.len).sum(),
        };
        let request = Request { kind, op_flags: 0, offset, start: 0, want, linked: false };
        Self { operation: Operation::new(FileRef::Borrowed(file), request, held), exact: true, release }
    }

    /// Flags for this write alone: `RWF_…`.
    pub(super) fn with_flags(mut self, op_flags: u32) -> Self {
        self.operation.request.op_flags = op_flags;
        self
    }

    /// Has the operation that is submitted next wait for this one.
    pub(super) fn linked(mut self) -> Self {
        self.operation.request.linked = true;
        self
    }

    /// Less than all of it will do.
    pub(super) fn or_less(mut self) -> Self {
        self.exact = false;
        self
    }

    #[inline]
    fn finish(&self, finished: Finished) -> BufResult<B> {
        let Finished { held, done, errno } = finished;
        let buffer = (self.release)(held);
        if errno == 0 && (done == self.operation.request.want || !self.exact) {
            return Ok(buffer);
        }
        Err(BufError::new(self.operation.failure(done, errno), buffer))
    }
}

impl<'a, B: IoBufMut> Io<'a, B> {
    pub(super) fn read(file: &'a File, buffer: B, offset: u64) -> Self {
        Self::new(file, Kind::Read, buffer.hold_mut(), offset, B::release)
    }
}

impl<'a, B: IoBufMut> Io<'a, Vec<B>> {
    pub(super) fn read_many(file: &'a File, buffers: Vec<B>, offset: u64) -> Self {
        Self::new(file, Kind::ReadVectored, B::hold_many_mut(buffers), offset, B::release_many)
    }
}

impl<'a, B: IoBuf> Io<'a, B> {
    pub(super) fn write(file: &'a File, buffer: B, offset: u64) -> Self {
        Self::new(file, Kind::Write, buffer.hold(), offset, B::release)
    }
}

impl<'a, B: IoBuf> Io<'a, Vec<B>> {
    pub(super) fn write_many(file: &'a File, buffers: Vec<B>, offset: u64) -> Self {
        Self::new(file, Kind::WriteVectored, B::hold_many(buffers), offset, B::release_many)
    }
}

impl<B> Future for Io<'_, B> {
    type Output = BufResult<B>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let io = &mut *self;
        match io.operation.poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(finished)) => Poll::Ready(io.finish(finished)),
            Poll::Ready(Err((error, held))) => Poll::Ready(Err(BufError::new(error, (io.release)(held)))),
        }
    }
}

impl<'a> Operation<'a> {
    pub(super) fn new(file: FileRef<'a>, request: Request, held: Held) -> Self {
        Self { file, request, stage: Stage::Start(held) }
    }

    #[inline]
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        match &mut self.stage {
            Stage::Running(ticket) => {
                let Poll::Ready(finished) = ticket.poll(context) else { return Poll::Pending };
                self.stage = Stage::Ended;
                if finished.errno == libc::EINVAL && self.falls_back(&finished) {
                    return self.begin(finished.held, context);
                }
                Poll::Ready(Ok(finished))
            }
            Stage::Unaligned(read) => {
                let outcome = std::task::ready!(read.as_mut().poll(context));
                self.stage = Stage::Ended;
                Poll::Ready(outcome)
            }
            Stage::Start(held) => {
                let held = std::mem::take(held);
                self.stage = Stage::Ended;
                self.begin(held, context)
            }
            // A future that was ready and is polled again: as the standard library's do, it stays pending or panics;
            // this one stays pending.
            Stage::Ended => Poll::Pending,
        }
    }

    #[inline]
    fn begin(&mut self, held: Held, context: &mut Context<'_>) -> Poll<Outcome> {
        match self.fits(&held) {
            Ok(true) => {}
            Ok(false) => return self.begin_unaligned(held, context),
            Err(error) => return Poll::Ready(Err((error, held))),
        }
        if self.request.want == 0 {
            return Poll::Ready(Ok(Finished { held, done: 0, errno: 0 }));
        }
        match driver::start(&self.file.0.target, &self.request, held, context) {
            Ok(ticket) => {
                self.stage = Stage::Running(ticket);
                Poll::Pending
            }
            Err((error, held)) => {
                let error = error.at(self.request.offset).on(self.file.path());
                Poll::Ready(Err((error, held)))
            }
        }
    }

    #[cold]
    fn begin_unaligned(&mut self, held: Held, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut read: Boxed<'a> = Box::pin(unaligned::read(self.file.clone(), self.request, held));
        let polled = read.as_mut().poll(context);
        if polled.is_pending() {
            self.stage = Stage::Unaligned(read);
        }
        polled
    }

    /// Whether the operation can go to the kernel as it is. An error for what would be refused without a reason.
    #[inline]
    fn fits(&self, held: &Held) -> Result<bool, Error> {
        let end = self.request.offset.checked_add(self.request.want as u64);
        if end.is_none_or(|end| end > i64::MAX as u64) {
            return Err(self.error(ErrorKind::InvalidInput, "the end would be beyond 2^63 bytes"));
        }
        let Some(block) = self.file.0.target.direct() else { return Ok(true) };
        let is_read = self.request.kind.is_read();
        if unaligned::fits(&self.request, held, block as usize) || self.request.want == 0 {
            return Ok(true);
        }
        if is_read {
            Ok(false)
        } else {
            Err(self.error(ErrorKind::InvalidInput, self.advice(block as usize)))
        }
    }

    #[cold]
    fn advice(&self, block: usize) -> String {
        if self.request.offset % block as u64 == 0 && self.request.want % block == 0 {
            format!(
                "this file needs memory aligned to {block}; write from buffers of a Pool or open without direct"
            )
        } else {
            format!(
                "this file needs multiples of {block}; write {block}-aligned blocks or open without direct"
            )
        }
    }

    fn what(&self) -> String {
        let verb = if self.request.kind.is_read() { "read" } else { "write" };
        let direct = if self.file.is_direct() { "direct " } else { "" };
        format!("{direct}{verb} of {} bytes", self.request.want)
    }

    #[cold]
    fn error(&self, kind: ErrorKind, why: impl Into<Cow<'static, str>>) -> Error {
        Error::new(kind, self.what()).at(self.request.offset).on(self.file.path()).because(why)
    }

    #[cold]
    pub(super) fn failure(&self, done: usize, errno: i32) -> Error {
        let is_read = self.request.kind.is_read();
        if errno == 0 {
            let (kind, why) = match is_read {
                true => (ErrorKind::UnexpectedEof, "the file ends before"),
                false => (ErrorKind::WriteZero, "the file takes no more"),
            };
            return self.error(kind, why).after(done);
        }
        let error =
            Error::from_errno(errno, self.what()).at(self.request.offset).on(self.file.path()).after(done);
        match errno {
            libc::EBADF if is_read => error.because("the file was not opened for reading"),
            libc::EBADF => error.because("the file was not opened for writing"),
            libc::EINVAL if self.file.is_direct() => error.because(
                "the file system refuses direct I/O here; open without direct, or with buffered_fallback(true)",
            ),
            libc::EOPNOTSUPP if self.file.0.target.polled => {
                error.because("the file system can't poll for completions; open without poll")
            }
            _ => error,
        }
    }

    /// Direct I/O turned out to be refused, and the user allowed buffered I/O instead.
    #[cold]
    fn falls_back(&self, finished: &Finished) -> bool {
        finished.errno == libc::EINVAL
            && finished.done == 0
            && self.file.0.buffered_fallback
            && self.file.is_direct()
            && self.file.0.target.turn_buffered().is_ok()
    }
}

impl Future for Operation<'_> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        Operation::poll(&mut self, context)
    }
}
