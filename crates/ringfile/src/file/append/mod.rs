//! `Appender`: appends records of any length from many tasks, and makes them durable in groups.
//!
//! The writing counterpart of [`Reader`](super::Reader). [`plan`] decides what is written and synced next, [`ahead`]
//! where the file is filled with zeros meanwhile, [`chunks`] has the memory, [`kept`] what readers of the [`tail`] find
//! there, and [`positions`] where these are, [`lanes`] the operations, [`waiters`] the tasks that wait. [`shared`]
//! drives them all while one of [`futures`] or a reader is polled, which [`waits`] for it.

mod ahead;
mod chunks;
mod filler;
mod futures;
mod kept;
mod lanes;
mod plan;
mod positions;
mod shared;
mod tail;
mod waiters;
mod waits;

use std::future::{Future, IntoFuture, poll_fn};
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use self::ahead::FillAhead;
use self::chunks::Chunks;
pub use self::chunks::Reservation;
use self::futures::{AppendRequest, Appending, InPlaceRecord, Settle};
use self::kept::Kept;
use self::plan::Plan;
pub use self::shared::AppenderMetrics;
use self::shared::AppenderShared;
pub use self::tail::TailReader;

use super::probe::magic;
use super::{AllocateMode, File};
use crate::descriptor;
use crate::driver::FileKind;
use crate::error::{Error, Result};
use crate::memory::{LARGEST, Pool};

/// Appends records of any length to a file, from any number of tasks and threads, also with direct I/O.
///
/// [`append`](Self::append) copies a record into registered memory of the pool and returns its offset;
/// [`append_with`](Self::append_with) writes it there in place. Full blocks are written as they fill, several at once.
/// [`flush`](Self::flush) waits until everything appended before is in the file, [`sync`](Self::sync) until it is
/// durable. Syncs are **grouped**: all calls that arrive while a sync runs share the next one. A small group is a
/// single [durable write](File::write_durable_at). With a [`sync_interval`](OpenAppender::sync_interval), more calls
/// share one.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("log");
/// use ringfile::{Appender, OpenOptions, Pool};
/// let pool = Pool::new(16 << 20);
/// ringfile::block_on(async {
///     let mut options = OpenOptions::new();
///     options.read(true).write(true).create(true).direct(true).buffered_fallback(true);
///     let log = Appender::open(&options.open(&path).await?, &pool, 0).await?;
///     let writers: Vec<_> = (0..8)
///         .map(|writer| {
///             let log = log.clone();
///             ringfile::spawn(async move {
///                 let at = log.append(format!("record of {writer}\n").as_bytes()).await?;
///                 log.sync().await?; // durable now
///                 ringfile::Result::Ok(at)
///             })
///         })
///         .collect();
///     for writer in writers {
///         assert_eq!(writer.await?? % 12, 0);
///     }
///     log.close().await?;
///     std::io::Result::Ok(())
/// })?;
/// assert_eq!(std::fs::metadata(&path)?.len(), 8 * 12);
/// # Ok(())
/// # }
/// ```
///
/// **Memory** is bounded: at most `depth` + 1 blocks (see [`OpenAppender`]) are appended but not yet written. An append
/// that finds no room, or a full pool, waits for its turn. The pool needs room for
/// two blocks of every appender that shares it: with less, each may hold one and wait for another's.
///
/// **Handles** are cheap to clone, `Send + Sync`, and work in any executor and on plain threads. The library has no
/// task for them: a task that awaits one of the appender's futures drives the writes of all tasks. So appended data
/// stays in memory until a block is full, or until a task flushes, syncs or closes. Dropping the last handle without
/// [`close`](Self::close) discards unwritten data, and a write in flight may still reach the file: close an appender
/// before opening another one for the same file. A write that was started inside ringfile's loop
/// ([`block_on`](crate::block_on), [`Runtime`](crate::Runtime)) ends when that thread runs its loop, and syncs of other
/// threads may need it: a task must not block the loop's thread until another thread has synced.
///
/// **Dropping a future** is safe at any point. A dropped `append` has appended its record whole or not at all; only a
/// record longer than a block may be appended in part. The writes and the sync for a dropped `flush` or `sync` may
/// still be carried out.
///
/// **After a crash** the file holds at least what was reported durable. Behind that there may be parts of later
/// records and, with direct I/O, zeros up to the end of a block and up to what was [filled
/// ahead](OpenAppender::fill_ahead). The program finds the valid length by lengths and
/// checksums in its records, and [`open`](Self::open) cuts off the rest. With direct I/O only `close` makes the file's
/// length exact.
///
/// **A failed write or sync is final**: that call and every later one fails with the same errno, since data may be lost
/// although a later sync would succeed (see [`File::sync_all`]). When a call has failed in this way, the appender has
/// nothing in flight. If a write was refused for want of room, no sync of the file has failed: once there is room,
/// [open](Self::open) another appender on it, at the end of what was durable. In a forked child every call fails.
#[derive(Clone)]
pub struct Appender(Arc<Handles>);

