//! Detects that this process is a forked child, and ensures that the child inherits no lock held by a thread that it
//! does not have.
//!
//! A child shares the parent's rings: submitting to one would put operations into the parent's queue. A page that the
//! kernel wipes in children (`MADV_WIPEONFORK`) distinguishes them at the cost of one load, even after a raw `clone`,
//! which `pthread_atfork` would not see. `pthread_atfork` is for the locks, which the forking thread holds until both
//! processes exist.

use std::any::Any;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use crate::memory::{HugePages, MapOptions, MappedMemory, page_size};
use crate::once::Value;

/// Used in place of a page if there is none: then forks are not detected. Every kernel with io_uring has MADV_WIPEONFORK
/// (4.14).
static FALLBACK: AtomicU64 = AtomicU64::new(0);

fn page() -> &'static AtomicU64 {
    static PAGE: Value<Option<MappedMemory>> = Value::new();
    let map = || {
        let len = page_size();
        let wiped = MapOptions { align: len, huge_pages: HugePages::Never, dont_fork: true };
        MappedMemory::new(len, &wiped).ok()
    };
    // SAFETY: the page was mapped readable and writable, and stays so as long as its owner, which is for ever. It is
    // used only as this atomic.
    PAGE.get_or(map).as_ref().map_or(&FALLBACK, |page| unsafe { page.base().cast().as_ref() })
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

    /// Returns a number other than 0 that is not that of a parent of the process.
    pub(crate) fn number(self) -> u64 {
        self.value
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
pub(crate) type TakeLocks = fn() -> Box<dyn Any>;

/// The function that takes the locks of pools and lent memory. Threads that hold one of these may take those of the
/// driver.
pub(crate) static MEMORY: Value<TakeLocks> = Value::new();
/// The function that takes the lock of the list of runtimes whose threads share a ring.
#[cfg(feature = "tokio")]
pub(crate) static RUNTIMES: Value<TakeLocks> = Value::new();
/// The function that takes the locks of the driver.
pub(crate) static DRIVER: Value<TakeLocks> = Value::new();

thread_local! {
    static HELD: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Makes a thread that forks hold the locks of one of these functions from now on, so that the child finds them free
/// and their state consistent. Every call for one of them passes the same function.
#[inline]
pub(crate) fn hold_over_forks(locks: &'static Value<TakeLocks>, hold: TakeLocks) {
    if locks.get().is_none() {
        locks.get_or(|| hold);
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

/// Takes a lock that is in `owner`, for a [`TakeLocks`].
pub(crate) fn hold<T: 'static, U: 'static>(
    owner: Arc<T>,
    lock: for<'a> fn(&'a T) -> MutexGuard<'a, U>,
) -> Box<dyn Any> {
    // SAFETY: the guard borrows from memory that `owner` keeps alive at one address; it is dropped before `owner`, and
    // cannot be taken out of the box.
    let guard = unsafe { std::mem::transmute::<MutexGuard<'_, U>, MutexGuard<'static, U>>(lock(&owner)) };
    // Dropped in this order.
    Box::new((guard, owner))
}

extern "C" fn before() {
    // A thread that is ending has no thread-local for the guards, so it takes no lock.
    let _ = HELD.try_with(|held| {
        let all = [
            &MEMORY,
            #[cfg(feature = "tokio")]
            &RUNTIMES,
            &DRIVER,
        ];
        let holds = all.into_iter().filter_map(|locks| locks.get());
        held.replace(holds.map(|hold| hold()).collect());
    });
}

extern "C" fn after() {
    let _ = HELD.try_with(RefCell::take);
}
