//! The future of one operation, and those of reads and writes.
//!
//! It drives the record of its operation: gives the buffer to the driver when it starts a step, and gets it back with the
//! step's result.

use std::borrow::Borrow;
use std::future::Future;
use std::io::ErrorKind;
use std::marker::{PhantomData, PhantomPinned};
use std::ops::RangeBounds;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::adaptive::Follow;
use super::ask::{AnyMemory, Ask, Asked};
use super::record::{Begun, OperationRecord};
use super::{File, check};
use crate::driver::{
    self, Ended, Kept, Kind, Lend, RWF_ATOMIC, RemoteOperation, Request, Started, SubmitHint, Ticket,
};
use crate::error::{BufError, BufResult, Error, Result};
use crate::memory::{Buffer, Held, IoBuf, IoBufMut};

pin_project! {
    /// A read or a write. Awaited, it returns the buffer, with its length set, or inside the error. Or
    /// [add](crate::Operation) it to a batch or a queue.
    ///
    /// `Send`. It may be polled on another thread than before, which costs a message between the two. Dropping it cancels
    /// the operation if the kernel still can.
    #[must_use = "nothing is read or written until it is awaited, or added to a batch or a queue"]
    pub struct Io<'a, B> {
        pub(super) operation: OperationFuture<&'a File>,
        buffer: PhantomData<fn() -> B>,
        #[pin]
        pinned: PhantomPinned,
    }
}

pin_project! {
    /// A vectored read or write. Awaited, it returns the buffers, with their lengths set, or inside the error.
    ///
    /// Otherwise the same as an [`Io`].
    #[must_use = "nothing is read or written until it is awaited, or added to a batch or a queue"]
    pub struct IoVectored<'a, B> {
        operation: OperationFuture<&'a File>,
        buffers: PhantomData<fn() -> B>,
        #[pin]
        pinned: PhantomPinned,
    }
}

/// One operation of a task: its record, and where it is carried out. Dropping it cancels the operation if the kernel
/// still can.
pub(crate) struct OperationFuture<F> {
    pub(crate) file: F,
    pub(crate) record: OperationRecord<Kept>,
    stage: FutureStage,
}

enum FutureStage {
    Start,
    /// It was begun, and other tasks run before it is started.
    Begun,
    Running(Ticket),
    /// Another thread carries it out.
    Elsewhere(RemoteOperation),
    /// It takes what was read ahead of its stream.
    Stream(Box<Follow>),
    /// The kernel's answer. It is left here rather than returned: building a result and copying it at once costs a
    /// failed store forwarding on every operation.
    Over(Ended),
    Failed(Error),
    Taken,
}

/// Returns whether a shorter result counts as success; not for a buffer whose length cannot show it.
#[cold]
fn may_be_short(record: &mut OperationRecord<Kept>) -> bool {
    !record.request.exact && !record.held.own().hides_length()
}

impl<'a, B> Io<'a, B> {
    #[inline(always)]
    fn of(operation: OperationFuture<&'a File>) -> Self {
        Self { operation, buffer: PhantomData, pinned: PhantomPinned }
    }
}

impl<'a, B: IoBuf> Io<'a, B> {
    #[inline]
    pub(super) fn write(file: &'a File, buffer: B, offset: u64) -> Self {
        let want = buffer.len();
        Self::of(OperationFuture::of(file, Kind::Write, buffer.hold(), want, offset, true))
    }

    /// Writes only this part of the buffer.
    pub(super) fn write_part(file: &'a File, buffer: B, part: impl RangeBounds<usize>, offset: u64) -> Self {
        let mut write = Self::write(file, buffer, offset);
        write.operation.record.request.take_part(part);
        write
    }

    pub(super) fn write_atomic(file: &'a File, buffer: B, offset: u64) -> Self {
        let mut write = Self::write(file, buffer, offset);
        let request = &mut write.operation.record.request;
        (request.kind, request.op_flags) = (Kind::WriteAtomic, request.op_flags | RWF_ATOMIC);
        write
    }
}

impl<'a, B: IoBufMut> Io<'a, B> {
    /// Reads all of the buffer's capacity, or less unless it is to be `exact`.
    #[inline(always)]
    pub(super) fn read(file: &'a File, buffer: B, offset: u64, exact: bool) -> Self {
        let want = buffer.capacity();
        Self::of(OperationFuture::of(file, Kind::Read, buffer.hold_mut(), want, offset, exact))
    }
}

impl<'a, B> IoVectored<'a, B> {
    fn of(operation: OperationFuture<&'a File>) -> Self {
        Self { operation, buffers: PhantomData, pinned: PhantomPinned }
    }
}

impl<'a, B: IoBuf> IoVectored<'a, B> {
    pub(super) fn write(file: &'a File, buffers: Vec<B>, offset: u64) -> Self {
        let want = buffers.iter().map(IoBuf::len).sum();
        Self::of(OperationFuture::of(file, Kind::WriteVectored, B::hold_many(buffers), want, offset, true))
    }
}

