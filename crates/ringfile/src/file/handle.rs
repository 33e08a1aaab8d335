//! An open file, which all its clones share, and what is known of it.
//!
//! Starts no I/O: the operations of a [`File`] are above, and use what is here.

use std::future::poll_fn;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::adaptive::{Adaptive, Descriptor, OWN, Way};
use super::durability::{Durability, DurabilityChoice};
use crate::driver::{Alignment, Request, Target, Targets, hold_over_forks};
use crate::error::{Error, Result};
use crate::latency::Latencies;
use crate::memory::IoMemory;

/// A file for positional I/O with owned buffers.
///
/// Cheap to clone; every clone is the same open file. It is closed when the last clone has been dropped and the last
/// operation has ended, whatever the threads that have used it do then: locks, leases, the space of a deleted file and the
/// mount are free. An operation on a thread's ring ends when that thread collects it, so not while it computes.
/// [`close`](Self::close) waits for the end and returns errors. Any number of operations may be in flight on one file, from any
/// number of threads.
///
/// Operations are futures, for any executor: nothing happens until they are polled. Or they are
/// [added](crate::Op) to a [`Batch`](crate::Batch) or a [`Queue`](crate::Queue). On a ringfile thread (inside
/// [`block_on`](crate::block_on) or a [`Runtime`](crate::Runtime)) they use the thread's own ring. **Dropping** a
/// future cancels its operation if the kernel still can; the library keeps the buffer until the kernel has finished
/// with it. What a write has already written stays in the file.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("ringfile-doc-file-{}", std::process::id()));
/// use ringfile::{OpenOptions, Pool};
/// let pool = Pool::new(1 << 20);
/// ringfile::block_on(async {
///     let file = OpenOptions::new().read(true).write(true).create(true).open(&path).await?;
///     let mut page = pool.get(4096)?;
///     page.resize(4096, 7);
///     let page = file.write_at(page, 0).await?;
///     file.sync_data().await?;
///     let page = file.read_at(page, 0).await?;
///     assert_eq!(&page[..4], [7, 7, 7, 7]);
///     std::io::Result::Ok(())
/// })?;
/// # std::fs::remove_file(&path)
/// # }
/// ```
#[derive(Clone)]
pub struct File(Arc<Handle>);

/// The state that clones of a file share.
struct Handle {
    target: Arc<Target>,
    /// The descriptor for [`AsFd`]; `None` if it is the target's own.
    user: Option<OwnedFd>,
    durability: DurabilityChoice,
    /// The additional state of an adaptive file.
    adaptive: Option<Box<Adaptive>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(user) = self.user.take() {
            self.target.close_also(user);
        }
    }
}

impl File {
    /// Returns the file as drivers see it.
    pub(crate) fn target(&self) -> &Arc<Target> {
        &self.0.target
    }

    /// Creates a file with this target. `user` is the descriptor for [`AsFd`], if it is not the target's own.
    pub(super) fn new(
        target: Arc<Target>,
        user: Option<OwnedFd>,
        durability: Durability,
        adaptive: Option<Box<Adaptive>>,
    ) -> Self {
        let durability = DurabilityChoice::new(match durability {
            // Otherwise, a full disk could not be told from a failed sync: see `Target::settle_sync`.
            Durability::Auto if target.appends => Durability::Fsync,
            durability => durability,
        });
        Self(Arc::new(Handle { target, user, durability, adaptive }))
    }

    /// Creates a placeholder for a path, for operations on that path. It has no descriptor.
    pub(crate) fn of_path(path: PathBuf) -> Self {
        let target = Arc::new(Target::of_path(path, hold_over_forks()));
        Self::new(target, None, Durability::Auto, None)
    }

    pub(crate) fn durability(&self) -> &DurabilityChoice {
        &self.0.durability
    }

