//! Batches: operations that are added, then carried out together.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use super::done::Completion;
use super::engine::{self, Engine, Source, ThreadEngine};
use super::item::Item;
use super::plan::{BatchPlan, List};
use super::remote::RemoteResults;
use crate::driver::{self, AfterUse};
use crate::file::File;
use crate::file::op::{Op, Output};
use crate::file::record::Asked;
use ringfile_buffer::internal::panics;

const CANCELLED: &str = "the batch was cancelled";

const IN_LOOP: &str = "Batch::run would block a ringfile thread: await the batch instead";
const NO_RING: &str = "the thread is ending, and its ring is gone";

const DEFAULT_DEPTH: usize = 128;
/// The maximum of operations in flight. More would not fill any device's queue better, and operations that wait in front of
/// the device delay those of other programs.
pub(crate) const MAX_DEPTH: usize = 4096;
/// An operation has a 32-bit index, of which one value means none.
const MOST_OPERATIONS: usize = u32::MAX as usize;

/// A list of reads, writes, syncs and other operations on any files, carried out together.
///
/// Operations start in the order they were added, as many at once as [`depth`](Self::depth) allows, and end in
/// any order, except where a [`barrier`](Self::barrier) is between them. [`run`](Self::run) blocks the calling thread
/// and uses that thread's own ring. Awaiting the batch works in any executor and suspends only the awaiting task; on a
/// thread without a ring, the I/O threads carry out the operations ([`set_io_threads`](crate::runtime::set_io_threads)). Each
/// file's [`Route`](crate::Route) applies in both cases.
///
/// Adding an operation moves its buffer in and does no I/O. About 230 bytes are kept for each operation until the
/// results are taken. `run` allocates a few hundred bytes, and nothing per operation.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// # std::fs::write(&path, vec![7; 1 << 20])?;
/// use ringfile::{Batch, File, Pool};
/// let (pool, file) = (Pool::new(1 << 20), File::open_blocking(&path)?);
/// let mut batch = Batch::new();
/// for page in [3, 1, 8] {
///     batch.add(file.read_at(pool.get(4096)?, page * 4096));
/// }
/// for done in batch.run() {
///     assert_eq!(done.result?, 4096);
///     assert_eq!(done.buffer.unwrap()[0], 7);
/// }
/// # Ok(())
/// # }
/// ```
///
/// The same in an executor:
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("data.bin");
/// # std::fs::write(&path, b"content").unwrap();
/// let file = ringfile::File::open_blocking(&path).unwrap();
/// futures::executor::block_on(async {
///     let mut batch = ringfile::Batch::new();
///     batch.add(file.read_at(Vec::with_capacity(100), 0));
///     let done = batch.await;
///     assert_eq!(&done[0].buffer.as_ref().unwrap()[..], b"content");
/// });
/// ```
///
/// One buffer cannot be in two operations:
///
/// ```compile_fail,E0382
/// # let pool = ringfile::Pool::new(1 << 20);
/// # let file = ringfile::File::open_blocking("/etc/hostname").unwrap();
/// let mut batch = ringfile::Batch::new();
/// let buffer = pool.get(4096).unwrap();
/// batch.add(file.read_at(buffer, 0));
/// batch.add(file.read_at(buffer, 4096));
/// ```
///
/// # Bad input
///
/// An operation that fails has the error as its result, and the others are still carried out: an offset whose end is
/// beyond 2^63 bytes (`InvalidInput`), a file that was opened for the other direction (`EBADF`), a direct write that
/// does not fit the file's [alignment](File::alignment) (`InvalidInput`, with the required multiple). A direct read
/// that is not aligned reads whole blocks directly into its buffer if the memory is aligned, and the rest through
/// memory of the library, 256 KiB at a time. A read with no capacity and an empty write return 0 without I/O.
/// Operations that are added when there is no memory for more, or when there are 2^32, are not carried out
/// (`OutOfMemory`), and their buffers are dropped.
#[must_use = "nothing is read or written until the batch is run or awaited"]
pub struct Batch(pub(super) List);

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// Creates an empty batch with room for `operations`.
    pub fn with_capacity(operations: usize) -> Self {
        Self(List {
            ops: Vec::with_capacity(operations),
            results: Vec::with_capacity(operations),
            most: DEFAULT_DEPTH,
            ..List::default()
        })
    }

    /// Adds an operation that was not started, as returned by [`File::read_at`] or [`fs::rename`](crate::fs::rename).
    /// Returns the index of its result.
    ///
    /// Allocates only to hold more operations; if there is no memory for that, the operation's result is an error. A sync
    /// covers writes that have finished when it starts: put a [`barrier`](Self::barrier) between the batch's writes and
    /// their sync.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// use ringfile::{Batch, File, OpenOptions, fs};
    /// let mut batch = Batch::new();
    /// for name in ["a", "b"] {
    ///     batch.add(OpenOptions::new().write(true).create(true).open(folder.path().join(name)));
    /// }
    /// for done in batch.run() {
    ///     assert_eq!(done.take::<File>()?.size()?, 0);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[inline(always)]
    pub fn add(&mut self, op: Op<'_, impl Output>) -> usize {
        op.ask(|file, asked| self.add_asked(file, asked))
    }

    #[inline]
    fn add_asked(&mut self, file: &File, asked: Asked) -> usize {
        // Once an operation was refused, so are all later ones: results stay in the order of their operations.
        let has_room = self.0.refused == 0 && self.0.ops.len() < MOST_OPERATIONS;
        let wanted = self.0.ops.len() + 1;
        if has_room && self.0.ops.try_reserve(1).is_ok() && self.0.results.try_reserve(wanted).is_ok() {
            let number = self.0.files.enter(file);
            self.0.ops.push(Item::NOTHING);
            if let Some(op) = self.0.ops.last_mut() {
                op.ask(number, asked);
            }
        } else {
            self.0.refused += 1;
        }
        self.len() - 1
    }

    /// Operations added after the barrier start only once all earlier ones have finished. If one of those failed, the
    /// later ones do not start, and end with `ECANCELED`.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("log");
    /// let file = ringfile::File::create_blocking(&path)?;
    /// let mut batch = ringfile::Batch::new();
    /// batch.add(file.write_at(b"first".to_vec(), 0));
    /// batch.add(file.write_at(b"second".to_vec(), 5));
    /// batch.barrier();
    /// let sync = batch.add(file.sync_data());
    /// assert!(batch.run()[sync].result.is_ok());
    /// assert_eq!(std::fs::read(&path)?, b"firstsecond");
    /// # Ok(())
    /// # }
    /// ```
    pub fn barrier(&mut self) {
        self.0.barriers.push(self.0.ops.len() as u32);
    }

    /// Sets how many operations may be in flight at once: 128 by default, 1 to 4096. Batches that run at the same time
    /// share the I/O threads and the device in proportion to this number.
    pub fn depth(mut self, operations: usize) -> Self {
        self.0.most = operations.clamp(1, MAX_DEPTH);
        self
    }

    /// Sets whether the first error stops the batch: operations that have not started end with `ECANCELED`. Off by
    /// default.
    pub fn stop_on_error(mut self, stop: bool) -> Self {
        self.0.stop_on_error = stop;
        self
    }

    /// Merges reads of a file that have at most `gap` bytes between them; those bytes are read too, and discarded. Off
    /// by default: it pays where an operation costs more than reading the gap.
    ///
    /// Only reads into pooled buffers between the same two barriers are merged. Results
    /// are the same as without merging: if the merged read fails, its parts are read one by one.
    pub fn merge_reads(mut self, gap: usize) -> Self {
        self.0.merge = Some(gap);
        self
    }

    /// Returns how many operations were added.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.ops.len() + self.0.refused
    }

    /// Returns whether no operation was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Carries out all operations, blocking the calling thread, and returns their results in the order of adding.
    ///
    /// # Errors
    /// Inside [`block_on`](crate::block_on) or a [`Runtime`](crate::Runtime) every result is an error of kind
    /// `WouldBlock`, since other tasks would have to wait: await the batch there. In other executors this blocks the
    /// thread.
    #[must_use = "each operation has a result of its own"]
    pub fn run(self) -> Vec<Completion> {
        let mut plan = BatchPlan::new(self.0);
        if crate::runtime::is_in_loop() {
            plan.end_all(|op, files| op.refuse_to_wait(files, IN_LOOP));
            return plan.into_results();
        }
        let mut engine = ThreadEngine::new(AfterUse::KeepRing);
        plan.read_in_place(&mut engine);
        // If a user's buffer or waker panics in this call, the engine is dropped, which cancels and drops the
        // operations in flight.
        engine.wait(&mut plan, None, |plan| plan.open());
        drop(engine);
        if !plan.is_over() {
            // The thread is ending and its driver is gone, or this is a forked child.
            plan.end_all(|op, files| op.refuse_to_wait(files, NO_RING));
        }
        plan.into_results()
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).field("depth", &self.0.most).finish_non_exhaustive()
    }
}

