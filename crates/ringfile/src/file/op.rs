//! [`Op`], the future of every operation, and [`Output`], which tells what it returns.
//!
//! It drives the record of its operation: gives the buffer to the driver when it starts a step, and gets it back with the
//! step's result.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::future::Future;
use std::io::ErrorKind;
use std::marker::PhantomPinned;
use std::path::Path;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::adaptive::Follow;
use super::record::{Asked, Begun, OperationRecord};
use super::{File, check};
use crate::driver::{
    self, Kind, Lend, Loan, OpResult, RemoteOperation, Request, Started, SubmitHint, Ticket,
};
use crate::error::{BufError, BufResult, Error, Result};
use crate::memory::{IoBuf, IoBufMut, IoMemory, Paths};
use crate::runtime;

pin_project! {
    /// An operation that was not started: what the calls of [`File`] and of [`fs`](crate::fs) return. `T` is what it
    /// returns if it succeeds: the buffer of a read or a write, a file that was opened, or `()`.
    ///
    /// Await it, or add it to a [`Batch`](crate::Batch) or a [`Queue`](crate::Queue). Everywhere it obeys the same
    /// options of the file, and ends with the same results and errors. It starts when it is first polled. Dropping it
    /// then cancels it if the kernel still can. It is `Send`: polling it on another thread than before costs a message
    /// between the two.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use ringfile::{Batch, File, block_on};
    /// let file = File::open_blocking("/proc/self/exe")?;
    /// let head = block_on(file.read_at(Vec::with_capacity(4), 0))?;
    ///
    /// let mut batch = Batch::new();
    /// let again = batch.add(file.read_at(Vec::with_capacity(4), 0));
    /// assert_eq!(batch.run()[again].buffer.as_deref(), Some(&head[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// An operation that was polled cannot be added to a batch or a queue, and that does not compile, because polling needs
    /// a pinned future:
    ///
    /// ```compile_fail
    /// # use std::{pin::pin, task::{Context, Waker}};
    /// # let file = ringfile::File::open_blocking("/proc/self/exe").unwrap();
    /// # let mut batch = ringfile::Batch::new();
    /// let mut read = pin!(file.read_at(Vec::with_capacity(4), 0));
    /// let _ = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    /// batch.add(read);
    /// ```
    #[must_use = "nothing is done until it is awaited, or added to a batch or a queue"]
    pub struct Op<'f, T: Output> {
        operation: OperationFuture<T::File<'f>>,
        state: T::State<'f>,
        #[pin]
        pinned: PhantomPinned,
    }
}

/// What an operation returns if it succeeds, the `T` of an [`Op`]. Only this library implements it.
///
/// | `T` | operations |
/// |---|---|
/// | a buffer | reads and writes; an error holds the buffer too |
/// | a vector of buffers | vectored reads and writes |
/// | [`Durable`](crate::fs::Durable) of a buffer | durable writes, which return the buffer |
/// | `()` | syncs and all others that only succeed or fail |
/// | `u64` | copies: the number of bytes |
/// | [`File`], [`Metadata`](crate::fs::Metadata), `PathBuf` | opening a file, reading metadata or a symbolic link |
pub trait Output: Sized {
    /// What awaiting the operation returns: `T` or an error.
    type Result;

    /// How the operation keeps its file.
    #[doc(hidden)]
    type File<'f>: Borrow<File> + Send + Sync;

    /// What it needs besides its record.
    #[doc(hidden)]
    type State<'f>: Default + Send;

    /// Drives the operation to its end.
    #[doc(hidden)]
    fn poll<'f>(
        operation: &mut OperationFuture<Self::File<'f>>,
        state: &mut Self::State<'f>,
        context: &mut Context<'_>,
    ) -> Poll<Self::Result>;

    /// Takes it out of what a successful operation has produced, which stays as it is if it has none.
    #[doc(hidden)]
    fn take(product: &mut Product) -> Option<Self>;
}

