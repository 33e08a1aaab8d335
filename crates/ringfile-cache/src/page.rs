//! A page in use: bytes that stay where they are until it is dropped.
//!
//! Invariant: a `Page` that is not empty holds one pin of its frame: in a hold of a thread, or counted in the page's
//! word or, if the frame has left the word, in the cache's `detached`. While there is such a pin, the frame is neither
//! written nor freed, and its file's record stays: as long as the frame is in the word, because the file is open, and
//! after that because `leaving` or `detached` holds the record.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use ringfile::Buffer;

use crate::inner::FileInner;
use crate::table::owner_of;
use crate::threads::{self, Place, Released};
use crate::word::Unpinned;

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
/// let pages = Cache::new(1 << 20)?.open(ringfile::File::open_blocking(path)?, 4096)?;
/// let last = ringfile::block_on(pages.read(1))?;
/// assert_eq!(last.len(), 5000 - 4096);
/// let bytes = bytes::Bytes::from(last); // without a copy
/// assert_eq!(bytes[0], 7);
/// # Ok(())
/// # }
/// ```
pub struct Page {
    /// Where the frame is, and how long the page: see `pack`. Two words, so that a page is passed in registers: one
    /// that goes through memory holds the processor up until it is there.
    packed: NonZeroU64,
    place: Place,
}

impl FileInner {
    /// Returns the page if it is in memory.
    #[inline(always)]
    pub(crate) fn get(&self, page: u64) -> Option<Page> {
        let word = self.table.word(page)?;
        let (pinned, place, number) = threads::pin(word)?;
        self.counts.hit(number);
        let len = match pinned.is_short {
            false => self.page_size,
            // SAFETY: it is short, and pinned.
            true => unsafe { noted_length(pinned.frame, self.page_size) },
        };
        // SAFETY: the pin is for this.
        Some(unsafe { Page::new(pinned.frame, len, place) })
    }
}

/// The length goes where no address of a frame has bits: its lowest 12 bits there too, the others above.
#[inline(always)]
fn pack(frame: NonNull<u8>, len: usize) -> NonZeroU64 {
    let frame = frame.addr().get() as u64;
    debug_assert!(frame & 0xfff == 0 && frame >> 48 == 0 && len >> 28 == 0);
    // SAFETY: a frame's address is not 0.
    unsafe { NonZeroU64::new_unchecked(frame | (len as u64 & 0xfff) | (len as u64 >> 12 << 48)) }
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
    pub(crate) unsafe fn new(frame: NonNull<u8>, len: usize, place: Place) -> Self {
        Self { packed: pack(frame, len), place }
    }

    /// Returns the page behind the end of a file.
    pub(crate) fn empty() -> Self {
        #[repr(align(4096))]
        struct Nothing;
        Self { packed: pack(NonNull::<Nothing>::dangling().cast(), 0), place: Place::NOWHERE }
    }

    #[inline(always)]
    fn frame(&self) -> NonNull<u8> {
        let address = self.packed.get() & 0xffff_ffff_f000;
        // SAFETY: the address is not 0. A frame's was exposed when its word was written.
        unsafe { NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(address as usize)) }
    }

    /// Takes the pin away, or returns what is left to be done under a lock.
    #[inline(always)]
    fn unpin(&self) -> Released {
        let released = threads::release(self.place);
        if released != Released::Counted {
            return released;
        }
        let Some(word) = self.place.word() else {
            return if self.place.is_untold() { Released::Untold } else { Released::Done };
        };
        // SAFETY: by the invariant. Once the pin is away, nothing of the file is touched.
        match unsafe { word.as_ref() }.unpin(self.frame()) {
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
                // Its bytes are no longer its own.
                (self.packed, self.place) = (Self::empty().packed, Place::UNTOLD);
                Err(self)
            }
        }
    }
}

/// Takes a counted pin away where the cache's lock is needed.
///
/// # Safety
/// A page has this pin, which is counted, and ends with this.
#[cold]
#[inline(never)]
unsafe fn unpin_slowly(place: Place, frame: NonNull<u8>) {
    let Some(word) = place.word() else { return };
    // SAFETY: by the invariant of pages; the pin is still there, so the file's record is.
    let file = unsafe { owner_of::<FileInner>(word) };
    // The file's record may end with the pin, and with it the cache.
    let cache = Arc::clone(&file.cache);
    // SAFETY: by this function's contract.
    unsafe { cache.unpin(word, frame) };
}

impl Deref for Page {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        let len = (self.packed.get() & 0xfff) | (self.packed.get() >> 48 << 12);
        // SAFETY: by the invariant; an empty page has no length.
        unsafe { std::slice::from_raw_parts(self.frame().as_ptr(), len as usize) }
    }
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Clone for Page {
    fn clone(&self) -> Self {
        let Some(word) = self.place.word() else { return Self::empty() };
        // SAFETY: by the invariant.
        let (file, word) = unsafe { (owner_of::<FileInner>(word), word.as_ref()) };
        if !word.pin_again(self.frame()) {
            file.cache.pin_again(word, self.frame());
        }
        Self { packed: self.packed, place: Place::counted(word) }
    }
}

impl Drop for Page {
    #[inline(always)]
    fn drop(&mut self) {
        match self.unpin() {
            Released::Done => {}
            // SAFETY: the page ends here.
            Released::Counted => unsafe { unpin_slowly(self.place, self.frame()) },
            Released::Untold => threads::tell_all(),
        }
    }
}

impl From<Page> for Bytes {
    fn from(page: Page) -> Bytes {
        // Counted: who keeps bytes for long must not keep one of few holds.
        Bytes::from_owner(if page.place.is_counted() { page } else { page.clone() })
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").field("len", &self.len()).finish_non_exhaustive()
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

#[cfg(test)]
mod tests {
    use ringfile::block_on;

    use crate::{Cache, CachedFile};

    /// Makes a file of one page whose `CachedFile` is the only one.
    fn open(cache: &Cache) -> std::io::Result<CachedFile> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), [7; 4096])?;
        cache.open(ringfile::File::open_blocking(file.path())?, 4096)
    }

    #[test]
    fn a_record_that_ends_with_its_last_counted_page_is_dropped_without_the_lock() -> std::io::Result<()> {
        let cache = Cache::new(1 << 20)?;
        let pages = open(&cache)?;
        let page = block_on(pages.read(0))?;
        drop(pages);
        let word = page.place.word().expect("it is counted");
        let mut core = cache.shared.lock();
        // SAFETY: the page has this pin, and is forgotten below.
        core.unpin(unsafe { word.as_ref() }, page.frame());
        std::mem::forget(page);
        assert_eq!(core.ended.len(), 1, "its record is still there");
        drop(core);
        assert_eq!(cache.shared.lock().ended.len(), 0);
        Ok(())
    }

    #[test]
    fn a_record_that_ends_with_its_last_held_page_is_dropped_without_the_lock() -> std::io::Result<()> {
        let cache = Cache::new(1 << 20)?;
        let pages = open(&cache)?;
        drop(block_on(pages.read(0))?);
        let page = pages.get(0).expect("in memory");
        drop(pages);
        if page.place.is_counted() {
            return Ok(()); // There are no holds here.
        }
        let mut core = cache.shared.lock();
        page.unpin();
        std::mem::forget(page);
        core.holds_are_free();
        assert_eq!(core.ended.len(), 1, "its record is still there");
        drop(core);
        assert_eq!(cache.shared.lock().ended.len(), 0);
        Ok(())
    }
}
