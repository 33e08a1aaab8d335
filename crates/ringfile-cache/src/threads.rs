//! What each thread has for itself: a number, for its counts, and holds for the frames that it uses.
//!
//! Invariant: a number has one owner at a time, except the last, which all threads have that found no other, that are
//! ending, or that live where the kernel has no barrier for all processors. These have no holds.

use std::cell::Cell;
use std::mem::offset_of;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, Weak};
use std::task::Waker;

use crate::holds::{HOLDS, Held, Holds, Took};
use crate::sync::{heavy_barrier, lock, prepare_barriers};
use crate::wake::wake_all;
use crate::word::{Key, Pinned, Word};

/// How many numbers there are.
pub(crate) const NUMBERS: usize = 64;
/// The number without holds.
pub(crate) const SHARED: usize = NUMBERS - 1;
const UNKNOWN: usize = usize::MAX;

/// The numbers that have an owner, as bits.
static OWNED: AtomicU64 = AtomicU64::new(1 << SHARED);
/// How many of the lowest numbers ever had one.
static EVER: AtomicUsize = AtomicUsize::new(0);
static ALL: [Holds; SHARED] = [const {
    Holds {
        asked: [const { AtomicU8::new(0) }; 8],
        frames: [const { AtomicU64::new(0) }; HOLDS],
        words: [const { AtomicPtr::new(ptr::null_mut()) }; HOLDS],
    }
}; SHARED];

/// Whoever may wait for holds to be freed, in one process.
struct Listeners {
    process: u32,
    all: Mutex<Vec<Weak<dyn FrameOwner>>>,
}

/// Null, or those of this process or, right after a fork, of its parent. A child leaks these: other threads may have
/// had their locks at the fork.
static LISTENERS: AtomicPtr<Listeners> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(UNKNOWN) };
    /// Gives the number back when the thread ends.
    static OWNER: Owner = const { Owner };
}

struct Owner;

impl Drop for Owner {
    fn drop(&mut self) {
        let number = NUMBER.replace(SHARED);
        if number < SHARED {
            // Release: the next owner goes on from this one's counts, and who looks at holds sees this one's.
            OWNED.fetch_and(!(1 << number), Ordering::Release);
        }
    }
}

/// Gives this thread a number.
#[cold]
fn choose_number() {
    // In a thread that is ending, the owner may be gone.
    let may_own = OWNER.try_with(|_| ()).is_ok() && prepare_barriers().is_ok();
    let free = |owned: u64| (may_own && owned != u64::MAX).then(|| owned | (owned + 1));
    let number = match OWNED.fetch_update(Ordering::Acquire, Ordering::Relaxed, free) {
        Ok(owned) => owned.trailing_ones() as usize,
        Err(_) => SHARED,
    };
    if number < SHARED {
        EVER.fetch_max(number + 1, Ordering::Relaxed);
        // With the fence of `held_for_good`: a thread sees what was done by whoever does not see its number.
        fence(Ordering::SeqCst);
    }
    NUMBER.set(number);
}

/// Where a pin is: in a hold, or counted.
///
/// A pointer to the hold, with 1 added; or to the page's word, where it is counted or, if the frame has left it, in the
/// cache's `detached`; or null: nowhere.
#[derive(Clone, Copy)]
pub(crate) struct Place(*const u8);

impl Place {
    pub(crate) const NOWHERE: Self = Self(ptr::null());
    /// Nowhere: its hold is free, but nobody was told yet.
    pub(crate) const UNTOLD: Self = Self(ptr::without_provenance(2));

    #[inline(always)]
    fn held(holds: &'static Holds, hold: usize) -> Self {
        Self(ptr::from_ref(holds).cast::<u8>().wrapping_add(offset_of!(Holds, frames) + 8 * hold + 1))
    }

    pub(crate) fn counted(word: &Word) -> Self {
        Self(ptr::from_ref(word).cast())
    }

    pub(crate) fn is_counted(self) -> bool {
        self.0.addr() & 1 == 0
    }

    /// Returns the hold.
    #[inline(always)]
    fn hold(self) -> Option<(&'static Holds, usize)> {
        const MASK: usize = align_of::<Holds>() - 1;
        if self.is_counted() {
            return None;
        }
        let holds = self.0.map_addr(|address| address & !MASK).cast::<Holds>();
        let hold = ((self.0.addr() & MASK) - offset_of!(Holds, frames)) / 8;
        // SAFETY: made by `held`, of a reference to these; no bits but those of the place in them were masked.
        Some((unsafe { &*holds }, hold % 8))
    }

    pub(crate) fn is_untold(self) -> bool {
        self.0.addr() == Self::UNTOLD.0.addr()
    }

    /// Returns the word of the page that is pinned here. A pin that is nowhere has none.
    #[inline(always)]
    pub(crate) fn word(self) -> Option<NonNull<Word>> {
        match self.hold() {
            Some((holds, hold)) => NonNull::new(holds.words[hold].load(Ordering::Relaxed)),
            None if self.is_untold() => None,
            None => NonNull::new(self.0.cast_mut().cast()),
        }
    }
}

/// A page that was pinned, where, and the number of this thread.
pub(crate) type Found = (Pinned, Place, usize);