/// What an operation has produced.
#[derive(Default)]
pub struct Product {
    /// Bytes that were moved.
    pub(crate) done: usize,
    /// Whether these are fewer than were wanted.
    pub(crate) is_short: bool,
    pub(crate) file: Option<File>,
    /// Its memory.
    pub(crate) memory: IoMemory,
}

impl Product {
    pub(crate) fn is_empty(&self) -> bool {
        self.file.is_none() && matches!(self.memory, IoMemory::None)
    }
}

impl fmt::Debug for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Product").field("file", &self.file).finish_non_exhaustive()
    }
}

/// A buffer: of a read, or of a write that need not be durable.
impl<B: IoBuf> Output for B {
    type Result = BufResult<B>;
    type File<'f> = &'f File;
    type State<'f> = ();

    #[inline(always)]
    fn poll(
        operation: &mut OperationFuture<&File>,
        (): &mut (),
        context: &mut Context<'_>,
    ) -> Poll<BufResult<B>> {
        operation.poll_transfer(context, B::release_part)
    }

    fn take(product: &mut Product) -> Option<Self> {
        product.memory.take_as()
    }
}

impl<B: IoBuf> Output for Vec<B> {
    type Result = BufResult<Self>;
    type File<'f> = &'f File;
    type State<'f> = ();

    fn poll(
        operation: &mut OperationFuture<&File>,
        (): &mut (),
        context: &mut Context<'_>,
    ) -> Poll<BufResult<Self>> {
        operation.poll_transfer(context, |memory, _, _| B::release_many(memory))
    }

    fn take(product: &mut Product) -> Option<Self> {
        product.memory.take_as()
    }
}

/// Nothing: of an operation on a file, or on paths.
impl Output for () {
    type Result = Result<()>;
    type File<'f> = Cow<'f, File>;
    type State<'f> = ();

    fn poll<'f>(
        operation: &mut OperationFuture<Cow<'f, File>>,
        (): &mut (),
        context: &mut Context<'_>,
    ) -> Poll<Result<()>> {
        operation.poll_control(context).map(|done| done.map(drop))
    }

    fn take(product: &mut Product) -> Option<Self> {
        product.is_empty().then_some(())
    }
}

/// The file that was opened.
impl Output for File {
    type Result = Result<Self>;
    type File<'f> = Cow<'f, File>;
    type State<'f> = ();

    fn poll<'f>(
        operation: &mut OperationFuture<Cow<'f, File>>,
        (): &mut (),
        context: &mut Context<'_>,
    ) -> Poll<Result<Self>> {
        operation.poll_product(context, Self::take)
    }

    fn take(product: &mut Product) -> Option<Self> {
        product.file.take()
    }
}

impl<'f, T: Output> Op<'f, T> {
    #[inline(always)]
    pub(crate) fn new(operation: OperationFuture<T::File<'f>>) -> Self {
        Self { operation, state: T::State::default(), pinned: PhantomPinned }
    }

    /// Carries the operation out on the calling thread, which waits for it: for threads without an executor. On files and
    /// block devices a read, a write or a sync is a plain call with [`Auto`](crate::Route::Auto), however long it takes; anything
    /// else is done as by [`block_on`](crate::block_on).
    ///
    /// # Panics
    /// On a thread that is inside [`block_on`](crate::block_on) or a [`Runtime`](crate::Runtime).
    ///
    /// ```
    /// # fn main() -> ringfile::Result<()> {
    /// let file = ringfile::File::open("/proc/self/exe").wait()?;
    /// assert_eq!(file.read_at(Vec::with_capacity(4), 0).wait()?, b"\x7fELF");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn wait(mut self) -> T::Result {
        let operation = &mut self.operation;
        let file: &File = operation.file.borrow();
        let waits = !runtime::is_in_loop() && file.target().may_wait_inline(&operation.record.request);
        operation.waits = waits;
        let op = pin!(self);
        if waits { runtime::park_until_ready(op) } else { runtime::block_on(op) }
    }

    /// Calls `add` with the file and the operation, to add it to a batch or a queue.
    #[inline(always)]
    pub(crate) fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R {
        self.operation.ask(add)
    }
}

