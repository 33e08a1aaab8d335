//! A file whose pages are cached.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};

use ringfile::File;

use crate::background::{self, Answer};
use crate::counts::Metrics;
use crate::error::{Failure, invalid};
use crate::inner::FileInner;
use crate::page::Page;
use crate::pending::Awaited;
use crate::shared::{CachedFile, Locked, Shared};
use crate::sync::lock;
use crate::transfer::{Start, check_page};
use crate::wake::wake_all;

/// See [`CachedFile::pages`].
#[doc(hidden)]
#[derive(Clone)]
pub struct CachedPages(Arc<FileInner>);

impl CachedPages {
    /// As [`CachedFile::get`], as long as there is a `CachedFile`.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, page: u64) -> Option<Page> {
        self.0.get(page)
    }
}

impl CachedFile {
    pub(crate) fn new(shared: &Arc<Shared>, file: File, page_size: usize) -> Self {
        let inner = Arc::new(FileInner::new(Arc::clone(shared) as _, page_size));
        shared.add_file(&inner);
        Self { shared: Arc::clone(shared), inner, file }
    }

    /// Returns the file that was opened.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
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
        self.inner.get(page)
    }

    /// Returns the pages without the file: for the C interface, whose threads keep them.
    #[doc(hidden)]
    #[must_use]
    pub fn pages(&self) -> CachedPages {
        CachedPages(Arc::clone(&self.inner))
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
    /// let file = OpenOptions::new().read(true).write(true).create(true).open_blocking(&path)?;
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
        let mut waits_for: Option<Awaited> = None;
        poll_fn(|context| {
            loop {
                if let Some((pending, is_own)) = &waits_for {
                    match pending.poll_outcome(context.waker()) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(outcome) if *is_own => return Poll::Ready(Ok(outcome.map(drop)?)),
                        Poll::Ready(_) => waits_for = None,
                    }
                }
                match self.start_write(page, data, context.waker()) {
                    Start::Wait(pending, is_own) => waits_for = Some((pending, is_own)),
                    Start::Full(Some(error)) => return Poll::Ready(Err(error)),
                    Start::Full(None) | Start::Loaded => return Poll::Pending,
                }
            }
        })
        .await
    }

    /// Takes pages out of the cache. A read that begins after this returns what is in the file; pages in use keep their
    /// bytes. Does not wait.
    pub fn invalidate(&self, pages: Range<u64>) {
        self.forget(|page| pages.contains(&page));
    }

    /// Cuts the file, or extends it, to `len` bytes, and takes what is no longer so out of the cache. Dropping the future
    /// once it was polled does not end that.
    ///
    /// # Errors
    /// Those of [`File::set_len`], as the [source](std::error::Error::source) of the returned one.
    pub async fn truncate(&self, len: u64) -> io::Result<()> {
        let (shared, inner, file) = (Arc::clone(&self.shared), Arc::clone(&self.inner), self.file.clone());
        let first = len / inner.page_size as u64;
        let answer = Arc::new(Answer::new());
        let own = Arc::clone(&answer);
        wake_all(cut(&shared, &inner, first).into_iter());
        background::run(async move {
            let changed = file.set_len(len).await;
            // What was read or written meanwhile may be from before or after.
            let mut wakers = cut(&shared, &inner, first);
            wakers.extend(own.give(changed.map_err(Failure::new)));
            wakers
        });
        Ok(poll_fn(|context| answer.poll(context.waker())).await?)
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
        let metadata = ringfile::fs::metadata_of(&self.file).await?;
        let now = (metadata.changed, metadata.size);
        // Under the cache's lock: another call that finds this in `seen` finds the pages forgotten, too.
        let core = self.shared.lock();
        let before = lock(&self.inner.seen).replace(now);
        let is_changed = before != Some(now);
        if is_changed {
            wake_all(forget_in(core, &self.inner, |_| true).into_iter());
        }
        Ok(is_changed)
    }

    /// Returns the counters of this file. Looks at every page of the cache, under its lock.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let (pinned, bytes) = self.shared.lock().count(Some(&self.inner));
        let mut metrics = Metrics { pinned, bytes, ..Metrics::default() };
        self.inner.counts.add_to(&mut metrics);
        metrics
    }

    fn forget(&self, matches: impl Fn(u64) -> bool) {
        wake_all(forget_in(self.shared.lock(), &self.inner, matches).into_iter());
    }
}

/// Takes pages from `first` on out of the cache, and the last one, since the file's end moves. Returns whom to wake.
fn cut(shared: &Shared, file: &Arc<FileInner>, first: u64) -> Vec<Waker> {
    let core = shared.lock();
    let last = file.note_cut(first);
    forget_in(core, file, |page| page >= first || page + 1 == last)
}

/// Takes pages of a file out of the cache. Returns whom to wake.
fn forget_in(mut core: Locked<'_>, file: &Arc<FileInner>, matches: impl Fn(u64) -> bool) -> Vec<Waker> {
    core.forget_all(|other, page| Arc::ptr_eq(other, file) && matches(page));
    core.take_starved()
}

impl Clone for CachedFile {
    fn clone(&self) -> Self {
        self.inner.handles.fetch_add(1, Ordering::Relaxed);
        Self { shared: Arc::clone(&self.shared), inner: Arc::clone(&self.inner), file: self.file.clone() }
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        if self.inner.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.forget(|_| true);
            self.shared.end_file(&self.inner);
        }
    }
}

impl fmt::Debug for CachedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("CachedFile");
        debug.field("file", &self.file).field("page_size", &self.inner.page_size).finish_non_exhaustive()
    }
}
