//! Begins reads of pages that are not in memory, and writes of pages, and gives what they bring to the cache.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::task::Waker;

use ringfile::{BufResult, Buffer};

use crate::background;
use crate::core::{Core, Publish};
use crate::error::{Failure, invalid};
use crate::inner::FileInner;
use crate::memory::{Frame, Piece};
use crate::page::{Page, note_length};
use crate::pending::{Kind, Outcome, Pending};
use crate::shared::{CachedFile, Shared, WhenPinned};
use crate::table::MOST_PAGES;
use crate::threads::Place;

/// What to do for a page that is not there.
pub(crate) enum Start {
    /// It is there.
    Loaded,
    /// Wait for this to end. If the flag is set, its outcome is the answer.
    Wait(Arc<Pending>, bool),
    /// There is no memory for it.
    Full(Full),
}

/// Why there is no memory: the error of the call, or nothing if it waits, and its waker is called when some may be free.
pub(crate) type Full = Option<io::Error>;

impl CachedFile {
    /// Begins to read a page that is not there, or finds who does.
    pub(crate) fn start_read(&self, page: u64, waker: Option<&Waker>) -> Start {
        // Cloned and dropped without the lock, since that may run anybody's code.
        let mut waker = waker.cloned();
        let (shared, file) = (&self.shared, &self.inner);
        let mut core = shared.lock();
        let word = file.word(page);
        if word.is_loaded() {
            return Start::Loaded;
        }
        if word.is_busy()
            && let Some(busy) = core.slot(file, page).pending.clone()
        {
            file.counts.shared();
            let is_answer = busy.is_fresh_read();
            return Start::Wait(busy, is_answer);
        }
        let frame = match core.get_frame(file.page_size) {
            Ok(Some(frame)) => frame,
            without => return Start::Full(shared.full(file, &mut core, without.err(), &mut waker)),
        };
        let (pending, frame) = begin(&mut core, file, page, Kind::Read, frame);
        drop(core);
        file.counts.missed();
        self.carry_out(Arc::clone(&pending), frame);
        Start::Wait(pending, true)
    }

    /// Begins to read those of several pages that are neither there nor on their way: all, or none if there is no memory
    /// for all at once. Returns the reads that were begun, in the order of the pages.
    pub(crate) fn start_reads(
        &self,
        pages: &BTreeSet<u64>,
        waker: &Waker,
    ) -> Result<Vec<(u64, Arc<Pending>)>, Full> {
        let mut waker = Some(waker.clone());
        let (shared, file) = (&self.shared, &self.inner);
        let mut core = shared.lock();
        let is_missing = |page: &u64| {
            let word = file.word(*page);
            !word.is_loaded() && !word.is_busy()
        };
        let missing: Vec<u64> = pages.iter().copied().filter(is_missing).collect();
        let is_wanted = |other: &Arc<FileInner>, page| Arc::ptr_eq(other, file) && pages.contains(&page);
        let frames = match core.get_frames(file.page_size, missing.len(), is_wanted) {
            Ok(Some(frames)) => frames,
            without => return Err(shared.full(file, &mut core, without.err(), &mut waker)),
        };
        let mut begin = |(page, frame)| (page, begin(&mut core, file, page, Kind::Read, frame));
        let begun: Vec<_> = missing.into_iter().zip(frames).map(&mut begin).collect();
        drop(core);
        let start = |(page, (pending, frame)): (u64, (Arc<Pending>, Frame))| {
            file.counts.missed();
            self.carry_out(Arc::clone(&pending), frame);
            (page, pending)
        };
        Ok(begun.into_iter().map(start).collect())
    }

    /// Begins to write a page, or finds what must end before.
    pub(crate) fn start_write(&self, page: u64, data: &[u8], waker: &Waker) -> Start {
        let mut waker = Some(waker.clone());
        let (shared, file) = (&self.shared, &self.inner);
        let mut core = shared.lock();
        if file.word(page).is_busy()
            && let Some(busy) = core.slot(file, page).pending.clone()
        {
            return Start::Wait(busy, false);
        }
        let frame = match core.get_frame(file.page_size) {
            Ok(Some(frame)) => frame,
            without => return Start::Full(shared.full(file, &mut core, without.err(), &mut waker)),
        };
        let (pending, mut frame) = begin(&mut core, file, page, Kind::Write, frame);
        drop(core);
        frame.buffer.extend_from_slice(data);
        self.carry_out(Arc::clone(&pending), frame);
        Start::Wait(pending, true)
    }

