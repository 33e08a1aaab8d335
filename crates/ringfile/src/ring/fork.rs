//! Detects that this process is a forked child, and ensures that the child inherits no lock held by a thread that it
//! does not have.
//!
//! A child shares the parent's rings: submitting to one would put operations into the parent's queue. A page that the
//! kernel wipes in children (`MADV_WIPEONFORK`) distinguishes them at the cost of one load, even after a raw `clone`,
//! which `pthread_atfork` would not see. `pthread_atfork` is for the locks, which the forking thread holds until both
//! processes exist.

use std::any::Any;
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use crate::once::Value;

struct Page(NonNull<AtomicU64>);

// SAFETY: the value owns the page, which holds only an atomic.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

/// Used in place of a page if there is none: then forks are not detected. Every kernel with io_uring has MADV_WIPEONFORK
/// (4.14).
static FALLBACK: AtomicU64 = AtomicU64::new(0);

const PAGE_LEN: usize = 4096;

fn page() -> &'static AtomicU64 {
    static PAGE: Value<Page> = Value::new();
    let page = PAGE.get_or(Page::map);
    // SAFETY: the page was mapped readable and writable, and stays so as long as its owner, which is for ever.
    unsafe { page.0.as_ref() }
}

impl Page {
    fn map() -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping touches no other memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), PAGE_LEN, access, flags, -1, 0) };
        // SAFETY: the advice applies to the mapping just made.
        let wiped = start != libc::MAP_FAILED
            && unsafe { libc::madvise(start, PAGE_LEN, libc::MADV_WIPEONFORK) } == 0;
        match NonNull::new(start.cast::<AtomicU64>()) {
            Some(start) if wiped => Self(start),
            _ => Self(NonNull::from(&FALLBACK)),
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.0 != NonNull::from(&FALLBACK) {
            // SAFETY: mapped by `map`; another thread's page is used, and nobody has a reference to this one.
            unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE_LEN) };
        }
    }
}

/// The process as it was when the mark was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    page: &'static AtomicU64,
    value: u64,
}

impl Mark {
    /// Returns the mark of this process.
    pub(crate) fn current() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let page = page();
        if page.load(Ordering::Acquire) == 0 {
            // A child inherits NEXT, so that its marks differ from those of the parent before the fork.
            let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
            let _ = FIRST.compare_exchange(0, std::process::id(), Ordering::Relaxed, Ordering::Relaxed);
            let _ = page.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire);
        }
        Self { page, value: page.load(Ordering::Acquire) }
    }

    /// Returns whether this is still the process that took the mark.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        self.page.load(Ordering::Relaxed) == self.value
    }
}

/// The process that took the first mark; its children inherit the number.
static FIRST: AtomicU32 = AtomicU32::new(0);

/// Returns whether this process was forked from one that had used the library.
#[cold]
pub(crate) fn is_child() -> bool {
    let first = FIRST.load(Ordering::Relaxed);
    first != 0 && first != std::process::id()
}

/// Takes locks in the order in which they are nested elsewhere, and returns their guards.
pub(crate) type Hold = fn() -> Box<dyn Any>;

/// Holds the locks of pools and lent memory. Threads that hold one of these may take those of the driver.
static HOLD_MEMORY: Value<Hold> = Value::new();
static HOLD: Value<Hold> = Value::new();

thread_local! {
    static HELD: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Makes a thread that forks hold these locks from now on, so that the child finds them free and their state
/// consistent. Every call passes the same function.
#[inline]
pub(crate) fn hold_over_forks(hold: Hold) {
    hold_in(&HOLD, hold);
}

/// As [`hold_over_forks`], for the locks of memory.
pub(crate) fn hold_memory_over_forks(hold: Hold) {
    hold_in(&HOLD_MEMORY, hold);
}

#[inline]
fn hold_in(place: &'static Value<Hold>, hold: Hold) {
    if place.get().is_none() {
        place.get_or(|| hold);
        heed_forks();
    }
}

fn heed_forks() {
    static DONE: AtomicBool = AtomicBool::new(false);
    // No `Once`: a child forked in the middle of one would wait for it forever.
    if !DONE.swap(true, Ordering::Relaxed) {
        // SAFETY: the functions exist as long as the process, or the library, whose unloading removes them. If there is
        // no memory for the entry, forks work as without it.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    }
}

/// A held lock, together with its owner.
struct Held<T: 'static, U: 'static> {
    // Dropped first.
    _guard: MutexGuard<'static, U>,
    _owner: Arc<T>,
}

/// Takes a lock that is in `owner`, for a [`Hold`].
pub(crate) fn hold<T: 'static, U: 'static>(
    owner: Arc<T>,
    lock: for<'a> fn(&'a T) -> MutexGuard<'a, U>,
) -> Box<dyn Any> {
    // SAFETY: the guard borrows from memory that `owner` keeps alive at one address; it is dropped before `owner`, and
    // cannot be taken out of the box.
    let guard = unsafe { std::mem::transmute::<MutexGuard<'_, U>, MutexGuard<'static, U>>(lock(&owner)) };
    Box::new(Held { _guard: guard, _owner: owner })
}

extern "C" fn before() {
    // A thread that is ending has no thread-local for the guards, so it takes no lock.
    let _ = HELD.try_with(|held| {
        let holds = [&HOLD_MEMORY, &HOLD].into_iter().filter_map(|place| place.get());
        held.replace(holds.map(|hold| hold()).collect());
    });
}

extern "C" fn after() {
    let _ = HELD.try_with(RefCell::take);
}
