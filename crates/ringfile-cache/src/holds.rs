//! The holds of one thread, in which it says which frames it uses.
//!
//! Counting a pin in the page's word takes two locked instructions, and a processor does nothing ahead of one: the
//! memory of the next page is fetched only when this page is done. So a thread writes the frame's address into a free
//! hold of its own instead, and looks at the word again; whoever takes a frame out of its word looks at all holds
//! before he reuses it. Between a thread's two steps there is no barrier for the processor: he who looks at the holds
//! makes all processors pass one first (`heavy_barrier`), which costs thousands of hits, and is rare.
//!
//! Invariants: only the thread that owns the holds fills one, and only while it is free; whoever drops the page frees
//! it. A frame that was taken out of its word, after which all processors passed a barrier, is in no hold later that
//! was not there then. A bit of `asked` is set and believed under the lock of a cache; it may be cleared although
//! someone still wants to hear, so he who clears it has all caches look again.

use std::ptr::NonNull;

use crate::sync::{AtomicPtr, AtomicU8, AtomicU64, Ordering, light_barrier};
use crate::word::{Key, Pinned, Word};

/// So many that what a hit touches fills one line of the processor's cache.
pub(crate) const HOLDS: usize = 7;

/// See the top of this file.
#[repr(C, align(128))]
pub(crate) struct Holds {
    /// Of which holds someone wants to hear when they are freed: not 0.
    pub(crate) asked: [AtomicU8; 8],
    /// The bits of the words by which they tell where frames are, or 0.
    pub(crate) frames: [AtomicU64; HOLDS],
    /// The words in which these were found. For who has the page.
    pub(crate) words: [AtomicPtr<Word>; HOLDS],
}

/// What became of an attempt to hold a page.
pub(crate) enum Took {
    In(usize, Pinned),
    /// No hold is free, or the page is not there.
    No,
    /// The page left meanwhile. Someone wants to hear that the hold is free.
    Asked,
}

impl Holds {
    /// Puts the page's frame into a free hold if the page is loaded, and counts a visit. For the thread that owns
    /// these.
    #[inline(always)]
    pub(crate) fn take(&self, word: &Word) -> Took {
        let Some(key) = word.key() else { return Took::No };
        // Acquire, and Release below: whoever finds this frame in the hold has seen the reads of the one before.
        let is_free = |frame: &AtomicU64| frame.load(Ordering::Acquire) == 0;
        let Some(hold) = self.frames.iter().position(is_free) else { return Took::No };
        self.words[hold].store(std::ptr::from_ref(word).cast_mut(), Ordering::Relaxed);
        self.frames[hold].store(key.bits(), Ordering::Release);
        light_barrier();
        match word.visit(key) {
            Some(pinned) => Took::In(hold, pinned),
            None if self.release(hold) => Took::Asked,
            None => Took::No,
        }
    }

    /// Frees a hold. Returns whether someone wants to hear of it; that wish ends here, so the caller has all caches look
    /// again.
    #[inline(always)]
    pub(crate) fn release(&self, hold: usize) -> bool {
        // Release: the frame is reused only after the reads of it.
        self.frames[hold].store(0, Ordering::Release);
        light_barrier();
        let is_asked = self.asked[hold].load(Ordering::Relaxed) != 0;
        if is_asked {
            self.asked[hold].store(0, Ordering::Relaxed);
        }
        is_asked
    }

    /// Wishes to hear of the holds with frames that `matches` accepts, and returns these frames, each at the place of
    /// its hold. Whether they were freed meanwhile must be looked at after a heavy barrier.
    pub(crate) fn ask(&self, matches: impl Fn(Key) -> bool) -> [Option<Key>; HOLDS] {
        std::array::from_fn(|hold| {
            // Acquire: as in `Held::look`.
            let key =
                Key::from_bits(self.frames[hold].load(Ordering::Acquire)).filter(|&key| matches(key))?;
            self.asked[hold].store(1, Ordering::Relaxed);
            Some(key)
        })
    }
}

/// The frames that were in holds at one time.
pub(crate) struct Held(pub(crate) Vec<Key>);

impl Held {
    /// Looks at all holds.
    pub(crate) fn look<'a>(all: impl Iterator<Item = &'a Holds>) -> Self {
        // Acquire: the reads of a frame that is in no hold any more were seen.
        let frames = all.flat_map(|holds| holds.frames.iter().map(|frame| frame.load(Ordering::Acquire)));
        Self(frames.filter_map(Key::from_bits).collect())
    }

    pub(crate) fn has(&self, frame: NonNull<u8>) -> bool {
        self.0.contains(&Key::of(frame))
    }
}
