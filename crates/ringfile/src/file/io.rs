//! The future of a read or a write.
//!
//! It gives its buffer to the driver on its first poll and gets it back with the result. It refuses what the kernel
//! would refuse with a bare errno, and passes unaligned direct reads to [`super::unaligned`].

use std::borrow::Borrow;
use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::marker::{PhantomData, PhantomPinned};
use std::ops::RangeBounds;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::adaptive::{self, Descriptor, Way};
use super::ask::{AnyMemory, Ask, Asked};
use super::durable::WriteDurable;
use super::single::Single;
use super::unaligned::{self, Pieces};
use super::{File, check};
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
        transfer: Transfer<'a, B>,
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
    operation: Operation<'a>,
    buffer: PhantomData<fn() -> B>,
}

/// An operation on memory whose type was erased.
pub(super) struct Operation<'a, F = &'a File> {
    pub(super) file: F,
    pub(super) request: Request,
    /// The buffer, before and after.
    pub(super) held: Kept,
    /// Whether the operation was repeated after direct I/O was refused.
    fell_back: bool,
    descriptor: Descriptor,
    stage: Stage<'a>,
}

type Boxed<'a> = Pin<Box<dyn Future<Output = (Held, Result<Ended, Error>)> + Send + 'a>>;

enum Stage<'a> {
    Start,
    Running(Ticket),
    /// Another thread carries it out.
    Elsewhere(RemoteOperation),
    /// Other operations carry it out.
    Detour(Boxed<'a>),
    /// The kernel's answer. It is left here rather than returned: building a result and copying it at once costs a
    /// failed store forwarding on every operation.
    Over(Ended),
    Failed(Error),
    Taken,
}

impl<'a, B> Transfer<'a, B> {
    #[inline]
    fn new(file: &'a File, kind: Kind, held: Held, want: usize, offset: u64) -> Self {
        let op_flags = file.target().flags_of(kind);
        let request = Request { op_flags, offset, want, exact: true, ..Request::of(kind) };
        Self { operation: Operation::new(file, request, held), buffer: PhantomData }
    }

    /// Accepts a result that moved fewer bytes than wanted.
    #[inline]
    fn or_less(mut self) -> Self {
        self.request().exact = false;
        self
    }

    pub(super) fn file(&self) -> &'a File {
        self.operation.file
    }

    pub(super) fn request(&mut self) -> &mut Request {
        &mut self.operation.request
    }

    /// Returns what to add to a batch or a queue.
    #[inline]
    pub(super) fn ask(self) -> (&'a File, Asked) {
        let Operation { file, request, mut held, .. } = self.operation;
        (file, Asked::new(request, held.take()))
    }

    /// Returns whether the finished operation did all that was requested.
    #[inline]
    fn is_good(&mut self) -> bool {
        match self.operation.stage {
            Stage::Over(ended) => {
                ended.errno == 0 && (ended.done == self.operation.request.want || self.may_be_short())
            }
            _ => false,
        }
    }

    /// Returns whether a shorter result counts as success; not for a buffer whose length cannot show it.
    #[cold]
    fn may_be_short(&mut self) -> bool {
        !self.operation.request.exact && !self.operation.held.own().hides_length()
    }

    #[inline]
    fn finish<T>(&mut self, is_good: bool, buffer: T) -> BufResult<T> {
        if is_good { Ok(buffer) } else { Err(BufError::new(self.operation.take_error(), buffer)) }
    }

    /// Starts the write with a sync linked to it. Returns false, and starts neither, if they cannot be linked here.
    pub(super) fn start_with(&mut self, sync: &mut Single<'_>, context: &Context<'_>) -> bool {
        let (operation, sync) = (&mut self.operation, &mut sync.0);
        if !operation.is_new()
            || !sync.is_new()
            || !matches!(operation.fits(), Ok(true))
            // A link does not cover a write of several submissions.
            || !(1..=driver::MOST_AT_ONCE).contains(&operation.request.want)
        {
            return false;
        }
        let target = &operation.descriptor.of(operation.file).0.target;
        let write = (&operation.request, &mut operation.held);
        let places = driver::start_linked(target, write, (&sync.request, &mut sync.held), context);
        let Some([write, behind]) = places else { return false };
        operation.stage = Stage::Running(Ticket::new(write));
        sync.stage = Stage::Running(Ticket::new(behind));
        true
    }
}

impl<'a, B: IoBuf> Transfer<'a, B> {
    #[inline]
    pub(super) fn write(file: &'a File, buffer: B, offset: u64) -> Self {
        let want = buffer.len();
        Self::new(file, Kind::Write, buffer.hold(), want, offset)
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
    #[inline]
    fn of(transfer: Transfer<'a, B>) -> Self {
        Self { transfer, pinned: PhantomPinned }
    }

    /// Accepts a result that moved fewer bytes than wanted.
    #[inline]
    pub(super) fn or_less(self) -> Self {
        Self::of(self.transfer.or_less())
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
        let mut write = Transfer::new(file, Kind::WriteAtomic, buffer.hold(), want, offset);
        write.request().op_flags |= RWF_ATOMIC;
        Self::of(write)
    }

    /// Makes the write durable.
    pub(super) fn durable(self) -> WriteDurable<'a, B> {
        WriteDurable::new(self.transfer)
    }
}

