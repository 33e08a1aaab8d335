//! A file whose pages are cached.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::task::{Poll, Waker};

use bytes::Bytes;
use ringfile::File;

use crate::cache::{Shared, WhenPinned};
use crate::core::Core;
use crate::counts::{Counts, Metrics};
use crate::error::invalid;
use crate::memory::Frame;
use crate::page::{Page, noted_length};
use crate::pending::{Kind, Pending};
use crate::read::{Read, ReadMany};
use crate::table::{MOST_PAGES, Table};
use crate::threads;
use crate::wake::wake_all;
use crate::word::Word;

/// The record of a file that is open in a cache, or of which pages are still in use.
pub(crate) struct FileInner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) table: Table,
    pub(crate) page_size: usize,
    pub(crate) counts: Counts,
    file: File,
    /// How many [`CachedFile`]s there are.
    handles: AtomicUsize,
    /// The last page that was shorter than the others, and 1; or 0. Changed under the cache's lock.
    end: AtomicU64,
    /// How many pages the file has at least, because they were written here; and how often that has grown. Both changed
    /// under the cache's lock.
    least: AtomicU64,
    grown: AtomicU64,
    /// The change time and the size at the last look.
    seen: std::sync::Mutex<Option<Seen>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    changed: std::time::SystemTime,
    size: u64,
}

/// What to do for a page that is not there.
pub(crate) enum Start {
    /// It is there.
    Loaded,
    /// Wait for this to end. If the flag is set, its outcome is the answer.
    Wait(Arc<Pending>, bool),
    /// All memory is in use. The waker is called when some may be free.
    Full,
}

impl FileInner {
    fn offset(&self, page: u64) -> u64 {
        page * self.page_size as u64
    }

    /// Returns the word of a page and the number of its slot: see [`Table::entry`].
    pub(crate) fn entry(&self, page: u64) -> (&Word, &AtomicU32) {
        self.table.entry(page, self)
    }

    /// Returns the word of a page.
    pub(crate) fn word(&self, page: u64) -> &Word {
        self.entry(page).0
    }

    /// Begins to read a page that is not there, or finds who does.
    pub(crate) fn start_read(self: &Arc<Self>, page: u64, waker: Option<&Waker>) -> Start {
        // Cloned and dropped without the lock, since that may run anybody's code.
        let mut waker = waker.cloned();
        let mut core = self.shared.lock();
        let word = self.word(page);
        if word.is_loaded() {
            return Start::Loaded;
        }
        if word.is_busy()
            && let Some(busy) = core.slot(self, page).pending.clone()
        {
            self.counts.shared();
            let is_answer = busy.is_fresh_read();
            return Start::Wait(busy, is_answer);
        }
        let Some(frame) = self.frame(&mut core, &mut waker) else { return Start::Full };
        let pending = Pending::new(Arc::clone(self), page, Kind::Read, frame.segment);
        core.add_slot(self, page, Arc::clone(&pending));
        drop(core);
        self.counts.missed();
        let (file, offset, mut buffer) = (self.file.clone(), self.offset(page), frame.buffer);
        buffer.clear();
        pending.start(Box::pin(async move { file.read_at(buffer, offset).await }));
        Start::Wait(pending, true)
    }

    /// Begins to write a page, or finds what must end before.
    pub(crate) fn start_write(self: &Arc<Self>, page: u64, data: &[u8], waker: &Waker) -> Start {
        let mut waker = Some(waker.clone());
        let mut core = self.shared.lock();
        let word = self.word(page);
        if word.is_busy()
            && let Some(busy) = core.slot(self, page).pending.clone()
        {
            return Start::Wait(busy, false);
        }
        let Some(frame) = self.frame(&mut core, &mut waker) else { return Start::Full };
        let pending = Pending::new(Arc::clone(self), page, Kind::Write, frame.segment);
        if word.is_loaded() {
            core.slot(self, page).pending = Some(Arc::clone(&pending));
            word.set_busy();
        } else {
            core.add_slot(self, page, Arc::clone(&pending));
        }
        drop(core);
        let (file, offset, mut buffer) = (self.file.clone(), self.offset(page), frame.buffer);
        buffer.clear();
        buffer.extend_from_slice(data);
        pending.start(Box::pin(async move { file.write_at(buffer, offset).await }));
        Start::Wait(pending, true)
    }

    /// Returns a frame, or has the waker called when one may be free.
    fn frame(&self, core: &mut Core, waker: &mut Option<Waker>) -> Option<Frame> {
        let frame = core.get_frame(self.page_size);
        if frame.is_none() {
            core.wait_for_frame(waker);
        }
        frame
    }

