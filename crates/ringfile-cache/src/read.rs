//! The future of one page.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::cache::Shared;
use crate::file::{CachedFile, FileInner, Start, check_page};
use crate::page::Page;
use crate::pending::Pending;
use crate::wake::wake_all;

/// A read of one page: the result of [`CachedFile::read`](crate::CachedFile::read). `Send` and `Unpin`. Dropping it
/// ends nothing: a read of the file that was begun goes on.
#[must_use = "nothing is read until it is awaited; `prefetch` begins a read at once"]
pub struct Read<'a> {
    file: &'a CachedFile,
    page: u64,
    /// What it waits for, and whether the outcome of that is the answer.
    pending: Option<(Arc<Pending>, bool)>,
}

impl<'a> Read<'a> {
    pub(crate) fn new(file: &'a CachedFile, page: u64) -> Self {
        Self { file, page, pending: None }
    }

    /// Begins the read of the file, if that is needed and possible now.
    pub(crate) fn start(&mut self, context: &mut Context<'_>) {
        let inner: &Arc<FileInner> = self.file.inner();
        let is_there = inner.table.word(self.page).is_some_and(|word| word.is_loaded());
        if !is_there
            && self.pending.is_none()
            && check_page(self.page, inner.page_size).is_ok()
            && let Start::Wait(pending, is_answer) = inner.start_read(self.page, Some(context.waker()))
        {
            self.pending = Some((pending, is_answer));
        }
    }

    /// Returns whether a read that was polled, and is not ready, waits for memory.
    pub(crate) fn waits_for_memory(&self) -> bool {
        self.pending.is_none()
    }

    /// Lets go of the page that was being read, which goes on, and begins anew when it is polled.
    pub(crate) fn restart(&mut self) {
        self.pending = None;
    }
}

/// The pages of [`CachedFile::read_many`](crate::CachedFile::read_many).
pub(crate) struct ReadMany<'a> {
    reads: Vec<Read<'a>>,
    found: Vec<Page>,
    stage: Stage<'a>,
}

enum Stage<'a> {
    Start,
    /// All were started, and are waited for one after the other.
    Started,
    /// The same, and those that are there stay while memory for others is waited for.
    Keeps(#[expect(dead_code, reason = "it ends with this")] Turn<'a>),
    /// Another call waits for memory and keeps its pages, so this one keeps none, and waits for its turn.
    WaitsForTurn,
}

/// See [`take_turn`](crate::core::Core::take_turn).
struct Turn<'a>(&'a Shared);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let waiters = self.0.lock().end_turn();
        wake_all(waiters.into_iter());
    }
}

impl<'a> ReadMany<'a> {
    pub(crate) fn new(file: &'a CachedFile, pages: &[u64]) -> Self {
        let reads = pages.iter().map(|&page| Read::new(file, page)).collect();
        Self { reads, found: Vec::with_capacity(pages.len()), stage: Stage::Start }
    }

    /// Takes the turn, or gives up what is there.
    fn take_turn(&mut self, context: &mut Context<'_>) -> Option<Turn<'a>> {
        let shared = &*self.reads.first()?.file.inner().shared;
        // Cloned and dropped without the lock.
        let mut waker = Some(context.waker().clone());
        if shared.lock().take_turn(&mut waker) {
            return Some(Turn(shared));
        }
        self.found.clear();
        self.reads.iter_mut().for_each(Read::restart);
        self.stage = Stage::WaitsForTurn;
        None
    }
}

impl Future for ReadMany<'_> {
    type Output = io::Result<Vec<Page>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        match this.stage {
            Stage::Start => this.stage = Stage::Started,
            Stage::Started | Stage::Keeps(_) => {}
            Stage::WaitsForTurn => match this.take_turn(context) {
                Some(turn) => this.stage = Stage::Keeps(turn),
                None => return Poll::Pending,
            },
        }
        if this.found.is_empty() {
            this.reads.iter_mut().for_each(|read| read.start(context));
        }
        while let Some(read) = this.reads.get_mut(this.found.len()) {
            match Pin::new(&mut *read).poll(context) {
                Poll::Ready(Ok(page)) => this.found.push(page),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    if read.waits_for_memory() && matches!(this.stage, Stage::Started) {
                        match this.take_turn(context) {
                            Some(turn) => this.stage = Stage::Keeps(turn),
                            None => return Poll::Pending,
                        }
                    }
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(std::mem::take(&mut this.found)))
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
            let inner = self.file.inner();
            check_page(self.page, inner.page_size)?;
            match inner.start_read(self.page, Some(context.waker())) {
                Start::Loaded => {}
                Start::Wait(pending, is_answer) => self.pending = Some((pending, is_answer)),
                Start::Full => return inner.is_full(),
            }
        }
    }
}

impl fmt::Debug for Read<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Read").field("page", &self.page).finish_non_exhaustive()
    }
}