impl<T: Output> Future for Op<'_, T> {
    type Output = T::Result;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        T::poll(this.operation, this.state, context)
    }
}

/// One operation of a task: its record, and where it is carried out. Dropping it cancels the operation if the kernel
/// still can.
pub struct OperationFuture<F> {
    pub(crate) file: F,
    pub(crate) record: OperationRecord<Loan>,
    stage: FutureStage,
    /// Whether the thread does nothing else meanwhile: see [`Op::wait`].
    waits: bool,
}

enum FutureStage {
    /// It was not begun, or its next step was not.
    New,
    /// It was begun, and other tasks run before it is started.
    Begun,
    Running(Ticket),
    /// Another thread carries it out.
    Elsewhere(RemoteOperation),
    /// It takes what was read ahead of its stream.
    Stream(Box<Follow>),
    /// The kernel's answer. It is left here rather than returned: building a result and copying it at once costs a
    /// failed store forwarding on every operation.
    Done(OpResult),
    Failed(Error),
    Taken,
}

/// What became of an operation whose last ones were single calls.
enum Settled {
    /// It has done all, in one call.
    All,
    /// It is over without a call.
    Over,
    /// It goes on otherwise.
    Not,
}

/// Returns whether a shorter result counts as success; not for a buffer whose length cannot show it.
#[cold]
fn may_be_short(record: &mut OperationRecord<Loan>) -> bool {
    !record.request.exact && !record.memory.own().hides_length()
}

impl<'a> OperationFuture<&'a File> {
    /// Creates a read or a write of this memory.
    #[inline(always)]
    fn of(file: &'a File, request: Request, memory: IoMemory) -> Self {
        let op_flags = file.target().flags_of(request.kind);
        Self::new(file, Request { op_flags, ..request }, memory)
    }

    /// Creates a read of all of the buffer's capacity, or of less unless it is to be `exact`.
    #[inline(always)]
    pub(super) fn read<B: IoBufMut>(file: &'a File, buffer: B, offset: u64, exact: bool) -> Self {
        let (start, want) = buffer.to_read();
        let request = Request { offset, start, want, exact, ..Request::of(Kind::Read) };
        Self::of(file, request, buffer.hold_mut())
    }

    /// Creates a read of all of the buffers' capacity, or of less unless it is to be `exact`.
    pub(super) fn read_many<B: IoBufMut>(file: &'a File, buffers: Vec<B>, offset: u64, exact: bool) -> Self {
        let want = buffers.iter().map(IoBufMut::capacity).sum();
        let request = Request { offset, want, exact, ..Request::of(Kind::ReadVectored) };
        Self::of(file, request, B::hold_many_mut(buffers))
    }

    /// Creates a write of all of the buffer; `kind` says how.
    #[inline]
    pub(super) fn write<B: IoBuf>(file: &'a File, kind: Kind, buffer: B, offset: u64) -> Self {
        let (start, want) = buffer.to_write();
        Self::of(file, Request { offset, start, want, exact: true, ..Request::of(kind) }, buffer.hold())
    }

    pub(super) fn write_many<B: IoBuf>(file: &'a File, buffers: Vec<B>, offset: u64) -> Self {
        let want = buffers.iter().map(IoBuf::len).sum();
        let request = Request { offset, want, exact: true, ..Request::of(Kind::WriteVectored) };
        Self::of(file, request, B::hold_many(buffers))
    }