    /// Waits for memory, whose waker is noted, or fails.
    pub(crate) fn is_full<T>(&self) -> Poll<io::Result<T>> {
        let (size, budget) = (self.page_size, self.shared.lock().memory.budget());
        let what = if size > budget {
            format!(
                "a page of {size} bytes does not fit in the cache any more, whose budget is {budget}: raise it"
            )
        } else if self.shared.when_pinned == WhenPinned::Fail {
            let what = "all pages of the cache are in use: drop some, or make its budget larger than what is used at once";
            what.to_owned()
        } else {
            return Poll::Pending;
        };
        Poll::Ready(Err(io::Error::new(io::ErrorKind::OutOfMemory, what)))
    }

    /// Notes where the file ends when a page was read or written. Once the end has moved, the page that was the last is
    /// not kept: it is longer now.
    pub(crate) fn note_end(self: &Arc<Self>, core: &mut Core, page: u64, is_short: bool) {
        let last = self.end.load(Ordering::Relaxed);
        let is_beyond = last > 0 && page >= last;
        if is_short || is_beyond || last == page + 1 {
            self.end.store(if is_short { page + 1 } else { 0 }, Ordering::Relaxed);
        }
        if last > 0 && last != page + 1 && (is_short || is_beyond) {
            core.forget_one(self, last - 1);
        }
    }

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

    /// Takes pages from `first` on out of the cache, and the last one, since the file's end moves. Short reads that are
    /// in flight are not kept.
    fn cut(self: &Arc<Self>, first: u64) {
        let core = self.shared.lock();
        self.least.fetch_min(first, Ordering::Relaxed);
        self.grown.fetch_add(1, Ordering::Relaxed);
        let last = self.end.load(Ordering::Relaxed);
        self.forget_in(core, |page| page >= first || page + 1 == last);
    }

    fn forget(self: &Arc<Self>, matches: impl Fn(u64) -> bool) {
        self.forget_in(self.shared.lock(), matches);
    }

    fn forget_in(self: &Arc<Self>, mut core: MutexGuard<'_, Core>, matches: impl Fn(u64) -> bool) {
        core.forget_all(|file, page| Arc::ptr_eq(file, self) && matches(page));
        let starved = core.take_starved();
        drop(core);
        wake_all(starved.into_iter());
    }
}

/// A file of a [`Cache`](crate::Cache): its pages, by number. The page `n` is the bytes from `n * page_size` on.
///
/// Cheap to clone; `Send` and `Sync`. When the last clone is dropped, the file's pages leave the cache; those in use
/// stay until they are dropped. Reads and writes that are in flight end.
///
/// Calls that have to wait are futures, for any executor; `ringfile::block_on(pages.read(7))` waits on a thread without
/// one. The thread whose call started a read of the file must go on running its loop, if that is one of ringfile, until
/// the read has ended: others may wait for it.
///
/// What others see: a page is read from the file once, and then found in the cache as it was. Writes through this type
/// are seen by every read that begins after they have returned. Writes of others (other processes, other handles of the
/// file) are not seen until [`invalidate`](Self::invalidate) or [`revalidate`](Self::revalidate).
pub struct CachedFile {
    inner: Arc<FileInner>,
}

impl CachedFile {
    pub(crate) fn new(shared: &Arc<Shared>, file: File, page_size: usize) -> Self {
        let inner = FileInner {
            shared: Arc::clone(shared),
            table: Table::new(),
            page_size,
            counts: Counts::new(),
            file,
            handles: AtomicUsize::new(1),
            end: AtomicU64::new(0),
            least: AtomicU64::new(0),
            grown: AtomicU64::new(0),
            seen: std::sync::Mutex::new(None),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the file that was opened.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.inner.file
    }

    /// Returns the size of a page in bytes.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.inner.page_size
    }

