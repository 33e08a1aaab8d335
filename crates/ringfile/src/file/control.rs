//! Operations that move no data: syncing, allocating, truncating, advising.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use linux_raw_sys::io_uring::IORING_FSYNC_DATASYNC;

use super::{File, OpenOptions, check};
use crate::driver::{self, Ended, Errand, Kind, Request, Started, Ticket};
use crate::error::{Error, Result};
use crate::memory::Held;

/// What [`File::allocate`] does with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AllocateMode {
    /// Blocks for the range; the file grows to hold it.
    Extend,
    /// Blocks for the range; the file keeps its size.
    KeepSize,
    /// Gives the range's blocks back: it reads as zeros from then on. The file keeps its size.
    PunchHole,
    /// The range reads as zeros from then on, and keeps its blocks. The file grows to hold it.
    ZeroRange,
}

/// What [`File::advise`] tells the page cache of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// Nothing in particular.
    Normal,
    /// It will be read from front to back: more read-ahead.
    Sequential,
    /// It will be read here and there: no read-ahead.
    Random,
    /// It will be wanted soon: start reading it in.
    WillNeed,
    /// It will not be wanted: clean pages of it go.
    DontNeed,
}

/// The future of an operation that moves no data.
///
/// `Send` and `Unpin`. Dropping it cancels the operation where the kernel still can.
#[must_use = "nothing is done until the future is awaited"]
pub struct Control<'a> {
    file: &'a File,
    what: &'static str,
    request: Request,
    stage: Stage,
}

enum Stage {
    Start,
    Running(Ticket),
    Elsewhere(Errand),
    /// The result is there and was not taken.
    Kept(Result<()>),
    Ended,
}

impl<'a> Control<'a> {
    fn new(file: &'a File, what: &'static str, kind: Kind, op_flags: u32, offset: u64, want: u64) -> Self {
        let want = want as usize;
        let request = Request { kind, op_flags, offset, start: 0, want, linked: false };
        Self { file, what, request, stage: Stage::Start }
    }

    pub(super) fn sync_data(file: &'a File) -> Self {
        Self::new(file, "syncing the data", Kind::Sync, IORING_FSYNC_DATASYNC, 0, 0)
    }

    /// Keeps the result of an operation that has ended, for who polls next.
    pub(super) fn keep(&mut self, result: Result<()>) {
        self.stage = Stage::Kept(result);
    }

    /// Kernels before 6.9 have no such operation (`EINVAL`, as for what can't be truncated): the plain call decides.
    #[cold]
    fn truncate_here(&self) -> Result<()> {
        rustix::fs::ftruncate(self.file.0.target.as_fd(), self.request.offset)
            .map_err(|errno| self.failed(Error::from_errno(errno.raw_os_error(), self.what)))
    }

    fn end(&mut self, ended: Ended) -> Poll<Result<()>> {
        self.stage = Stage::Ended;
        Poll::Ready(match ended.errno {
            0 => Ok(()),
            libc::EINVAL if self.request.kind == Kind::Truncate => self.truncate_here(),
            errno => {
                let refused = driver::why_refused(&self.file.0.target, errno);
                let error = refused.unwrap_or_else(|| Error::from_errno(errno, self.what));
                Err(self.failed(match errno {
                    libc::ECANCELED => error.because(check::FORKED),
                    _ => check::explain_sync(self.file, &self.request, errno, error),
                }))
            }
        })
    }

    fn failed(&self, error: Error) -> Error {
        error.on(self.file.path())
    }
}

impl Future for Control<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let control = &mut *self;
        match &mut control.stage {
            Stage::Start => {
                if let Some(ended) = check::failed_before(control.file, &control.request) {
                    return control.end(ended);
                }
                match driver::start(&control.file.0.target, &control.request, &mut Held::None, context) {
                    Ok(Started::Here(ticket)) => {
                        control.stage = Stage::Running(ticket);
                        Poll::Pending
                    }
                    Ok(Started::Elsewhere(errand)) => {
                        control.stage = Stage::Elsewhere(errand);
                        Poll::Pending
                    }
                    Ok(Started::Over(ended)) => control.end(ended),
                    Ok(Started::Later) => Poll::Pending,
                    Err(error) => {
                        control.stage = Stage::Ended;
                        Poll::Ready(Err(control.failed(error)))
                    }
                }
            }
            Stage::Running(ticket) => {
                let ended = ready!(ticket.poll(context, &mut Held::None));
                control.end(ended)
            }
            Stage::Elsewhere(errand) => {
                let ended = ready!(errand.poll(context, &mut Held::None));
                control.end(ended)
            }
            Stage::Kept(_) | Stage::Ended => match std::mem::replace(&mut control.stage, Stage::Ended) {
                Stage::Kept(result) => Poll::Ready(result),
                _ => Poll::Pending,
            },
        }
    }
}