    /// Starts the write with a sync linked to it. Returns false, and starts neither, if they cannot be linked here.
    pub(super) fn start_with(&mut self, sync: &mut Self, context: &Context<'_>) -> bool {
        if !matches!(self.record.fits(self.file), Ok(true))
            // A link does not cover a write of several submissions.
            || !(1..=driver::MOST_AT_ONCE).contains(&self.record.request.want)
        {
            return false;
        }
        let (target, request, memory) = self.record.begun(self.file);
        let (_, sync_request, sync_held) = sync.record.begun(sync.file);
        let places = driver::start_linked(target, (request, memory), (sync_request, sync_held), context);
        let Some([write, behind]) = places else { return false };
        self.stage = FutureStage::Running(Ticket::new(write));
        sync.stage = FutureStage::Running(Ticket::new(behind));
        true
    }
}

impl OperationFuture<Cow<'static, File>> {
    /// Creates an operation on paths, of which `path` is the first. It fails if one contains a NUL byte, and `paths` is
    /// `None`.
    pub(crate) fn on_path(kind: Kind, op_flags: u32, path: &Path, paths: Option<Box<Paths>>) -> Self {
        let file = Cow::Owned(File::of_path(path.to_owned()));
        let request = Request { op_flags, ..Request::of(kind) };
        Self::new(file, request, paths.map_or(IoMemory::None, IoMemory::Paths))
    }
}

impl<F: Borrow<File>> OperationFuture<F> {
    #[inline(always)]
    pub(crate) fn new(file: F, request: Request, memory: IoMemory) -> Self {
        let memory = Loan::of(memory, request.kind.is_read());
        let record = OperationRecord::over(request, memory);
        Self { file, record, stage: FutureStage::New, waits: false }
    }

    /// Gives the operation, which was not started, to a batch or a queue.
    #[inline(always)]
    pub(crate) fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R {
        let Self { file, record, stage, .. } = self;
        // It was not started: there is nothing to drop.
        std::mem::forget(stage);
        add(file.borrow(), record.into_asked())
    }

    /// Takes the buffer of an operation that is not in flight.
    #[inline]
    pub(crate) fn take_held(&mut self) -> IoMemory {
        self.record.memory.take()
    }

