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
use super::durability::AfterWrite;
use super::record::{Begun, OperationRecord};
use super::{File, OpenOptions, check};
use crate::driver::{
    self, Ended, Kept, Kind, Lend, RWF_ATOMIC, RemoteOperation, Request, Started, SubmitHint, Ticket,
};
use crate::error::{BufError, BufResult, Error};
use crate::memory::{Buffer, Held, IoBuf, IoBufMut};

pin_project! {
    /// A read or a write. Awaited, it returns the buffer, with its length set, or inside the error. Or
    /// [add](crate::Operation) it to a batch or a queue.
    ///
    /// `Send`. It may be polled on another thread than before, which costs a message between the two. Dropping it cancels
    /// the operation if the kernel still can.
    #[must_use = "nothing is read or written until it is awaited, or added to a batch or a queue"]
    pub struct Io<'a, B> {
        pub(super) transfer: Transfer<'a, B>,
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
        transfer: Transfer<'a, B>,
        #[pin]
        pinned: PhantomPinned,
    }
}

/// A read or a write of memory of type `B`.
pub(super) struct Transfer<'a, B> {
    operation: OperationFuture<&'a File>,
    buffer: PhantomData<fn() -> B>,
}

/// One operation of a task: its record, and where it is carried out. Dropping it cancels the operation if the kernel
/// still can.
pub(crate) struct OperationFuture<F> {
    pub(crate) file: F,
    pub(super) record: OperationRecord<Kept>,
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

impl<'a, B> Transfer<'a, B> {
    #[inline(always)]
    fn new(file: &'a File, kind: Kind, held: Held, want: usize, offset: u64, exact: bool) -> Self {
        let op_flags = file.target().flags_of(kind);
        let request = Request { op_flags, offset, want, exact, ..Request::of(kind) };
        Self { operation: OperationFuture::new(file, request, held), buffer: PhantomData }
    }

    pub(super) fn file(&self) -> &'a File {
        self.operation.file
    }

    pub(super) fn request(&mut self) -> &mut Request {
        &mut self.operation.record.request
    }

    /// Returns what a durable write leaves to do.
    pub(super) fn rest(&mut self) -> &mut AfterWrite {
        &mut self.operation.record.rest
    }

    #[inline(always)]
    pub(super) fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R {
        self.operation.ask(add)
    }

    /// Returns whether the finished operation did all that was requested.
    #[inline]
    fn is_good(&mut self) -> bool {
        let OperationFuture { record, stage, .. } = &mut self.operation;
        match stage {
            FutureStage::Over(ended) => {
                ended.errno == 0 && (ended.done == record.request.want || may_be_short(record))
            }
            _ => false,
        }
    }

    #[inline]
    fn finish<T>(&mut self, is_good: bool, buffer: T) -> BufResult<T> {
        if is_good { Ok(buffer) } else { Err(BufError::new(self.operation.take_error(), buffer)) }
    }

    /// Starts the write with a sync linked to it. Returns false, and starts neither, if they cannot be linked here.
    pub(super) fn start_with(&mut self, sync: &mut OperationFuture<&File>, context: &Context<'_>) -> bool {
        let OperationFuture { file, record, stage } = &mut self.operation;
        if !matches!(record.fits(file), Ok(true))
            // A link does not cover a write of several submissions.
            || !(1..=driver::MOST_AT_ONCE).contains(&record.request.want)
        {
            return false;
        }
        let (target, request, held) = record.begun(file);
        let (_, sync_request, sync_held) = sync.record.begun(sync.file);
        let places = driver::start_linked(target, (request, held), (sync_request, sync_held), context);
        let Some([write, behind]) = places else { return false };
        *stage = FutureStage::Running(Ticket::new(write));
        sync.stage = FutureStage::Running(Ticket::new(behind));
        true
    }
}

/// Returns whether a shorter result counts as success; not for a buffer whose length cannot show it.
#[cold]
fn may_be_short(record: &mut OperationRecord<Kept>) -> bool {
    !record.request.exact && !record.held.own().hides_length()
}

impl<'a, B: IoBuf> Transfer<'a, B> {
    #[inline]
    pub(super) fn write(file: &'a File, buffer: B, offset: u64) -> Self {
        let want = buffer.len();
        Self::new(file, Kind::Write, buffer.hold(), want, offset, true)
    }

    #[inline]
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<BufResult<B>> {
        if self.operation.poll(context).is_pending() {
            return Poll::Pending;
        }
        let is_good = self.is_good();
        let buffer = B::release(self.operation.take_held());
        Poll::Ready(self.finish(is_good, buffer))
    }
}

impl<'a, B> Io<'a, B> {
    #[inline(always)]
    fn of(transfer: Transfer<'a, B>) -> Self {
        Self { transfer, pinned: PhantomPinned }
    }
}

impl<'a, B: IoBuf> Io<'a, B> {
    #[inline]
    pub(super) fn write(file: &'a File, buffer: B, offset: u64) -> Self {
        Self::of(Transfer::write(file, buffer, offset))
    }

