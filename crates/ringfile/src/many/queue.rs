//! Queues: submission and completion as separate steps, for a program with its own loop, such as a storage engine or a
//! benchmark.
//!
//! Invariant: each operation that was added gives one result, even if it was cancelled.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::done::Done;
use super::engine::{Source, ThreadEngine};
use super::entries::{Entries, Token};
use crate::driver::{AfterUse, TOO_MANY_FILES};
use crate::error::{Error, Result};
use crate::file::ask::Operation;
use crate::memory::Counter;

/// A queue of operations that are added, submitted together, and collected as they finish.
///
/// Each operation has a number that the caller chooses, `user_data`, and is identified by the [`Token`] that adding it
/// returns.
///
/// A queue belongs to one thread and uses that thread's ring: no operation passes through another thread, and none
/// allocates once the queue has grown to its depth. The thread may run batches and other queues at the same time; each
/// gets its own results. Dropping a queue cancels the operations that the kernel still can cancel, and waits until the
/// kernel has finished with their memory.
///
/// Operations start in the order of adding and finish in any order; a sync covers the writes that have finished when it
/// is submitted. Operations that are plain calls ([`Route`](crate::Route)) are done in [`submit`](Self::submit).
///
/// A file that is closed elsewhere while the queue is idle stays open, with its blocks, until the thread's next turn: the
/// ring may have it registered.
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
/// let (pool, file) = (Pool::new(1 << 20), File::open(&path)?);
/// let mut queue = Queue::new();
/// for page in [3, 1, 8] {
///     queue.add(file.read_at(pool.get(4096)?, page * 4096), page);
/// }
/// queue.submit();
/// let mut pages = Vec::new();
/// while queue.wait(1, None) > 0 {
///     while let Some((page, done)) = queue.take() {
///         assert_eq!(done.result?, 4096);
///         pages.push(page);
///     }
/// }
/// pages.sort();
/// assert_eq!(pages, [1, 3, 8]);
/// # Ok(())
/// # }
/// ```
pub struct Queue<Place = OneThread> {
    pub(super) entries: Entries,
    pub(super) engine: ThreadEngine,
    pub(super) place: Place,
}

/// Where a queue may be used: on the thread that made it.
#[doc(hidden)]
#[derive(Default)]
pub struct OneThread {
    /// Counts the buffers of borrowed memory in [`Queue::read_many`] and [`Queue::write_many`]. Like a queue's place on
    /// its thread's ring, it cannot go to another thread.
    pub(super) counter: Option<Counter>,
}

/// Where a queue may be used: wherever its driver is.
#[derive(Default)]
pub(super) struct WithItsDriver;

const TOO_LATE: &str = "before Linux 5.18, a thread's first descriptor must be created before its first operation waits: \
    create it together with the queue";

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
        Self::make(operations, AfterUse::Leave)
    }
}

impl<Place: Default> Queue<Place> {
    /// Creates an empty queue; `then` says what becomes of its driver afterwards.
    pub(super) fn make(operations: usize, then: AfterUse) -> Self {
        let (entries, engine) = (Entries::with_capacity(operations), ThreadEngine::new(then));
        Self { entries, engine, place: Place::default() }
    }
}

impl<Place> Queue<Place> {
    /// Adds an operation that was not started, as returned by [`File::read_at`](crate::File::read_at) or
    /// [`fs::open`](crate::fs::open). `user_data` comes back with its result.
    ///
    /// Allocates only to hold more operations than ever before.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// # std::fs::write(&path, b"content")?;
    /// use ringfile::{OpenOptions, Queue, fs};
    /// let mut queue = Queue::new();
    /// let opening = queue.add(fs::open(&path, OpenOptions::new().read(true)), 0);
    /// let file = queue.wait_by(opening)?.into_file()?;
    /// let reading = queue.add(file.read_at(Vec::with_capacity(100), 0), 0);
    /// assert_eq!(queue.wait_by(reading)?.result?, 7);
    /// # Ok(())
    /// # }
    /// ```
    #[inline(always)]
    pub fn add(&mut self, operation: impl Operation, user_data: u64) -> Token {
        operation.ask(|file, asked| self.entries.add(file, asked, user_data))
    }

    /// Submits the operations that were added, with one system call if they fit into the ring, and collects those that
    /// have finished. Does not wait: operations that the kernel refuses to take for want of a resource (`EAGAIN`,
    /// `EBUSY`, `ENOMEM`) are submitted again by the next call, while the [`descriptor`](Self::descriptor) is readable.
    /// They fail with that errno once the kernel has refused them for a second, of which the time between two calls
    /// counts for at most 0.1 s.
    pub fn submit(&mut self) {
        self.look();
    }