impl IntoFuture for Batch {
    type Output = Vec<Completion>;
    type IntoFuture = BatchRun;

    fn into_future(self) -> BatchRun {
        BatchRun(Some(RunState::Start(self)))
    }
}

/// The future of a [`Batch`], which returns the results in the order in which operations were added.
///
/// `Send` and `Unpin`; it may be polled by any executor, and moved between polls. Nothing starts before the first poll.
/// Dropping it starts no more operations, and cancels those in flight if the kernel still can; buffers are dropped when
/// the kernel has finished with them.
#[must_use = "nothing is read or written until the future is awaited"]
pub struct BatchRun(Option<RunState>);

/// The state of a batch whose results were not taken.
enum RunState {
    Start(Batch),
    // Boxed, so that the future stays small.
    Running(Box<(BatchPlan, Engine)>),
}

impl BatchRun {
    /// Cancels operations that have not finished, as far as the kernel can. The future still returns all results, and
    /// must be awaited for them: operations that had not started, or that the kernel cancelled, end with `ECANCELED`.
    /// What a disk has begun runs to its end. Does not wait.
    pub fn cancel(&mut self) {
        if let Some((plan, engine)) = self.running() {
            plan.cancel(CANCELLED);
            engine.cancel_all(plan);
        }
    }

    /// Returns the operations in flight; `None` if the results were taken.
    fn running(&mut self) -> Option<&mut (BatchPlan, Engine)> {
        if let Some(RunState::Start(batch)) = self.0.take_if(|state| matches!(state, RunState::Start(_))) {
            self.0 = Some(RunState::Running(Box::new((BatchPlan::new(batch.0), Engine::new(false)))));
        }
        if let Some(RunState::Running(running)) = &mut self.0 { Some(running) } else { None }
    }
}