    /// Writes only this part of the buffer.
    pub(super) fn write_part(file: &'a File, buffer: B, part: impl RangeBounds<usize>, offset: u64) -> Self {
        let mut write = Transfer::write(file, buffer, offset);
        write.request().take_part(part);
        Self::of(write)
    }

    pub(super) fn write_atomic(file: &'a File, buffer: B, offset: u64) -> Self {
        let want = buffer.len();
        let mut write = Transfer::new(file, Kind::WriteAtomic, buffer.hold(), want, offset, true);
        write.request().op_flags |= RWF_ATOMIC;
        Self::of(write)
    }
}

impl<'a, B: IoBufMut> Io<'a, B> {
    /// Reads all of the buffer's capacity, or less unless it is to be `exact`.
    #[inline(always)]
    pub(super) fn read(file: &'a File, buffer: B, offset: u64, exact: bool) -> Self {
        let want = buffer.capacity();
        Self::of(Transfer::new(file, Kind::Read, buffer.hold_mut(), want, offset, exact))
    }
}

impl<'a, B> IoVectored<'a, B> {
    fn of(transfer: Transfer<'a, B>) -> Self {
        Self { transfer, pinned: PhantomPinned }
    }
}

impl<'a, B: IoBuf> IoVectored<'a, B> {
    pub(super) fn write(file: &'a File, buffers: Vec<B>, offset: u64) -> Self {
        let want = buffers.iter().map(IoBuf::len).sum();
        Self::of(Transfer::new(file, Kind::WriteVectored, B::hold_many(buffers), want, offset, true))
    }
}

impl<'a, B: IoBufMut> IoVectored<'a, B> {
    /// Reads all of the buffers' capacity, or less unless it is to be `exact`.
    pub(super) fn read(file: &'a File, buffers: Vec<B>, offset: u64, exact: bool) -> Self {
        let want = buffers.iter().map(IoBufMut::capacity).sum();
        Self::of(Transfer::new(file, Kind::ReadVectored, B::hold_many_mut(buffers), want, offset, exact))
    }
}

impl<B: IoBuf> Future for Io<'_, B> {
    type Output = BufResult<B>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().transfer.poll(context)
    }
}

impl<B: IoBuf> Future for IoVectored<'_, B> {
    type Output = BufResult<Vec<B>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let transfer = self.project().transfer;
        ready!(transfer.operation.poll(context));
        let is_good = transfer.is_good();
        let buffers = B::release_many(transfer.operation.take_held());
        Poll::Ready(transfer.finish(is_good, buffers))
    }
}

impl<B: AnyMemory> Ask for Io<'_, B> {
    #[inline(always)]
    fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R {
        self.transfer.ask(add)
    }
}

impl Ask for IoVectored<'_, Buffer> {
    fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R {
        self.transfer.ask(add)
    }
}

impl<F: Borrow<File>> OperationFuture<F> {
    #[inline(always)]
    pub(crate) fn new(file: F, request: Request, held: Held) -> Self {
        let held = Kept::of(held, request.kind.is_read());
        Self { file, record: OperationRecord::over(request, held), stage: FutureStage::Start }
    }

    /// Makes it the opening of a file with these options.
    pub(crate) fn opening(mut self, options: Box<OpenOptions>) -> Self {
        self.record.opens_with(options);
        self
    }

    /// Gives the operation, which was not started, to a batch or a queue.
    #[inline(always)]
    pub(crate) fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R {
        let Self { file, record, stage } = self;
        // It was not started: there is nothing to drop.
        std::mem::forget(stage);
        add(file.borrow(), record.into_asked())
    }

    /// Takes the file that was opened.
    pub(crate) fn take_file(&mut self) -> Option<File> {
        self.record.take_file()
    }

    /// Takes the buffer of an operation that is not in flight.
    #[inline]
    pub(crate) fn take_held(&mut self) -> Held {
        self.record.held.take()
    }

    /// Returns how the operation ended; an errno counts as a result here.
    pub(super) fn result(&mut self) -> Result<Ended, Error> {
        match std::mem::replace(&mut self.stage, FutureStage::Taken) {
            FutureStage::Over(ended) => Ok(ended),
            FutureStage::Failed(error) => Err(error),
            _ => {
                let why = "the result was taken before the operation had finished, or twice";
                Err(check::error(self.file.borrow().target(), &self.record.request, ErrorKind::Other, why))
            }
        }
    }

    /// Returns why an operation that ended this way did not do all that was requested.
    #[cold]
    pub(super) fn failure(&self, ended: Ended) -> Error {
        self.record.failure(self.file.borrow(), ended)
    }

    /// Returns why the operation did not do all that was requested.
    #[cold]
    fn take_error(&mut self) -> Error {
        match self.result() {
            Ok(ended) => self.failure(ended),
            Err(error) => error,
        }
    }

