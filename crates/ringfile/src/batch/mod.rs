//! Many operations at once, from any thread and in any executor.
//!
//! [`Batch`] gathers operations and carries them out together; [`AsyncReads`] starts reads one by one and hands out plain
//! handles to them; a [`Queue`] gives results in the order in which they come. Knows files, and orders of the driver; a single future of a file does not come here. What always
//! holds: every operation has its own result, in the order given; one that fails disturbs no other unless that was asked
//! for.

mod entries;
mod inbox;
mod merge;
mod op;
mod progress;
mod queue;
mod reads;
mod run;
mod sync;

use std::future::{Future, IntoFuture};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use linux_raw_sys::io_uring::IORING_FSYNC_DATASYNC;

pub use queue::Queue;
pub use reads::{AsyncReads, ReadHandle};

use crate::driver::{Aftermath, Stay};
use crate::error::{Error, Result};
use crate::file::File;
use crate::memory::Buffer;
use op::Op;
use run::Running;

const USUALLY_IN_FLIGHT: usize = 128;
/// More fill no device's queue, and what waits before the device makes the operations of others wait too.
pub(crate) const MOST_IN_FLIGHT: usize = 4096;
/// An operation is found again by 32 bits, of which one value means none.
const MOST_OPERATIONS: usize = u32::MAX as usize;

/// The memory of one operation of a batch: a pooled buffer or a vector.
///
/// ```
/// use ringfile::AnyBuffer;
/// let buffer = AnyBuffer::from(b"content".to_vec());
/// assert_eq!(&buffer[..3], b"con");
/// assert_eq!(buffer.into_vec().unwrap(), b"content");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyBuffer {
    /// From a [`Pool`](crate::Pool), or lent by [`RegisteredMemory`](crate::RegisteredMemory).
    Pooled(Buffer),
    /// A vector: a read fills its capacity, a write takes its length.
    Vec(Vec<u8>),
}

impl AnyBuffer {
    /// The pooled buffer, where it is one.
    #[must_use]
    pub fn into_pooled(self) -> Option<Buffer> {
        if let Self::Pooled(buffer) = self { Some(buffer) } else { None }
    }

    /// The vector, where it is one.
    #[must_use]
    pub fn into_vec(self) -> Option<Vec<u8>> {
        if let Self::Vec(vec) = self { Some(vec) } else { None }
    }
}

impl From<Buffer> for AnyBuffer {
    fn from(buffer: Buffer) -> Self {
        Self::Pooled(buffer)
    }
}

impl From<Vec<u8>> for AnyBuffer {
    fn from(vec: Vec<u8>) -> Self {
        Self::Vec(vec)
    }
}

impl Deref for AnyBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Pooled(buffer) => buffer,
            Self::Vec(vec) => vec,
        }
    }
}

/// How one operation of a batch ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Done {
    /// The bytes read or written; 0 for a sync. A read that is shorter than its buffer has met the end of the file.
    ///
    /// An error is as that of the same operation of [`File`]: it keeps the errno, the path and the offset.
    pub result: Result<usize>,
    /// The buffer, its length set to what was read; `None` for a sync.
    pub buffer: Option<AnyBuffer>,
}

