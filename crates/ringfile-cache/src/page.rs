//! A page in use: bytes that stay where they are until it is dropped.
//!
//! Invariant: a `Page` that is not empty holds one pin of its frame: in a hold of a thread, or counted in the page's
//! word or, if the frame has left the word, in the cache's `detached`. While there is such a pin, the frame is neither
//! written nor freed, and its file's record stays: as long as the frame is in the word, because the file is open, and
//! after that because `leaving` or `detached` holds the record.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use ringfile::Buffer;

use crate::file::FileInner;
use crate::threads::{self, Pinning, Released};
use crate::wake::wake_all;
use crate::word::{Unpinned, Word};

/// A page of a [`CachedFile`](crate::CachedFile): its bytes, which do not change, and whose memory is not used for
/// anything else as long as this exists.
///
/// The last page of a file may be shorter than the others, and one behind the end is empty. Cloning and dropping take
/// no lock, unless someone waits for memory or the page was replaced meanwhile. A page that is leaked (`mem::forget`)
/// keeps its memory for ever; 2 million leaked clones of one page abort the process, as with `Arc`.
///
/// `Bytes::from(page)` makes [`Bytes`] of it without copying, with one small allocation; they keep the memory in the
/// same way.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("table");
/// # std::fs::write(&path, [7; 5000])?;
/// use ringfile_cache::Cache;
/// let pages = Cache::new(1 << 20)?.open(ringfile::File::open(path)?, 4096)?;
/// let last = ringfile::block_on(pages.read(1))?;
/// assert_eq!(last.len(), 5000 - 4096);
/// let bytes = bytes::Bytes::from(last); // without a copy
/// assert_eq!(bytes[0], 7);
/// # Ok(())
/// # }
/// ```
pub struct Page {
    file: NonNull<FileInner>,
    word: NonNull<Word>,
    frame: NonNull<u8>,
    /// 0: nothing is pinned, and the pointers lead nowhere.
    len: u32,
    pin: Pinning,
}

// SAFETY: the bytes do not change while it exists; the word is atomic, and the file's record is `Sync`.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Makes a page of a pin.
    ///
    /// # Safety
    /// The frame holds that page, with at least `len` bytes, and was pinned once for this, there.
    #[inline(always)]
    pub(crate) unsafe fn new(
        file: &FileInner,
        word: &Word,
        frame: NonNull<u8>,
        len: usize,
        pin: Pinning,
    ) -> Self {
        // No page is longer than 2 MiB.
        Self { file: NonNull::from(file), word: NonNull::from(word), frame, len: len as u32, pin }
    }

    /// Returns the page behind the end of a file.
    pub(crate) fn empty() -> Self {
        let (file, word) = (NonNull::dangling(), NonNull::dangling());
        Self { file, word, frame: NonNull::dangling(), len: 0, pin: Pinning::COUNTED }
    }

    /// Takes the pin away, or returns what is left to be done under a lock.
    #[inline(always)]
    fn unpin(&self) -> Released {
        let released = threads::release(self.pin);
        if released != Released::Counted {
            return released;
        }
        if self.len == 0 {
            return Released::Done;
        }
        // SAFETY: by the invariant. Once the pin is away, nothing of the file is touched.
        match unsafe { self.word.as_ref() }.unpin(self.frame) {
            Unpinned::Done => Released::Done,
            Unpinned::Wanted | Unpinned::Detached => Released::Counted,
        }
    }

    /// Drops the page, or returns what is left of it if that takes a lock. For the C interface, which has to prepare
    /// for that.
    #[doc(hidden)]
    #[inline(always)]
    pub fn try_drop(mut self) -> Result<(), Self> {
        match self.unpin() {
            Released::Done => {
                std::mem::forget(self);
                Ok(())
            }
            Released::Counted => Err(self),
            Released::Untold => {
                self.len = 0;
                self.pin = Pinning::UNTOLD;
                Err(self)
            }
        }
    }

    /// Takes the pin away where the cache's lock is needed.
    #[cold]
    fn unpin_slowly(&self) {
        // SAFETY: by the invariant; the pin is still there.
        let (file, word) = unsafe { (self.file.as_ref(), self.word.as_ref()) };
        // The file's record may end with the pin, and with it this lock.
        let shared = Arc::clone(&file.shared);
        let mut core = shared.lock();
        let starved = if core.unpin(word, self.frame) { core.take_starved() } else { Vec::new() };
        drop(core);
        wake_all(starved.into_iter());
    }
}

impl Deref for Page {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: by the invariant; an empty page has a dangling pointer and no length.
        unsafe { std::slice::from_raw_parts(self.frame.as_ptr(), self.len as usize) }
    }
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Clone for Page {
    fn clone(&self) -> Self {
        if self.len > 0 {
            // SAFETY: by the invariant.
            let (file, word) = unsafe { (self.file.as_ref(), self.word.as_ref()) };
            if !word.pin_again(self.frame) {
                file.shared.lock().pin_again(word, self.frame);
            }
        }
        Self { pin: Pinning::COUNTED, ..*self }
    }
}

impl Drop for Page {
    #[inline(always)]
    fn drop(&mut self) {
        match self.unpin() {
            Released::Done => {}
            Released::Counted => self.unpin_slowly(),
            Released::Untold => threads::tell_all(),
        }
    }
}

impl From<Page> for Bytes {
    fn from(page: Page) -> Bytes {
        // Counted: who keeps bytes for long must not keep one of few holds.
        Bytes::from_owner(if page.pin == Pinning::COUNTED { page } else { page.clone() })
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Writes how long a short page is into the last bytes of its frame, which are not part of it: how many bytes are
/// missing if that fits one byte, otherwise 255, and the length in the four bytes before.
pub(crate) fn note_length(frame: &mut Buffer, page_size: usize) {
    let len = frame.len();
    let missing = page_size - len;
    frame.set_len(page_size);
    frame[page_size - 1] = u8::try_from(missing).unwrap_or(u8::MAX);
    if missing >= usize::from(u8::MAX) {
        frame[page_size - 5..page_size - 1].copy_from_slice(&(len as u32).to_le_bytes());
    }
}

/// Returns the length that [`note_length`] has written.
///
/// # Safety
/// The frame has `page_size` bytes, holds a short page, and is pinned.
pub(crate) unsafe fn noted_length(frame: NonNull<u8>, page_size: usize) -> usize {
    // SAFETY: by this function's contract.
    let end = unsafe { std::slice::from_raw_parts(frame.as_ptr().add(page_size - 5), 5) };
    match end[4] {
        u8::MAX => u32::from_le_bytes([end[0], end[1], end[2], end[3]]) as usize,
        missing => page_size - usize::from(missing),
    }
}