    /// Carries it out, with a frame that is empty or has what is to be written.
    fn carry_out(&self, pending: Arc<Pending>, frame: Frame) {
        let (cache, file) = (Arc::clone(&self.shared), self.file.clone());
        background::run(async move {
            let offset = pending.page * pending.file.page_size as u64;
            let Frame { buffer, piece } = frame;
            let result = match pending.kind {
                Kind::Read => file.read_at(buffer, offset).await,
                Kind::Write => file.write_at(buffer, offset).await,
            };
            // Before anybody hears of the end: no thread of ours keeps the file open after that.
            drop(file);
            cache.end(&pending, result, piece)
        });
    }
}

impl Shared {
    /// Fails if so many pages do not fit in the cache at once.
    pub(crate) fn check_fits(&self, file: &FileInner, pages: usize) -> io::Result<()> {
        let (size, budget) = (file.page_size, self.lock().memory.budget());
        if pages.saturating_mul(size) <= budget {
            return Ok(());
        }
        Err(invalid(format!(
            "{pages} pages of {size} bytes do not fit in the cache of {budget} bytes at once: read fewer at a time"
        )))
    }

    /// Returns why there is no memory, if it was not `refused` by the system. If the call is to wait, its waker is noted.
    fn full(
        &self,
        file: &FileInner,
        core: &mut Core,
        refused: Option<ringfile::Error>,
        waker: &mut Option<Waker>,
    ) -> Full {
        if let Some(refused) = refused {
            return Some(refused.into());
        }
        let (size, budget) = (file.page_size, core.memory.budget());
        let what = if size > budget {
            format!(
                "a page of {size} bytes does not fit in the cache any more, whose budget is {budget}: raise it"
            )
        } else if self.when_pinned == WhenPinned::Wait {
            core.wait_for_frame(waker);
            return None;
        } else if core.has_room(size, |_, _| false, false) {
            format!(
                "a page of {size} bytes fits nowhere between the pages of the cache that are in use: drop some, or make \
                 its budget larger"
            )
        } else {
            let what = "all pages of the cache are in use: drop some, or make its budget larger than what is used at once";
            what.to_owned()
        };
        Some(io::Error::new(io::ErrorKind::OutOfMemory, what))
    }

    /// Returns whom to wake.
    fn end(&self, pending: &Pending, result: BufResult<Buffer>, piece: Arc<Piece>) -> Vec<Waker> {
        let mut core = self.lock();
        let outcome = match result {
            Ok(buffer) => keep(pending, &mut core, Frame { buffer, piece }),
            Err(error) => {
                core.forget(&pending.file, pending.page);
                let (error, buffer) = error.into_parts();
                core.memory.put(Frame { buffer, piece }, pending.file.page_size);
                Err(Failure::new(error))
            }
        };
        let starved = core.take_starved();
        drop(core);
        let mut wakers = pending.answer.give(outcome);
        wakers.extend(starved);
        wakers
    }
}

/// Makes a page busy. Returns what is to be carried out without the lock, with an empty frame.
fn begin(
    core: &mut Core,
    file: &Arc<FileInner>,
    page: u64,
    kind: Kind,
    mut frame: Frame,
) -> (Arc<Pending>, Frame) {
    let pending = Pending::new(Arc::clone(file), page, kind);
    core.make_busy(file, page, Arc::clone(&pending));
    frame.buffer.clear();
    (pending, frame)
}

/// Gives the page to the cache, and returns it, pinned.
fn keep(pending: &Pending, core: &mut Core, mut frame: Frame) -> Outcome {
    let (file, page) = (&pending.file, pending.page);
    let len = frame.buffer.len();
    let is_short = len < file.page_size;
    if is_short {
        note_length(&mut frame.buffer, file.page_size);
    }
    if len == 0 {
        core.forget(file, page);
        core.memory.put(frame, file.page_size);
        return Ok(None);
    }
    let start = frame.start();
    let is_old = pending.is_doomed() || (is_short && pending.has_grown());
    core.publish(file, page, frame, Publish { is_short, pins: 1, stays: !is_old });
    if pending.kind == Kind::Write {
        file.note_write(page, is_old);
    }
    if !is_old && let Some(longer) = file.note_end(page, is_short) {
        core.forget_one(file, longer);
    }
    let word = file.word(page);
    // SAFETY: it was pinned above, by `publish`, for this.
    Ok(Some(unsafe { Page::new(start, len, Place::counted(word)) }))
}

pub(crate) fn check_page(page: u64, page_size: usize) -> io::Result<()> {
    if page < MOST_PAGES {
        return Ok(());
    }
    Err(invalid(format!(
        "page {page} of {page_size} bytes lies beyond the {MOST_PAGES} pages that a file may have"
    )))
}
