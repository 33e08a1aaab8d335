//! Single reads with plain handles, for a thread that runs no executor: start, poll, wait, abort.
//!
//! [`super::Queue`] stands on the same, for reads, writes and syncs whose results come in the order they end.
//!
//! What always holds: a buffer is given up only when the kernel is done with it, by whatever call; a handle names one
//! read, and none once that was taken.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use super::op::Op;
use super::{AnyBuffer, Done};
use crate::driver::{self, Aftermath, Called, Finished, Order, Place, Request, Sink, Stay, Target};
use crate::error::{Error, Result};
use crate::file::File;
use crate::memory::Held;
use crate::ring::fork;

pub(super) const WAITS: &str = "waiting would block a ringfile thread: await the file's own reads there";

/// So many operations submitted at once go to the ring where each alone would be a plain call that doesn't wait: with 2 to
/// 4 the two took the same time.
const MANY: usize = 8;

/// Names one read of an [`AsyncReads`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReadHandle(u64);

/// No two reads of the process have the same one, until there were 2^32.
fn next_generation() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl ReadHandle {
    fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    /// The number that stands for it, where a handle must pass through another language.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// The handle that a number stands for. One that names no read is an error where it is used.
    #[must_use]
    pub fn from_u64(number: u64) -> Self {
        Self(number)
    }

    fn index(self) -> usize {
        self.0 as u32 as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Reads that go on while the thread does something else: started one by one, polled, waited for and aborted by handles.
///
/// Belongs to one thread, and uses that thread's ring, together with blocking batches ([`Batch::run`](super::Batch::run))
/// of the same thread in any order: each gets its own results. Dropping it aborts what has not ended, and waits until the
/// kernel is done with the memory.
///
/// On a ringfile thread (inside [`block_on`](crate::block_on) or a [`Runtime`](crate::Runtime)) nothing is started or
/// waited for: the errors, of kind `WouldBlock`, say so.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// # std::fs::write(&path, vec![7; 1 << 20])?;
/// use ringfile::{AsyncReads, File, Pool};
/// let (pool, file) = (Pool::new(1 << 20), File::open(&path)?);
/// let mut reads = AsyncReads::new();
/// let first = reads.start(&file, pool.get(4096)?, 0);
/// let second = reads.start(&file, pool.get(4096)?, 8192);
/// assert!(reads.poll(1, true) >= 1);
/// let done = reads.wait(first)?;
/// assert_eq!(done.result?, 4096);
/// // Whether it was read or cancelled, its memory is free again.
/// let done = reads.abort(second)?;
/// assert!(done.buffer.is_some());
/// # Ok(())
/// # }
/// ```
pub struct AsyncReads {
    reads: Arc<Reads>,
    after: Aftermath,
    /// For what is started, which may be in a turn that has the other.
    starting: Aftermath,
    stay: Stay,
    process: fork::Mark,
}

struct Reads(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// To be started, or started once more.
    to_start: VecDeque<u32>,
    /// What has ended and was not taken, in that order; kept for a [`super::Queue`] only.
    ended: VecDeque<u32>,
    in_order: bool,
    /// Ended and not taken.
    done: usize,
    /// Neither ended nor taken.
    open: usize,
    /// Of the thread, while it waits.
    waker: Option<Waker>,
}

struct Entry {
    generation: u32,
    op: Option<Op>,
    place: Option<Place>,
    aborted: bool,
    user_data: u64,
}

impl Reads {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts what is to be started. `after` is empty before and after.
    fn start(self: &Arc<Self>, after: &mut Aftermath) {
        // That of the operation before; most are of one file.
        let mut target: Option<Arc<Target>> = None;
        let mut inner = self.lock();
        let together = inner.to_start.len() >= MANY;
        while let Some(index) = inner.to_start.pop_front() {
            let Some((request, mut held)) = inner.begin(index) else { continue };
            let Some(op) = inner.entries[index as usize].op.as_ref() else { continue };
            let wanted = op.file.target();
            let target = match &mut target {
                Some(target) if Arc::ptr_eq(target, wanted) => target,
                other => other.insert(Arc::clone(wanted)),
            };
            drop(inner);
            let called = loop {
                // Nobody else has a turn on this thread, which waits for these operations alone.
                match driver::try_calls(target, &request, &mut held, together) {
                    Called::Later => {}
                    called => break called,
                }
            };
            if let Called::Left(choice) = called {
                let sink = Arc::clone(self) as Arc<dyn Sink>;
                let order = Order::new(Arc::clone(target), request, held, sink, index);
                let place = driver::dispatch(order, choice, after);
                inner = self.lock();
                inner.entries[index as usize].place = place;
            } else {
                inner = self.lock();
                if let Called::Over(ended) = called {
                    inner.end(index, Finished { held, ended });
                }
            }
        }
    }
}

impl Inner {
    fn begin(&mut self, index: u32) -> Option<(Request, Held)> {
        let begun = self.entries[index as usize].op.as_mut()?.begin();
        if begun.is_none() {
            self.is_over(index);
        }
        begun
    }

    /// Takes what a driver gave, of an operation that was begun.
    fn end(&mut self, index: u32, finished: Finished) {
        let entry = &mut self.entries[index as usize];
        entry.place = None;
        let aborted = entry.aborted;
        let Some(op) = entry.op.as_mut() else { return };
        let mut over = op.end(finished);
        if aborted && (!over || op.was_cancelled()) {
            op.cancel("it was aborted");
            over = true;
        }
        if over {
            self.is_over(index);
        } else {
            self.to_start.push_back(index);
        }
    }

    /// Notes that an operation which was open is over.
    fn is_over(&mut self, index: u32) {
        self.open -= 1;
        self.has_ended(index);
    }

    fn has_ended(&mut self, index: u32) {
        self.done += 1;
        if self.in_order {
            self.ended.push_back(index);
        }
    }

    fn add(&mut self, op: Op, user_data: u64) -> ReadHandle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, op: None, place: None, aborted: false, user_data: 0 });
            (self.entries.len() - 1) as u32
        });
        let is_over = op.is_over();
        let entry = &mut self.entries[index as usize];
        let generation = next_generation();
        *entry = Entry { generation, op: Some(op), place: None, aborted: false, user_data };
        if is_over {
            self.has_ended(index);
        } else {
            self.open += 1;
            self.to_start.push_back(index);
        }
        ReadHandle::new(index, generation)
    }

    fn entry(&mut self, handle: ReadHandle) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(handle.index())?;
        (entry.generation == handle.generation() && entry.op.is_some()).then_some(entry)
    }

    fn is_done(&mut self, handle: ReadHandle) -> Option<bool> {
        self.entry(handle)?.op.as_ref().map(Op::is_over)
    }

    fn take(&mut self, handle: ReadHandle) -> Option<Op> {
        let op = self.entry(handle)?.op.take_if(|op| op.is_over())?;
        self.done -= 1;
        self.free.push(handle.index() as u32);
        Some(op)
    }
}

