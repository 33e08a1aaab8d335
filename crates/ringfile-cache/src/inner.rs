//! What a cache keeps of one file that is open, or of which pages are still in use: the table of its pages, and where it ends.
//!
//! Not the file itself: a page in use does not keep it open.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use crate::counts::Counts;
use crate::table::Table;
use crate::threads::FrameOwner;
use crate::word::Word;

/// See the top of this file.
pub(crate) struct FileInner {
    /// The cache, for pages that end their use.
    pub(crate) cache: Arc<dyn FrameOwner>,
    pub(crate) table: Table,
    pub(crate) page_size: usize,
    pub(crate) counts: Counts,
    /// How many [`CachedFile`](crate::CachedFile)s there are.
    pub(crate) handles: AtomicUsize,
    /// The last page that was shorter than the others, and 1; or 0. Changed under the cache's lock.
    end: AtomicU64,
    /// How many pages the file has at least, because they were written here; and how often that has grown. Both changed
    /// under the cache's lock.
    least: AtomicU64,
    grown: AtomicU64,
    /// The change time and the size at the last look.
    pub(crate) seen: Mutex<Option<(SystemTime, u64)>>,
}

impl FileInner {
    pub(crate) fn new(cache: Arc<dyn FrameOwner>, page_size: usize) -> Self {
        Self {
            cache,
            table: Table::new(),
            page_size,
            counts: Counts::new(),
            handles: AtomicUsize::new(1),
            end: AtomicU64::new(0),
            least: AtomicU64::new(0),
            grown: AtomicU64::new(0),
            seen: Mutex::new(None),
        }
    }

    /// Returns the word of a page and the number of its slot: see [`Table::entry`].
    pub(crate) fn entry(&self, page: u64) -> (&Word, &AtomicU32) {
        self.table.entry(page, self)
    }

    /// Returns the word of a page.
    pub(crate) fn word(&self, page: u64) -> &Word {
        self.entry(page).0
    }

    /// Notes where the file ends when a page was read or written. Returns the page that was the last if the end has moved:
    /// it is longer now, and is not to be kept.
    pub(crate) fn note_end(&self, page: u64, is_short: bool) -> Option<u64> {
        let last = self.end.load(Ordering::Relaxed);
        let is_beyond = last > 0 && page >= last;
        if is_short || is_beyond || last == page + 1 {
            self.end.store(if is_short { page + 1 } else { 0 }, Ordering::Relaxed);
        }
        (last > 0 && last != page + 1 && (is_short || is_beyond)).then(|| last - 1)
    }

    /// Returns how often the file has grown.
    pub(crate) fn grown(&self) -> u64 {
        self.grown.load(Ordering::Relaxed)
    }

    /// Notes that a page was written, unless the file may have been cut since. A read of the last page that has begun
    /// before may be too short.
    pub(crate) fn note_write(&self, page: u64, may_be_cut: bool) {
        if page >= self.least.load(Ordering::Relaxed) {
            self.grown.fetch_add(1, Ordering::Relaxed);
            if !may_be_cut {
                self.least.store(page + 1, Ordering::Relaxed);
            }
        }
    }

    /// Notes that the file was cut, or may be, at page `first`. Short reads that are in flight are not kept. Returns the
    /// last page that was shorter than the others, and 1; or 0.
    pub(crate) fn note_cut(&self, first: u64) -> u64 {
        self.least.fetch_min(first, Ordering::Relaxed);
        self.grown.fetch_add(1, Ordering::Relaxed);
        self.end.load(Ordering::Relaxed)
    }
}