    /// Drives the operation. Once it is ready, [`result`](Self::result) has the outcome. Polling it after that does
    /// nothing.
    ///
    /// A loop: with a call of its own for each step that ends at once, a long read in pieces would overflow the stack.
    #[inline(always)]
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let polled = match &mut self.stage {
                FutureStage::Running(ticket) => {
                    let ended = ready!(ticket.poll(context, self.record.memory()));
                    self.ended(ended)
                }
                FutureStage::Start | FutureStage::Begun => self.begin(context),
                _ => self.poll_otherwise(context),
            };
            if let Some(polled) = polled {
                return polled;
            }
        }
    }

    /// Does as [`poll`](Self::poll); `None` if the next step is to be taken, as in all that it calls.
    #[cold]
    fn poll_otherwise(&mut self, context: &mut Context<'_>) -> Option<Poll<()>> {
        match &mut self.stage {
            FutureStage::Elsewhere(operation) => {
                let Poll::Ready(ended) = operation.poll(context, self.record.memory()) else {
                    return Some(Poll::Pending);
                };
                // Drops the operation, which `ended` does not.
                self.stage = FutureStage::Begun;
                self.ended(ended)
            }
            FutureStage::Stream(follow) => {
                let (own, OperationRecord { request, held, .. }) =
                    (self.file.borrow().target(), &mut self.record);
                let Poll::Ready(done) = follow.poll(own, request, held.own(), context) else {
                    return Some(Poll::Pending);
                };
                if done == request.want {
                    self.stage = FutureStage::Over(Ended { done, errno: 0 });
                    return Some(Poll::Ready(()));
                }
                if let FutureStage::Stream(follow) = std::mem::replace(&mut self.stage, FutureStage::Start) {
                    self.record.read_rest(done, follow);
                }
                None
            }
            // Polling a future after it was ready has no defined meaning; this one stays pending.
            _ => Some(Poll::Pending),
        }
    }

    /// Drives an operation without a buffer to its end. Returns how many bytes were done, which only a copy tells.
    pub(crate) fn poll_control(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        ready!(self.poll(context));
        Poll::Ready(match self.stage {
            FutureStage::Over(Ended { errno: 0, done }) => Ok(done),
            _ => Err(self.take_error()),
        })
    }

    /// Takes the result of what was started. A ticket in [`stage`](Self::stage) is spent: there is nothing to drop.
    #[inline]
    fn ended(&mut self, ended: Ended) -> Option<Poll<()>> {
        if ended.errno == 0 && self.record.is_one_step() {
            std::mem::forget(std::mem::replace(&mut self.stage, FutureStage::Over(ended)));
            return Some(Poll::Ready(()));
        }
        self.ended_otherwise(ended)
    }

    #[cold]
    fn ended_otherwise(&mut self, ended: Ended) -> Option<Poll<()>> {
        self.stage = match self.record.end(self.file.borrow(), ended) {
            Some(Ok(ended)) => FutureStage::Over(ended),
            Some(Err(error)) => FutureStage::Failed(error),
            None => FutureStage::Start,
        };
        (!matches!(self.stage, FutureStage::Start)).then_some(Poll::Ready(()))
    }

    /// Begins the operation, and starts it if the kernel would not refuse it without a reason.
    #[inline(always)]
    fn begin(&mut self, context: &mut Context<'_>) -> Option<Poll<()>> {
        if !matches!(self.stage, FutureStage::Begun) {
            match self.record.begin(self.file.borrow(), true) {
                Begun::Start => {}
                begun => return self.begin_unusual(begun),
            }
        }
        let (target, request, memory) = self.record.begun(self.file.borrow());
        match driver::start(target, request, memory, context, SubmitHint::ONE) {
            Ok(Started::Queued(place)) => {
                // The operation had not started or had finished: there is nothing to drop.
                let ticket = Ticket::new(place);
                std::mem::forget(std::mem::replace(&mut self.stage, FutureStage::Running(ticket)));
                Some(Poll::Pending)
            }
            Ok(Started::Done(ended)) => self.ended(ended),
            Ok(Started::Elsewhere(operation)) => {
                self.stage = FutureStage::Elsewhere(operation);
                Some(Poll::Pending)
            }
            Ok(Started::Yield) => {
                self.stage = FutureStage::Begun;
                context.waker().wake_by_ref();
                Some(Poll::Pending)
            }
            Err(error) => self.not_started(error),
        }
    }

    #[cold]
    fn begin_unusual(&mut self, begun: Begun) -> Option<Poll<()>> {
        self.stage = match begun {
            Begun::Start => FutureStage::Begun,
            Begun::Over(ended) => FutureStage::Over(ended),
            Begun::Refused(error) => FutureStage::Failed(error),
            Begun::Stream(id) => {
                let follow = self.file.borrow().follow(id, self.record.request.want);
                follow.map_or(FutureStage::Begun, FutureStage::Stream)
            }
        };
        (!matches!(self.stage, FutureStage::Begun | FutureStage::Stream(_))).then_some(Poll::Ready(()))
    }

    #[cold]
    fn not_started(&mut self, error: Error) -> Option<Poll<()>> {
        self.stage = FutureStage::Failed(self.record.not_started(self.file.borrow(), error));
        Some(Poll::Ready(()))
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
        assert!(read.result().is_err());
        assert!(matches!(read.take_held(), Held::Vec(bytes) if bytes == b"read"));
    }
}