/// Reads, writes and syncs of any files, carried out together.
///
/// Operations start in the order they were added, as many at once as [`in_flight`](Self::in_flight) allows, and end in
/// any order, except where a [`barrier`](Self::barrier) is between them. [`run`](Self::run) blocks the calling thread and
/// uses a ring of that thread's own. Awaiting the batch works in any executor and blocks only the task that awaits; the
/// operations of a thread without a ring of ringfile's are carried out by the I/O threads
/// ([`set_io_threads`](crate::set_io_threads)). Each file's [`Route`](crate::Route) counts in either form.
///
/// Adding an operation moves its buffer in, and does no I/O; about 180 bytes are kept for each until the results are
/// taken. `run` allocates a few hundred bytes, and nothing for each operation.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// # std::fs::write(&path, vec![7; 1 << 20])?;
/// use ringfile::{Batch, File, Pool};
/// let (pool, file) = (Pool::new(1 << 20), File::open(&path)?);
/// let mut batch = Batch::new();
/// for page in [3, 1, 8] {
///     batch.read(&file, pool.get(4096)?, page * 4096);
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
/// let file = ringfile::File::open(&path).unwrap();
/// futures::executor::block_on(async {
///     let mut batch = ringfile::Batch::new();
///     batch.read(&file, Vec::with_capacity(100), 0);
///     let done = batch.await;
///     assert_eq!(&done[0].buffer.as_ref().unwrap()[..], b"content");
/// });
/// ```
///
/// One buffer can't be in two operations:
///
/// ```compile_fail,E0382
/// # let pool = ringfile::Pool::new(1 << 20);
/// # let file = ringfile::File::open("/etc/hostname").unwrap();
/// let mut batch = ringfile::Batch::new();
/// let buffer = pool.get(4096).unwrap();
/// batch.read(&file, buffer, 0);
/// batch.read(&file, buffer, 4096);
/// ```
///
/// # Bad input
///
/// The result of that operation says so, and the others are done: an offset whose end is beyond 2^63 bytes
/// (`InvalidInput`), a file that was opened for the other direction (`EBADF`), a direct write that does not fit the
/// file's [alignment](File::alignment) (`InvalidInput`, with the multiple that is needed). A direct read that does not fit
/// goes through aligned memory of the library's own, 256 KiB at a time. A read with no capacity, and an empty write, give
/// 0 without I/O. What was added when there was no memory left for more operations, or 2^32 of them, is not carried out
/// (`OutOfMemory`), and its buffer is dropped.
#[must_use = "nothing is read or written until the batch is run or awaited"]
pub struct Batch {
    ops: Vec<Op>,
    /// Empty, with room for the results, so that none is lost for want of memory.
    results: Vec<Done>,
    /// Operations beyond those, for which there was no memory.
    refused: usize,
    barriers: Vec<u32>,
    most: usize,
    stop_on_error: bool,
    merge: Option<usize>,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// An empty one.
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// An empty one with room for `operations`.
    pub fn with_capacity(operations: usize) -> Self {
        Self {
            ops: Vec::with_capacity(operations),
            results: Vec::with_capacity(operations),
            refused: 0,
            barriers: Vec::new(),
            most: USUALLY_IN_FLIGHT,
            stop_on_error: false,
            merge: None,
        }
    }

    /// Adds a read from `offset`, as [`File::read_at`]. Gives the index of its result.
    pub fn read(&mut self, file: &File, buffer: impl Into<AnyBuffer>, offset: u64) -> usize {
        self.add(Op::read(file, buffer.into(), offset))
    }

    /// Adds a write at `offset`, as [`File::write_at`]. Gives the index of its result.
    pub fn write(&mut self, file: &File, buffer: impl Into<AnyBuffer>, offset: u64) -> usize {
        self.add(Op::write(file, buffer.into(), offset))
    }

    /// Adds an `fdatasync`, as [`File::sync_data`]. It covers what has ended when it starts: put a
    /// [`barrier`](Self::barrier) before it to have it cover the batch's writes. Gives the index of its result.
    pub fn sync_data(&mut self, file: &File) -> usize {
        self.add(Op::sync(file, IORING_FSYNC_DATASYNC))
    }

    /// Adds an `fsync`, as [`File::sync_all`]; in all else as [`sync_data`](Self::sync_data).
    pub fn sync_all(&mut self, file: &File) -> usize {
        self.add(Op::sync(file, 0))
    }

    fn add(&mut self, op: Op) -> usize {
        // Once one was refused all are, so that results stay in the order of their operations.
        let has_room = self.refused == 0 && self.ops.len() < MOST_OPERATIONS;
        let wanted = self.ops.len() + 1;
        if has_room && self.ops.try_reserve(1).is_ok() && self.results.try_reserve(wanted).is_ok() {
            self.ops.push(op);
        } else {
            self.refused += 1;
        }
        self.len() - 1
    }

    /// Has what is added from now on wait until all that was added before has ended. Where one of those failed, what comes
    /// after is not begun: its error is `ECANCELED`.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("log");
    /// let file = ringfile::File::create(&path)?;
    /// let mut batch = ringfile::Batch::new();
    /// batch.write(&file, b"first".to_vec(), 0);
    /// batch.write(&file, b"second".to_vec(), 5);
    /// batch.barrier();
    /// let sync = batch.sync_data(&file);
    /// assert!(batch.run()[sync].result.is_ok());
    /// assert_eq!(std::fs::read(&path)?, b"firstsecond");
    /// # Ok(())
    /// # }
    /// ```
    pub fn barrier(&mut self) {
        self.barriers.push(self.ops.len() as u32);
    }