    /// Submits the added operations. Returns false if, in a loop, other tasks must run before the rest is started.
    fn look(&mut self) -> bool {
        self.look_and(|_, went_on| went_on)
    }

    /// Submits the added operations, and calls `take`, before the descriptor tells of what is left.
    pub(super) fn look_and<R>(&mut self, take: impl FnOnce(&mut Self, bool) -> R) -> R {
        let went_on = self.engine.look(&mut self.entries);
        let taken = take(self, went_on);
        self.tell();
        taken
    }

    /// Submits the operations that were added, and waits until at least `at_least` results are available, or every open
    /// operation has finished, or the timeout has passed. `None` waits without a limit. Returns how many results are
    /// available.
    ///
    /// With [`Auto`](crate::Route::Auto), a single operation that was not submitted before may become a plain call if
    /// there is no timeout: nothing runs beside it, and it is cheaper. Inside ringfile's loop this does not wait.
    pub fn wait(&mut self, at_least: usize, timeout: Option<Duration>) -> usize {
        let in_loop = crate::runtime::is_in_loop();
        let (open, done) = self.counts();
        if open == 0 || (at_least > 0 && done >= at_least && !self.entries.has_more()) {
            return done;
        }
        if timeout == Some(Duration::ZERO) || at_least == 0 || in_loop {
            self.submit();
            return self.counts().1;
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        if deadline.is_none()
            && at_least >= open + done
            && let Err(payload) = self.entries.read_in_place(&mut self.engine)
        {
            self.tell();
            resume_unwind(payload);
        }
        self.engine.wait(&mut self.entries, deadline, |entries| entries.left_until(at_least));
        self.tell();
        self.counts().1
    }

    /// Submits the operations that were added, and returns once a result is available, or no operation is open. For
    /// tasks in ringfile's loop: other tasks run meanwhile. Dropping the future changes nothing.
    pub async fn ready(&mut self) -> usize {
        poll_fn(|context| {
            let went_on = self.look();
            let (open, done) = self.counts();
            if done > 0 || open == 0 {
                return Poll::Ready(done);
            }
            // `counts` has taken results since, and their operations may have to begin again.
            let all_goes_on = went_on && !self.entries.begins_again;
            if !all_goes_on || !self.engine.engine.remote.mailbox.wake(context.waker(), 1) {
                context.waker().wake_by_ref();
            }
            Poll::Pending
        })
        .await
    }

    /// Takes the result of the operation that finished first, with its `user_data`; `None` if there is no result.
    #[inline]
    pub fn take(&mut self) -> Option<(u64, Done)> {
        let first = self.entries.next_ended();
        self.take_ended(first)
    }

    /// Takes a result as [`take`](Self::take) does, with the token of the operation.
    pub fn take_with_token(&mut self) -> Option<(Token, u64, Done)> {
        let first = self.entries.next_ended();
        let (user_data, done) = self.take_ended(first)?;
        Some((first?, user_data, done))
    }

    #[inline]
    fn take_ended(&mut self, token: Option<Token>) -> Option<(u64, Done)> {
        match token {
            Some(token) if self.entries.done > 1 => self.entries.take(token.index()),
            last => self.take_last(last),
        }
    }

    /// Takes the only result, if there is one, and tells that there is no other.
    #[inline(never)]
    fn take_last(&mut self, token: Option<Token>) -> Option<(u64, Done)> {
        let taken = token.and_then(|token| self.entries.take(token.index()));
        if self.entries.done == 0 {
            self.tell();
        }
        taken
    }

    /// Takes the result of one operation, if it has finished.
    pub fn take_by(&mut self, token: Token) -> Option<Done> {
        let entries = &mut self.entries;
        self.engine.engine.take_in(entries);
        let taken = entries.find(token).and_then(|index| entries.take(index));
        self.tell();
        taken.map(|(_, done)| done)
    }

    /// Returns whether an operation has finished; false if the token names none.
    #[must_use]
    pub fn is_done(&mut self, token: Token) -> bool {
        self.engine.engine.take_in(&mut self.entries);
        self.contains(token) && !self.entries.is_open(token)
    }

    /// Returns whether the token names an operation of this queue whose result was not taken.
    #[must_use]
    pub fn contains(&self, token: Token) -> bool {
        self.entries.find(token).is_some()
    }

    /// Submits the operations that were added, waits for one of them, in the same system call, and takes its result.
    ///
    /// As in [`wait`](Self::wait), a single operation that was not submitted before may become a plain call.
    ///
    /// # Errors
    /// `InvalidInput` if the token names no operation of this queue, or its result was taken. `WouldBlock` inside
    /// ringfile's loop if the operation has not finished. An error of the operation itself is in its [`Done`].
    pub fn wait_by(&mut self, token: Token) -> Result<Done> {
        if self.entries.is_open(token) && crate::runtime::is_in_loop() {
            self.submit();
            if self.entries.is_open(token) {
                return Err(not_waited(ErrorKind::WouldBlock, WOULD_BLOCK));
            }
        }
        if self.entries.is_open(token) {
            self.engine.wait(&mut self.entries, None, |entries| usize::from(entries.is_open(token)));
        }
        self.take_by(token).ok_or_else(|| not_waited(ErrorKind::InvalidInput, NOT_THERE))
    }

    /// Cancels an operation, if the kernel still can. Its result still arrives, exactly once: the operation's own if it
    /// ended before, or an error with `ECANCELED`, whose [`done`](crate::Error::done) says how much of a write or a copy
    /// was done. Returns false if it has finished, or the token names none.
    ///
    /// An operation that was not submitted is never carried out. The kernel cancels operations that wait for a pipe, a
    /// socket or a kernel thread; what a disk has begun runs to its end. Does not wait: [`wait_by`](Self::wait_by)
    /// returns when the kernel has finished with the memory.
    pub fn cancel(&mut self, token: Token) -> bool {
        let entries = &mut self.entries;
        self.engine.engine.take_in(entries);
        let Some(index) = entries.find(token).filter(|&index| entries.mark_cancelled(index)) else {
            return false;
        };
        self.engine.cancel(entries, &[index]);
        self.tell();
        true
    }

    /// Cancels all operations.
    pub(super) fn cancel_all(&mut self) {
        let open = self.entries.mark_all_cancelled();
        self.engine.cancel(&mut self.entries, &open);
        self.tell();
    }

    /// Returns a descriptor that is readable whenever a result is available without waiting. Wait on it with epoll, in
    /// another io_uring, in tokio's `AsyncFd` or in libuv; then call [`submit`](Self::submit) and [`take`](Self::take).
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
    /// # let file = ringfile::File::open("/proc/self/exe")?;
    /// let mut queue = ringfile::Queue::new();
    /// let descriptor = queue.descriptor()?;
    /// queue.add(file.read_at(Vec::with_capacity(4), 0), 0);
    /// queue.submit();
    /// loop {
    ///     let mut sources = [libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(&descriptor), events: libc::POLLIN, revents: 0 }];
    ///     // SAFETY: one valid record.
    ///     unsafe { libc::poll(sources.as_mut_ptr(), 1, -1) };
    ///     queue.submit();
    ///     if let Some((_, done)) = queue.take() {
    ///         assert_eq!(done.result?, 4);
    ///         break;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn descriptor(&mut self) -> Result<OwnedFd> {
        let made = self.make_descriptor();
        self.tell();
        made.map_err(|io| {
            let error = Error::from_io(&io, "creating a descriptor for a queue");
            match io.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE) => error.because(TOO_MANY_FILES),
                Some(libc::EBUSY) => error.because(TOO_LATE),
                _ => error,
            }
        })
    }

    fn make_descriptor(&mut self) -> std::io::Result<OwnedFd> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |source: std::os::fd::BorrowedFd<'_>| {
            epoll::add(&set, source, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
        };
        add(self.engine.engine.remote.signal()?)?;
        // Completions of the ring itself, and of AIO, which this thread must collect.
        self.engine.completion_signals()?.each().try_for_each(add)?;
        Ok(set)
    }

    /// Keeps the descriptor, if it was created, readable as long as there are results.
    #[inline]
    fn tell(&mut self) {
        let entries = &mut self.entries;
        // Nothing announces completions that must be polled for, or operations that the next call must begin or submit
        // again.
        let is_ready =
            entries.done > 0 || entries.polled > 0 || entries.begins_again || self.engine.is_refused;
        self.engine.engine.remote.set_signal(is_ready);
    }

    /// Returns how many operations are open, and how many have ended and were not taken.
    pub(super) fn counts(&mut self) -> (usize, usize) {
        self.engine.engine.take_in(&mut self.entries);
        (self.entries.open, self.entries.done)
    }

    /// Returns the number of operations whose results were not taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.open + self.entries.done
    }

    /// Returns whether there are no operations whose results were not taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<Place> Drop for Queue<Place> {
    fn drop(&mut self) {
        if self.engine.is_inherited() {
            return;
        }
        self.cancel_all();
        let entries = &mut self.entries;
        // Inside a loop, the end of the loop waits for them.
        if !crate::runtime::is_in_loop() {
            self.engine.wait(entries, None, |entries| entries.open);
        }
    }
}

impl<Place> std::fmt::Debug for Queue<Place> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let entries = &self.entries;
        f.debug_struct("Queue").field("open", &entries.open).field("done", &entries.done).finish()
    }
}