    /// Returns whether I/O bypasses the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.0.target.direct().is_some()
    }

    /// Returns the histograms that count how long its operations take, if they were
    /// [given](crate::OpenOptions::latencies) when it was opened.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// # std::fs::write(&path, "content")?;
    /// use ringfile::metrics::{Latencies, OperationKind};
    /// use ringfile::OpenOptions;
    /// let file = OpenOptions::new().read(true).latencies(&Latencies::new()).open_blocking(&path)?;
    /// ringfile::block_on(file.read_at(Vec::with_capacity(7), 0))?;
    /// let reads = file.latencies().map(|latencies| latencies.histogram(OperationKind::Read).count());
    /// assert_eq!(reads, Some(1));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn latencies(&self) -> Option<&Latencies> {
        self.0.target.timing()?.latencies.as_ref()
    }

    /// Returns whether the file is adaptive, so that uncached data is read directly from the drive. Returns false if
    /// [`adaptive`](crate::OpenOptions::adaptive) was not set, or turned out not to work here.
    #[must_use]
    pub fn is_adaptive(&self) -> bool {
        self.0.adaptive.as_ref().is_some_and(|adaptive| adaptive.direct.direct().is_some())
    }

    /// Returns whether reads must choose between two descriptors.
    #[inline]
    pub(crate) fn has_adaptive_reads(&self) -> bool {
        self.0.adaptive.is_some()
    }

    /// Returns what decides which descriptor a read of an adaptive file uses.
    #[inline]
    pub(super) fn adaptive(&self) -> Option<&Adaptive> {
        self.0.adaptive.as_deref()
    }

    /// Returns the target of one of its descriptors.
    #[inline]
    pub(crate) fn target_of(&self, descriptor: Descriptor) -> &Arc<Target> {
        match (descriptor, &self.0.adaptive) {
            (Descriptor::Direct, Some(adaptive)) => &adaptive.direct,
            (Descriptor::Open | Descriptor::Own | Descriptor::Direct, _) => &self.0.target,
        }
    }

    /// Returns the targets of the descriptors that these reads use.
    pub(crate) fn targets(&self, reads: impl Iterator<Item = Descriptor>) -> Targets<'_> {
        if !self.has_adaptive_reads() {
            return [Some(self.target()), None];
        }
        let mut targets = [None; 2];
        reads.for_each(|descriptor| targets[descriptor.index()] = Some(self.target_of(descriptor)));
        targets
    }

    /// Decides how to carry out a non-empty read; a file that is not adaptive uses its own descriptor. Streams are
    /// detected only if the read is `alone`, not one of many operations. Only a vectored read needs `memory`.
    #[inline]
    pub(crate) fn choose(&self, request: &Request, memory: &IoMemory, alone: bool) -> Way {
        match self.adaptive() {
            Some(adaptive) if !adaptive.is_own_unchecked(self.target(), request) => {
                adaptive.choose(self.target(), request, memory, alone)
            }
            _ => OWN,
        }
    }

    /// Returns whether buffered I/O leaves nothing in the page cache. Returns false if
    /// [`dont_cache`](crate::OpenOptions::dont_cache) was not set, or if an operation has found that it does not work
    /// here.
    #[must_use]
    pub fn is_uncached(&self) -> bool {
        self.0.target.cache_flags() != 0
    }

    /// Returns the multiples that direct writes require. Direct reads that are not aligned cost a copy.
    #[must_use]
    pub fn alignment(&self) -> Alignment {
        self.0.target.alignment()
    }

    /// Reads size, times and permissions with one `fstat`. Blocks only if the file system must ask a server.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    pub fn metadata(&self) -> Result<std::fs::Metadata> {
        let metadata = self.0.target.metadata();
        let failed = |error| Error::from_io(&error, "reading the metadata").on(self.path());
        if self.0.target.simulated().is_some() {
            return metadata.map_err(|error| {
                failed(error).because("a simulated file has none of std's: use fs::metadata_of")
            });
        }
        metadata.map_err(failed)
    }

    /// Returns the size in bytes, of the file or the block device; for an NVMe namespace, its size when it was opened.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    pub fn size(&self) -> Result<u64> {
        self.0.target.size().map_err(|error| Error::from_io(&error, "reading the size").on(self.path()))
    }

    /// Returns the path by which the file was opened.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.0.target.path()
    }

    /// Gives this handle up, and waits until the file is closed: until every clone was dropped, every operation has ended, and
    /// the results of those of batches and queues were taken. Dropping a file closes it as well, but tells no error.
    ///
    /// Whichever thread is the last to use the file closes it, and blocks for as long: that frees the space of a deleted file,
    /// and a network file system may write what was not synced. Syncs nothing by itself: a file that must be durable needs
    /// [`sync_all`](Self::sync_all) first, whatever this returns. Dropping the future changes nothing. Allocates once.
    ///
    /// # Errors
    /// Those of `close(2)`, such as `EIO`, `ENOSPC` or `EDQUOT` of NFS or FUSE: data that was written before is lost. The
    /// file is closed even so.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// let file = ringfile::File::create_blocking(folder.path().join("log"))?;
    /// ringfile::block_on(file.close())?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close(self) -> Result<()> {
        let closing = self.target().closing(self.adaptive().map(|adaptive| &*adaptive.direct).into_iter());
        let path = self.path().map(Path::to_owned);
        drop(self);
        let mut place = None;
        match poll_fn(|context| closing.poll(context, &mut place)).await {
            0 => Ok(()),
            errno => Err(Error::from_errno(errno, "closing").on(path.as_deref())),
        }
    }
}

/// Lends a descriptor of the file that I/O does not use, so closing or replacing it does not affect operations.
impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        assert!(self.0.target.simulated().is_none(), "a simulated file has no descriptor");
        self.0.user.as_ref().map_or_else(|| self.0.target.as_fd(), AsFd::as_fd)
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("path", &self.path()).field("direct", &self.is_direct()).finish()
    }
}
