//! The word of one page: where the page is, who uses it, and what happens to it, in 64 bits that change at once.
//!
//! ```text
//!  63            42   41     40      39     38     37 36   35                       0
//! ┌────────────────┬───────┬────────┬──────┬────────┬───────┬─────────────────────────┐
//! │ pins           │ SHORT │ WANTED │ BUSY │ LOADED │ visits│ address of the frame    │   LOADED
//! │ 0              │ 0     │ 0      │      │ 0      │ 0     │ tick of its eviction, 0 │   otherwise
//! └────────────────┴───────┴────────┴──────┴────────┴───────┴─────────────────────────┘
//! ```
//!
//! Invariants. A frame that is in a word is read only by those who have pinned it, here or in a hold of their thread
//! (`holds.rs`), and reused only after a change of the word that found no pins, and a look at the holds after it;
//! whoever finds pins when the frame leaves the word takes over their number. Only the holder of the cache's lock sets
//! or clears LOADED, BUSY, WANTED and SHORT; anybody changes pins and visits of a word that is LOADED.

use std::ptr::NonNull;

use crate::sync::{AtomicU64, Ordering};

const ADDRESS: u64 = (1 << 36) - 1;
/// Frames are aligned to this many bits of address.
const FRAME_SHIFT: u32 = 12;
const VISIT: u64 = 1 << 36;
const VISITS: u64 = 3 << 36;
const LOADED: u64 = 1 << 38;
/// A read of the page, or a write to it, is in flight.
const BUSY: u64 = 1 << 39;
/// The one who takes the last pin away says so under the lock.
const WANTED: u64 = 1 << 40;
/// The page ends before its frame does.
const SHORT: u64 = 1 << 41;
const PIN_SHIFT: u32 = 42;
const PIN: u64 = 1 << PIN_SHIFT;
/// Half of what the word can count, so that threads that pin at once cannot pass the end before one aborts.
const MOST_PINS: u64 = 1 << 21;

/// The bits of a word that tell in which frame a page is loaded.
const KEY: u64 = ADDRESS | LOADED;

/// Those bits. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key(u64);

impl Key {
    pub(crate) fn of(frame: NonNull<u8>) -> Self {
        Self(frame.as_ptr().addr() as u64 >> FRAME_SHIFT | LOADED)
    }

    #[inline(always)]
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        (bits != 0).then_some(Self(bits))
    }
}

/// A page that was pinned.
pub(crate) struct Pinned {
    pub(crate) frame: NonNull<u8>,
    pub(crate) is_short: bool,
}

/// What became of a pin that was to be taken away.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Unpinned {
    Done,
    /// Nothing was changed: someone wants to hear of it, so it must be done under the lock.
    Wanted,
    /// Nothing was changed: the frame has left the word.
    Detached,
}

/// What became of an attempt to evict a page.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Evicted {
    Done {
        is_short: bool,
    },
    /// It was used since it was last looked at, and has one visit less now.
    Visited,
    /// It is pinned or busy.
    InUse,
}

/// A frame that has left its word.
pub(crate) struct Taken {
    pub(crate) frame: NonNull<u8>,
    pub(crate) pins: u64,
}

/// Returns whether a frame at this address can be in a word.
pub(crate) fn is_addressable(frame: *const u8) -> bool {
    let address = frame.addr() as u64;
    address & ((1 << FRAME_SHIFT) - 1) == 0 && address >> FRAME_SHIFT <= ADDRESS
}

/// Returns how many ticks ago a tick was that a word holds: the lowest bits of its number.
pub(crate) fn since(now: u64, tick: u64) -> u64 {
    now.wrapping_sub(tick) & ADDRESS
}

fn pack(frame: NonNull<u8>) -> u64 {
    debug_assert!(is_addressable(frame.as_ptr()));
    frame.as_ptr().expose_provenance() as u64 >> FRAME_SHIFT
}

/// Returns the frame in a word that is loaded.
#[inline(always)]
fn frame_of(word: u64) -> NonNull<u8> {
    // Shifts all other bits out.
    let address = (word << (64 - 36)) >> (64 - 36 - FRAME_SHIFT);
    debug_assert!(address != 0 && word & LOADED != 0);
    // SAFETY: a word that is loaded has the address of a frame, which is not 0.
    unsafe { NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(address as usize)) }
}

#[cold]
fn too_many_pins() -> ! {
    // Pins that are leaked count too, so safe code can come here. As `Arc` does.
    std::process::abort()
}

/// See the top of this file.
pub(crate) struct Word(AtomicU64);

