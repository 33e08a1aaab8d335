//! A cache: its settings, and what a program asks of it.

use std::fmt;
use std::io;
use std::sync::Arc;

use ringfile::File;
use ringfile::buf::HugePages;

use crate::counts::Metrics;
use crate::error::invalid;
use crate::memory::{LARGEST_PAGE, Memory, SMALLEST_PAGE};
use crate::pressure;
use crate::shared::{CachedFile, Shared, WhenPinned};

/// A budget of memory for pages of files.
///
/// Cheap to clone; `Send` and `Sync`. The memory is that of [pools](ringfile::Pool): aligned, registered with io_uring
/// when it is first read into, and taken from the system as it is needed. It is given back when the cache and all its
/// files and pages are dropped, or when the [budget](Self::set_budget) is lowered.
///
/// Which pages stay is decided by S3-FIFO: pages that are read once, as in a scan, leave before those that are read
/// again.
///
/// Evicting pages uses `membarrier(2)`. Where a seccomp filter refuses that from the start, hits are slower; if one
/// refuses it only later, the process ends with a message.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("table");
/// # std::fs::write(&path, vec![7; 1 << 20])?;
/// use ringfile::{OpenOptions, block_on};
/// use ringfile_cache::Cache;
///
/// let cache = Cache::new(256 << 20)?;
/// let file = OpenOptions::new().read(true).direct(true).buffered_fallback(true).open_blocking(&path)?;
/// let pages = cache.open(file, 8192)?;
/// let sum: u64 = block_on(async {
///     let mut sum = 0;
///     for page in pages.read_many(&[0, 5, 17]).await? {
///         sum += page.iter().map(|&byte| u64::from(byte)).sum::<u64>();
///     }
///     std::io::Result::Ok(sum)
/// })?;
/// assert_eq!(sum, 3 * 8192 * 7);
/// assert_eq!(cache.metrics().misses, 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Cache {
    pub(crate) shared: Arc<Shared>,
}

/// Settings of a cache, from [`Cache::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder makes nothing until `build`"]
pub struct CacheBuilder {
    budget: usize,
    when_pinned: WhenPinned,
    huge_pages: HugePages,
    pressure: bool,
}

impl CacheBuilder {
    /// Sets what a read does while all pages are in use; it waits by default.
    pub fn when_pinned(mut self, when_pinned: WhenPinned) -> Self {
        self.when_pinned = when_pinned;
        self
    }

    /// Sets which page sizes of the machine the memory has, as
    /// [`PoolBuilder::huge_pages`](ringfile::buf::PoolBuilder::huge_pages). With [`HugePages::Require`], all of the memory is taken
    /// by [`build`](Self::build) and [`Cache::set_budget`], which fail if there are too few pages.
    pub fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Sets whether the cache gives memory back while the kernel reports that memory is short; off by default.
    ///
    /// A thread waits for the kernel's reports (pressure stall information: of the process's control group if that is
    /// of version 2, otherwise of the machine; if the group is removed, of the one that the process has moved to). At
    /// each it lowers the budget by an eighth, down to an eighth of what was set here or by [`Cache::set_budget`], or one
    /// page of 4 KiB. After ten seconds without one it raises it by a sixteenth, up to what was set.
    pub fn pressure(mut self, pressure: bool) -> Self {
        self.pressure = pressure;
        self
    }

    /// Makes the cache.
    ///
    /// # Errors
    /// `InvalidInput` if the budget is below one page. With [`pressure`](Self::pressure), `Unsupported` if the kernel
    /// has no pressure stall information, or it may not be used here.
    pub fn build(self) -> io::Result<Cache> {
        check_budget(self.budget)?;
        let memory = Memory::new(self.budget, self.huge_pages)?;
        let shared = Shared::new(memory, self.when_pinned);
        if self.pressure {
            pressure::watch(&shared)?;
        }
        Ok(Cache { shared })
    }
}

fn check_budget(bytes: usize) -> io::Result<()> {
    if bytes >= SMALLEST_PAGE {
        return Ok(());
    }
    Err(invalid(format!("a cache of {bytes} bytes holds no page: give it at least {SMALLEST_PAGE}")))
}

impl Cache {
    /// Makes a cache of `bytes` bytes with the default settings.
    ///
    /// # Errors
    /// `InvalidInput` if the budget is below one page of 4 KiB.
    pub fn new(bytes: usize) -> io::Result<Self> {
        Self::builder(bytes).build()
    }

    /// Returns settings for a cache of `bytes` bytes.
    pub fn builder(bytes: usize) -> CacheBuilder {
        CacheBuilder {
            budget: bytes,
            when_pinned: WhenPinned::default(),
            huge_pages: HugePages::default(),
            pressure: false,
        }
    }

    /// Caches the pages of a file: of `page_size` bytes, a power of two from 4 KiB to 2 MiB.
    ///
    /// Files with pages of different sizes share the budget. Open the file for [direct
    /// I/O](ringfile::OpenOptions::direct), or its pages are in the kernel's page cache as well. A file that is opened
    /// in the cache twice has its pages there twice, and neither sees the other's writes: clone the [`CachedFile`]
    /// instead.
    ///
    /// # Errors
    /// `InvalidInput` if the page size is none of these, is above the budget, or is not a multiple of what direct I/O
    /// on the file needs.
    pub fn open(&self, file: File, page_size: usize) -> io::Result<CachedFile> {
        if !page_size.is_power_of_two() || !(SMALLEST_PAGE..=LARGEST_PAGE).contains(&page_size) {
            return Err(invalid(format!(
                "a page of {page_size} bytes: use a power of two from {SMALLEST_PAGE} to {LARGEST_PAGE}"
            )));
        }
        let budget = self.shared.lock().memory.budget();
        if page_size > budget {
            return Err(invalid(format!("a page of {page_size} bytes does not fit in a cache of {budget}")));
        }
        let aligned = file.alignment().bytes;
        if !page_size.is_multiple_of(aligned) {
            return Err(invalid(format!(
                "a page of {page_size} bytes: direct I/O on this file needs multiples of {aligned}"
            )));
        }
        Ok(CachedFile::new(&self.shared, file, page_size))
    }

    /// Returns the budget that is in force, in bytes: what was set, or less under [pressure](CacheBuilder::pressure).
    #[must_use]
    pub fn budget(&self) -> usize {
        self.shared.lock().memory.budget()
    }

    /// Changes the budget. If it is lowered, pages leave the cache and their memory is given back to the system: in
    /// pieces of 2 MiB or a sixteenth of the first budget, whichever is more; what is in use is given back when its use
    /// ends. Which pages leave depends on where they lie. Blocks for as long as the system needs for that.
    ///
    /// # Errors
    /// `InvalidInput` if it is below one page of 4 KiB.
    pub fn set_budget(&self, bytes: usize) -> io::Result<()> {
        check_budget(bytes)?;
        self.shared.change_budget(|budget| budget.set(bytes))?;
        Ok(())
    }

    /// Returns the counters of all files, also of those that were dropped. Looks at every page, under the cache's lock.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.shared.metrics()
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let core = self.shared.lock();
        let (budget, used) = (core.memory.budget(), core.memory.used());
        f.debug_struct("Cache").field("budget", &budget).field("used", &used).finish_non_exhaustive()
    }
}
