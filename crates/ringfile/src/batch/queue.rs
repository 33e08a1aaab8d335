//! Submissions and completions apart: for a program with a loop of its own, such as a benchmark's or a storage engine's.
//!
//! Stands on what [`AsyncReads`] has. What always holds: each operation that was added gives one result, in the order in
//! which they end.

use std::time::{Duration, Instant};

use linux_raw_sys::io_uring::IORING_FSYNC_DATASYNC;

use super::op::Op;
use super::reads::{AsyncReads, WAITS};
use super::{AnyBuffer, Done};
use crate::file::File;

/// Reads, writes and syncs that are added, submitted together, and collected as they end, each with a number of the
/// caller's.
///
/// Belongs to one thread, and uses that thread's ring: no operation passes through another thread, and none allocates
/// once as many were open together as ever are. Blocking batches and other queues of the thread may be under way beside it.
/// Dropping it cancels what the kernel still can, and waits until the kernel is done with the memory.
///
/// A file that is closed elsewhere while the queue is idle stays open, with its blocks, until the thread's next turn: the
/// ring may have it registered.
///
/// Operations start in the order they were added and end in any; a sync covers the writes that have ended when it is
/// submitted. What a plain call does at once ([`Route`](crate::Route)) is done in [`submit`](Self::submit).
///
/// On a ringfile thread (inside [`block_on`](crate::block_on) or a [`Runtime`](crate::Runtime)) nothing is started: each
/// result is an error of kind `WouldBlock`.
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
///     queue.read(&file, pool.get(4096)?, page * 4096, page);
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
#[derive(Debug)]
pub struct Queue {
    operations: AsyncReads,
}

impl Default for Queue {
    fn default() -> Self {
        Self::new()
    }
}

impl Queue {
    /// Without an operation.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// With room for so many open operations; more make it grow.
    #[must_use]
    pub fn with_capacity(operations: usize) -> Self {
        Self { operations: AsyncReads::in_order(operations) }
    }

    /// Adds a read from `offset`, as [`File::read_at`]; its result carries `user_data`.
    pub fn read(&mut self, file: &File, buffer: impl Into<AnyBuffer>, offset: u64, user_data: u64) {
        self.add(Op::read(file, buffer.into(), offset), user_data);
    }

    /// Adds a write at `offset`, as [`File::write_at`]; its result carries `user_data`.
    pub fn write(&mut self, file: &File, buffer: impl Into<AnyBuffer>, offset: u64, user_data: u64) {
        self.add(Op::write(file, buffer.into(), offset), user_data);
    }

    /// Adds an `fdatasync`, as [`File::sync_data`]; its result carries `user_data`.
    pub fn sync_data(&mut self, file: &File, user_data: u64) {
        self.add(Op::sync(file, IORING_FSYNC_DATASYNC), user_data);
    }

    /// Adds an `fsync`, as [`File::sync_all`]; its result carries `user_data`.
    pub fn sync_all(&mut self, file: &File, user_data: u64) {
        self.add(Op::sync(file, 0), user_data);
    }

    #[inline]
    fn add(&mut self, mut op: Op, user_data: u64) {
        if crate::runtime::is_in_loop() {
            let error = op.would_block(WAITS);
            op.refuse(error);
        }
        self.operations.add(op, user_data);
    }

    /// Starts what was added, with one system call where that is many, and takes in what has ended. Does not wait.
    pub fn submit(&mut self) {
        self.operations.look();
    }

    /// Submits, and waits until `at_least` so many results are there to be taken, or all there will be, or the time is over;
    /// `None` waits without end. How many are there.
    ///
    /// A single operation that was not submitted before and is waited for without end may be a plain call, where the route
    /// is [`Auto`](crate::Route::Auto): nothing goes on beside it, and it is cheaper.
    pub fn wait(&mut self, at_least: usize, timeout: Option<Duration>) -> usize {
        let (open, ended) = self.operations.counts();
        if open == 0 || crate::runtime::is_in_loop() {
            return ended;
        }
        if at_least > 0 && ended >= at_least && self.operations.all_are_started() {
            return ended;
        }
        if timeout == Some(Duration::ZERO) || at_least == 0 {
            self.operations.look();
            return self.operations.counts().1;
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.operations.wait_for(at_least, deadline)
    }

    /// Takes the result of the operation that ended first, with its number; none where none is there.
    pub fn take(&mut self) -> Option<(u64, Done)> {
        self.operations.take_next()
    }

    /// How many operations were added whose results were not taken.
    #[must_use]
    pub fn len(&self) -> usize {
        let (open, ended) = self.operations.counts();
        open + ended
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
