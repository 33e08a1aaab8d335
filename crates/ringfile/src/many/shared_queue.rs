//! Queues that several threads use: any of them submits, and any of them collects.
//!
//! A [`Queue`] with a driver of its own, which threads visit in turn ([`Visits`]). A forked child waits for no lock that a
//! thread of its parent may have had, and drops nothing of the queue.

use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::done::Done;
use super::entries::Token;
use super::queue::{Queue, WithItsDriver, not_waited};
use super::visits::{Outside, Visited, Visits};
use crate::driver::{AfterUse, Bed, RovingDriver, Shared};
use crate::error::Result;
use crate::file::ask::Operation;

/// A [`Queue`] that any number of threads use together, such as those of a scheduler: each may add and submit operations,
/// and each may collect results, those of operations that another thread has added, too. Clones are the same queue.
///
/// The queue has a ring of its own. No operation passes through another thread: the thread that calls
/// [`submit`](Self::submit) submits, and the threads that wait collect, for each other too. Each call takes a lock for as
/// long as the queue is changed or operations are submitted, plain calls ([`Route`](crate::Route)) included, but not
/// while it waits. A [`Queue`], which only one thread uses, costs less: it takes no lock, and its ring is made for one
/// thread (`DEFER_TASKRUN`, with which a completion never interrupts a thread).
///
/// The kernel ends an operation on the thread that submitted it, if that thread still lives, and interrupts the thread's
/// system calls for it. Those that it does not restart then fail with `EINTR`: `epoll_wait`, `poll`, `nanosleep`, a `read`
/// of a socket with a timeout (`SO_RCVTIMEO`). While that thread only computes, a result may come a few milliseconds late;
/// while it is stopped, or sleeps where signals do not wake it (after a `vfork`, for instance), as late as that lasts.
///
/// Operations on polled files and NVMe namespaces go to an I/O thread ([`set_io_threads`](crate::set_io_threads)), and what
/// a ring cannot do to [workers](crate::Route::Workers). A file that is closed elsewhere stays open, with its blocks, until
/// the next call of any thread: the ring may have it registered. Dropping the last clone cancels the operations that the kernel still can cancel, and waits until the kernel has
/// finished with their memory. In a forked child, the operations of the parent never end.
///
/// User code that runs inside a call (a subscriber of events, or the destructor of a buffer) must not use the same
/// queue, also not inside a call of another shared queue: that panics. A [`Queue`] of the thread has no ring meanwhile: its
/// operations are not started, and its waits fail.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// # std::fs::write(&path, vec![7; 1 << 20])?;
/// use ringfile::{File, Pool, SharedQueue};
/// let (pool, file) = (Pool::new(1 << 20), File::open(&path)?);
/// let queue = SharedQueue::new();
/// for page in [3, 1, 8] {
///     queue.add(file.read_at(pool.get(4096)?, page * 4096), page);
/// }
/// queue.submit();
/// let others = queue.clone();
/// let collected = std::thread::spawn(move || {
///     let mut pages = Vec::new();
///     while let Some((_, page, done)) = others.wait(None) {
///         assert_eq!(done.result.unwrap(), 4096);
///         pages.push(page);
///     }
///     pages.sort();
///     pages
/// });
/// assert_eq!(collected.join().unwrap(), [1, 3, 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedQueue(Arc<Visits<Contents>>);

struct Contents {
    queue: Queue<WithItsDriver>,
    driver: RovingDriver,
    /// Whether completions of the ring wake the thread that sleeps, and whether the ends of operations elsewhere do.
    hears_ring: bool,
    hears_others: bool,
}

impl Default for SharedQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl SharedQueue {
    /// Creates an empty queue. Its ring is made with the first operation that needs it.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// Creates an empty queue with room for `operations` open operations. It grows if more are added.
    #[must_use]
    pub fn with_capacity(operations: usize) -> Self {
        let driver = RovingDriver::new();
        let outside = Arc::clone(&driver.shared);
        let queue = Queue::make(operations, AfterUse::Nothing);
        let contents = Contents { queue, driver, hears_ring: false, hears_others: false };
        Self(Arc::new(Visits::new(contents, outside)))
    }

