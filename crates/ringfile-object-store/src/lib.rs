#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cache;
mod disk;
mod gate;
mod names;
mod part;
mod ranges;
mod recent;
mod staged;
mod store;
#[cfg(feature = "object-store-013")]
mod v013;
#[cfg(feature = "object-store-014")]
#[cfg_attr(feature = "object-store-013", allow(clippy::duplicate_mod, reason = "one text for both versions"))]
mod v014;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

pub use cache::CacheMetrics;
use ringfile::Pool;
pub use ringfile::attach_to_tokio;

use cache::Cache;
use gate::Gate;
use names::DurableNames;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub use names::Step;
#[cfg(not(feature = "sim"))]
use names::Step;
pub use store::Caching;
use store::Store;

#[cfg(not(any(feature = "object-store-013", feature = "object-store-014")))]
compile_error!("choose the version of the trait: feature object-store-013, object-store-014, or both");

/// An object store over a folder: see the [crate's page](crate).
///
/// Cheap to clone; clones share pool and settings.
#[derive(Clone)]
pub struct RingfileStore {
    store: Arc<Store>,
    root: Option<PathBuf>,
    /// Whether it was made in a simulation.
    is_simulated: bool,
    #[cfg(feature = "object-store-013")]
    local_013: Arc<object_store_013::local::LocalFileSystem>,
    #[cfg(feature = "object-store-014")]
    local_014: Arc<object_store_014::local::LocalFileSystem>,
}

impl RingfileStore {
    /// Creates a store over the whole file system, with default settings.
    ///
    /// # Errors
    /// Those of [`Builder::build`].
    pub fn new() -> std::io::Result<Self> {
        Self::builder().build()
    }

    /// Creates a store over a folder, with default settings.
    ///
    /// # Errors
    /// Those of [`Builder::build`].
    pub fn new_with_prefix(folder: impl AsRef<Path>) -> std::io::Result<Self> {
        Self::builder().prefix(folder).build()
    }

    /// Returns a builder for other settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the pool into which objects are read. Its metrics show how much is in use, and how much came from
    /// outside of it.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.store.pool
    }

    /// Returns the counters of the [cache](Builder::cache); zeros if the store has none.
    #[must_use]
    pub fn cache_metrics(&self) -> CacheMetrics {
        self.store.cache.as_ref().map(|cache| cache.metrics()).unwrap_or_default()
    }
}

impl fmt::Display for RingfileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let root = self.root.as_deref().unwrap_or(Path::new("/"));
        write!(f, "RingfileStore({})", root.display())
    }
}

impl fmt::Debug for RingfileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = &self.store;
        f.debug_struct("RingfileStore")
            .field("root", &self.root)
            .field("caching", &store.caching)
            .field("depth", &store.depth)
            .field("merge_gap", &store.merge_gap)
            .field("sync", &store.names.is_some())
            .finish_non_exhaustive()
    }
}

/// The settings of a [`RingfileStore`].
#[derive(Clone, Debug)]
#[must_use = "nothing is made before `build`"]
pub struct Builder {
    prefix: Option<PathBuf>,
    caching: Caching,
    pool: Option<Pool>,
    memory: usize,
    cache: usize,
    depth: usize,
    merge_gap: u64,
    sync: bool,
    removes_empty_folders: bool,
    left_out: Option<Step>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            prefix: None,
            caching: Caching::default(),
            pool: None,
            memory: 256 << 20,
            cache: 0,
            depth: 64,
            merge_gap: 16 << 10,
            sync: false,
            removes_empty_folders: false,
            left_out: None,
        }
    }
}

impl Builder {
    /// Sets the folder of the store, which must exist. Without one the store covers the whole file system.
    pub fn prefix(mut self, folder: impl AsRef<Path>) -> Self {
        self.prefix = Some(folder.as_ref().to_owned());
        self
    }

    /// Sets how reads use the page cache.
    pub fn caching(mut self, caching: Caching) -> Self {
        self.caching = caching;
        self
    }

