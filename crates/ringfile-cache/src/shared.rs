//! What the files of a cache share: its lock, and their counts.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::Waker;

use ringfile::File;

use crate::budget::Budget;
use crate::core::Core;
use crate::counts::Metrics;
use crate::inner::FileInner;
use crate::memory::Memory;
use crate::sync::lock;
use crate::threads::FrameOwner;
use crate::wake::wake_all;
use crate::word::Word;

/// A file of a [`Cache`](crate::Cache): its pages, by number. The page `n` is the bytes from `n * page_size` on.
///
/// Cheap to clone; `Send` and `Sync`. When the last clone is dropped, the file's pages leave the cache; those in use
/// stay until they are dropped. Reads and writes that are in flight end, and then the file is closed.
///
/// Calls that have to wait are futures, for any executor; `ringfile::block_on(pages.read(7))` waits on a thread without
/// one. The thread whose call started a read of the file must go on running its loop, if that is one of ringfile, until
/// the read has ended: others may wait for it.
///
/// What others see: a page is read from the file once, and then found in the cache as it was. Writes through this type
/// are seen by every read that begins after they have returned. Writes of others (other processes, other handles of the
/// file) are not seen until [`invalidate`](Self::invalidate) or [`revalidate`](Self::revalidate).
pub struct CachedFile {
    pub(crate) shared: Arc<Shared>,
    pub(crate) inner: Arc<FileInner>,
    pub(crate) file: File,
}

/// What a read does that needs memory while all pages are in use: pinned, or being read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum WhenPinned {
    /// It waits until a page is dropped. Tasks that wait while they hold pages, also those that
    /// [`read_many`](crate::CachedFile::read_many) has got so far, may wait for each other for ever.
    #[default]
    Wait,
    /// It fails with [`OutOfMemory`](io::ErrorKind::OutOfMemory).
    Fail,
}

/// What the files of a cache share.
pub(crate) struct Shared {
    core: Mutex<Core>,
    pub(crate) when_pinned: WhenPinned,
    files: Mutex<Files>,
}

/// The files that are open, and the counts of those that were.
#[derive(Default)]
struct Files {
    open: Vec<Weak<FileInner>>,
    ended: Metrics,
}

impl Shared {
    pub(crate) fn new(memory: Memory, when_pinned: WhenPinned) -> Arc<Self> {
        Arc::new_cyclic(|shared: &Weak<Self>| Self {
            core: Mutex::new(Core::new(memory, Weak::clone(shared) as _)),
            when_pinned,
            files: Mutex::default(),
        })
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked { core: lock(&self.core), ended: Vec::new() }
    }

    /// Notes a file that was opened, for its counts.
    pub(crate) fn add_file(&self, file: &Arc<FileInner>) {
        lock(&self.files).open.push(Arc::downgrade(file));
    }

    /// Keeps the counts of a file whose last handle was dropped.
    pub(crate) fn end_file(&self, file: &Arc<FileInner>) {
        let mut files = lock(&self.files);
        files.open.retain(|open| !std::ptr::eq(open.as_ptr(), Arc::as_ptr(file)));
        file.counts.add_to(&mut files.ended);
    }

    /// Returns the counters of all files, also of those that were dropped.
    pub(crate) fn metrics(&self) -> Metrics {
        let (pinned, bytes) = self.lock().count(None);
        let files = lock(&self.files);
        let mut metrics = Metrics { pinned, bytes, ..files.ended };
        let open: Vec<_> = files.open.iter().filter_map(Weak::upgrade).collect();
        open.iter().for_each(|file| file.counts.add_to(&mut metrics));
        drop(files);
        metrics
    }

    /// Changes the budget, and evicts pages. Returns the one that is in force if it is another one.
    pub(crate) fn change_budget(&self, change: impl FnOnce(&mut Budget)) -> io::Result<Option<usize>> {
        let mut core = self.lock();
        let changed = core.change_budget(change);
        core.wake_starved();
        Ok(changed?)
    }
}

/// What the cache's lock guards, while it is held. The records of files that have ended meanwhile are dropped when it was
/// released: that frees much memory, and may end the cache.
pub(crate) struct Locked<'a> {
    core: MutexGuard<'a, Core>,
    /// Filled when this is dropped, and dropped after the guard, since fields are dropped in this order.
    ended: Vec<FileInner>,
}

impl Locked<'_> {
    /// Releases the lock, wakes who waits for a frame, and then drops the records of files that have ended.
    pub(crate) fn wake_starved(mut self) {
        let (starved, ended) = (self.take_starved(), std::mem::take(&mut self.core.ended));
        drop(self);
        wake_all(starved.into_iter());
        drop(ended);
    }
}

impl Deref for Locked<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.ended = std::mem::take(&mut self.core.ended);
    }
}

impl FrameOwner for Shared {
    fn holds_are_free(&self) -> Vec<Waker> {
        let mut core = self.lock();
        core.holds_are_free();
        core.take_starved()
    }

    fn pin_again(&self, word: &Word, frame: NonNull<u8>) {
        self.lock().pin_again(word, frame);
    }

    unsafe fn unpin(&self, word: NonNull<Word>, frame: NonNull<u8>) {
        let mut core = self.lock();
        // SAFETY: by this function's contract; the file's record ends after this, with `core`.
        if core.unpin(unsafe { word.as_ref() }, frame) {
            core.wake_starved();
        }
    }
}