impl<'a, B: IoBufMut> Io<'a, B> {
    #[inline]
    pub(super) fn read(file: &'a File, buffer: B, offset: u64) -> Self {
        let want = buffer.capacity();
        Self::of(Transfer::new(file, Kind::Read, buffer.hold_mut(), want, offset))
    }
}

impl<'a, B> IoVectored<'a, B> {
    fn of(transfer: Transfer<'a, B>) -> Self {
        Self { transfer, pinned: PhantomPinned }
    }

    /// Accepts a result that moved fewer bytes than wanted.
    pub(super) fn or_less(self) -> Self {
        Self::of(self.transfer.or_less())
    }
}

impl<'a, B: IoBuf> IoVectored<'a, B> {
    pub(super) fn write(file: &'a File, buffers: Vec<B>, offset: u64) -> Self {
        let want = buffers.iter().map(IoBuf::len).sum();
        Self::of(Transfer::new(file, Kind::WriteVectored, B::hold_many(buffers), want, offset))
    }
}

impl<'a, B: IoBufMut> IoVectored<'a, B> {
    pub(super) fn read(file: &'a File, buffers: Vec<B>, offset: u64) -> Self {
        let want = buffers.iter().map(IoBufMut::capacity).sum();
        Self::of(Transfer::new(file, Kind::ReadVectored, B::hold_many_mut(buffers), want, offset))
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
    #[inline]
    fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R {
        let (file, asked) = self.transfer.ask();
        add(file, asked)
    }
}

impl Ask for IoVectored<'_, Buffer> {
    fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R {
        let (file, asked) = self.transfer.ask();
        add(file, asked)
    }
}

impl<F> Operation<'_, F> {
    /// Returns whether the operation was not started yet.
    pub(super) fn is_new(&self) -> bool {
        matches!(self.stage, Stage::Start)
    }

    /// Takes the buffer of an operation that is not in flight.
    #[inline]
    pub(super) fn take_held(&mut self) -> Held {
        self.held.take()
    }
}

