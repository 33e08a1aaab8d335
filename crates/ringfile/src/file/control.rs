//! Operations that move no data: syncing, allocating, truncating, advising.

use std::borrow::Cow;

use linux_raw_sys::io_uring::IORING_FSYNC_DATASYNC;

use super::op::{Op, OperationFuture};
use super::{File, check};
use crate::driver::{self, Kind, OpResult, Request};
use crate::error::Error;
use crate::memory::IoMemory;

/// Selects what [`File::allocate`] does with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AllocateMode {
    /// Allocates blocks for the range. The file grows to hold it.
    Extend,
    /// Allocates blocks for the range. The file keeps its size.
    KeepSize,
    /// Frees the range's blocks, so that it reads as zeros. The file keeps its size.
    PunchHole,
    /// Fills the range with zeros, and keeps its blocks. The file grows to hold it.
    ZeroRange,
    /// Fills the range with zeros that are written, in large pieces, unless the kernel does it (Linux 6.17, some drives). The
    /// file grows to hold it. Later writes of the range, also small direct ones, then change nothing but the data: over space that
    /// was only allocated they wait for one another in the file system. Takes as long as writing. A worker does it; offset and
    /// length are as those of writes if the file was opened for direct I/O. After an error, a part may be filled; dropping
    /// the future does not stop it.
    Written,
    /// Discards the range's content: reads of it may return any bytes afterwards. On a namespace of an NVMe drive
    /// ([`OpenOptions::allow_raw_nvme_writes`](crate::OpenOptions::allow_raw_nvme_writes)) this deallocates, which costs less
    /// than making zeros; elsewhere it is as [`PunchHole`](Self::PunchHole).
    Discard,
}

impl AllocateMode {
    pub(crate) fn flags(self) -> u32 {
        let flags = match self {
            Self::Extend => 0,
            Self::KeepSize => libc::FALLOC_FL_KEEP_SIZE,
            Self::PunchHole => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            Self::ZeroRange => libc::FALLOC_FL_ZERO_RANGE,
            Self::Written => return driver::WRITTEN,
            Self::Discard => return driver::DISCARD,
        };
        flags.cast_unsigned()
    }
}

/// Selects what [`File::sync_range`] does with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RangeSync {
    /// Starts writing the range's dirty pages, without waiting for them.
    Start,
    /// Writes the range's dirty pages, and waits for them and for those that were already being written.
    Finish,
}

impl RangeSync {
    pub(crate) fn flags(self) -> u32 {
        let before_and_after = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        match self {
            Self::Start => libc::SYNC_FILE_RANGE_WRITE,
            Self::Finish => libc::SYNC_FILE_RANGE_WRITE | before_and_after,
        }
    }
}

/// Advice to the page cache about a range, for [`File::advise`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// No advice: the default.
    Normal,
    /// The range will be read from front to back: the kernel reads ahead further.
    Sequential,
    /// The range will be read at random: the kernel does not read ahead.
    Random,
    /// The range will be read soon: the kernel starts reading it.
    WillNeed,
    /// The range will not be read: the kernel drops its clean pages.
    DontNeed,
}

impl Advice {
    pub(crate) fn number(self) -> u32 {
        let advice = match self {
            Self::Normal => libc::POSIX_FADV_NORMAL,
            Self::Sequential => libc::POSIX_FADV_SEQUENTIAL,
            Self::Random => libc::POSIX_FADV_RANDOM,
            Self::WillNeed => libc::POSIX_FADV_WILLNEED,
            Self::DontNeed => libc::POSIX_FADV_DONTNEED,
        };
        advice.cast_unsigned()
    }
}

/// Creates an operation that moves no data.
fn control(file: &File, kind: Kind, op_flags: u32, offset: u64, want: u64) -> Op<'_, ()> {
    let want = want as usize;
    let request = Request { op_flags, offset, want, ..Request::of(kind) };
    Op::new(OperationFuture::new(Cow::Borrowed(file), request, IoMemory::None))
}