impl<'a, B: IoBufMut> IoVectored<'a, B> {
    /// Reads all of the buffers' capacity, or less unless it is to be `exact`.
    pub(super) fn read(file: &'a File, buffers: Vec<B>, offset: u64, exact: bool) -> Self {
        let want = buffers.iter().map(IoBufMut::capacity).sum();
        let held = B::hold_many_mut(buffers);
        Self::of(OperationFuture::of(file, Kind::ReadVectored, held, want, offset, exact))
    }
}

impl<B: IoBuf> Future for Io<'_, B> {
    type Output = BufResult<B>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().operation.poll_transfer(context, B::release)
    }
}

impl<B: IoBuf> Future for IoVectored<'_, B> {
    type Output = BufResult<Vec<B>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().operation.poll_transfer(context, B::release_many)
    }
}

impl<B: AnyMemory> Ask for Io<'_, B> {
    #[inline(always)]
    fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R {
        self.operation.ask(add)
    }
}

impl Ask for IoVectored<'_, Buffer> {
    fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R {
        self.operation.ask(add)
    }
}

impl<'a> OperationFuture<&'a File> {
    /// Creates a read or a write of this memory.
    #[inline(always)]
    fn of(file: &'a File, kind: Kind, held: Held, want: usize, offset: u64, exact: bool) -> Self {
        let op_flags = file.target().flags_of(kind);
        Self::new(file, Request { op_flags, offset, want, exact, ..Request::of(kind) }, held)
    }

    /// Starts the write with a sync linked to it. Returns false, and starts neither, if they cannot be linked here.
    pub(super) fn start_with(&mut self, sync: &mut Self, context: &Context<'_>) -> bool {
        if !matches!(self.record.fits(self.file), Ok(true))
            // A link does not cover a write of several submissions.
            || !(1..=driver::MOST_AT_ONCE).contains(&self.record.request.want)
        {
            return false;
        }
        let (target, request, held) = self.record.begun(self.file);
        let (_, sync_request, sync_held) = sync.record.begun(sync.file);
        let places = driver::start_linked(target, (request, held), (sync_request, sync_held), context);
        let Some([write, behind]) = places else { return false };
        self.stage = FutureStage::Running(Ticket::new(write));
        sync.stage = FutureStage::Running(Ticket::new(behind));
        true
    }
}

impl<F: Borrow<File>> OperationFuture<F> {
    #[inline(always)]
    pub(crate) fn new(file: F, request: Request, held: Held) -> Self {
        let held = Kept::of(held, request.kind.is_read());
        Self { file, record: OperationRecord::over(request, held), stage: FutureStage::Start }
    }

    /// Gives the operation, which was not started, to a batch or a queue.
    #[inline(always)]
    pub(crate) fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R {
        let Self { file, record, stage } = self;
        // It was not started: there is nothing to drop.
        std::mem::forget(stage);
        add(file.borrow(), record.into_asked())
    }

    /// Takes the buffer of an operation that is not in flight.
    #[inline]
    pub(crate) fn take_held(&mut self) -> Held {
        self.record.held.take()
    }

    /// Returns why the operation did not do all that was requested.
    #[cold]
    fn take_error(&mut self) -> Error {
        let file: &File = self.file.borrow();
        match std::mem::replace(&mut self.stage, FutureStage::Taken) {
            FutureStage::Over(ended) => self.record.failure(file, ended),
            FutureStage::Failed(error) => error,
            _ => {
                let why = "the result was taken before the operation had finished, or twice";
                check::error(file.target(), &self.record.request, why).of_kind(ErrorKind::Other)
            }
        }
    }

