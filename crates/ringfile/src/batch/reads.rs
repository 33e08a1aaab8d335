//! Single reads with plain handles, for a thread that runs no executor: start, poll, wait, abort.
//!
//! [`super::Queue`] stands on the same, for reads, writes and syncs whose results come in the order they end.
//!
//! What always holds: a buffer is given up only when the kernel is done with it, by whatever call; a handle names one
//! read, and none once that was taken.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::entries::Entries;
use super::inbox::Inbox;
use super::op::Op;
use super::{AnyBuffer, Done};
use crate::driver::{self, Aftermath, Begun, Company, Finished, LocalSink, Order, Sink, Stay};
use crate::error::{Error, Result};
use crate::file::File;
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
    pub(super) fn new(index: u32, generation: u32) -> Self {
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

    pub(super) fn index(self) -> usize {
        self.0 as u32 as usize
    }

    pub(super) fn generation(self) -> u32 {
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
    entries: RefCell<Entries>,
    inbox: Arc<Inbox>,
    /// By which this thread's driver knows the inbox.
    local: Option<LocalSink>,
    after: Aftermath,
    /// For what is started, which may be in a turn that has the other.
    starting: Aftermath,
    stay: Stay,
    process: fork::Mark,
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
        Self {
            entries: RefCell::default(),
            inbox: Arc::default(),
            local: None,
            after: Aftermath::default(),
            starting: Aftermath::default(),
            stay: Stay::new(),
            process: fork::Mark::current(),
        }
    }

    /// Starts a read from `offset` that fills the buffer up to its capacity, as [`File::read_at`]. Where it can't be
    /// started, its result says why. Does not block, except for a file whose [`Route`](crate::Route) is a plain call.
    pub fn start(&mut self, file: &File, buffer: impl Into<AnyBuffer>, offset: u64) -> ReadHandle {
        let mut op = Op::read(file, buffer.into(), offset);
        if crate::runtime::is_in_loop() {
            let error = op.would_block(WAITS);
            op.refuse(error);
        }
        let generation = next_generation();
        let index = self.entries.get_mut().add(op, generation, 0);
        self.look();
        ReadHandle::new(index, generation)
    }

    /// How many reads have ended and were not taken. With `wait`, waits until that is `at_least` so many, or all.
    pub fn poll(&mut self, at_least: usize, wait: bool) -> usize {
        self.look();
        if wait && !crate::runtime::is_in_loop() {
            self.wait_until(None, |entries| entries.left_until(at_least));
        }
        self.counts().1
    }

    /// Whether the read has ended. False where the handle names none.
    #[must_use]
    pub fn is_done(&self, handle: ReadHandle) -> bool {
        let mut entries = self.entries.borrow_mut();
        take_in(&mut entries, &self.inbox);
        entries.is_done(handle) == Some(true)
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
        let entries = self.entries.get_mut();
        take_in(entries, &self.inbox);
        Some(entries.take(handle)?.into_done())
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
        if self.is_inherited() {
            return;
        }
        let Some(entry) = self.entries.get_mut().entry(handle) else { return };
        entry.aborted = true;
        if let Some(place) = entry.place {
            driver::cancel(place);
        } else if entry.is_elsewhere {
            self.inbox.abort(handle.index() as u32);
        }
    }

    fn end_of(&mut self, handle: ReadHandle, what: &'static str) -> Result<Done> {
        let entries = self.entries.get_mut();
        take_in(entries, &self.inbox);
        match entries.is_done(handle) {
            Some(true) => {}
            Some(false) if crate::runtime::is_in_loop() => {
                return Err(Error::new(std::io::ErrorKind::WouldBlock, what).because(WAITS));
            }
            Some(false) if self.is_inherited() => self.look(),
            Some(false) => {
                self.wait_until(None, |entries| usize::from(entries.is_done(handle) == Some(false)))
            }
            None => {}
        }
        self.take(handle).ok_or_else(|| {
            let why = "the handle names no read, its result was taken, or the thread ends";
            Error::new(std::io::ErrorKind::InvalidInput, what).because(why)
        })
    }

    /// Whether this is a forked child, and what is open here, or the driver it is known to, the parent's. Where nothing was
    /// begun before the fork, all is the child's own.
    fn is_inherited(&mut self) -> bool {
        if !self.process.is_current() && self.local.is_none() {
            self.process = fork::Mark::current();
        }
        !self.process.is_current()
    }

    /// Starts and submits what there is, and takes in what has ended.
    pub(super) fn look(&mut self) {
        if crate::runtime::is_in_loop() {
            return;
        }
        let inherited = self.is_inherited();
        // Where the thread ends and its driver is gone, that has waited for what was in flight.
        let Some(visit) = self.stay.visit() else { return };
        let Self { entries, inbox, local, after, starting, .. } = self;
        let local =
            *local.get_or_insert_with(|| driver::add_local(Arc::clone(inbox) as Arc<dyn Sink>, after));
        let mut going = Going {
            entries: entries.get_mut(),
            inbox,
            local,
            waits: false,
            starting,
            inherited,
            began: false,
        };
        going.go_on(after);
        visit.look(after);
        going.go_on(after);
        if inherited {
            // It ends in the parent, which has the threads.
            going.entries.give_up_elsewhere();
        }
    }

    /// Waits until the deadline, or until nothing is `wanted`: how many more operations are to end.
    fn wait_until(&mut self, deadline: Option<Instant>, mut wanted: impl FnMut(&mut Entries) -> usize) {
        if self.is_inherited() {
            return;
        }
        let Some(visit) = self.stay.visit() else { return };
        let Self { entries, inbox, local, after, starting, .. } = self;
        let local =
            *local.get_or_insert_with(|| driver::add_local(Arc::clone(inbox) as Arc<dyn Sink>, after));
        let (waits, inherited) = (deadline.is_none(), false);
        let mut going =
            Going { entries: entries.get_mut(), inbox, local, waits, starting, inherited, began: false };
        visit.wait(after, deadline, |after| {
            going.began = false;
            loop {
                going.go_on(after);
                let more = wanted(going.entries);
                if more == 0 {
                    return None;
                }
                if going.entries.elsewhere == 0 {
                    return Some(more.try_into().unwrap_or(u32::MAX));
                }
                if inbox.wake(visit.waker()) {
                    return Some(1);
                }
            }
        });
        // Where there was nothing to wait for, or no time, what was begun is handed over all the same.
        if going.began {
            visit.look(after);
            going.go_on(after);
        }
    }
}