impl File {
    /// Waits until all data and metadata of the file are on stable storage (`fsync`).
    ///
    /// Covers writes that had finished when this was first polled; it does not wait for writes in flight.
    ///
    /// # Errors
    /// Those of `fsync(2)`. **A failed sync is remembered**: data that was not yet synced may be lost, although Linux
    /// would let the next `fsync` succeed. So after a sync or a [durable write](Self::write_durable_at) has failed,
    /// each later one of this `File` and its clones fails with the same errno without being tried, in batches and
    /// queues too. Every write to a file that was opened with `O_DSYNC` or `O_SYNC` is a durable one. Reads and plain
    /// writes continue. To sync again, reopen the file, and check or rewrite what was written since the last successful
    /// sync. Not remembered are a sync that was cancelled, could not be submitted, or is not supported (`EINVAL`), and a
    /// durable write that was refused as a whole (`ENOSPC`, `EDQUOT`, `EFBIG`; `EPERM` of a sealed file), unless it may
    /// have been its sync that failed: on file systems with a server, with `O_DSYNC`, and with `O_APPEND` and
    /// [`Dsync`](crate::Durability::Dsync). Failures of calls on other descriptors are not known here: report them with
    /// [`poison_sync`](Self::poison_sync). A sync's
    /// `EPERM` and `EACCES` are remembered even if a seccomp filter has refused it: NFS reports lost data with them.
    pub fn sync_all(&self) -> Op<'_, ()> {
        control(self, Kind::Sync, 0, 0, 0)
    }

    /// Waits until all data, and the metadata needed to read it back, are on stable storage (`fdatasync`).
    ///
    /// # Errors
    /// Those of `fdatasync(2)`; a failure is remembered, see [`sync_all`](Self::sync_all).
    pub fn sync_data(&self) -> Op<'_, ()> {
        control(self, Kind::Sync, IORING_FSYNC_DATASYNC, 0, 0)
    }

    /// Remembers a failed sync that the program made itself, on [`as_fd`](std::os::fd::AsFd::as_fd): Linux has reported
    /// the failure there, and would let the next sync of this open file succeed. See [`sync_all`](Self::sync_all).
    pub fn poison_sync(&self, errno: i32) {
        self.target().settle_sync(&Request::of(Kind::Sync), OpResult { done: 0, errno }, || false);
    }

    /// Returns the failure that each later sync of this file repeats, if a sync has failed: see
    /// [`sync_all`](Self::sync_all). A program that syncs by calls of its own must not do so after a failure either.
    #[must_use]
    pub fn failed_sync(&self) -> Option<Error> {
        let errno = self.target().failed_sync();
        let sync = Request::of(Kind::Sync);
        (errno != 0)
            .then(|| check::failure(self.target(), &sync, &IoMemory::None, OpResult { done: 0, errno }))
    }

    /// Starts writing the dirty pages of a range of bytes to the disk, or waits for them (`sync_file_range`); `len` 0 means
    /// to the end. This lets storage engines spread the work of a later [`sync_data`](Self::sync_data) over time.
    ///
    /// This makes nothing durable, since it syncs neither metadata nor the disk's own cache.
    ///
    /// # Errors
    /// `InvalidInput` if the range ends beyond 2^63 - 1 bytes, otherwise those of `sync_file_range(2)`. A failure of the
    /// call is remembered, as for [`sync_all`](Self::sync_all), since the kernel reports it only once.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("log");
    /// use ringfile::fs::RangeSync;
    /// use ringfile::{File, block_on};
    /// let file = File::create_blocking(&path)?;
    /// block_on(async {
    ///     file.write_at(vec![7; 1 << 16], 0).await?;
    ///     file.sync_range(0, 1 << 16, RangeSync::Start).await?;
    ///     file.sync_data().await
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sync_range(&self, offset: u64, len: u64, what: RangeSync) -> Op<'_, ()> {
        control(self, Kind::SyncRange, what.flags(), offset, len)
    }

    /// Allocates or frees the blocks of a range of bytes (`fallocate`).
    ///
    /// # Errors
    /// Those of `fallocate(2)`: `ENOSPC`, or `EOPNOTSUPP` if the file system does not support the mode.
    pub fn allocate(&self, mode: AllocateMode, offset: u64, len: u64) -> Op<'_, ()> {
        control(self, Kind::Allocate, mode.flags(), offset, len)
    }

    /// Sets the file's size in bytes: cuts the file, or extends it with zeros (`ftruncate`). Before Linux 6.9 a worker
    /// makes the call, since the ring has no such operation.
    ///
    /// # Errors
    /// Those of `ftruncate(2)`.
    pub fn set_len(&self, len: u64) -> Op<'_, ()> {
        control(self, Kind::Truncate, 0, len, 0)
    }

    /// Tells the page cache what to expect of a range of bytes (`posix_fadvise`); `len` 0 means to the end.
    ///
    /// # Errors
    /// Those of `posix_fadvise(2)`.
    pub fn advise(&self, offset: u64, len: u64, advice: Advice) -> Op<'_, ()> {
        control(self, Kind::Advise, advice.number(), offset, len)
    }
}