impl Sink for Reads {
    fn done(self: Arc<Self>, index: u32, finished: Finished) {
        let mut inner = self.lock();
        if inner.entries[index as usize].op.is_none() {
            drop(inner);
            return drop(finished);
        }
        inner.end(index, finished);
        let waker = inner.waker.take();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
    }

    fn is_wanted(&self, index: u32) -> bool {
        !self.lock().entries[index as usize].aborted
    }

    fn outlives_loops(&self) -> bool {
        true
    }

    fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }
}

impl Default for AsyncReads {
    fn default() -> Self {
        Self::new()
    }
}

impl AsyncReads {
    /// Without a read.
    #[must_use]
    pub fn new() -> Self {
        let reads = Arc::new(Reads(Mutex::default()));
        let (after, starting) = (Aftermath::default(), Aftermath::default());
        Self { reads, after, starting, stay: Stay::new(), process: fork::Mark::current() }
    }

    /// Starts a read from `offset` that fills the buffer up to its capacity, as [`File::read_at`]. Where it can't be
    /// started, its result says why. Does not block, except for a file whose [`Route`](crate::Route) is a plain call.
    pub fn start(&mut self, file: &File, buffer: impl Into<AnyBuffer>, offset: u64) -> ReadHandle {
        let mut op = Op::read(file, buffer.into(), offset);
        if crate::runtime::is_in_loop() {
            let error = op.would_block(WAITS);
            op.refuse(error);
        }
        let handle = self.reads.lock().add(op, 0);
        self.look();
        handle
    }

    /// How many reads have ended and were not taken. With `wait`, waits until that is `at_least` so many, or all.
    pub fn poll(&mut self, at_least: usize, wait: bool) -> usize {
        self.look();
        if wait && !crate::runtime::is_in_loop() {
            self.wait_until(None, |inner| inner.done >= at_least || inner.open == 0);
        }
        self.reads.lock().done
    }

    /// Whether the read has ended. False where the handle names none.
    #[must_use]
    pub fn is_done(&self, handle: ReadHandle) -> bool {
        self.reads.lock().is_done(handle) == Some(true)
    }

    /// Waits for a read, and takes its result.
    ///
    /// # Errors
    /// `InvalidInput` where the handle names no read: of another thread, or taken before. What went wrong with the read
    /// itself is in its [`Done`].
    pub fn wait(&mut self, handle: ReadHandle) -> Result<Done> {
        self.end_of(handle, "waiting for a read")
    }

    /// Takes the result of a read that has ended, if it has.
    pub fn take(&mut self, handle: ReadHandle) -> Option<Done> {
        let op = self.reads.lock().take(handle)?;
        Some(op.into_done())
    }