    /// Adds an operation that was not started, as [`Queue::add`] does. `user_data` comes back with its result. It starts
    /// with the next [`submit`](Self::submit) or wait of any thread.
    ///
    /// Allocates only to hold more operations than ever before.
    ///
    /// # Panics
    /// In a forked child, if a thread of the parent was using the queue at the fork; as all other calls do there.
    pub fn add(&self, operation: impl Operation, user_data: u64) -> Token {
        self.0.lock().subject.queue.add(operation, user_data)
    }

    /// Submits the operations that were added, with one system call if they fit into the ring, and collects those that have
    /// finished. Does not wait, except for another thread that submits; otherwise as [`Queue::submit`].
    pub fn submit(&self) {
        self.visit(Queue::submit);
    }

    /// Takes the result of the operation that finished first, with its token and `user_data`; `None` if there is no
    /// result. Submits and collects nothing: see [`submit`](Self::submit).
    pub fn take(&self) -> Option<(Token, u64, Done)> {
        self.0.lock().subject.queue.take_with_token()
    }

    /// Takes the result of one operation, if it has finished.
    pub fn take_by(&self, token: Token) -> Option<Done> {
        self.visit(|queue| queue.take_by(token))
    }

    /// Submits the operations that were added, waits until a result is available, and takes it, as [`take`](Self::take)
    /// does. `None` if no operation is open, or the timeout has passed (no `timeout`: no limit).
    ///
    /// Several threads may wait; each result goes to one of them. Inside ringfile's own loop this does not wait.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<(Token, u64, Done)> {
        // `counts` takes what workers have ended since.
        self.wait_until(timeout, |queue| match queue.counts() {
            (0, 0) => Some(None),
            _ => queue.take_with_token().map(Some),
        })?
    }

    /// Submits the operations that were added, waits until at least the first of these numbers of results are available, no
    /// operation is open, or the timeout has passed, and appends what is there then to `results`, at most the second of the
    /// numbers. With `0..=n` it does not wait. Returns how many it took.
    ///
    /// Several results cost little more than one: it takes the lock once, and once more after it has waited. A wait in
    /// vain keeps those that it has.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// # std::fs::write(&path, vec![7; 1 << 20])?;
    /// # let file = ringfile::File::open(&path)?;
    /// let queue = ringfile::SharedQueue::new();
    /// for page in 0..8 {
    ///     queue.add(file.read_at(Vec::with_capacity(4096), page * 4096), page);
    /// }
    /// let mut results = Vec::new();
    /// while queue.wait_many(1..=100, None, &mut results) > 0 {}
    /// assert_eq!(results.len(), 8);
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_many(
        &self,
        how_many: RangeInclusive<usize>,
        timeout: Option<Duration>,
        results: &mut Vec<(Token, u64, Done)>,
    ) -> usize {
        let (at_most, before) = (*how_many.end(), results.len());
        let at_least = at_most.min(*how_many.start());
        self.wait_until(timeout, |queue| {
            queue.counts();
            while results.len() - before < at_most
                && let Some(taken) = queue.take_with_token()
            {
                results.push(taken);
            }
            (results.len() - before >= at_least || queue.is_empty()).then_some(())
        });
        results.len() - before
    }

    /// Submits the operations that were added, waits for one of them, whichever thread has added it, and takes its result.
    ///
    /// # Errors
    /// `InvalidInput` if the token names no operation of this queue, or its result was taken. `WouldBlock` inside
    /// ringfile's loop if the operation has not finished. An error of the operation itself is in its [`Done`].
    pub fn wait_by(&self, token: Token) -> Result<Done> {
        let taken = self.wait_until(None, |queue| match queue.take_by(token) {
            None if queue.contains(token) => None,
            taken => Some(taken),
        });
        Err(match taken {
            Some(Some(done)) => return Ok(done),
            Some(None) => not_waited(ErrorKind::InvalidInput, NOT_THERE),
            None if self.0.outside.is_inherited() => not_waited(ErrorKind::Unsupported, INHERITED),
            None => not_waited(ErrorKind::WouldBlock, WOULD_BLOCK),
        })
    }

    /// Returns whether an operation has finished; false if the token names none. Submits and collects nothing: see
    /// [`submit`](Self::submit).
    #[must_use]
    pub fn is_done(&self, token: Token) -> bool {
        self.visit(|queue| queue.is_done(token))
    }

    /// Returns whether the token names an operation of this queue whose result was not taken.
    #[must_use]
    pub fn contains(&self, token: Token) -> bool {
        self.0.lock().subject.queue.contains(token)
    }

    /// Cancels an operation, if the kernel still can, as [`Queue::cancel`] does. Returns false if it has finished, or the
    /// token names none.
    pub fn cancel(&self, token: Token) -> bool {
        self.visit(|queue| queue.cancel(token))
    }

    /// Cancels all operations, as [`cancel`](Self::cancel) does. Each still gives its result.
    pub fn cancel_all(&self) {
        self.visit(Queue::cancel_all);
    }

    /// Returns a descriptor that is readable whenever a result is available without waiting, for an event loop: see
    /// [`Queue::descriptor`]. When it is readable, call [`submit`](Self::submit) and [`take`](Self::take) on any thread.
    ///
    /// # Errors
    /// Those of [`Queue::descriptor`].
    pub fn descriptor(&self) -> Result<OwnedFd> {
        self.visit(Queue::descriptor)
    }

    /// Returns the number of operations whose results were not taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().subject.queue.len()
    }

    /// Returns whether there are no operations whose results were not taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