/// Dropped with the last handle; readers of the tail keep what is shared.
struct Handles(Arc<AppenderShared>);

impl Drop for Handles {
    fn drop(&mut self) {
        if Arc::strong_count(&self.0) > 1 && self.0.is_ours() {
            self.0.abandoned();
        }
    }
}

/// The largest number of operations in flight. Each has a future, which is allocated when the appender is opened.
const DEEPEST: usize = 1024;
/// How many zeros are written ahead of a direct log, unless the program says otherwise.
const USUALLY_AHEAD: u64 = 4 << 20;
/// File systems that overwrite blocks in place: ext2 to 4, and XFS (include/uapi/linux/magic.h). Others would need new
/// space for each write over the zeros.
const IN_PLACE: [u32; 2] = [0xEF53, 0x5846_5342];
/// The longest time between two syncs.
const LONGEST: Duration = Duration::from_secs(3600);

/// Why a file is refused that was opened with that flag.
const APPENDS: &str = "the file was opened with O_APPEND, which overrides offsets; open it without that flag";

/// Settings of an appender that is about to be opened; awaiting it opens it. See [`Appender::open`].
#[derive(Debug)]
#[must_use = "nothing is opened until it is awaited"]
pub struct OpenAppender {
    file: File,
    pool: Pool,
    valid: u64,
    block: usize,
    depth: usize,
    recycle: bool,
    sync_interval: Duration,
    fill_ahead: Option<u64>,
    keep_tail: usize,
    write_behind: u64,
}

impl OpenAppender {
    /// Sets the maximum size of one write: 256 KiB by default, at most 1 GiB. It is rounded up to the file's alignment.
    pub fn block(mut self, bytes: usize) -> Self {
        self.block = bytes.clamp(1, LARGEST);
        self
    }

    /// Sets the maximum number of operations in flight: 4 by default, at most 1024.
    pub fn depth(mut self, operations: usize) -> Self {
        self.depth = operations.clamp(1, DEEPEST);
        self
    }

    /// Keeps the file's content behind the valid length, and overwrites it; [`close`](Appender::close) does not cut the
    /// file. Use this for a log in files that were used before, or written with zeros: syncing a write to space that was
    /// written before need not wait for the file system's journal. A log that passes the end of its file, or begins in a
    /// new one, grows as others do, with [zeros ahead](Self::fill_ahead), which stay for the next use.
    ///
    /// Behind the log's end are zeros up to the end of the block (with direct I/O; none if the log ends there), then
    /// the file's old content. The program finds the end of the log by its records: no record may consist of zeros, and
    /// those of an earlier use of the file must differ, for example by a number of the use that the checksum covers.
    pub fn recycle(mut self, recycle: bool) -> Self {
        self.recycle = recycle;
        self
    }

