//! Detects that this process is a forked child, and ensures that the child inherits no lock held by a thread that it
//! does not have.
//!
//! A child shares the parent's rings: submitting to one would put operations into the parent's queue. A page that the
//! kernel wipes in children (Linux: `MADV_WIPEONFORK`) distinguishes them at the cost of one load, even after a raw
//! `clone`, which `pthread_atfork` would not see; other systems have only the latter. `pthread_atfork` is for the locks
//! too, which the forking thread holds until both processes exist. Windows has no forks.

use std::any::Any;
#[cfg(unix)]
use std::cell::RefCell;
#[cfg(unix)]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use once_cell::race::OnceBox;

#[cfg(target_os = "linux")]
use crate::mapping::{HugePages, MapOptions, MappedMemory, page_size};

/// Used in place of a page if there is none.
static FALLBACK: AtomicU64 = AtomicU64::new(0);

/// Returns the number of this process, or 0 in a new child.
#[cfg(target_os = "linux")]
fn page() -> &'static AtomicU64 {
    static PAGE: OnceBox<Option<MappedMemory>> = OnceBox::new();
    let map = || {
        let len = page_size();
        let wiped = MapOptions { align: len, huge_pages: HugePages::Never, dont_fork: true };
        MappedMemory::new(len, &wiped).inspect_err(|_| heed_forks()).ok()
    };
    // SAFETY: the page was mapped readable and writable, and stays so as long as its owner, which is for ever. It is
    // used only as this atomic.
    PAGE.get_or_init(|| Box::new(map()))
        .as_ref()
        .map_or(&FALLBACK, |page| unsafe { page.base().cast().as_ref() })
}

/// Returns the number of this process, or 0 in a new child.
#[cfg(not(target_os = "linux"))]
fn page() -> &'static AtomicU64 {
    heed_forks();
    &FALLBACK
}

/// The process as it was when the mark was taken.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    page: &'static AtomicU64,
    value: u64,
}

impl Mark {
    /// Returns the mark of this process.
    pub fn current() -> Self {
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
    pub fn number(self) -> u64 {
        self.value
    }

    /// Returns whether this is still the process that took the mark.
    #[inline]
    pub fn is_current(self) -> bool {
        self.page.load(Ordering::Relaxed) == self.value
    }
}

/// The process that took the first mark; its children inherit the number.
static FIRST: AtomicU32 = AtomicU32::new(0);

/// Returns whether this process was forked from one that had used the library.
#[cold]
pub fn is_child() -> bool {
    let first = FIRST.load(Ordering::Relaxed);
    first != 0 && first != std::process::id()
}

/// Takes locks in the order in which they are nested elsewhere, and returns their guards.
pub type TakeLocks = fn() -> Box<dyn Any>;

/// The function that takes the locks of pools and lent memory. Threads that hold one of these may take those of the
/// driver.
pub static MEMORY: OnceBox<TakeLocks> = OnceBox::new();
/// The function that takes the lock of the list of runtimes whose threads share a ring.
pub static RUNTIMES: OnceBox<TakeLocks> = OnceBox::new();
/// The function that takes the lock of the queue of files to fill with zeros.
pub static FILLER: OnceBox<TakeLocks> = OnceBox::new();
/// The function that takes the locks of the driver.
pub static DRIVER: OnceBox<TakeLocks> = OnceBox::new();

#[cfg(unix)]
thread_local! {
    static HELD: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Makes a thread that forks hold the locks of one of these functions from now on, so that the child finds them free
/// and their state consistent. Every call for one of them passes the same function.
#[inline]
pub fn hold_over_forks(locks: &'static OnceBox<TakeLocks>, hold: TakeLocks) {
    if locks.get().is_none() {
        locks.get_or_init(|| Box::new(hold));
        heed_forks();
    }
}

#[cfg(unix)]
fn heed_forks() {
    static DONE: AtomicBool = AtomicBool::new(false);
    // No `Once`: a child forked in the middle of one would wait for it forever.
    if !DONE.swap(true, Ordering::Relaxed) {
        // SAFETY: the functions exist as long as the process, or the library, whose unloading removes them. If there is
        // no memory for the entry, forks work as without it.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after_in_child)) };
    }
}

#[cfg(not(unix))]
fn heed_forks() {}

/// Takes a lock that is in `owner`, for a [`TakeLocks`].
pub fn hold<T: 'static, U: 'static>(
    owner: Arc<T>,
    lock: for<'a> fn(&'a T) -> MutexGuard<'a, U>,
) -> Box<dyn Any> {
    // SAFETY: the guard borrows from memory that `owner` keeps alive at one address; it is dropped before `owner`, and
    // cannot be taken out of the box.
    let guard = unsafe { std::mem::transmute::<MutexGuard<'_, U>, MutexGuard<'static, U>>(lock(&owner)) };
    // Dropped in this order.
    Box::new((guard, owner))
}

#[cfg(unix)]
extern "C" fn before() {
    // A thread that is ending has no thread-local for the guards, so it takes no lock.
    let _ = HELD.try_with(|held| {
        let holds = [&MEMORY, &RUNTIMES, &FILLER, &DRIVER].into_iter().filter_map(|locks| locks.get());
        held.replace(holds.map(|hold| hold()).collect());
    });
}

#[cfg(unix)]
extern "C" fn after() {
    let _ = HELD.try_with(RefCell::take);
}

#[cfg(unix)]
extern "C" fn after_in_child() {
    FALLBACK.store(0, Ordering::Release);
    after();
}

#[cfg(all(test, unix))]
mod tests {
    use std::sync::Barrier;

    use once_cell::race::OnceBox;

    #[test]
    fn f38_a_child_does_not_wait_for_a_thread_that_it_lacks() {
        static OUTER: OnceBox<u64> = OnceBox::new();
        static VALUE: OnceBox<u64> = OnceBox::new();
        let (found, finds) = std::sync::mpsc::channel();
        let go_on = Barrier::new(2);
        std::thread::scope(|scope| {
            let go_on = &go_on;
            scope.spawn(move || {
                OUTER.get_or_init(|| {
                    VALUE.get_or_init(|| {
                        found.send(()).unwrap();
                        go_on.wait();
                        Box::new(1)
                    });
                    Box::new(1)
                })
            });
            finds.recv().unwrap();
            // SAFETY: the child calls nothing that takes a lock: `Box` allocates, and glibc's allocator can after a fork.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends a child that waits, by a signal.
                unsafe { libc::alarm(180) };
                let sum = OUTER.get_or_init(|| Box::new(2)) + VALUE.get_or_init(|| Box::new(3));
                // SAFETY: ends the child without running anything else.
                unsafe { libc::_exit(sum as i32) };
            }
            let mut status = 0;
            // SAFETY: waits for the child.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            go_on.wait();
            assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 5));
        });
        assert_eq!((OUTER.get_or_init(|| Box::new(4)), VALUE.get_or_init(|| Box::new(4))), (&1, &1));
    }
}