const NOT_THERE: &str = "the token names no operation of this queue, or its result was taken";
const WOULD_BLOCK: &str = "waiting would block a ringfile thread: await the operation there instead";
const INHERITED: &str = "the operation belongs to the process that forked this one";
const INSIDE: &str = "a shared queue was used by user code that it runs itself: a subscriber of events, or the destructor \
    of a buffer";
const FORKED: &str = "this is a forked child, and a thread of its parent was using the shared queue at the fork: make a new \
    queue in the child";

impl SharedQueue {
    /// Runs `act` on the queue, with its driver.
    fn visit<R>(&self, act: impl FnOnce(&mut Queue<WithItsDriver>) -> R) -> R {
        self.0.visit(&mut self.0.lock(), |contents| contents.visit(act))
    }

    /// Submits and collects until `ready` returns something. `None` if it may not wait, or the time is over.
    fn wait_until<R>(
        &self,
        timeout: Option<Duration>,
        mut ready: impl FnMut(&mut Queue<WithItsDriver>) -> Option<R>,
    ) -> Option<R> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let may_wait = !self.0.outside.is_inherited() && !crate::runtime::is_in_loop();
        self.0.wait_until(may_wait, deadline, |contents| {
            contents.visit(|queue| queue.look_and(|queue, _| ready(queue)))
        })
    }
}

impl Contents {
    fn visit<R>(&mut self, act: impl FnOnce(&mut Queue<WithItsDriver>) -> R) -> R {
        let Self { queue, driver, .. } = self;
        driver.visit(|| act(queue))
    }
}

impl Visited for Contents {
    type Outside = Arc<Shared>;
    type Bed = Bed;

    fn open(&self) -> usize {
        self.queue.entries.open
    }

    fn make_bed(&mut self) -> Option<Bed> {
        let bed = self.visit(|queue| queue.engine.make_bed())?;
        (self.hears_ring, self.hears_others) = (bed.is_in_ring(), self.queue.engine.has_some_elsewhere());
        Some(bed)
    }

    fn must_look(&self) -> bool {
        let is_deaf = self.queue.engine.has_some_elsewhere() && !self.hears_others;
        is_deaf || self.driver.must_look(self.hears_ring)
    }

    fn sleep(bed: Bed, deadline: Option<Instant>) {
        bed.sleep(deadline);
    }
}

/// What threads use of the queue's driver without the lock.
impl Outside for Arc<Shared> {
    fn assert_may_block(&self) {
        assert!(!RovingDriver::is_visited_here(self), "{INSIDE}");
        assert!(!self.is_inherited(), "{FORKED}");
    }

    fn begin_look(&self) {
        self.sleep.take_notification();
    }

    fn was_told(&self) -> bool {
        self.sleep.is_notified()
    }

    fn wake(&self) {
        self.ring_wakeup();
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        if self.0.outside.is_inherited() {
            // A thread of the parent may have been changing it.
            std::mem::forget(Arc::clone(&self.0));
        }
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        self.visit(|queue| drop(std::mem::replace(queue, Queue::make(0, AfterUse::Nothing))));
    }
}

impl std::fmt::Debug for SharedQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("SharedQueue");
        match self.0.try_lock() {
            Some(state) => shown.field("queue", &state.subject.queue).finish(),
            None => shown.finish_non_exhaustive(),
        }
    }
}