    /// Sets the least time from the start of one sync to the start of the next: 0 by default, at most one hour. A
    /// [`sync`](Appender::sync) that comes earlier waits for the rest of it, and all that wait share one sync; one that
    /// comes later starts at once. Full blocks are written meanwhile, and [`flush`](Appender::flush) and
    /// [`close`](Appender::close) do not wait.
    ///
    /// Use this where many tasks make small batches durable: for up to this time more latency, the drive flushes its
    /// cache less often, which takes less CPU and more messages a second. The first sync that waits starts a thread of
    /// the library, a timer for all appenders, which wakes the tasks that wait; where it can't be started, syncs do not
    /// wait.
    pub fn sync_interval(mut self, interval: Duration) -> Self {
        self.sync_interval = interval.min(LONGEST);
        self
    }

    /// Sets how many bytes of zeros may be written ahead, behind what was appended: 4 MiB by default for direct I/O,
    /// none for buffered I/O; 0 switches it off. The sync of a write into space that was written before need not wait
    /// for the file system's journal.
    ///
    /// A thread of the library allocates the space and writes the zeros, for a log whose syncs are small: no more than
    /// was appended. If that fails, for example because the disk is full, nothing more is filled; appends do not fail.
    /// [`close`](Appender::close) cuts what is not used, unless the file is [recycled](Self::recycle). After a crash, or
    /// if the appender is dropped without `close`, the zeros remain until the file is [opened](Appender::open) again.
    ///
    /// Has no effect on file systems other than ext4 and XFS: those that write elsewhere instead of overwriting gain
    /// nothing.
    pub fn fill_ahead(mut self, bytes: u64) -> Self {
        self.fill_ahead = Some(bytes);
        self
    }

    /// Sets how much memory of the pool may keep what was appended last, after it was written: 0 by default. Readers of the
    /// log's [`tail`](Appender::tail) find it there, as soon as it was appended; without this they read the file, and see
    /// only what is written.
    ///
    /// What is not written yet is kept in any case. When the pool is full, all appenders of it give up what they keep before
    /// anybody waits for memory, or is refused it. A log of small records that are each synced, with direct I/O, takes a
    /// block of memory for each sync.
    pub fn keep_tail(mut self, bytes: usize) -> Self {
        self.keep_tail = bytes;
        self
    }

    /// Sets how many bytes may be appended and not yet written, before an append waits: by default, and at least, `depth` + 1
    /// blocks. The pool needs room for them.
    ///
    /// An append that nobody asked to be durable returns once its bytes are in the appender's memory. **They are lost if the
    /// process dies**, unlike those of a buffered write, which are in the page cache: [`flush`](Appender::flush) waits until
    /// they are in the file. An error of a later write reaches the next call, and every one after it.
    pub fn write_behind(mut self, bytes: u64) -> Self {
        self.write_behind = bytes;
        self
    }

