//! A read of a page or a write to it that is in flight, for all who wait for it.
//!
//! Nobody owns it: its operation's waker is the operation itself, which it polls until it has ended, so it ends
//! although those who wait for it were dropped, leaked, or are not polled. Invariants: the operation is polled by one
//! thread at a time, under no lock but its own; wakers are called under none.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use ringfile::{BufResult, Buffer};

use crate::core::{Publish, start_of};
use crate::error::Failure;
use crate::file::FileInner;
use crate::lock;
use crate::memory::{Frame, Segment};
use crate::page::{Page, note_length};
use crate::threads::Place;
use crate::wake::wake_all;

pub(crate) type Operation = Pin<Box<dyn Future<Output = BufResult<Buffer>> + Send>>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
}

/// How it ended: the page, nothing if the file ends before it, or why it failed.
pub(crate) type Outcome = Result<Option<Page>, Failure>;

/// See the top of this file.
pub(crate) struct Pending {
    file: Arc<FileInner>,
    page: u64,
    kind: Kind,
    segment: Segment,
    operation: Mutex<Option<Operation>>,
    /// How often it was woken since it was last idle. Whoever raises this from 0 polls it.
    wakes: AtomicU32,
    /// How often the file had grown when it began.
    grown: u64,
    /// What it brings may be out of date for readers that begin now. Set under the cache's lock.
    is_doomed: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    outcome: Option<Outcome>,
    wakers: Vec<Waker>,
}

impl Pending {
    pub(crate) fn new(file: Arc<FileInner>, page: u64, kind: Kind, segment: Segment) -> Arc<Self> {
        let grown = file.grown();
        Arc::new(Self {
            file,
            grown,
            page,
            kind,
            segment,
            operation: Mutex::new(None),
            wakes: AtomicU32::new(0),
            is_doomed: AtomicBool::new(false),
            waiting: Mutex::default(),
        })
    }

    /// Starts the operation.
    pub(crate) fn start(self: &Arc<Self>, operation: Operation) {
        *lock(&self.operation) = Some(operation);
        self.drive();
    }

    /// Makes sure that no reader gets what it brings who begins after this.
    pub(crate) fn doom(&self) {
        self.is_doomed.store(true, Ordering::Relaxed);
    }

    /// Returns whether a reader that begins now, under the cache's lock, may take the outcome. Otherwise it waits for
    /// the end, and looks again.
    pub(crate) fn is_fresh_read(&self) -> bool {
        self.kind == Kind::Read && !self.is_doomed.load(Ordering::Relaxed) && !self.has_grown()
    }

    /// Returns whether a write has made the file longer since this began. Then its last page may be longer than what is
    /// read.
    fn has_grown(&self) -> bool {
        self.grown != self.file.grown()
    }

    /// Returns the outcome, or has `waker` woken when there is one.
    pub(crate) fn poll_outcome(&self, waker: &Waker) -> Poll<Outcome> {
        let mut own = None;
        loop {
            let mut waiting = lock(&self.waiting);
            if let Some(outcome) = &waiting.outcome {
                // Cloning a page takes the cache's lock only if its frame has left its word, and never this one.
                return Poll::Ready(outcome.clone());
            }
            if waiting.wakers.iter().any(|known| known.will_wake(waker)) {
                return Poll::Pending;
            }
            if let Some(own) = own.take() {
                waiting.wakers.push(own);
                return Poll::Pending;
            }
            // A waker's clone may run anybody's code, so it is made without the lock.
            drop(waiting);
            own = Some(waker.clone());
        }
    }

    /// Polls the operation, or has the thread that polls it now poll it once more.
    fn drive(self: &Arc<Self>) {
        if self.wakes.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let mut seen = 1;
        loop {
            let mut operation = lock(&self.operation);
            let Some(running) = operation.as_mut() else { return };
            let waker = Waker::from(Arc::clone(self));
            if let Poll::Ready(result) = running.as_mut().poll(&mut Context::from_waker(&waker)) {
                *operation = None;
                drop(operation);
                // `wakes` stays above 0: nobody polls it again.
                return self.end(result);
            }
            drop(operation);
            match self.wakes.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    fn end(self: &Arc<Self>, result: BufResult<Buffer>) {
        let shared = &self.file.shared;
        let mut core = shared.lock();
        let outcome = match result {
            Ok(buffer) => self.keep(&mut core, buffer),
            Err(error) => {
                core.forget(&self.file, self.page);
                let (error, buffer) = error.into_parts();
                core.memory.put(Frame { buffer, segment: self.segment }, self.file.page_size);
                Err(Failure::new(error))
            }
        };
        let starved = core.take_starved();
        drop(core);
        let mut waiting = lock(&self.waiting);
        waiting.outcome = Some(outcome);
        let wakers = std::mem::take(&mut waiting.wakers);
        drop(waiting);
        wake_all(wakers.into_iter().chain(starved));
    }

    /// Gives the page to the cache, and returns it, pinned.
    fn keep(&self, core: &mut crate::core::Core, mut buffer: Buffer) -> Outcome {
        let file = &self.file;
        let len = buffer.len();
        let is_short = len < file.page_size;
        if is_short {
            note_length(&mut buffer, file.page_size);
        }
        let frame = Frame { buffer, segment: self.segment };
        if len == 0 {
            core.forget(file, self.page);
            core.memory.put(frame, file.page_size);
            return Ok(None);
        }
        let start = start_of(&frame);
        let is_old = self.is_doomed.load(Ordering::Relaxed) || (is_short && self.has_grown());
        core.publish(file, self.page, frame, Publish { is_short, pins: 1, stays: !is_old });
        if self.kind == Kind::Write {
            file.note_write(self.page, is_old);
        }
        if !is_old {
            file.note_end(core, self.page, is_short);
        }
        let word = file.word(self.page);
        // SAFETY: it was pinned above, by `publish`, for this.
        Ok(Some(unsafe { Page::new(start, len, Place::counted(word)) }))
    }
}

impl Wake for Pending {
    fn wake(self: Arc<Self>) {
        self.drive();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.drive();
    }
}