    /// How many operations may be in flight at once; 128 by default, at least 1 and at most 4096. Batches that run at the
    /// same time share the I/O threads and the device in proportion to it.
    pub fn in_flight(mut self, most: usize) -> Self {
        self.most = most.clamp(1, MOST_IN_FLIGHT);
        self
    }

    /// Whether the first error stops what is not begun by then, whose error is `ECANCELED`. Not by default.
    pub fn stop_on_error(mut self, stop: bool) -> Self {
        self.stop_on_error = stop;
        self
    }

    /// Reads neighbouring pieces of a file as one where no more than `gap` bytes lie between them, which are read too, and
    /// thrown away. Not by default: it pays where an operation costs more than the bytes.
    ///
    /// Only reads into pooled buffers, and between the same two barriers, are merged; up to 1 MiB and 128 of them. Results
    /// are as without: where the one read fails, its parts are read one by one.
    pub fn merge_reads(mut self, gap: usize) -> Self {
        self.merge = Some(gap);
        self
    }

    /// How many operations were added.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len() + self.refused
    }

    /// Whether none was.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Carries the operations out and waits for all of them, on the calling thread. Their results, in the order added.
    ///
    /// # Errors
    /// Inside [`block_on`](crate::block_on) or a [`Runtime`](crate::Runtime) every result is an error of kind `WouldBlock`:
    /// other tasks would stand still, so the batch is to be awaited there. In other executors it blocks the thread.
    #[must_use = "each operation has a result of its own"]
    pub fn run(self) -> Vec<Done> {
        if crate::runtime::is_in_loop() {
            return self.refuse("Batch::run would block a ringfile thread: await the batch instead");
        }
        let stay = Stay::new();
        let Some(visit) = stay.visit() else {
            return self.refuse("the thread ends, and has no ring any more");
        };
        let running = Running::new(self, true);
        // A waker or a buffer of others may panic in a turn.
        let _closing = Closing(&running);
        let (mut after, mut results) = (Aftermath::default(), None);
        let waker = visit.waker();
        visit.wait(&mut after, None, |_| {
            results = running.poll(&waker);
            results.is_none().then_some(1)
        });
        results.unwrap_or_default()
    }

    #[cold]
    fn refuse(self, why: &'static str) -> Vec<Done> {
        let refuse = |mut op: Op| {
            let error = op.would_block(why);
            op.refuse(error);
            op.into_done()
        };
        let mut results = self.results;
        results.extend(self.ops.into_iter().map(refuse));
        with_refused(results, self.refused)
    }
}

/// Starts nothing more of a batch that nobody waits for any more.
struct Closing<'a>(&'a Arc<Running>);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Adds the results of operations for which there was no memory.
fn with_refused(mut results: Vec<Done>, refused: usize) -> Vec<Done> {
    results.extend((0..refused).map(|_| Done { result: Err(Error::no_memory()), buffer: None }));
    results
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("len", &self.len())
            .field("in_flight", &self.most)
            .finish_non_exhaustive()
    }
}

impl IntoFuture for Batch {
    type Output = Vec<Done>;
    type IntoFuture = BatchRun;

    fn into_future(self) -> BatchRun {
        BatchRun(State::Start(self))
    }
}

/// The future of a [`Batch`]: its results, in the order added.
///
/// `Send` and `Unpin`; it may be polled by any executor, and moved between polls. Nothing starts before the first poll.
/// Dropping it starts nothing more, and cancels what is in flight where the kernel still can; buffers are dropped when the
/// kernel is done with them.
#[must_use = "nothing is read or written until the future is awaited"]
pub struct BatchRun(State);

enum State {
    Start(Batch),
    Running(Arc<Running>),
    Taken,
}

impl Future for BatchRun {
    type Output = Vec<Done>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<Done>> {
        let running = match std::mem::replace(&mut self.0, State::Taken) {
            State::Start(batch) => Running::new(batch, false),
            State::Running(running) => running,
            State::Taken => return Poll::Pending,
        };
        if let Some(results) = running.poll(context.waker()) {
            return Poll::Ready(results);
        }
        self.0 = State::Running(running);
        Poll::Pending
    }
}

impl Drop for BatchRun {
    fn drop(&mut self) {
        if let State::Running(running) = &self.0 {
            running.close();
        }
    }
}

impl std::fmt::Debug for BatchRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchRun").finish_non_exhaustive()
    }
}
