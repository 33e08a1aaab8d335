//! What each thread has for itself: a number, for its counts, and holds for the frames that it uses.
//!
//! Invariant: a number has one owner at a time, except the last, which all threads have that found no other, that are
//! ending, or that live where the kernel has no barrier for all processors. These have no holds.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, Weak};
use std::task::Waker;

use crate::holds::{HOLDS, Held, Holds, Took};
use crate::lock;
use crate::sync::{heavy_barrier, prepare_barriers};
use crate::wake::wake_all;
use crate::word::{Pinned, Word};

/// How many numbers there are.
pub(crate) const NUMBERS: usize = 64;
/// The number without holds.
pub(crate) const SHARED: usize = NUMBERS - 1;
const UNKNOWN: usize = usize::MAX;

/// The numbers that have an owner, as bits.
static OWNED: AtomicU64 = AtomicU64::new(1 << SHARED);
/// How many of the lowest numbers ever had one.
static EVER: AtomicUsize = AtomicUsize::new(0);
static ALL: [Holds; SHARED] =
    [const { Holds { asked: AtomicU64::new(0), frames: [const { AtomicUsize::new(0) }; HOLDS] } }; SHARED];

/// Whoever may wait for holds to be freed.
static LISTENERS: Mutex<Vec<Weak<dyn Listener>>> = Mutex::new(Vec::new());

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

/// Returns the number of this thread.
#[inline(always)]
pub(crate) fn number() -> usize {
    match NUMBER.get() {
        UNKNOWN => choose_number(),
        number => number,
    }
}

#[cold]
fn choose_number() -> usize {
    // In a thread that is ending, the owner may be gone.
    let may_own = OWNER.try_with(|_| ()).is_ok() && prepare_barriers().is_ok();
    let free = |owned: u64| (may_own && owned != u64::MAX).then(|| owned | (owned + 1));
    let number = match OWNED.fetch_update(Ordering::Acquire, Ordering::Relaxed, free) {
        Ok(owned) => owned.trailing_ones() as usize,
        Err(_) => SHARED,
    };
    if number < SHARED {
        EVER.fetch_max(number + 1, Ordering::Relaxed);
        // With the fence of `barrier`: he who does not see the number is seen by the thread's first use of a page.
        fence(Ordering::SeqCst);
    }
    NUMBER.set(number);
    number
}

/// Where a pin is: in a hold, or counted in the page's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pinning(u32);

impl Pinning {
    /// In the word, or in the cache's `detached`.
    pub(crate) const COUNTED: Self = Self(u32::MAX);
    /// Nowhere: its hold is free, but nobody was told yet.
    pub(crate) const UNTOLD: Self = Self(u32::MAX - 1);

    /// Returns the hold.
    #[inline(always)]
    fn hold(self) -> Option<(&'static Holds, usize)> {
        let holds = ALL.get(self.0 as usize / 8)?;
        Some((holds, self.0 as usize % 8))
    }
}

/// Pins a page if it is loaded, and counts a visit. The thread has this number.
#[inline(always)]
pub(crate) fn pin(number: usize, word: &Word) -> Option<(Pinned, Pinning)> {
    if let Some(holds) = ALL.get(number) {
        match holds.take(word) {
            Took::In(hold, pinned) => return Some((pinned, Pinning((number * 8 + hold) as u32))),
            Took::No => {}
            Took::Asked(hold) => tell(holds, hold),
        }
    }
    Some((word.pin()?, Pinning::COUNTED))
}

/// What became of a pin that was to be taken away.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Released {
    Done,
    /// It was counted: nothing was changed.
    Counted,
    /// It is away, and someone wants to hear of it: `tell_all`.
    Untold,
}

/// Takes a pin away if it is in a hold. The cache may end with this.
#[inline(always)]
pub(crate) fn release(pin: Pinning) -> Released {
    match pin.hold() {
        Some((holds, hold)) if holds.release(hold) => {
            holds.hear(hold);
            Released::Untold
        }
        Some(_) => Released::Done,
        None if pin == Pinning::UNTOLD => Released::Untold,
        None => Released::Counted,
    }
}

#[cold]
fn tell(holds: &Holds, hold: usize) {
    holds.hear(hold);
    tell_all();
}

/// Whoever may wait for holds to be freed: a cache.
pub(crate) trait Listener: Send + Sync {
    /// Looks at the holds again. Returns whom to wake.
    fn holds_are_free(&self) -> Vec<Waker>;
}

/// Has the listener called, as long as it exists, when holds that were asked for are freed.
pub(crate) fn listen(listener: Weak<dyn Listener>) {
    let mut listeners = lock(&LISTENERS);
    listeners.retain(|listener| listener.strong_count() > 0);
    listeners.push(listener);
}

/// Tells all listeners that holds were freed. The caller holds no lock.
#[cold]
pub(crate) fn tell_all() {
    let listeners: Vec<_> = lock(&LISTENERS).iter().filter_map(Weak::upgrade).collect();
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

/// Has the listeners called when a hold is freed that holds a frame which `matches` accepts, and returns what is still
/// in holds.
pub(crate) fn ask(matches: impl Fn(usize) -> bool) -> Held {
    let asked = ever().iter().map(|holds| holds.ask(&matches)).filter(|&has_asked| has_asked).count();
    // Also threads without a number may free holds.
    if asked > 0 {
        heavy_barrier();
    }
    held_for_good()
}
