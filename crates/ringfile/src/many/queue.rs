//! Queues: submission and completion as separate steps, for a program with its own loop, such as a storage engine or a
//! benchmark.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::done::{Completion, Token};
use super::engine::Source;
use super::queue_state::QueueState;
use super::remote::RemoteResults;
use crate::driver::AfterUse;
use crate::error::{Error, Result};
use crate::file::op::{Op, Output};
use crate::memory::Counter;

/// A queue of operations that are added, submitted together, and collected as they finish.
///
/// Each operation has a number that the caller chooses, `user_data`, and is identified by the [`Token`] that adding it
/// returns. Its [`Completion`] has both.
///
/// A queue belongs to one thread and uses that thread's ring: no operation passes through another thread, and none
/// allocates once the queue has grown to its depth. The thread may run batches and other queues at the same time; each
/// gets its own results. Dropping a queue cancels the operations that the kernel still can cancel, and waits until the
/// kernel has finished with their memory. A [`SharedQueue`](super::SharedQueue), which has the same methods, belongs to
/// all threads.
///
/// Operations start in the order of adding and finish in any order; a sync covers the writes that have finished when it
/// is submitted. Operations that are plain calls ([`Route`](crate::Route)) are done in [`submit`](Self::submit).
///
/// **In an event loop**, wait on [`descriptor`](Self::descriptor), together with sockets and timers. **Inside ringfile's own
/// loop** ([`block_on`](crate::block_on) or a [`Runtime`](crate::Runtime)), await [`ready`](Self::ready);
/// [`wait`](Self::wait) returns at once there, since the thread has other tasks. If a queue is dropped there, the end
/// of the loop waits for the kernel.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// # std::fs::write(&path, vec![7; 1 << 20])?;
/// use ringfile::{File, Pool, Queue};
/// let (pool, file) = (Pool::new(1 << 20), File::open_blocking(&path)?);
/// let mut queue = Queue::new();
/// for page in [3, 1, 8] {
///     queue.add(file.read_at(pool.get(4096)?, page * 4096), page);
/// }
/// let (mut pages, mut completions) = (Vec::new(), Vec::new());
/// while queue.wait(1..=100, None, &mut completions) > 0 {
///     for completion in completions.drain(..) {
///         assert_eq!(completion.result?, 4096);
///         pages.push(completion.user_data);
///     }
/// }
/// pages.sort();
/// assert_eq!(pages, [1, 3, 8]);
/// # Ok(())
/// # }
/// ```
pub struct Queue {
    pub(super) state: QueueState,
    /// Counts the buffers of borrowed memory in [`Queue::read_many`] and [`Queue::write_many`]. Like a queue's place on
    /// its thread's ring, it cannot go to another thread.
    pub(super) counter: Option<Counter>,
}

const WOULD_BLOCK: &str = "waiting would block a ringfile thread: await the queue's `ready` there";
const NOT_THERE: &str = "the token names no operation of this queue, its result was taken, the thread is ending, or \
    user code runs in a call of a shared queue";

/// Returns why an operation cannot be waited for.
#[cold]
pub(super) fn not_waited(kind: ErrorKind, why: &'static str) -> Error {
    Error::new(kind, "waiting for an operation of a queue").because(why)
}

impl Default for Queue {
    fn default() -> Self {
        Self::new()
    }
}

impl Queue {
    /// Creates an empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// Creates an empty queue with room for `operations` open operations. It grows if more are added.
    #[must_use]
    pub fn with_capacity(operations: usize) -> Self {
        Self { state: QueueState::new(operations, AfterUse::Leave), counter: None }
    }

    /// Adds an operation that was not started, as returned by [`File::read_at`](crate::File::read_at) or
    /// [`OpenOptions::open`](crate::OpenOptions::open). `user_data` comes back with its result.
    ///
    /// Allocates only to hold more operations than ever before.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// # std::fs::write(&path, b"content")?;
    /// use ringfile::{File, OpenOptions, Queue, fs};
    /// let mut queue = Queue::new();
    /// let opening = queue.add(OpenOptions::new().read(true).open(&path), 0);
    /// let file = queue.wait_for(opening)?.take::<File>()?;
    /// let reading = queue.add(file.read_at(Vec::with_capacity(100), 0), 0);
    /// assert_eq!(queue.wait_for(reading)?.result?, 7);
    /// # Ok(())
    /// # }
    /// ```
    #[inline(always)]
    pub fn add(&mut self, op: Op<'_, impl Output>, user_data: u64) -> Token {
        self.state.add(op, user_data)
    }

