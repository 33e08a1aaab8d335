//! Reads of pages: of one, of several, and of a range.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::error::invalid;
use crate::page::Page;
use crate::pending::Awaited;
use crate::shared::CachedFile;
use crate::table::MOST_PAGES;
use crate::transfer::{Full, Start, check_page};
use crate::turn::Turn;

impl CachedFile {
    /// Returns the page, and reads it from the file if it is not in memory.
    ///
    /// All who wait for a page share one read. Dropping the future does not end the read: the page is in the cache
    /// afterwards. Allocates when the page is not in memory.
    ///
    /// # Errors
    /// Those of [`File::read_at`](ringfile::File::read_at), as the [source](std::error::Error::source) of the returned one;
    /// they are not kept: the next call tries again. `OutOfMemory` if all memory is in use and the cache [does not
    /// wait](crate::WhenPinned).
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
    /// let file = OpenOptions::new().read(true).direct(true).buffered_fallback(true).open_blocking(&path)?;
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

    /// Returns several pages, in this order. Those that are not in memory are read together. If memory is short, they are
    /// read once there is room for all; one call at a time keeps what it has while it waits for more.
    ///
    /// # Errors
    /// The first error of [`read`](Self::read), in this order. `InvalidInput` if the pages do not fit in the cache at
    /// once.
    pub async fn read_many(&self, pages: &[u64]) -> io::Result<Vec<Page>> {
        read_many(self, pages).await
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
        let at_once = (self.shared.lock().memory.budget() / 4 / size as usize).clamp(1, 64) as u64;
        let mut bytes = Vec::new();
        'all: for start in (first..=last).step_by(at_once as usize) {
            let numbers = start..=last.min(start + at_once - 1);
            let mut reads: Vec<Read<'_>> = numbers.clone().map(|page| self.read(page)).collect();
            poll_fn(|context| {
                let _ = reads.iter_mut().all(|read| read.start(context));
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
            if !is_there && matches!(self.start_read(page, None), Start::Full(_)) {
                break;
            }
        }
    }
}

/// A read of one page: the result of [`CachedFile::read`](crate::CachedFile::read). `Send` and `Unpin`. Dropping it
/// ends nothing: a read of the file that was begun goes on.
#[must_use = "nothing is read until it is awaited; `prefetch` begins a read at once"]
pub struct Read<'a> {
    file: &'a CachedFile,
    page: u64,
    pending: Option<Awaited>,
}

impl<'a> Read<'a> {
    fn new(file: &'a CachedFile, page: u64) -> Self {
        Self { file, page, pending: None }
    }

    /// Begins the read of the file if that is needed. Returns false if there is no memory for it.
    fn start(&mut self, context: &mut Context<'_>) -> bool {
        let inner = &self.file.inner;
        let is_there = inner.table.word(self.page).is_some_and(|word| word.is_loaded());
        if is_there || self.pending.is_some() || check_page(self.page, inner.page_size).is_err() {
            return true;
        }
        match self.file.start_read(self.page, Some(context.waker())) {
            Start::Loaded => {}
            Start::Wait(pending, is_answer) => self.pending = Some((pending, is_answer)),
            Start::Full(_) => return false,
        }
        true
    }

    /// Returns whether a read that was polled, and is not ready, waits for memory.
    fn waits_for_memory(&self) -> bool {
        self.pending.is_none()
    }

    /// Lets go of the page that was being read, which goes on, and begins anew when it is polled.
    fn restart(&mut self) {
        self.pending = None;
    }
}

/// See [`CachedFile::read_many`](crate::CachedFile::read_many).
async fn read_many(file: &CachedFile, pages: &[u64]) -> io::Result<Vec<Page>> {
    if file.shared.check_fits(&file.inner, pages.len()).is_ok() {
        return ReadMany::new(file, pages).await;
    }
    // They may fit if each is read once. One that is there several times then has one frame, also if it is written
    // meanwhile.
    let mut numbers = HashMap::new();
    let mut distinct = Vec::new();
    for &page in pages {
        numbers.entry(page).or_insert_with(|| {
            distinct.push(page);
            distinct.len() - 1
        });
    }
    file.shared.check_fits(&file.inner, distinct.len())?;
    let found = ReadMany::new(file, &distinct).await?;
    Ok(pages.iter().map(|page| found[numbers[page]].clone()).collect())
}

/// The pages of [`CachedFile::read_many`](crate::CachedFile::read_many).
///
/// Several calls that keep what they have while they wait for more memory would wait for each other. So a call begins
/// once there is memory for all its pages at once, and keeps none until then. One call at a time need not wait for that:
/// it has the [turn](Turn), and keeps what it has.
struct ReadMany<'a> {
    reads: Vec<Read<'a>>,
    found: Vec<Page>,
    /// All that is missing was begun, or it has the turn.
    is_begun: bool,
    turn: Option<Turn>,
}