    /// Drives the operation until it has ended. Polling it after that does nothing.
    ///
    /// A loop: with a call of its own for each step that ends at once, a long read in pieces would overflow the stack.
    #[inline(always)]
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let is_over = match &mut self.stage {
                FutureStage::Running(ticket) => {
                    let ended = ready!(ticket.poll(context, self.record.memory()));
                    self.ended(ended)
                }
                FutureStage::Start | FutureStage::Begun => ready!(self.begin(context)),
                _ => ready!(self.poll_otherwise(context)),
            };
            if is_over {
                return Poll::Ready(());
            }
        }
    }

    /// Does as [`poll`](Self::poll); returns whether the operation is over, as all do that it calls. If not, the next
    /// step is to be taken.
    #[cold]
    fn poll_otherwise(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        match &mut self.stage {
            FutureStage::Elsewhere(operation) => {
                let ended = ready!(operation.poll(context, self.record.memory()));
                // Drops the operation, which `ended` does not.
                self.stage = FutureStage::Begun;
                Poll::Ready(self.ended(ended))
            }
            FutureStage::Stream(follow) => {
                let OperationRecord { request, held, .. } = &mut self.record;
                let done = ready!(follow.poll(self.file.borrow().target(), request, held.own(), context));
                let is_over = done == request.want;
                let next =
                    if is_over { FutureStage::Over(Ended { done, errno: 0 }) } else { FutureStage::Start };
                if let FutureStage::Stream(follow) = std::mem::replace(&mut self.stage, next)
                    && !is_over
                {
                    self.record.read_rest(done, follow);
                }
                Poll::Ready(is_over)
            }
            // Polling a future after it was ready has no defined meaning; this one stays pending.
            _ => Poll::Pending,
        }
    }

    /// Drives a read or a write to its end. Returns its buffer, which `release` makes of what was held.
    #[inline]
    pub(super) fn poll_transfer<T>(
        &mut self,
        context: &mut Context<'_>,
        release: impl FnOnce(Held) -> T,
    ) -> Poll<BufResult<T>> {
        ready!(self.poll(context));
        let record = &mut self.record;
        let is_good = match self.stage {
            FutureStage::Over(Ended { errno: 0, done }) => {
                done == record.request.want || may_be_short(record)
            }
            _ => false,
        };
        let buffer = release(self.take_held());
        Poll::Ready(if is_good { Ok(buffer) } else { Err(BufError::new(self.take_error(), buffer)) })
    }

    /// Drives an operation to its end. Returns how many bytes were done, whether that is all or less.
    pub(crate) fn poll_control(&mut self, context: &mut Context<'_>) -> Poll<Result<usize>> {
        ready!(self.poll(context));
        Poll::Ready(match self.stage {
            FutureStage::Over(Ended { errno: 0, done }) => Ok(done),
            _ => Err(self.take_error()),
        })
    }

    /// Drives an operation without a buffer to its end. Returns what it has left, which `take` takes.
    pub(crate) fn poll_left<T>(
        &mut self,
        context: &mut Context<'_>,
        take: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Poll<Result<T>> {
        ready!(self.poll_control(context))?;
        let left = take(self);
        Poll::Ready(left.ok_or_else(|| {
            // A successful operation has left it.
            let Request { kind, op_flags, .. } = self.record.request;
            Error::from_errno(libc::EFAULT, kind.verb(op_flags)).on(self.file.borrow().path())
        }))
    }

    /// Takes the result of what was started; returns whether the operation is over. A ticket in [`stage`](Self::stage)
    /// is spent: there is nothing to drop.
    #[inline]
    fn ended(&mut self, ended: Ended) -> bool {
        if ended.errno == 0 && self.record.is_one_step() {
            std::mem::forget(std::mem::replace(&mut self.stage, FutureStage::Over(ended)));
            return true;
        }
        self.ended_otherwise(ended)
    }

    #[cold]
    fn ended_otherwise(&mut self, ended: Ended) -> bool {
        self.stage = match self.record.end(self.file.borrow(), ended) {
            Some(Ok(ended)) => FutureStage::Over(ended),
            Some(Err(error)) => FutureStage::Failed(error),
            None => FutureStage::Start,
        };
        !matches!(self.stage, FutureStage::Start)
    }

    /// Begins the operation, and starts it if the kernel would not refuse it without a reason.
    #[inline(always)]
    fn begin(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        if !matches!(self.stage, FutureStage::Begun) {
            match self.record.begin(self.file.borrow(), true) {
                Begun::Start => {}
                begun => return Poll::Ready(self.begin_unusual(begun)),
            }
        }
        let (target, request, memory) = self.record.begun(self.file.borrow());
        match driver::start(target, request, memory, context, SubmitHint::ONE) {
            Ok(Started::Queued(place)) => {
                // The operation had not started or had finished: there is nothing to drop.
                let ticket = Ticket::new(place);
                std::mem::forget(std::mem::replace(&mut self.stage, FutureStage::Running(ticket)));
                Poll::Pending
            }
            Ok(Started::Done(ended)) => Poll::Ready(self.ended(ended)),
            Ok(Started::Elsewhere(operation)) => {
                self.stage = FutureStage::Elsewhere(operation);
                Poll::Pending
            }
            Ok(Started::Yield) => {
                self.stage = FutureStage::Begun;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Err(error) => Poll::Ready(self.not_started(error)),
        }
    }

    #[cold]
    fn begin_unusual(&mut self, begun: Begun) -> bool {
        self.stage = match begun {
            Begun::Start => FutureStage::Begun,
            Begun::Over(ended) => FutureStage::Over(ended),
            Begun::Refused(error) => FutureStage::Failed(error),
            Begun::Stream(id) => {
                let (file, want): (&File, _) = (self.file.borrow(), self.record.request.want);
                let follow = file.adaptive().map(|adaptive| adaptive.follow(file.target(), id, want));
                follow.map_or(FutureStage::Begun, FutureStage::Stream)
            }
        };
        !matches!(self.stage, FutureStage::Begun | FutureStage::Stream(_))
    }

    #[cold]
    fn not_started(&mut self, error: Error) -> bool {
        self.stage = FutureStage::Failed(self.record.not_started(self.file.borrow(), error));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_read_that_cannot_begin_keeps_what_was_read_before() {
        let file = File::open("/proc/self/exe").unwrap();
        let beyond = Request { offset: i64::MAX as u64, start: 4, want: 4, ..Request::of(Kind::Read) };
        let mut read = OperationFuture::new(&file, beyond, Held::Vec(b"readmore".to_vec()));
        assert!(read.poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert_eq!(read.take_error().kind(), ErrorKind::InvalidInput);
        assert!(matches!(read.take_held(), Held::Vec(bytes) if bytes == b"read"));
    }
}