    /// Returns why the operation did not do all that was requested.
    #[cold]
    fn take_error(&mut self) -> Error {
        let file: &File = self.file.borrow();
        match std::mem::replace(&mut self.stage, FutureStage::Taken) {
            FutureStage::Done(ended) => self.record.failure(file, ended),
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
                FutureStage::New | FutureStage::Begun => ready!(self.begin(context)),
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
                let OperationRecord { request, memory, .. } = &mut self.record;
                let done = ready!(follow.poll(self.file.borrow().target(), request, memory.own(), context));
                let is_over = done == request.want;
                let next =
                    if is_over { FutureStage::Done(OpResult { done, errno: 0 }) } else { FutureStage::New };
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
        release: impl FnOnce(IoMemory, usize, usize) -> T,
    ) -> Poll<BufResult<T>> {
        let Request { start, want, .. } = self.record.request;
        let mut is_over = false;
        if self.is_settled() {
            match ready!(self.call_settled(context)) {
                Settled::All => return Poll::Ready(Ok(release(self.take_held(), start, want))),
                Settled::Over => is_over = true,
                Settled::Not => {}
            }
        }
        if !is_over {
            ready!(self.poll(context));
        }
        let record = &mut self.record;
        let is_good = match self.stage {
            FutureStage::Done(OpResult { errno: 0, done }) => done == want || may_be_short(record),
            _ => false,
        };
        let buffer = release(self.take_held(), start, want);
        Poll::Ready(if is_good { Ok(buffer) } else { Err(BufError::new(self.take_error(), buffer)) })
    }

    /// Drives an operation to its end. Returns how many bytes were done, whether that is all or less.
    pub(crate) fn poll_control(&mut self, context: &mut Context<'_>) -> Poll<Result<usize>> {
        ready!(self.poll(context));
        Poll::Ready(match self.stage {
            FutureStage::Done(OpResult { errno: 0, done }) => Ok(done),
            _ => Err(self.take_error()),
        })
    }

    /// Drives an operation without a buffer to its end. Returns what it has produced, which `take` takes.
    pub(crate) fn poll_product<T>(
        &mut self,
        context: &mut Context<'_>,
        take: impl FnOnce(&mut Product) -> Option<T>,
    ) -> Poll<Result<T>> {
        let done = ready!(self.poll_control(context))?;
        let (file, memory) = (self.record.take_file(), self.take_held());
        let mut product = Product { done, is_short: false, file, memory };
        Poll::Ready(take(&mut product).ok_or_else(|| {
            // A successful operation has produced it.
            let Request { kind, op_flags, .. } = self.record.request;
            Error::from_errno(libc::EFAULT, kind.verb(op_flags)).on(self.file.borrow().path())
        }))
    }

    /// Takes the result of what was started; returns whether the operation is over. A ticket in [`stage`](Self::stage)
    /// is spent: there is nothing to drop.
    #[inline]
    fn ended(&mut self, ended: OpResult) -> bool {
        if ended.errno == 0 && self.record.is_one_step() {
            std::mem::forget(std::mem::replace(&mut self.stage, FutureStage::Done(ended)));
            return true;
        }
        self.ended_otherwise(ended)
    }

    #[cold]
    fn ended_otherwise(&mut self, ended: OpResult) -> bool {
        self.stage = match self.record.end(self.file.borrow(), ended) {
            Some(Ok(ended)) => FutureStage::Done(ended),
            Some(Err(error)) => FutureStage::Failed(error),
            None => FutureStage::New,
        };
        !matches!(self.stage, FutureStage::New)
    }

    /// Returns whether the operation, which was not begun, may be a call as the ones before were.
    #[inline(always)]
    fn is_settled(&self) -> bool {
        let file: &File = self.file.borrow();
        matches!(self.stage, FutureStage::New)
            && file.target().lanes.lane(self.record.request.kind).is_settled()
    }

    /// Begins an operation that [is settled](Self::is_settled), and makes its call. Not inlined: all operations on a ring would
    /// pay for it.
    #[inline(never)]
    fn call_settled(&mut self, context: &mut Context<'_>) -> Poll<Settled> {
        let begun = self.record.begin(self.file.borrow(), true);
        if !matches!(begun, Begun::Start) || !self.record.is_one_step() {
            return Poll::Ready(if self.has_begun(begun) { Settled::Over } else { Settled::Not });
        }
        let (target, request, memory) = self.record.begun(self.file.borrow());
        let called = driver::call_settled(target, request, memory.own(), context, self.waits);
        self.stage = if called == Poll::Ready(true) { FutureStage::Taken } else { FutureStage::Begun };
        if called.is_pending() {
            context.waker().wake_by_ref();
        }
        called.map(|is_all| if is_all { Settled::All } else { Settled::Not })
    }

    /// Begins the operation, and starts it if the kernel would not refuse it without a reason.
    #[inline(always)]
    fn begin(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        if !matches!(self.stage, FutureStage::Begun) {
            match self.record.begin(self.file.borrow(), true) {
                Begun::Start => {}
                begun => return Poll::Ready(self.has_begun(begun)),
            }
        }
        let (target, request, memory) = self.record.begun(self.file.borrow());
        let hint = SubmitHint { together: 1, waits_for_one: self.waits };
        match driver::start(target, request, memory, context, hint) {
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
    fn has_begun(&mut self, begun: Begun) -> bool {
        self.stage = match begun {
            Begun::Start => FutureStage::Begun,
            Begun::Done(ended) => FutureStage::Done(ended),
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
        let file = File::open_blocking("/proc/self/exe").unwrap();
        let beyond = Request { offset: i64::MAX as u64, start: 4, want: 4, ..Request::of(Kind::Read) };
        let mut read = OperationFuture::new(&file, beyond, IoMemory::Vec(b"readmore".to_vec()));
        assert!(read.poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert_eq!(read.take_error().kind(), ErrorKind::InvalidInput);
        assert!(matches!(read.take_held(), IoMemory::Vec(bytes) if bytes == b"read"));
    }
}
