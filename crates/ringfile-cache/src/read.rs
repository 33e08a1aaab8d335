//! The future of one page.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::cache::WhenPinned;
use crate::file::{CachedFile, FileInner, Start, all_in_use, check_page};
use crate::page::Page;
use crate::pending::Pending;

/// A read of one page: the result of [`CachedFile::read`](crate::CachedFile::read). `Send` and `Unpin`. Dropping it ends
/// nothing: a read of the file that was begun goes on.
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
                Start::Full if inner.shared.when_pinned == WhenPinned::Wait => return Poll::Pending,
                Start::Full => return Poll::Ready(Err(all_in_use())),
            }
        }
    }
}

impl fmt::Debug for Read<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Read").field("page", &self.page).finish_non_exhaustive()
    }
}