/// Takes in what came from elsewhere.
#[inline]
fn take_in(entries: &mut Entries, inbox: &Inbox) {
    if inbox.has_letters() {
        inbox.empty(|index, finished| entries.end(index, finished));
    }
}

/// What starts operations, and takes their results in, during a visit.
struct Going<'a> {
    entries: &'a mut Entries,
    inbox: &'a Arc<Inbox>,
    local: LocalSink,
    /// The thread does nothing until some, or all, have ended.
    waits: bool,
    starting: &'a mut Aftermath,
    /// A forked child, which could not wait for what it begins here.
    inherited: bool,
    /// The ring has operations since the last turn.
    began: bool,
}

impl Going<'_> {
    #[inline]
    fn go_on(&mut self, after: &mut Aftermath) {
        after.take_own_results(|index, finished| self.entries.end(index, finished));
        take_in(self.entries, self.inbox);
        if !self.entries.to_start.is_empty() {
            self.start();
        }
    }

    fn start(&mut self) {
        let company = match (self.entries.open, self.entries.to_start.len()) {
            (1, _) if self.waits => Company::Alone,
            (_, MANY..) => Company::Many,
            _ => Company::Few,
        };
        while let Some((index, request, mut held)) = self.entries.begin_next() {
            let Some(target) = self.entries.target(index) else { continue };
            if self.inherited {
                let ended = driver::in_forked_child(target, &request, &mut held);
                self.entries.end(index, Finished { held, ended });
                continue;
            }
            match driver::start_own(self.local, index, target, &request, &mut held, company) {
                Begun::Here(place) => {
                    self.entries.is_at(index, Some(place));
                    self.began = true;
                }
                Begun::Over(ended) => self.entries.end(index, Finished { held, ended }),
                Begun::Left(choice) => {
                    let sink = Arc::clone(self.inbox) as Arc<dyn Sink>;
                    let order = Order::new(Arc::clone(target), request, held, sink, index);
                    let place = driver::dispatch(order, choice, true, self.starting);
                    self.entries.is_at(index, place);
                }
            }
        }
    }
}

/// What a [`super::Queue`] is made of.
impl AsyncReads {
    pub(super) fn in_order(operations: usize) -> Self {
        let mut reads = Self::new();
        *reads.entries.get_mut() = Entries::in_order(operations);
        reads
    }

    /// Adds an operation, and starts nothing.
    #[inline]
    pub(super) fn add(&mut self, op: Op, user_data: u64) {
        // Nobody has a handle to it.
        self.entries.get_mut().add(op, 0, user_data);
    }

    /// Waits until so many have ended and were not taken, or all, or until the deadline. How many there are.
    pub(super) fn wait_for(&mut self, at_least: usize, deadline: Option<Instant>) -> usize {
        if self.is_inherited() {
            // What is begun here, or was in the parent, ends at once.
            self.look();
        } else {
            self.wait_until(deadline, |entries| entries.left_until(at_least));
        }
        self.counts().1
    }

    /// Takes what has ended first.
    #[inline]
    pub(super) fn take_next(&mut self) -> Option<(u64, Done)> {
        self.entries.get_mut().take_first()
    }

    pub(super) fn all_are_started(&self) -> bool {
        self.entries.borrow().to_start.is_empty()
    }

    /// How many are open, and how many have ended and were not taken.
    pub(super) fn counts(&self) -> (usize, usize) {
        let mut entries = self.entries.borrow_mut();
        take_in(&mut entries, &self.inbox);
        (entries.open, entries.done)
    }
}

impl Drop for AsyncReads {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let open = self.entries.get_mut().handles();
        open.into_iter().for_each(|handle| self.ask_to_cancel(handle));
        // In a loop of ringfile's, that waits for them when it ends.
        if !crate::runtime::is_in_loop() {
            self.wait_until(None, |entries| entries.open);
        }
        self.inbox.close();
        if let Some(local) = self.local.take()
            && self.counts().0 == 0
        {
            driver::remove_local(local);
        }
    }
}

impl std::fmt::Debug for AsyncReads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (open, done) = self.counts();
        f.debug_struct("AsyncReads").field("open", &open).field("done", &done).finish()
    }
}