    /// Submits the operations that were added, with one system call if they fit into the ring, and collects those that
    /// have finished. Does not wait: operations that the kernel refuses to take for want of a resource (`EAGAIN`,
    /// `EBUSY`, `ENOMEM`) are submitted again by the next call, while the [`descriptor`](Self::descriptor) is readable.
    /// They fail with that errno once the kernel has refused them for a second, of which the time between two calls
    /// counts for at most 0.1 s.
    #[inline]
    pub fn submit(&mut self) {
        self.state.submit();
    }

    /// Takes the result of the operation that finished first; `None` if there is no result. Submits and collects nothing:
    /// see [`submit`](Self::submit).
    #[expect(
        clippy::should_implement_trait,
        reason = "after `None` there may be more, so this is no iterator"
    )]
    #[inline]
    pub fn next(&mut self) -> Option<Completion> {
        self.state.next()
    }

    /// Submits the operations that were added, waits until at least the first of these numbers of results are available,
    /// no operation is open, or the timeout has passed, and appends what is there then to `completions`, at most the
    /// second of the numbers. With `0..=n` it does not wait. `None` waits without a limit. Returns how many it took.
    ///
    /// With [`Auto`](crate::Route::Auto), a single operation that was not submitted before may become a plain call if
    /// there is no timeout: nothing runs beside it, and it is cheaper. Inside ringfile's loop this does not wait.
    #[inline]
    pub fn wait(
        &mut self,
        how_many: RangeInclusive<usize>,
        timeout: Option<Duration>,
        completions: &mut Vec<Completion>,
    ) -> usize {
        let before = completions.len();
        self.wait_until(*how_many.start(), timeout);
        self.state.entries.take_first_to(*how_many.end(), completions);
        self.state.tell();
        completions.len() - before
    }

    /// Waits until there are so many results. The caller tells of what is left.
    #[inline]
    fn wait_until(&mut self, at_least: usize, timeout: Option<Duration>) {
        let in_loop = crate::runtime::is_in_loop();
        let state = &mut self.state;
        let (open, done) = state.counts();
        if open == 0 || (at_least > 0 && done >= at_least && !state.entries.has_more()) {
            return;
        }
        if timeout == Some(Duration::ZERO) || at_least == 0 || in_loop {
            return state.submit();
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        if deadline.is_none() && at_least >= open + done {
            state.read_in_place();
        }
        state.engine.wait(&mut state.entries, deadline, |entries| entries.left_until(at_least));
        // Results that another engine's turn has collected.
        state.engine.engine.take_in(&mut state.entries);
    }

    /// Submits the operations that were added, waits for one of them, in the same system call, and takes its result.
    ///
    /// As in [`wait`](Self::wait), a single operation that was not submitted before may become a plain call.
    ///
    /// # Errors
    /// `InvalidInput` if the token names no operation of this queue, or its result was taken. `WouldBlock` inside
    /// ringfile's loop if the operation has not finished. An error of the operation itself is in its [`Completion`].
    #[inline]
    pub fn wait_for(&mut self, token: Token) -> Result<Completion> {
        let state = &mut self.state;
        if state.entries.is_open(token) && crate::runtime::is_in_loop() {
            state.submit();
            if state.entries.is_open(token) {
                return Err(not_waited(ErrorKind::WouldBlock, WOULD_BLOCK));
            }
        }
        if state.entries.open == 1 && state.entries.is_open(token) {
            state.read_in_place();
        }
        if state.entries.is_open(token) {
            state.engine.wait(&mut state.entries, None, |entries| usize::from(entries.is_open(token)));
        }
        state.take(token).ok_or_else(|| not_waited(ErrorKind::InvalidInput, NOT_THERE))
    }

    /// Submits the operations that were added, and returns once a result is available, or no operation is open. For
    /// tasks in ringfile's loop: other tasks run meanwhile. Returns how many results are available. Dropping the future
    /// changes nothing.
    pub async fn ready(&mut self) -> usize {
        poll_fn(|context| {
            let went_on = self.state.look();
            let (open, done) = self.state.counts();
            if done > 0 || open == 0 {
                return Poll::Ready(done);
            }
            // `counts` has taken results since, and their operations may have to begin again.
            let all_goes_on = went_on && !self.state.entries.begins_again;
            if !all_goes_on || !self.state.engine.engine.remote.mailbox.wake(context.waker(), 1) {
                context.waker().wake_by_ref();
            }
            Poll::Pending
        })
        .await
    }

    /// Returns whether an operation has finished; false if the token names none. Submits nothing: see
    /// [`submit`](Self::submit).
    #[must_use]
    #[inline]
    pub fn is_done(&mut self, token: Token) -> bool {
        self.state.is_done(token)
    }

    /// Returns whether the token names an operation of this queue whose result was not taken.
    #[must_use]
    pub fn contains(&self, token: Token) -> bool {
        self.state.contains(token)
    }

    /// Cancels an operation, if the kernel still can. Its result still arrives, exactly once: the operation's own if it
    /// ended before, or an error with `ECANCELED`, whose [`done`](crate::Error::done) says how much of a write or a copy
    /// was done. Returns false if it has finished, or the token names none.
    ///
    /// An operation that was not submitted is never carried out. The kernel cancels operations that wait for a pipe, a
    /// socket or a kernel thread; what a disk has begun runs to its end. Does not wait: [`wait_for`](Self::wait_for)
    /// returns when the kernel has finished with the memory.
    pub fn cancel(&mut self, token: Token) -> bool {
        self.state.cancel(token)
    }

    /// Cancels all operations, as [`cancel`](Self::cancel) does. Each still gives its result.
    pub fn cancel_all(&mut self) {
        self.state.cancel_all();
    }

    /// Returns a handle that cancels operations of this queue from any thread.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use ringfile::{File, Queue};
    /// let (reader, _writer) = std::io::pipe()?;
    /// let pipe = File::from(std::fs::File::from(std::os::fd::OwnedFd::from(reader)));
    /// let mut queue = Queue::new();
    /// let token = queue.add(pipe.read_at(Vec::with_capacity(100), 0), 0);
    /// let canceller = queue.canceller();
    /// let other = std::thread::spawn(move || canceller.cancel(token));
    /// let error = queue.wait_for(token)?.result.unwrap_err();
    /// assert_eq!(error.errno(), Some(libc::ECANCELED));
    /// assert!(other.join().unwrap());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::clone(&self.state.engine.engine.remote))
    }

    /// Returns a descriptor that is readable whenever a result is available without waiting. Wait on it with epoll, in
    /// another io_uring, in tokio's `AsyncFd` or in libuv; then call [`submit`](Self::submit) and [`next`](Self::next).
    ///
    /// The descriptor is level-triggered. It may be readable although there is no result, but it is always readable if
    /// there is one, even if other queues or batches of the thread collect the completion. Operations must have been
    /// submitted. Each call returns a new descriptor; close it when it is no longer needed. Reading from it has no
    /// effect.
    ///
    /// # Errors
    /// Those of `epoll_create(2)` and `eventfd(2)`: too many open files, or no memory. Before Linux 5.18, `EBUSY` if the
    /// thread has no descriptor yet and has already waited for operations: create the descriptor together with the queue.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use std::os::fd::AsFd;
    /// # let file = ringfile::File::open_blocking("/proc/self/exe")?;
    /// let mut queue = ringfile::Queue::new();
    /// let descriptor = queue.descriptor()?;
    /// queue.add(file.read_at(Vec::with_capacity(4), 0), 0);
    /// queue.submit();
    /// loop {
    ///     let mut sources = [libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(&descriptor), events: libc::POLLIN, revents: 0 }];
    ///     // SAFETY: one valid record.
    ///     unsafe { libc::poll(sources.as_mut_ptr(), 1, -1) };
    ///     queue.submit();
    ///     if let Some(completion) = queue.next() {
    ///         assert_eq!(completion.result?, 4);
    ///         break;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn descriptor(&mut self) -> Result<OwnedFd> {
        self.state.descriptor()
    }

    /// Returns the number of operations whose results were not taken.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.state.len()
    }

    /// Returns whether there are no operations whose results were not taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state.fmt(f)
    }
}

/// Cancels operations of a [`Queue`] from any thread. Clones cancel those of the same queue.
#[derive(Clone)]
pub struct Canceller(Arc<RemoteResults>);

impl Canceller {
    /// Makes the queue's thread cancel an operation, as [`Queue::cancel`] does: at once if it waits in a call of the queue,
    /// otherwise in its next one. The queue's [`descriptor`](Queue::descriptor) is readable until then. Nothing happens if
    /// the operation has finished, or the token names none. Does not wait.
    ///
    /// Returns false if the queue was dropped, or this is a forked child.
    pub fn cancel(&self, token: Token) -> bool {
        self.0.order_to_cancel(token)
    }
}

impl std::fmt::Debug for Canceller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Canceller").finish_non_exhaustive()
    }
}