impl Word {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Changes the word as `change` says, unless that returns nothing. Returns the word before, or the one that it
    /// refused.
    #[inline(always)]
    fn update(&self, ordering: Ordering, change: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let Some(next) = change(word) else { return Err(word) };
            match self.0.compare_exchange_weak(word, next, ordering, Ordering::Relaxed) {
                Ok(_) => return Ok(word),
                Err(now) => word = now,
            }
        }
    }

    /// Tells in which frame the page is, if it is loaded.
    #[inline(always)]
    pub(crate) fn key(&self) -> Option<Key> {
        let word = self.0.load(Ordering::Relaxed);
        (word & LOADED != 0).then_some(Key(word & KEY))
    }

    /// Returns the page if it is loaded in this frame still, which a hold has, and counts a visit.
    #[inline(always)]
    pub(crate) fn visit(&self, key: Key) -> Option<Pinned> {
        // Acquire: what the one who loaded the frame has written is seen.
        let word = self.0.load(Ordering::Acquire);
        if (word ^ key.0) & KEY != 0 {
            return None;
        }
        if word & VISITS != VISITS {
            // That of another at the same time is enough.
            let _ = self.0.compare_exchange(word, word + VISIT, Ordering::Relaxed, Ordering::Relaxed);
        }
        Some(Pinned { frame: frame_of(word), is_short: word & SHORT != 0 })
    }

    /// Pins the page if it is loaded, and counts a visit.
    #[inline(always)]
    pub(crate) fn pin(&self) -> Option<Pinned> {
        let visited = |word| if word & VISITS == VISITS { word } else { word + VISIT };
        // Acquire: what the one who loaded the frame has written is seen.
        let change = |word| (word & LOADED != 0).then(|| visited(word) + PIN);
        let word = self.update(Ordering::Acquire, change).ok()?;
        if word >> PIN_SHIFT >= MOST_PINS {
            too_many_pins();
        }
        Some(Pinned { frame: frame_of(word), is_short: word & SHORT != 0 })
    }

    /// Adds a pin to a page that the caller has pinned. Returns false, and adds none, if its frame has left the word.
    pub(crate) fn pin_again(&self, frame: NonNull<u8>) -> bool {
        let change = |word| (is_in(word, frame)).then(|| word + PIN);
        // Relaxed: the caller has a pin already.
        match self.update(Ordering::Relaxed, change) {
            Ok(word) if word >> PIN_SHIFT >= MOST_PINS => too_many_pins(),
            changed => changed.is_ok(),
        }
    }

    /// Takes a pin away.
    #[inline(always)]
    pub(crate) fn unpin(&self, frame: NonNull<u8>) -> Unpinned {
        let change = |word| (is_in(word, frame) && word & WANTED == 0).then(|| word - PIN);
        // Release: the frame is reused only after the reads of it. Nothing of the file is touched after this.
        match self.update(Ordering::Release, change) {
            Ok(_) => Unpinned::Done,
            Err(word) if is_in(word, frame) => Unpinned::Wanted,
            Err(_) => Unpinned::Detached,
        }
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.0.load(Ordering::Relaxed) & LOADED != 0
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.0.load(Ordering::Relaxed) & BUSY != 0
    }

    pub(crate) fn is_pinned(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        word & LOADED != 0 && word >> PIN_SHIFT > 0
    }

    // ---- Under the cache's lock ----

    /// Takes a pin away also if that is wanted, and ends the wish with the last. Returns how many are left, or `None`
    /// if the frame has left the word.
    pub(crate) fn unpin_wanted(&self, frame: NonNull<u8>) -> Option<u64> {
        let change = |word| {
            let left = is_in(word, frame).then(|| word - PIN)?;
            Some(if left >> PIN_SHIFT == 0 { left & !WANTED } else { left })
        };
        let before = self.update(Ordering::Release, change).ok()?;
        Some((before >> PIN_SHIFT) - 1)
    }

    /// Returns the tick at which the page was evicted, or 0.
    pub(crate) fn tick(&self) -> u64 {
        let word = self.0.load(Ordering::Relaxed);
        if word & LOADED == 0 { word & ADDRESS } else { 0 }
    }

    /// Marks the page as busy.
    pub(crate) fn set_busy(&self) {
        self.0.fetch_or(BUSY, Ordering::Relaxed);
    }

    /// Ends what the page was busy with, and changes nothing else.
    pub(crate) fn clear_busy(&self) {
        self.0.fetch_and(!BUSY, Ordering::Relaxed);
    }

    /// Puts a frame that holds the page into the word, with a number of pins. Returns the frame that was there before.
    pub(crate) fn publish(&self, frame: NonNull<u8>, is_short: bool, pins: u64) -> Option<Taken> {
        let short = if is_short { SHORT } else { 0 };
        let before = self.0.load(Ordering::Relaxed);
        let visits = if before & LOADED != 0 { before & VISITS } else { 0 };
        let word = pack(frame) | visits | LOADED | short | (pins << PIN_SHIFT);
        // Release: the frame's content is seen by those who pin it. Acquire: the old frame is reused after all reads of
        // it.
        taken(self.0.swap(word, Ordering::AcqRel))
    }

    /// Takes the frame out of the word, and leaves the page busy if it was.
    pub(crate) fn take(&self) -> Option<Taken> {
        self.update(Ordering::Acquire, |word| Some(word & BUSY)).ok().and_then(taken)
    }

    /// Takes the frame out of the word, and leaves a tick there, unless the page is in use or was visited.
    pub(crate) fn evict(&self, tick: u64) -> Evicted {
        let change = |word| match word & VISITS {
            _ if word & LOADED == 0 || word & BUSY != 0 || word >> PIN_SHIFT > 0 => None,
            0 => Some(tick & ADDRESS),
            _ => Some(word - VISIT),
        };
        match self.update(Ordering::Acquire, change) {
            Ok(word) if word & VISITS == 0 => Evicted::Done { is_short: word & SHORT != 0 },
            Ok(_) => Evicted::Visited,
            Err(_) => Evicted::InUse,
        }
    }

    /// Forgets the visits that were counted.
    pub(crate) fn clear_visits(&self) {
        let change = |word: u64| (word & LOADED != 0).then_some(word & !VISITS);
        let _ = self.update(Ordering::Relaxed, change);
    }

    /// Asks the one who takes the last pin away to say so. Returns false if the page is not pinned.
    pub(crate) fn want(&self) -> bool {
        let change = |word: u64| (word & LOADED != 0 && word >> PIN_SHIFT > 0).then_some(word | WANTED);
        self.update(Ordering::Relaxed, change).is_ok()
    }
}

fn is_in(word: u64, frame: NonNull<u8>) -> bool {
    word & KEY == Key::of(frame).0
}

fn taken(word: u64) -> Option<Taken> {
    (word & LOADED != 0).then(|| Taken { frame: frame_of(word), pins: word >> PIN_SHIFT })
}