    /// Returns the page if it is in memory. Takes no lock, allocates nothing and does not wait; except that, if the
    /// page leaves at this moment while others wait for memory, it wakes these.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, page: u64) -> Option<Page> {
        let inner = &*self.inner;
        let word = inner.table.word(page)?;
        let (pinned, place, number) = threads::pin(word)?;
        inner.counts.hit(number);
        let len = match pinned.is_short {
            false => inner.page_size,
            // SAFETY: it is short, and pinned.
            true => unsafe { noted_length(pinned.frame, inner.page_size) },
        };
        // SAFETY: the pin is for this.
        Some(unsafe { Page::new(pinned.frame, len, place) })
    }

    /// Returns the page, and reads it from the file if it is not in memory.
    ///
    /// All who wait for a page share one read. Dropping the future does not end the read: the page is in the cache
    /// afterwards. Allocates when the page is not in memory.
    ///
    /// # Errors
    /// Those of [`File::read_at`], as the [source](std::error::Error::source) of the returned one; they are not kept:
    /// the next call tries again. `OutOfMemory` if all memory is in use and the cache [does not wait](WhenPinned).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("table");
    /// # std::fs::write(&path, vec![7; 1 << 20])?;
    /// use ringfile::{OpenOptions, block_on};
    /// use ringfile_cache::Cache;
    ///
    /// let cache = Cache::new(64 << 20)?;
    /// let file = OpenOptions::new().read(true).direct(true).buffered_fallback(true).open(&path)?;
    /// let pages = cache.open(file, 4096)?;
    /// assert!(pages.get(3).is_none());
    /// assert_eq!(block_on(pages.read(3))?[..2], [7, 7]);
    /// assert!(pages.get(3).is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(&self, page: u64) -> Read<'_> {
        Read::new(self, page)
    }

    pub(crate) fn inner(&self) -> &Arc<FileInner> {
        &self.inner
    }

    fn check_fits(&self, pages: usize) -> io::Result<()> {
        let budget = self.inner.shared.lock().memory.budget();
        if pages.saturating_mul(self.inner.page_size) <= budget {
            return Ok(());
        }
        Err(invalid(format!(
            "{pages} pages of {} bytes do not fit in the cache of {budget} bytes at once: read fewer at a time",
            self.inner.page_size
        )))
    }

    /// Returns several pages, in this order. Those that are not in memory are read together.
    ///
    /// # Errors
    /// The first error of [`read`](Self::read), in this order. `InvalidInput` if the pages do not fit in the cache at
    /// once.
    pub async fn read_many(&self, pages: &[u64]) -> io::Result<Vec<Page>> {
        self.check_fits(pages.len())?;
        ReadMany::new(self, pages).await
    }

    /// Returns `len` bytes from `offset` on; fewer only at the end of the file. They are not copied if they lie in one
    /// page, and otherwise copied into one allocation.
    ///
    /// # Errors
    /// Those of [`read`](Self::read). `InvalidInput` if the range ends beyond what a file can have.
    pub async fn read_range(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let size = self.inner.page_size as u64;
        let Some(end) = offset.checked_add(len as u64) else {
            return Err(invalid(format!(
                "a range of {len} bytes at {offset} ends beyond what a file can have"
            )));
        };
        if len == 0 {
            return Ok(Bytes::new());
        }
        let (first, last) = (offset / size, (end - 1) / size);
        let skip = (offset % size) as usize;
        if first == last {
            let page = Bytes::from(self.read(first).await?);
            return Ok(page.slice(skip.min(page.len())..(skip + len).min(page.len())));
        }
        // A part of the cache at a time, so that others find memory too; and few, since the file may end before.
        let at_once = (self.inner.shared.lock().memory.budget() / 4 / size as usize).clamp(1, 64) as u64;
        let mut bytes = Vec::new();
        'all: for start in (first..=last).step_by(at_once as usize) {
            let numbers = start..=last.min(start + at_once - 1);
            let mut reads: Vec<Read<'_>> = numbers.clone().map(|page| self.read(page)).collect();
            poll_fn(|context| {
                reads.iter_mut().for_each(|read| read.start(context));
                Poll::Ready(())
            })
            .await;
            for (number, at) in numbers.zip(0..) {
                let page = poll_fn(|context| {
                    let page = Future::poll(Pin::new(&mut reads[at]), context);
                    if page.is_pending() && reads[at].waits_for_memory() {
                        // No page is kept meanwhile, or several calls would wait for each other's pages for ever.
                        reads[at + 1..].iter_mut().for_each(Read::restart);
                    }
                    page
                })
                .await?;
                let from = if number == first { skip.min(page.len()) } else { 0 };
                let to = page.len().min((end - number * size).min(size) as usize);
                bytes.extend_from_slice(&page[from..to.max(from)]);
                // The file ended here when this page was read; a later one may be of a file that has grown since.
                if page.len() < size as usize {
                    break 'all;
                }
            }
        }
        Ok(bytes.into())
    }

    /// Begins to read the pages that are not in memory, and returns at once. Begins fewer if all memory is in use.
    /// Errors are not reported; a later [`read`](Self::read) tries again.
    pub fn prefetch(&self, pages: &[u64]) {
        for &page in pages.iter().filter(|&&page| page < MOST_PAGES) {
            let is_there = self.inner.table.word(page).is_some_and(|word| word.is_loaded() || word.is_busy());
            if !is_there && matches!(self.inner.start_read(page, None), Start::Full) {
                break;
            }
        }
    }

    /// Writes a whole page to the file and to the cache.
    ///
    /// Until this has returned, readers see either the old page or the new one, never parts of both, and after it the
    /// new one. Pages that are in use keep their bytes. Writes of one page are carried out one after the other. The
    /// data is copied when the write begins; dropping the future after that does not end the write. It is durable when
    /// [`File::sync_data`] of [`file`](Self::file) has returned, or at once if the file was opened so.
    ///
    /// # Errors
    /// Those of [`File::write_at`]; the page then leaves the cache, and is read from the file at the next use.
    /// `InvalidInput` if `data` is not one page long. `OutOfMemory` as [`read`](Self::read).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("table");
    /// use ringfile::{OpenOptions, block_on};
    /// use ringfile_cache::Cache;
    ///
    /// let file = OpenOptions::new().read(true).write(true).create(true).open(&path)?;
    /// let pages = Cache::new(1 << 20)?.open(file, 4096)?;
    /// block_on(pages.write(0, &[1; 4096]))?;
    /// let old = block_on(pages.read(0))?;
    /// block_on(pages.write(0, &[2; 4096]))?;
    /// assert_eq!((old[0], pages.get(0).expect("written")[0]), (1, 2));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn write(&self, page: u64, data: &[u8]) -> io::Result<()> {
        let size = self.inner.page_size;
        if data.len() != size {
            return Err(invalid(format!(
                "a write of {} bytes to a page of {size}: write whole pages, and cut the file with truncate",
                data.len()
            )));
        }
        check_page(page, size)?;
        let mut waits_for: Option<(Arc<Pending>, bool)> = None;
        poll_fn(|context| {
            loop {
                if let Some((pending, is_own)) = &waits_for {
                    match pending.poll_outcome(context.waker()) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(outcome) if *is_own => return Poll::Ready(Ok(outcome.map(drop)?)),
                        Poll::Ready(_) => waits_for = None,
                    }
                }
                match self.inner.start_write(page, data, context.waker()) {
                    Start::Wait(pending, is_own) => waits_for = Some((pending, is_own)),
                    Start::Full | Start::Loaded => return self.inner.is_full(),
                }
            }
        })
        .await
    }

    /// Takes pages out of the cache. A read that begins after this returns what is in the file; pages in use keep their
    /// bytes. Does not wait.
    pub fn invalidate(&self, pages: Range<u64>) {
        self.inner.forget(|page| pages.contains(&page));
    }

    /// Cuts the file, or extends it, to `len` bytes, and takes what is no longer so out of the cache.
    ///
    /// # Errors
    /// Those of [`File::set_len`].
    pub async fn truncate(&self, len: u64) -> io::Result<()> {
        let first = len / self.inner.page_size as u64;
        self.inner.cut(first);
        let changed = self.inner.file.set_len(len).await;
        // What was read or written meanwhile may be from before or after.
        self.inner.cut(first);
        Ok(changed?)
    }

    /// Takes all pages out of the cache if the file's change time or size is another than at the last call, also
    /// because of writes through this type. Returns whether that was so; the first call always does it.
    ///
    /// So a read that begins after this sees every write that had ended before, by anybody, unless file times are too
    /// coarse to tell it from the one before (the kernel's clock tick, up to 10 ms; on some network file systems more),
    /// or it was a store to a mapping.
    ///
    /// # Errors
    /// Those of `statx(2)`.
    pub async fn revalidate(&self) -> io::Result<bool> {
        let metadata = ringfile::fs::metadata_of(&self.inner.file).await?;
        let now = Seen { changed: metadata.changed, size: metadata.size };
        // Under the cache's lock: another call that finds this in `seen` finds the pages forgotten, too.
        let core = self.inner.shared.lock();
        let before = crate::lock(&self.inner.seen).replace(now);
        let is_changed = before != Some(now);
        if is_changed {
            self.inner.forget_in(core, |_| true);
        }
        Ok(is_changed)
    }

    /// Returns the counters of this file. Looks at every page of the cache, under its lock.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let (pinned, bytes) = self.inner.shared.lock().count(Some(&self.inner));
        let mut metrics = Metrics { pinned, bytes, ..Metrics::default() };
        self.inner.counts.add_to(&mut metrics);
        metrics
    }
}

impl Clone for CachedFile {
    fn clone(&self) -> Self {
        self.inner.handles.fetch_add(1, Ordering::Relaxed);
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        if self.inner.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.inner.forget(|_| true);
            self.inner.shared.end_file(&self.inner);
        }
    }
}

impl fmt::Debug for CachedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("CachedFile");
        debug
            .field("file", &self.inner.file)
            .field("page_size", &self.inner.page_size)
            .finish_non_exhaustive()
    }
}

pub(crate) fn check_page(page: u64, page_size: usize) -> io::Result<()> {
    if page < MOST_PAGES {
        return Ok(());
    }
    Err(invalid(format!(
        "page {page} of {page_size} bytes lies beyond the {MOST_PAGES} pages that a file may have"
    )))
}