impl<'a> ReadMany<'a> {
    fn new(file: &'a CachedFile, pages: &[u64]) -> Self {
        let reads = pages.iter().map(|&page| Read::new(file, page)).collect();
        Self { reads, found: Vec::with_capacity(pages.len()), is_begun: false, turn: None }
    }

    /// Begins to read what is missing. Returns false if it waits for memory, and keeps none.
    fn begin(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let Some(first) = self.reads.first() else { return Ok(true) };
        let inner = &first.file.inner;
        let is_missing = |page: &u64| !inner.table.word(*page).is_some_and(|word| word.is_loaded());
        if self.reads.iter().any(|read| is_missing(&read.page)) {
            // The others fail when they are polled.
            let is_valid = |page: &u64| check_page(*page, inner.page_size).is_ok();
            let pages = self.reads.iter().map(|read| read.page).filter(is_valid).collect();
            match first.file.start_reads(&pages, context.waker()) {
                Ok(begun) => {
                    for read in &mut self.reads {
                        let at = begun.binary_search_by_key(&read.page, |(page, _)| *page);
                        read.pending = at.ok().map(|at| (Arc::clone(&begun[at].1), true));
                    }
                }
                Err(why) => return self.wait(why),
            }
        }
        self.is_begun = true;
        Ok(true)
    }

    /// Waits for memory, unless there is a reason not to. Returns whether it may keep its pages; if not, lets go of them,
    /// and begins anew when it is polled.
    fn wait(&mut self, why: Full) -> io::Result<bool> {
        let Some(first) = self.reads.first() else { return Ok(true) };
        let CachedFile { shared, inner, .. } = first.file;
        // The budget may have been lowered.
        shared.check_fits(inner, self.reads.len())?;
        if let Some(error) = why {
            return Err(error);
        }
        if self.turn.is_none() {
            self.turn = Turn::take(shared);
        }
        self.is_begun = self.turn.is_some();
        if !self.is_begun {
            self.restart();
        }
        Ok(self.is_begun)
    }

    fn restart(&mut self) {
        self.is_begun = false;
        self.reads.iter_mut().for_each(Read::restart);
        self.found.clear();
    }

    /// Takes back what it kept since the last poll. Begins anew if others have it by now.
    fn resume(&mut self) {
        let Some(turn) = &self.turn else { return };
        let Some((found, awaited)) = turn.resume() else {
            self.turn = None;
            return self.restart();
        };
        self.found = found;
        self.reads.iter_mut().zip(awaited).for_each(|(read, awaited)| read.pending = awaited);
    }

    /// Puts what it keeps where others get it if it is not polled again.
    fn pause(&mut self, waker: &Waker) {
        let Some(turn) = &self.turn else { return };
        let awaited = self.reads.iter_mut().map(|read| read.pending.take()).collect();
        turn.pause((std::mem::take(&mut self.found), awaited), waker);
    }

    fn poll_pages(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Vec<Page>>> {
        if !self.is_begun && !self.begin(context)? {
            return Poll::Pending;
        }
        if self.turn.is_some() {
            let _ = self.reads[self.found.len()..].iter_mut().all(|read| read.start(context));
        }
        while let Some(read) = self.reads.get_mut(self.found.len()) {
            match Pin::new(&mut *read).poll(context) {
                Poll::Ready(Ok(page)) => self.found.push(page),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    if read.waits_for_memory() {
                        self.wait(None)?;
                    }
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(std::mem::take(&mut self.found)))
    }
}

impl Future for ReadMany<'_> {
    type Output = io::Result<Vec<Page>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.resume();
        let polled = self.poll_pages(context);
        if polled.is_pending() {
            self.pause(context.waker());
        }
        polled
    }
}

impl Future for Read<'_> {
    type Output = io::Result<Page>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.pending.is_none()
            && let Some(page) = self.file.get(self.page)
        {
            return Poll::Ready(Ok(page));
        }
        self.poll_miss(context)
    }
}

impl Read<'_> {
    fn poll_miss(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Page>> {
        loop {
            if let Some((pending, is_answer)) = self.pending.take() {
                match pending.poll_outcome(context.waker()) {
                    Poll::Pending => {
                        self.pending = Some((pending, is_answer));
                        return Poll::Pending;
                    }
                    Poll::Ready(outcome) if is_answer => {
                        return Poll::Ready(match outcome {
                            Ok(page) => Ok(page.unwrap_or_else(Page::empty)),
                            Err(failure) => Err(failure.into()),
                        });
                    }
                    Poll::Ready(_) => {}
                }
            }
            if let Some(page) = self.file.get(self.page) {
                return Poll::Ready(Ok(page));
            }
            check_page(self.page, self.file.inner.page_size)?;
            match self.file.start_read(self.page, Some(context.waker())) {
                Start::Loaded => {}
                Start::Wait(pending, is_answer) => self.pending = Some((pending, is_answer)),
                Start::Full(Some(error)) => return Poll::Ready(Err(error)),
                Start::Full(None) => return Poll::Pending,
            }
        }
    }
}

impl fmt::Debug for Read<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Read").field("page", &self.page).finish_non_exhaustive()
    }
}