    /// Sets the pool into which objects are read, instead of the store's own. If it is full and does not provide memory
    /// from outside ([`ringfile::WhenFull::Outside`]), reads fail.
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Sets the memory for reads in bytes: the capacity of the store's pool, without that of a [`cache`](Self::cache), and
    /// the limit for all calls of `get_ranges` together. 256 MiB by default.
    ///
    /// Calls beyond that limit, or beyond 512 at once, wait for others, for as long as a drive does not answer. A call for
    /// more than the limit runs alone. A call whose future was woken and is not polled, for instance because its task waits for
    /// another call, stops counting after 0.5 to 1 second, so that no call waits for it; its memory remains in use until
    /// the future ends or is dropped. Streams together read half of the limit ahead; beyond that each has one short piece
    /// at a time. Memory that consumers hold in [`bytes::Bytes`] comes from the pool too; if it is full, memory comes
    /// from outside, so that no call waits for its own query.
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// Sets the size, in bytes, of a cache that keeps what was read, and gives out the same memory again without a read or a
    /// copy. 0 by default: no cache.
    ///
    /// Each call opens its object as without a cache. It gets what earlier calls have read if inode, size and times show that
    /// the object has not changed since, whoever changes it. Only stores to a shared mapping do not always show: the kernel
    /// sets the time at the first one after the page was written back. A program that changes objects in this way has to set
    /// their time afterwards, as `touch` does. What the store itself puts, copies, renames or deletes, it drops at once.
    /// Nothing is kept
    ///
    /// - on file systems other than ext4, XFS, Btrfs and F2FS, whose files may not show each change;
    /// - of an object that was opened within a tenth of a second after it was changed or linked (two seconds if the file
    ///   system stores whole seconds), because its time may not show a further change;
    /// - of a `get` or range of more than a quarter of the cache, or from a read of `get_ranges` that is so long.
    ///
    /// What is read at once is kept together, such as the ranges that `get_ranges` merges and the gaps between them, and
    /// counts with all its memory. Any range inside it is found. A range of more than 1 MiB, or a whole object, is a stream of
    /// pieces, each of which is kept; `GetResult::bytes` copies them.
    ///
    /// The cache adds to [`memory`](Self::memory): the store's pool has room for both. A [`pool`](Self::pool) of yours should
    /// have it too; if it is full, the cache is emptied before a read fails.
    ///
    /// ```
    /// # use object_store_014 as object_store;
    /// use object_store::{ObjectStoreExt, path::Path};
    /// use ringfile_object_store::RingfileStore;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # futures::executor::block_on(async {
    /// let store = RingfileStore::builder().prefix(folder.path()).cache(64 << 20).build()?;
    /// let path = Path::from("data");
    /// store.put(&path, vec![7; 100_000].into()).await?;
    /// for _ in 0..10 {
    ///     assert_eq!(store.get_range(&path, 1000..5000).await?, [7; 4000][..]);
    ///     std::thread::sleep(std::time::Duration::from_millis(20));
    /// }
    /// let metrics = store.cache_metrics();
    /// assert_eq!(metrics.hits + metrics.misses, 10);
    /// println!("{} times from the cache, which keeps {} bytes", metrics.hits, metrics.bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cache(mut self, bytes: usize) -> Self {
        self.cache = bytes;
        self
    }

    /// Sets how many reads of one call may be in flight; 64 by default.
    pub fn depth(mut self, reads: usize) -> Self {
        self.depth = reads.max(1);
        self
    }

    /// Sets the largest gap, in bytes, across which ranges of a call are read together; 16 KiB by default.
    pub fn merge_gap(mut self, bytes: u64) -> Self {
        self.merge_gap = bytes;
        self
    }

    /// Sets whether putting, copying, renaming and deleting are durable when the call returns. Off by default, as in
    /// `LocalFileSystem`: a power cut may then lose objects whose calls have returned.
    ///
    /// The file and its folder are synced, and each folder above it on its file system that this store has not synced
    /// since it last changed, even if others have created it. That costs nothing while those folders do not change, on
    /// ext4, XFS, Btrfs and F2FS; elsewhere, and in the first two seconds after a change, each call syncs them again.
    pub fn sync(mut self, sync: bool) -> Self {
        self.sync = sync;
        self
    }

    /// Sets whether deleting or renaming an object also removes folders that become empty. Off by default.
    pub fn removes_empty_folders(mut self, removes: bool) -> Self {
        self.removes_empty_folders = removes;
        self
    }

    /// Leaves out a sync, for the test that simulations find each of them missing.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn leave_out(mut self, step: Option<Step>) -> Self {
        self.left_out = step;
        self
    }

    /// Creates the store.
    ///
    /// # Errors
    /// If the folder does not exist, or the pool cannot be created.
    pub fn build(self) -> std::io::Result<RingfileStore> {
        let pool = match self.pool {
            Some(pool) => pool,
            None => store::pool(self.memory.saturating_add(self.cache))?,
        };
        let root = self.prefix.map(|root| disk::root(&root)).transpose()?;
        let store = Arc::new(Store {
            pool,
            caching: self.caching,
            depth: self.depth,
            merge_gap: self.merge_gap,
            names: self.sync.then(|| Arc::new(DurableNames::without(self.left_out))),
            removes_empty_folders: self.removes_empty_folders,
            gate: Gate::new(self.memory),
            recent: recent::Recent::new(),
            cache: (self.cache > 0).then(|| Cache::new(self.cache)),
            pieces: AtomicUsize::new(0),
            most_pieces: store::most_pieces(self.memory),
        });
        Ok(RingfileStore {
            store,
            is_simulated: disk::is_simulated(),
            #[cfg(feature = "object-store-013")]
            local_013: Arc::new(v013::make_local(root.as_deref())?),
            #[cfg(feature = "object-store-014")]
            local_014: Arc::new(v014::make_local(root.as_deref())?),
            root,
        })
    }
}
