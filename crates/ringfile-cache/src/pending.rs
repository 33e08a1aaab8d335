//! A read of a page or a write to it that is in flight, for all who wait for it. Nobody owns it (`background.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use crate::background::Answer;
use crate::error::Failure;
use crate::inner::FileInner;
use crate::page::Page;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
}

/// How it ended: the page, nothing if the file ends before it, or why it failed.
pub(crate) type Outcome = Result<Option<Page>, Failure>;

/// What a reader waits for, and whether the outcome of that is its answer.
pub(crate) type Awaited = (Arc<Pending>, bool);

/// See the top of this file.
pub(crate) struct Pending {
    pub(crate) file: Arc<FileInner>,
    pub(crate) page: u64,
    pub(crate) kind: Kind,
    /// How often the file had grown when it began.
    grown: u64,
    /// What it brings may be out of date for readers that begin now. Set under the cache's lock.
    is_doomed: AtomicBool,
    pub(crate) answer: Answer<Outcome>,
}

impl Pending {
    pub(crate) fn new(file: Arc<FileInner>, page: u64, kind: Kind) -> Arc<Self> {
        let grown = file.grown();
        Arc::new(Self { file, grown, page, kind, is_doomed: AtomicBool::new(false), answer: Answer::new() })
    }

    /// Makes sure that no reader gets what it brings who begins after this.
    pub(crate) fn doom(&self) {
        self.is_doomed.store(true, Ordering::Relaxed);
    }

    /// Returns whether that was called.
    pub(crate) fn is_doomed(&self) -> bool {
        self.is_doomed.load(Ordering::Relaxed)
    }

    /// Returns whether a reader that begins now, under the cache's lock, may take the outcome. Otherwise it waits for
    /// the end, and looks again.
    pub(crate) fn is_fresh_read(&self) -> bool {
        self.kind == Kind::Read && !self.is_doomed() && !self.has_grown()
    }

    /// Returns whether a write has made the file longer since this began. Then its last page may be longer than what is
    /// read.
    pub(crate) fn has_grown(&self) -> bool {
        self.grown != self.file.grown()
    }

    /// Returns the outcome, or has `waker` woken when there is one.
    pub(crate) fn poll_outcome(&self, waker: &Waker) -> Poll<Outcome> {
        self.answer.poll(waker)
    }
}