    async fn open(self) -> Result<Appender> {
        let Self { file, pool, valid, block, depth, recycle, .. } = self;
        let Self { sync_interval, fill_ahead, keep_tail, write_behind, .. } = self;
        let error = |why: String| {
            Error::new(ErrorKind::InvalidInput, "opening an appender").on(file.path()).because(why)
        };
        if file.target().kind != FileKind::Regular {
            return Err(error("an appender needs a regular file".into()));
        }
        if file.target().appends {
            return Err(error(APPENDS.into()));
        }
        let long_enough = || {
            let size = file.size()?;
            let why = format!("the valid length is {valid} bytes, but the file has {size}");
            if size < valid { Err(error(why)) } else { Ok(size) }
        };
        let facts = descriptor::status(file.target()).map_err(|errno| {
            Error::from_errno(errno.raw_os_error(), "reading the metadata").on(file.path())
        })?;
        let inode = (facts.st_dev, facts.st_ino);
        // Of an appender of this process that was dropped.
        poll_fn(|context| filler::poll_idle(inode, context)).await;
        wait_for_old_writes(&file, long_enough()?).await?;
        let size = long_enough()?;
        let alignment = file.alignment().bytes;
        let carried = lanes::read_block_before(&file, valid).await?;
        if size > valid && !recycle {
            file.set_len(valid).await?;
        }
        // The valid part may exist only in the page cache so far, and what was cut off or erased, here or by the
        // program, must not reappear. Of a recycled file of which nothing is valid, nothing is promised before the first
        // sync; a log of many files that are recycled need not wait for the drive at each.
        let sync_later = recycle && valid == 0;
        if !sync_later {
            file.sync_all().await?;
        }
        let chunk = block.next_multiple_of(alignment);
        // One chunk more than can be in flight, so that records can be appended to it meanwhile.
        let limit = write_behind.max((depth as u64 + 1) * chunk as u64);
        let usual = if file.is_direct() { USUALLY_AHEAD } else { 0 };
        let ahead = if IN_PLACE.contains(&magic(file.target())) { fill_ahead.unwrap_or(usual) } else { 0 };
        let mut plan = Plan::new(alignment as u64, limit, depth, valid, !recycle);
        (plan.owes_sync, plan.sync_interval) = (sync_later, sync_interval);
        plan.ahead = FillAhead::new(ahead, alignment as u64, if recycle { size } else { valid });
        let chunks = Chunks::new(chunk, alignment, depth, &carried, Kept::new(keep_tail));
        let shared = AppenderShared::new(file, inode, pool, depth, plan, chunks);
        Ok(Appender(Arc::new(Handles(shared))))
    }
}

/// Waits for direct writes to the file that are in flight, of a process that was killed for example (F52).
///
/// ext4 and XFS wait for all of the file's in `fallocate`, before they allocate anything. On btrfs the tests passed
/// without it. Setting the file's length also waits, but only if it
/// cuts the file. That frees the blocks which a program has allocated behind the end, so it is the second choice.
async fn wait_for_old_writes(file: &File, size: u64) -> Result<()> {
    if file.allocate(AllocateMode::KeepSize, 0, 1).await.is_ok() {
        return Ok(());
    }
    let cut = async {
        file.set_len(size + 1).await?;
        file.set_len(size).await
    };
    match cut.await {
        // Such a file system has no way to wait.
        Err(error) if matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => Ok(()),
        result => result,
    }
}

impl IntoFuture for OpenAppender {
    type Output = Result<Appender>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Appender>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

impl Appender {
    fn shared(&self) -> &AppenderShared {
        &self.0.0
    }

    /// Opens an appender that continues at `valid`, the length in bytes that the program knows to be valid; 0 for a
    /// new file. The file is cut there, unless it is [recycled](OpenAppender::recycle), and synced. Opening first
    /// waits for direct writes that a killed process may have left in flight.
    ///
    /// The file must be a regular file that is open for writing, and nothing else may write at or behind `valid`. With
    /// direct I/O and a `valid` inside a block, it must be open for reading too. [`sync_dir`](crate::fs::sync_dir)
    /// makes its directory entry durable.
    ///
    /// # Errors
    /// `InvalidInput` for a file of another kind or with `O_APPEND`, or where the file is shorter than `valid`; as
    /// `read(2)`, `ftruncate(2)` and `fsync(2)`.
    pub fn open(file: &File, pool: &Pool, valid: u64) -> OpenAppender {
        OpenAppender {
            file: file.clone(),
            pool: pool.clone(),
            valid,
            block: 256 << 10,
            depth: 4,
            recycle: false,
            sync_interval: Duration::ZERO,
            fill_ahead: None,
            keep_tail: 0,
            write_behind: 0,
        }
    }