    /// Cancels a read where the kernel still can, and returns when the kernel is done with its memory. The result is what
    /// was read, or an error with `ECANCELED`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn abort(&mut self, handle: ReadHandle) -> Result<Done> {
        self.ask_to_cancel(handle);
        self.end_of(handle, "aborting a read")
    }

    fn ask_to_cancel(&mut self, handle: ReadHandle) {
        let mut inner = self.reads.lock();
        let Some(entry) = inner.entry(handle) else { return };
        entry.aborted = true;
        let place = entry.place;
        drop(inner);
        if let Some(place) = place {
            driver::cancel(place);
        }
    }

    fn end_of(&mut self, handle: ReadHandle, what: &'static str) -> Result<Done> {
        let known = self.reads.lock().is_done(handle);
        match known {
            Some(true) => {}
            Some(false) if crate::runtime::is_in_loop() => {
                return Err(Error::new(std::io::ErrorKind::WouldBlock, what).because(WAITS));
            }
            Some(false) if !self.process.is_current() => return Err(driver::after_fork()),
            Some(false) => self.wait_until(None, |inner| inner.is_done(handle) != Some(false)),
            None => {}
        }
        self.take(handle).ok_or_else(|| {
            let why = "the handle names no read, its result was taken, or the thread ends";
            Error::new(std::io::ErrorKind::InvalidInput, what).because(why)
        })
    }

    /// Starts and submits what there is, and takes in what has ended.
    pub(super) fn look(&mut self) {
        if crate::runtime::is_in_loop() {
            return;
        }
        // Where the thread ends and its driver is gone, that has waited for what was in flight.
        let Some(visit) = self.stay.visit() else { return };
        self.reads.start(&mut self.starting);
        visit.look(&mut self.after);
        self.reads.start(&mut self.starting);
    }

    fn wait_until(&mut self, deadline: Option<Instant>, mut is_over: impl FnMut(&mut Inner) -> bool) {
        if !self.process.is_current() {
            // A forked child: what is open ends in the parent.
            return;
        }
        let Some(visit) = self.stay.visit() else { return };
        let waker = visit.waker();
        let (reads, starting) = (&self.reads, &mut self.starting);
        visit.wait(&mut self.after, deadline, || {
            reads.start(starting);
            let mut inner = reads.lock();
            let over = is_over(&mut inner);
            // The next that ends takes it, so that not each of many that end in one turn wakes a thread that is awake.
            if !over && inner.waker.is_none() {
                inner.waker = Some(waker.clone());
            }
            over
        });
    }
}

/// What a [`super::Queue`] is made of.
impl AsyncReads {
    pub(super) fn in_order(operations: usize) -> Self {
        let reads = Self::new();
        {
            let mut inner = reads.reads.lock();
            inner.in_order = true;
            inner.entries.reserve(operations);
            inner.free.reserve(operations);
            inner.to_start.reserve(operations);
            inner.ended.reserve(operations);
        }
        reads
    }

    /// Adds an operation, and starts nothing.
    pub(super) fn add(&mut self, op: Op, user_data: u64) {
        self.reads.lock().add(op, user_data);
    }

    /// Waits until so many have ended and were not taken, or all, or until the deadline. How many there are.
    pub(super) fn wait_for(&mut self, at_least: usize, deadline: Option<Instant>) -> usize {
        if self.process.is_current() {
            self.wait_until(deadline, |inner| inner.done >= at_least || inner.open == 0);
        } else {
            // A forked child: what is begun there, or was in the parent, ends at once with an error.
            self.look();
        }
        self.reads.lock().done
    }

    /// Takes what has ended first.
    pub(super) fn take_next(&mut self) -> Option<(u64, Op)> {
        let mut inner = self.reads.lock();
        let index = inner.ended.pop_front()?;
        let entry = &mut inner.entries[index as usize];
        let (user_data, op) = (entry.user_data, entry.op.take());
        inner.done -= 1;
        inner.free.push(index);
        Some((user_data, op?))
    }

    pub(super) fn all_are_started(&self) -> bool {
        self.reads.lock().to_start.is_empty()
    }

    /// How many are open, and how many have ended and were not taken.
    pub(super) fn counts(&self) -> (usize, usize) {
        let inner = self.reads.lock();
        (inner.open, inner.done)
    }
}

impl Drop for AsyncReads {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let open: Vec<ReadHandle> = {
            let inner = self.reads.lock();
            let handle = |(index, entry): (usize, &Entry)| ReadHandle::new(index as u32, entry.generation);
            inner.entries.iter().enumerate().map(handle).collect()
        };
        open.into_iter().for_each(|handle| self.ask_to_cancel(handle));
        // In a loop of ringfile's, that waits for them when it ends.
        if !crate::runtime::is_in_loop() {
            self.wait_until(None, |inner| inner.open == 0);
        }
    }
}

impl std::fmt::Debug for AsyncReads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inner = self.reads.lock();
        f.debug_struct("AsyncReads").field("open", &inner.open).field("done", &inner.done).finish()
    }
}