/// Pins a page if it is loaded, and counts a visit.
#[inline(always)]
pub(crate) fn pin(word: &Word) -> Option<Found> {
    let number = NUMBER.get();
    let Some(holds) = ALL.get(number) else { return pin_slowly(word) };
    match holds.take(word) {
        Took::In(hold, pinned) => Some((pinned, Place::held(holds, hold), number)),
        Took::No => count(word, number),
        Took::Asked => {
            tell_all();
            count(word, number)
        }
    }
}

/// Pins a page where the thread has no number yet, or none with holds.
#[cold]
#[inline(never)]
fn pin_slowly(word: &Word) -> Option<Found> {
    match NUMBER.get() {
        UNKNOWN => {
            choose_number();
            pin(word)
        }
        number => count(word, number),
    }
}

#[inline(never)]
fn count(word: &Word, number: usize) -> Option<Found> {
    Some((word.pin()?, Place::counted(word), number))
}

/// What became of a pin that was to be taken away.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Released {
    Done,
    /// It is counted: nothing was changed.
    Counted,
    /// It is away, and someone wants to hear of it: `tell_all`.
    Untold,
}

/// Takes a pin away if it is in a hold. The cache may end with this.
#[inline(always)]
pub(crate) fn release(place: Place) -> Released {
    match place.hold() {
        Some((holds, hold)) if holds.release(hold) => Released::Untold,
        Some(_) => Released::Done,
        None => Released::Counted,
    }
}

/// A cache, as threads and pages know it: it may wait for holds to be freed, and counts pins whose frames have left their words.
pub(crate) trait FrameOwner: Send + Sync {
    /// Looks at the holds again. Returns whom to wake.
    fn holds_are_free(&self) -> Vec<Waker>;

    /// Counts a pin more of a frame that the caller has pinned.
    fn pin_again(&self, word: &Word, frame: NonNull<u8>);

    /// Takes a counted pin away.
    ///
    /// # Safety
    /// A page has this pin, and ends with this.
    unsafe fn unpin(&self, word: NonNull<Word>, frame: NonNull<u8>);
}

fn listeners() -> &'static Listeners {
    let process = std::process::id();
    let mut there = LISTENERS.load(Ordering::Acquire);
    loop {
        // SAFETY: null, or made below, and never freed once it is here.
        match unsafe { there.as_ref() } {
            Some(listeners) if listeners.process == process => return listeners,
            _ => {}
        }
        let new = Box::into_raw(Box::new(Listeners { process, all: Mutex::default() }));
        match LISTENERS.compare_exchange(there, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => there = new,
            Err(now) => {
                // SAFETY: made above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
                there = now;
            }
        }
    }
}

/// Has the listener called, as long as it exists, when holds that were asked for are freed; in this process.
fn listen(listener: &Weak<dyn FrameOwner>) {
    let mut all = lock(&listeners().all);
    if !all.iter().any(|known| known.ptr_eq(listener)) {
        all.retain(|listener| listener.strong_count() > 0);
        all.push(Weak::clone(listener));
    }
}

/// Tells all listeners that holds were freed. The caller holds no lock.
#[cold]
pub(crate) fn tell_all() {
    let listeners: Vec<_> = lock(&listeners().all).iter().filter_map(Weak::upgrade).collect();
    wake_all(listeners.iter().flat_map(|listener| listener.holds_are_free()));
}

// ---- Under a cache's lock ----

fn ever() -> &'static [Holds] {
    &ALL[..EVER.load(Ordering::Relaxed)]
}

/// Returns the frames that are in holds now. One that is taken out of its word may be in one a moment later.
pub(crate) fn held() -> Held {
    Held::look(ever().iter())
}

/// Returns the frames that are in holds now: of those that had left their words before, no others will be.
pub(crate) fn held_for_good() -> Held {
    // See `choose_number`.
    fence(Ordering::SeqCst);
    let own = NUMBER.try_with(Cell::get).ok().filter(|&own| own < SHARED).map_or(0, |own| 1u64 << own);
    if OWNED.load(Ordering::Acquire) & !(1 << SHARED) & !own != 0 {
        heavy_barrier();
    }
    held()
}

/// Has the listener called when a hold is freed that holds a frame which `matches` accepts, and returns what is still
/// in holds: in those only whose freeing will be told. What a thread takes meanwhile is not among it.
pub(crate) fn ask(listener: &Weak<dyn FrameOwner>, matches: impl Fn(Key) -> bool) -> Held {
    listen(listener);
    let mut asked = [[false; HOLDS]; SHARED];
    loop {
        let (mut frames, mut is_told) = (Vec::new(), true);
        for (holds, asked) in ever().iter().zip(&mut asked) {
            for (frame, was_asked) in holds.ask(&matches).into_iter().zip(asked) {
                let Some(frame) = frame else { continue };
                is_told &= std::mem::replace(was_asked, true);
                frames.push(frame);
            }
        }
        if is_told {
            return Held(frames);
        }
        // Also threads without a number may free holds. Who frees one after this sees the wish, and waits for the
        // caller's lock; so this ends.
        heavy_barrier();
    }
}