impl Future for BatchRun {
    type Output = Vec<Completion>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<Completion>> {
        let this = &mut *self;
        // Polling a future after it was ready has no defined meaning; this one does nothing.
        let Some((plan, engine)) = this.running() else { return Poll::Pending };
        if engine.is_inherited() {
            engine.take_in_inherited(plan);
            plan.end_all(|op, _| op.end_with(engine::CANCELLED));
        }
        while !plan.is_over() {
            let went_on = engine.go_on(plan);
            if plan.is_over() {
                break;
            }
            if !went_on {
                context.waker().wake_by_ref();
            }
            if !went_on || engine.wake(plan, context.waker()) {
                return Poll::Pending;
            }
        }
        driver::publish_counts();
        let Some(RunState::Running(running)) = this.0.take() else { return Poll::Pending };
        Poll::Ready(running.0.into_results())
    }
}

/// A batch whose polling has panicked. It starts nothing more, and drops the results that arrive from now on.
#[derive(Default)]
pub(super) struct Abandoned {
    plan: BatchPlan,
    /// Alive while an operation is in flight: each one owns a reference.
    in_flight: Weak<RemoteResults>,
}

impl Abandoned {
    /// Cancels the operations in flight. `waker` is called when the last of them has ended, if that comes later.
    pub(super) fn new(mut run: BatchRun, waker: Waker) -> Self {
        let Some(RunState::Running(running)) = run.0.take() else { return Self::default() };
        let (plan, engine) = *running;
        let in_flight = Arc::downgrade(&engine.remote);
        engine.remote.tell_end(waker);
        // This drops results. If a buffer's destructor panics, the second call still cancels the operations.
        if panics::catch(|| engine.close()).is_err() {
            let _ = panics::catch(|| engine.close());
        }
        let _ = panics::catch(|| drop(engine));
        Self { plan, in_flight }
    }

    /// Returns whether the kernel has finished with all memory of the batch.
    pub(super) fn is_over(&self) -> bool {
        self.in_flight.strong_count() == 0
    }

    /// Returns the results of operations that had ended, and errors for the others, which give this reason.
    pub(super) fn into_results(mut self, why: &'static str) -> Vec<Completion> {
        self.plan.end_all(|op, _| op.cancel(why));
        self.plan.into_results()
    }
}

impl Drop for BatchRun {
    fn drop(&mut self) {
        if let Some(RunState::Running(running)) = &self.0 {
            running.1.close();
        }
    }
}

impl std::fmt::Debug for BatchRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchRun").finish_non_exhaustive()
    }
}