impl<'a, F: Borrow<File> + Clone + Send + Sync + Unpin + 'a> Operation<'a, F> {
    #[inline]
    pub(super) fn new(file: F, request: Request, held: Held) -> Self {
        let held = Kept::new(held, request.kind.is_read());
        Self { file, request, held, fell_back: false, descriptor: Descriptor::Open, stage: Stage::Start }
    }

    /// Returns the file to use: the file itself, or the direct twin of an adaptive one.
    fn on(&self) -> &File {
        self.descriptor.of(self.file.borrow())
    }

    /// Returns whether the operation ends only when another thread runs its loop.
    pub(super) fn needs_another_loop(&self) -> bool {
        matches!(&self.stage, Stage::Running(ticket) if ticket.needs_another_loop())
    }

    /// Drives the operation. Once it is ready, [`result`](Self::result) has the outcome.
    #[inline(always)]
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Stage::Running(ticket) = &mut self.stage {
            let Poll::Ready(ended) = ticket.poll(context, &mut self.held) else { return Poll::Pending };
            // The ticket is spent: there is nothing to drop.
            std::mem::forget(std::mem::replace(&mut self.stage, Stage::Over(ended)));
            return if ended.errno == libc::EINVAL { self.refused(ended, context) } else { Poll::Ready(()) };
        }
        if let Stage::Start = self.stage {
            return self.begin(context);
        }
        self.poll_otherwise(context)
    }

    #[cold]
    fn poll_otherwise(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.stage {
            Stage::Elsewhere(operation) => {
                let ended = ready!(operation.poll(context, &mut self.held));
                self.stage = Stage::Over(ended);
                if ended.errno == libc::EINVAL { self.refused(ended, context) } else { Poll::Ready(()) }
            }
            Stage::Detour(read) => {
                let (held, result) = ready!(read.as_mut().poll(context));
                self.held.put(held);
                self.stage = result.map_or_else(Stage::Failed, Stage::Over);
                Poll::Ready(())
            }
            // Polling a future after it was ready has no defined meaning; this one stays pending.
            _ => Poll::Pending,
        }
    }

    /// Handles `EINVAL`: on a direct file that may be buffered instead, the operation begins again.
    #[cold]
    fn refused(&mut self, ended: Ended, context: &mut Context<'_>) -> Poll<()> {
        let is_first = !std::mem::replace(&mut self.fell_back, true);
        if is_first && check::falls_back(self.on(), &self.request, ended) {
            return self.begin(context);
        }
        Poll::Ready(())
    }

    /// Returns how the operation ended; an errno counts as a result here.
    pub(super) fn result(&mut self) -> Result<Ended, Error> {
        match std::mem::replace(&mut self.stage, Stage::Taken) {
            Stage::Over(ended) => Ok(ended),
            Stage::Failed(error) => Err(error),
            _ => {
                let why = "the result was taken before the operation had finished, or twice";
                Err(check::error(self.on(), &self.request, ErrorKind::Other, why))
            }
        }
    }

    /// Returns why the operation did not do all that was requested.
    #[cold]
    fn take_error(&mut self) -> Error {
        match self.result() {
            Ok(ended) => self.failure(ended),
            Err(error) => error,
        }
    }

    #[inline]
    fn begin(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.fits() {
            Ok(true) if self.request.want > 0 => {}
            Ok(true) => {
                return match check::moves_nothing(self.on(), &self.request, self.held.get()) {
                    Ok(ended) => {
                        self.stage = Stage::Over(ended);
                        Poll::Ready(())
                    }
                    Err(error) => self.fail(error),
                };
            }
            Ok(false) => return self.begin_unaligned(context),
            Err(error) => return self.fail(error),
        }
        if self.descriptor == Descriptor::Open && self.file.borrow().has_two_ways(&self.request) {
            return self.begin_adaptive(context);
        }
        self.start(context)
    }

    /// Starts the operation, which the kernel would not refuse without a reason.
    #[inline(always)]
    pub(super) fn start(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let target = &self.descriptor.of(self.file.borrow()).0.target;
        match driver::start(target, &self.request, &mut self.held, context, SubmitHint::ONE) {
            Ok(Started::Queued(place)) => {
                // The operation had not started or had finished: there is nothing to drop, here and below.
                let ticket = Ticket::new(place);
                std::mem::forget(std::mem::replace(&mut self.stage, Stage::Running(ticket)));
                Poll::Pending
            }
            Ok(Started::Done(ended)) => {
                std::mem::forget(std::mem::replace(&mut self.stage, Stage::Over(ended)));
                if ended.errno == libc::EINVAL { self.refused(ended, context) } else { Poll::Ready(()) }
            }
            Ok(Started::Elsewhere(operation)) => {
                self.stage = Stage::Elsewhere(operation);
                Poll::Pending
            }
            Ok(Started::Yield) => {
                self.stage = Stage::Start;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Err(error) => {
                let error = error.on(self.file.borrow().path());
                self.fail(if self.request.kind.moves_data() { error.at(self.request.offset) } else { error })
            }
        }
    }

    #[cold]
    pub(super) fn fail(&mut self, error: Error) -> Poll<()> {
        if self.request.kind.is_read() {
            // Nothing was read, and the buffer's length says so. A stream has read what comes before the start.
            self.held.own().copy_in(self.request.start, &[]);
        }
        self.stage = Stage::Failed(error);
        Poll::Ready(())
    }

    #[cold]
    fn begin_unaligned(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.read_in_pieces(Pieces::by(self.descriptor), context)
    }

    fn read_in_pieces(&mut self, pieces: Pieces, context: &mut Context<'_>) -> Poll<()> {
        let (file, held) = (self.file.clone(), self.held.lend());
        self.stage = Stage::Detour(Box::pin(unaligned::read(file, pieces, self.request, held)));
        self.poll(context)
    }

    /// Begins a read of an adaptive file.
    #[cold]
    fn begin_adaptive(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match adaptive::choose(self.file.borrow(), &self.request, self.held.get(), true) {
            Way::By(descriptor) => {
                self.descriptor = descriptor;
                self.begin(context)
            }
            Way::CachedBeginning(cached) => {
                self.read_in_pieces(Pieces::with_cached_beginning(cached), context)
            }
            Way::Stream(id) => {
                let (file, held) = (self.file.clone(), self.held.lend());
                self.stage = Stage::Detour(Box::pin(adaptive::read_stream(file, id, self.request, held)));
                self.poll(context)
            }
        }
    }

    #[inline]
    fn fits(&self) -> Result<bool, Error> {
        check::fits(self.on(), &self.request, self.held.get())
    }

    #[cold]
    pub(super) fn failure(&self, ended: Ended) -> Error {
        check::failure(self.on(), &self.request, ended)
    }
}

/// Carries out one operation, by this descriptor of an adaptive file.
pub(super) async fn carry_out(
    file: &File,
    descriptor: Descriptor,
    request: Request,
    held: Held,
) -> (Held, Result<Ended, Error>) {
    let mut operation = Operation { descriptor, ..Operation::new(file, request, held) };
    poll_fn(|context| operation.poll(context)).await;
    let result = operation.result();
    (operation.take_held(), result)
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_read_that_cannot_begin_keeps_what_was_read_before() {
        let file = File::open("/proc/self/exe").unwrap();
        let beyond = Request { offset: i64::MAX as u64, start: 4, want: 4, ..Request::of(Kind::Read) };
        let mut read = Operation::new(&file, beyond, Held::Vec(b"readmore".to_vec()));
        assert!(read.poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(read.result().is_err());
        assert!(matches!(read.take_held(), Held::Vec(bytes) if bytes == b"read"));
    }
}