impl File {
    /// Waits until all data and metadata of the file are on stable storage (`fsync`).
    ///
    /// Covers what was written before this was polled for the first time; writes still in flight are not waited for.
    ///
    /// # Errors
    /// As `fsync(2)`. **A failed sync is remembered**: what was not yet synced may be lost, and Linux would let the next
    /// `fsync` succeed all the same. So after a sync or a [durable write](Self::write_durable_at) has failed, each later one
    /// of this `File`, its clones included, fails with the same errno, in batches and queues too, and nothing is tried.
    /// Reads and plain writes go on. To sync again, open the file again, and check or write again what was written since
    /// the last good sync. A sync that was cancelled, or that the file does not offer (`EINVAL`), is not remembered, nor
    /// are failures that calls on other descriptors have met ([`note_failed_sync`](Self::note_failed_sync)).
    pub fn sync_all(&self) -> Control<'_> {
        Control::new(self, "syncing", Kind::Sync, 0, 0, 0)
    }

    /// As [`sync_all`](Self::sync_all), but only the metadata needed to read the data back (`fdatasync`).
    ///
    /// # Errors
    /// As `fdatasync(2)`; a failure is remembered, see [`sync_all`](Self::sync_all).
    pub fn sync_data(&self) -> Control<'_> {
        Control::sync_data(self)
    }

    /// Remembers a failed sync that the library did not make, by a call on [`as_fd`](std::os::fd::AsFd::as_fd): Linux has told
    /// of the failure there, and would let the next sync of this open file succeed. See [`sync_all`](Self::sync_all).
    pub fn note_failed_sync(&self, errno: i32) {
        self.0.target.settle_sync(errno);
    }

    /// Allocates, or gives back, the blocks of a range of bytes (`fallocate`).
    ///
    /// # Errors
    /// As `fallocate(2)`: `ENOSPC`, or `EOPNOTSUPP` where the file system has no such mode.
    pub fn allocate(&self, mode: AllocateMode, offset: u64, len: u64) -> Control<'_> {
        let flags = match mode {
            AllocateMode::Extend => 0,
            AllocateMode::KeepSize => libc::FALLOC_FL_KEEP_SIZE,
            AllocateMode::PunchHole => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            AllocateMode::ZeroRange => libc::FALLOC_FL_ZERO_RANGE,
        };
        Control::new(self, "allocating", Kind::Allocate, flags as u32, offset, len)
    }

    /// Sets the file's size in bytes: cuts it, or extends it with zeros (`ftruncate`). Before Linux 6.9, where the ring
    /// can't, the call is made by this thread and may block it.
    ///
    /// # Errors
    /// As `ftruncate(2)`.
    pub fn set_len(&self, len: u64) -> Control<'_> {
        Control::new(self, "setting the size", Kind::Truncate, 0, len, 0)
    }

    /// Tells the page cache what to expect of a range of bytes (`posix_fadvise`); `len` 0 means to the end.
    ///
    /// # Errors
    /// As `posix_fadvise(2)`.
    pub fn advise(&self, offset: u64, len: u64, advice: Advice) -> Control<'_> {
        let advice = match advice {
            Advice::Normal => libc::POSIX_FADV_NORMAL,
            Advice::Sequential => libc::POSIX_FADV_SEQUENTIAL,
            Advice::Random => libc::POSIX_FADV_RANDOM,
            Advice::WillNeed => libc::POSIX_FADV_WILLNEED,
            Advice::DontNeed => libc::POSIX_FADV_DONTNEED,
        };
        Control::new(self, "advising", Kind::Advise, advice as u32, offset, len)
    }
}

/// Syncs a directory, so that files made, renamed or removed in it stay so after a crash. Opening it blocks.
///
/// # Errors
/// As `open(2)` and `fsync(2)`.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// ringfile::block_on(ringfile::sync_dir(std::env::temp_dir()))?;
/// # Ok(())
/// # }
/// ```
pub async fn sync_dir(path: impl AsRef<Path>) -> Result<()> {
    let directory = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path)?;
    directory.sync_all().await
}