    /// Appends a record and returns its offset. Its bytes are contiguous. When this returns, they have been
    /// copied, but not written.
    ///
    /// Waits only while too much data is appended but not yet written, or while the pool is full; records are then
    /// appended in order of arrival. Does not allocate as long as the pool has memory; holds a lock during the copy.
    ///
    /// An append that is neither polled nor dropped blocks those behind it, and may hold memory of the pool.
    ///
    /// # Errors
    /// The errno of an earlier failed write or sync. An error of the pool other than being full, which affects only
    /// this record. `InvalidInput` after [`close`](Self::close), or if the file would grow beyond 2^63 bytes.
    pub fn append<'a>(&'a self, record: &'a [u8]) -> impl Future<Output = Result<u64>> + Send + use<'a> {
        Appending::new(self.shared(), record.len(), record, true)
    }

    /// As [`append`](Self::append) if that need not wait for memory or room; otherwise appends nothing and returns
    /// `None`, always for a record longer than a [block](OpenAppender::block). Like every poll of an append, it may carry
    /// out writes that are due, which block if the file's route is `Route::Inline`. For a thread that appends in one call
    /// and waits in another: it saves [`block_on`](crate::block_on) where there is nothing to wait for.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let file = ringfile::OpenOptions::new().write(true).create(true).open_blocking(folder.path().join("log"))?;
    /// use ringfile::{Appender, Pool, block_on};
    /// let pool = Pool::new(16 << 20);
    /// let log = block_on(Appender::open(&file, &pool, 0))?;
    /// let at = match log.try_append(b"apple") {
    ///     Some(appended) => appended?,
    ///     None => block_on(log.append(b"apple"))?,
    /// };
    /// block_on(log.sync())?;
    /// assert_eq!(at, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`append`](Self::append).
    pub fn try_append(&self, record: &[u8]) -> Option<Result<u64>> {
        // A longer one is appended in pieces, and may have to wait between them.
        if record.len() > self.shared().chunk {
            return None;
        }
        let mut append = Appending::new(self.shared(), record.len(), record, false);
        let polled = Pin::new(&mut append).poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(result) = polled { Some(result) } else { None }
    }

    /// Appends a record of at most `most` bytes that `fill` writes in place, in the memory that is written to the file,
    /// and returns its offset. Saves the copy of a record that was made elsewhere. The record is all that `fill` has
    /// written, which may be less than `most`, also if a write failed for want of room; if `fill` panics, nothing is
    /// appended.
    ///
    /// `fill` is called once there is room for `most` bytes, as for [`append`](Self::append), at the first poll if
    /// possible. It runs under a lock that other users of the appender, and threads that carry out its writes, wait
    /// for: it must not wait for anything, such as I/O, another thread or another appender.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let file = ringfile::OpenOptions::new().write(true).create(true).open_blocking(folder.path().join("log"))?;
    /// use bytes::BufMut;
    /// ringfile::block_on(async {
    ///     let log = ringfile::Appender::open(&file, &ringfile::Pool::new(16 << 20), 0).await?;
    ///     let key = b"apple";
    ///     let at = log
    ///         .append_with(4 + key.len(), |record| {
    ///             record.put_u32_le(key.len() as u32);
    ///             record.put_slice(key);
    ///         })
    ///         .await?;
    ///     log.sync().await?;
    ///     assert_eq!((at, log.len()), (0, 9));
    ///     std::io::Result::Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`append`](Self::append); `InvalidInput` if `most` is more than a [block](OpenAppender::block).
    ///
    /// # Panics
    /// If `fill` uses this appender.
    pub fn append_with<F: FnOnce(&mut Reservation<'_>)>(
        &self,
        most: usize,
        fill: F,
    ) -> impl Future<Output = Result<u64>> + use<'_, F> {
        Appending::new(self.shared(), most, InPlaceRecord(Some(fill)), true)
    }

