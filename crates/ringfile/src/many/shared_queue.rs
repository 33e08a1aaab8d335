//! Queues that several threads use: any of them submits, and any of them collects.
//!
//! A [`QueueState`] with a driver of its own, which the threads share ([`SharedDriver`]). A forked child waits for no lock that a
//! thread of its parent may have had, and drops nothing of the queue.

use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::done::{Completion, Token};
use super::queue::not_waited;
use super::queue_state::QueueState;
use crate::driver::{AfterUse, SharedDriver, User};
use crate::error::Result;
use crate::file::op::{Op, Output};

/// A [`Queue`](crate::Queue) that any number of threads use together, such as those of a scheduler: each may add and submit
/// operations, and each may collect results, those of operations that another thread has added, too. Clones are the same
/// queue. It has the methods of a [`Queue`](crate::Queue), except for `ready`, `read_many` and `write_many`.
///
/// The queue has a ring of its own. No operation passes through another thread: the thread that calls
/// [`submit`](Self::submit) submits, and the threads that wait collect, for each other too. Each call takes a lock for as
/// long as the queue is changed or operations are submitted, plain calls ([`Route`](crate::Route)) included, but not
/// while it waits. A queue of one thread costs less: it takes no lock, and its ring is made for one
/// thread (`DEFER_TASKRUN`, with which a completion never interrupts a thread).
///
/// The kernel ends an operation on the thread that submitted it, if that thread still lives, and interrupts the thread's
/// system calls for it. Those that it does not restart then fail with `EINTR`: `epoll_wait`, `poll`, `nanosleep`, a `read`
/// of a socket with a timeout (`SO_RCVTIMEO`). While that thread only computes, a result may come a few milliseconds late;
/// while it is stopped, or sleeps where signals do not wake it (after a `vfork`, for instance), as late as that lasts.
///
/// Operations on polled files and NVMe namespaces go to an I/O thread ([`set_io_threads`](crate::runtime::set_io_threads)), and what
/// a ring cannot do to [workers](crate::Route::Workers). Dropping the last clone cancels the operations that the kernel
/// still can cancel, and waits until the kernel has finished with their memory. In a forked child, the operations of the
/// parent never end.
///
/// User code that runs inside a call (a subscriber of events, or the destructor of a buffer) must not use the same
/// queue, also not inside a call of another shared queue: that panics. A queue of the thread has no ring meanwhile: its
/// operations are not started, and its waits fail.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// # std::fs::write(&path, vec![7; 1 << 20])?;
/// use ringfile::{File, Pool, SharedQueue};
/// let (pool, file) = (Pool::new(1 << 20), File::open_blocking(&path)?);
/// let queue = SharedQueue::new();
/// for page in [3, 1, 8] {
///     queue.add(file.read_at(pool.get(4096)?, page * 4096), page);
/// }
/// queue.submit();
/// let others = queue.clone();
/// let collected = std::thread::spawn(move || {
///     let (mut pages, mut completions) = (Vec::new(), Vec::new());
///     while others.wait(1..=100, None, &mut completions) > 0 {
///         for completion in completions.drain(..) {
///             assert_eq!(completion.result.unwrap(), 4096);
///             pages.push(completion.user_data);
///         }
///     }
///     pages.sort();
///     pages
/// });
/// assert_eq!(collected.join().unwrap(), [1, 3, 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedQueue(Arc<SharedDriver<QueueState>>);

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
        Self(Arc::new(SharedDriver::new(QueueState::new(operations, AfterUse::Nothing))))
    }

    /// Adds an operation that was not started, as [`Queue::add`](crate::Queue::add) does. `user_data` comes back with its
    /// result. It starts with the next [`submit`](Self::submit) or wait of any thread; one on a path starts at once, with the
    /// rights of the thread that adds it.
    ///
    /// Allocates only to hold more operations than ever before.
    ///
    /// # Panics
    /// In a forked child, if a thread of the parent was using the queue at the fork; as all other calls do there.
    pub fn add(&self, op: Op<'_, impl Output>, user_data: u64) -> Token {
        let mut driver = self.0.lock();
        op.ask(|file, asked| {
            let token = driver.user().entries.add(file, asked, user_data);
            if !file.target().has_fd() {
                driver.run(QueueState::submit);
            }
            token
        })
    }

    /// Submits the operations that were added, with one system call if they fit into the ring, and collects those that have
    /// finished. Does not wait, except for another thread that submits; otherwise as
    /// [`Queue::submit`](crate::Queue::submit).
    pub fn submit(&self) {
        self.visit(QueueState::submit);
    }

    /// Takes the result of the operation that finished first; `None` if there is no result. Submits and collects nothing:
    /// see [`submit`](Self::submit).
    pub fn next(&self) -> Option<Completion> {
        self.0.lock().user().next()
    }

    /// Submits the operations that were added, waits until at least the first of these numbers of results are available, no
    /// operation is open, or the timeout has passed, and appends what is there then to `completions`, at most the second of
    /// the numbers. With `0..=n` it does not wait. Returns how many it took.
    ///
    /// Several threads may wait; each result goes to one of them. Several results cost little more than one: the call takes
    /// the lock once, and once more after it has waited. A wait in vain keeps those that it has. Inside ringfile's own loop
    /// this does not wait.
    pub fn wait(
        &self,
        how_many: RangeInclusive<usize>,
        timeout: Option<Duration>,
        completions: &mut Vec<Completion>,
    ) -> usize {
        let before = completions.len();
        self.wait_until(timeout, |queue| {
            // Takes what workers have ended since.
            queue.counts();
            let taken = completions.len() - before;
            queue.entries.take_first_to(*how_many.end() - taken, completions);
            let (taken, left) = (completions.len() - before, queue.entries.done);
            (taken + left >= *how_many.start() || queue.len() == 0).then_some(())
        });
        completions.len() - before
    }

    /// Submits the operations that were added, waits for one of them, whichever thread has added it, and takes its result.
    ///
    /// # Errors
    /// `InvalidInput` if the token names no operation of this queue, or its result was taken. `WouldBlock` inside
    /// ringfile's loop if the operation has not finished. An error of the operation itself is in its [`Completion`].
    pub fn wait_for(&self, token: Token) -> Result<Completion> {
        let taken = self.wait_until(None, |queue| match queue.take(token) {
            None if queue.contains(token) => None,
            taken => Some(taken),
        });
        Err(match taken {
            Some(Some(completion)) => return Ok(completion),
            Some(None) => not_waited(ErrorKind::InvalidInput, NOT_THERE),
            None if self.0.shared().is_inherited() => not_waited(ErrorKind::Unsupported, INHERITED),
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
        self.0.lock().user().contains(token)
    }

    /// Cancels an operation, if the kernel still can, as [`Queue::cancel`](crate::Queue::cancel) does. Returns false if it has
    /// finished, or the token names none.
    pub fn cancel(&self, token: Token) -> bool {
        self.visit(|queue| queue.cancel(token))
    }

    /// Cancels all operations, as [`cancel`](Self::cancel) does. Each still gives its result.
    pub fn cancel_all(&self) {
        self.visit(QueueState::cancel_all);
    }

    /// Returns a descriptor that is readable whenever a result is available without waiting, for an event loop: see
    /// [`Queue::descriptor`](crate::Queue::descriptor). When it is readable, call [`submit`](Self::submit) and
    /// [`next`](Self::next) on any thread.
    ///
    /// # Errors
    /// Those of [`Queue::descriptor`](crate::Queue::descriptor).
    pub fn descriptor(&self) -> Result<OwnedFd> {
        self.visit(QueueState::descriptor)
    }

    /// Returns the number of operations whose results were not taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().user().len()
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

impl SharedQueue {
    /// Runs `act` on the queue, with its driver.
    fn visit<R>(&self, act: impl FnOnce(&mut QueueState) -> R) -> R {
        self.0.run(act)
    }

    /// Submits and collects until `ready` returns something. `None` if it may not wait, or the time is over.
    fn wait_until<R>(
        &self,
        timeout: Option<Duration>,
        mut ready: impl FnMut(&mut QueueState) -> Option<R>,
    ) -> Option<R> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let may_wait = !self.0.shared().is_inherited() && !crate::runtime::is_in_loop();
        self.0.wait_until(may_wait, deadline, |queue| queue.look_and(|queue, _| ready(queue)))
    }
}

impl User for QueueState {
    fn open(&self) -> usize {
        self.entries.open
    }

    fn has_some_elsewhere(&self) -> bool {
        self.engine.has_some_elsewhere()
    }

    fn listen(&mut self) -> bool {
        self.engine.listen()
    }

    fn clear(&mut self) {
        *self = Self::new(0, AfterUse::Nothing);
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        if self.0.shared().is_inherited() {
            // A thread of the parent may have been changing it.
            std::mem::forget(Arc::clone(&self.0));
        }
    }
}

impl std::fmt::Debug for SharedQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("SharedQueue");
        match self.0.try_lock() {
            Some(mut driver) => shown.field("queue", driver.user()).finish(),
            None => shown.finish_non_exhaustive(),
        }
    }
}