    /// Waits until everything appended before is in the file, where others can read it. That does not make it durable.
    ///
    /// # Errors
    /// Those of `write(2)`. A failure is final, see [`Appender`].
    pub fn flush(&self) -> impl Future<Output = Result<()>> + Send + use<'_> {
        Settle::new(self.shared(), "flushing an appender", AppendRequest::Flush)
    }

    /// Waits until everything appended before is durable. Tasks that wait at the same time share one sync.
    ///
    /// "Before" is before the first poll of the future.
    ///
    /// # Errors
    /// Those of `write(2)` and `fdatasync(2)`. A failure is final, see [`Appender`].
    pub fn sync(&self) -> impl Future<Output = Result<()>> + Send + use<'_> {
        Settle::new(self.shared(), "syncing an appender", AppendRequest::Sync)
    }

    /// Cuts the log back to `length` bytes, durably: the next record begins there. Appends that came before are
    /// written first, and become durable if a task waits for it; later appends wait. After a crash meanwhile the log
    /// has its old end or the new one.
    ///
    /// The file is cut too; in a [recycled](OpenAppender::recycle) one the removed bytes are overwritten with zeros.
    /// With direct I/O and a `length` inside a block, the file must be open for reading. If the future is dropped
    /// before its turn, nothing is cut; later the truncation may still be carried out.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let file = ringfile::OpenOptions::new().read(true).write(true).create(true).open_blocking(folder.path().join("log"))?;
    /// ringfile::block_on(async {
    ///     let log = ringfile::Appender::open(&file, &ringfile::Pool::new(16 << 20), 0).await?;
    ///     log.append(b"kept").await?;
    ///     let at = log.append(b"not kept").await?;
    ///     log.truncate(at).await?;
    ///     assert_eq!((log.append(b"new").await?, file.size()?), (4, 4));
    ///     log.close().await?;
    ///     std::io::Result::Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if the log is shorter than `length`, or after [`close`](Self::close), which leave the appender
    /// usable. Those of `ftruncate(2)`, `read(2)`, `write(2)` and `fsync(2)` are final, see [`Appender`].
    pub fn truncate(&self, length: u64) -> impl Future<Output = Result<()>> + Send + use<'_> {
        Settle::new(self.shared(), "truncating an appender's file", AppendRequest::Truncate(length))
    }

    /// Waits until everything appended is durable and the file has its exact length, unless it is
    /// [recycled](OpenAppender::recycle). After its first
    /// poll nothing more is appended, through this handle or another; appends that are waiting then fail. May be called
    /// more than once.
    ///
    /// # Errors
    /// Those of [`sync`](Self::sync), and `ftruncate(2)`.
    pub fn close(&self) -> impl Future<Output = Result<()>> + Send + use<'_> {
        Settle::new(self.shared(), "closing an appender", AppendRequest::Close)
    }

    /// Returns a reader of what is appended from now on, or from [another offset](TailReader::from) on. Any number may read
    /// the log, on any thread. Open the appender with [`keep_tail`](OpenAppender::keep_tail), so that they find what is new in
    /// memory.
    ///
    /// A reader does not keep the appender open: if the last handle is dropped without [`close`](Self::close), its stream
    /// ends with an error.
    #[must_use]
    pub fn tail(&self) -> TailReader {
        TailReader::new(&self.0.0)
    }

    /// Returns the offset at which the next record will begin, in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes, not a collection")]
    pub fn len(&self) -> u64 {
        self.shared().end_of(0)
    }

    /// Returns the offset up to which everything was written. Readers find every byte before it.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.shared().end_of(1)
    }

    /// Returns the offset up to which everything is durable.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.shared().end_of(2)
    }

    /// Returns the file that is appended to.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.shared().file
    }

    /// Returns the appender's counters. They are all 0 in a forked child.
    #[must_use]
    pub fn metrics(&self) -> AppenderMetrics {
        if self.shared().is_ours() { self.shared().lock().metrics } else { AppenderMetrics::default() }
    }
}

impl std::fmt::Debug for Appender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Appender")
            .field("path", &self.file().path())
            .field("len", &self.len())
            .field("written", &self.written())
            .field("durable", &self.durable())
            .finish_non_exhaustive()
    }
}
