//! Forks: a child finds the locks of this interface free, whatever other threads of the parent were doing.
//!
//! Knows nothing else of this interface: whoever has a lock says how to take it ([`heed`]). Invariant: a thread that
//! forks holds all locks that were ever taken, until both processes exist. It takes them in the order of [`Lock`].

use std::any::Any;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// The guard of a lock that is held while a process forks.
pub(crate) type Guard = Box<dyn Any>;

/// Takes a lock, unless the calling thread has it.
pub(crate) type Hold = fn() -> Option<Guard>;

/// The locks of this interface, in the order in which they are nested.
#[derive(Clone, Copy)]
pub(crate) enum Lock {
    Files,
    Pools,
    Buffers,
    Queues,
    SharedQueues,
    Batches,
    Appenders,
    Caches,
    CachedFiles,
    KnownMemory,
    RegisteredMemory,
    Recent,
    Log,
}

const LOCKS: usize = Lock::Log as usize + 1;

static HOLDS: Mutex<[Option<Hold>; LOCKS]> = Mutex::new([None; LOCKS]);
/// The locks in [`HOLDS`], one bit for each.
static HEEDED: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static HELD: RefCell<Vec<Guard>> = const { RefCell::new(Vec::new()) };
}

/// Makes forks hold a lock from now on. Must be called before the lock is taken.
#[inline]
pub(crate) fn heed(lock: Lock, hold: Hold) {
    if HEEDED.load(Ordering::Acquire) & 1 << lock as u32 == 0 {
        add(lock, hold);
    }
}

#[cold]
fn add(lock: Lock, hold: Hold) {
    static WATCHES: AtomicBool = AtomicBool::new(false);
    // No `Once`: a child forked in the middle of one would wait for it forever. Two threads may both register the
    // handlers, which then run twice for each fork.
    if !WATCHES.load(Ordering::Acquire) {
        // SAFETY: the functions exist as long as the library; unloading it removes the handlers. If there is no memory
        // for the entry, forks work as without it.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after_in_child)) };
        WATCHES.store(true, Ordering::Release);
    }
    HOLDS.lock().unwrap_or_else(PoisonError::into_inner)[lock as usize] = Some(hold);
    HEEDED.fetch_or(1 << lock as u32, Ordering::Release);
}

extern "C" fn before() {
    // A thread that is ending has no place for the guards, and takes no lock.
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        if held.is_empty() {
            let holds = HOLDS.lock().unwrap_or_else(PoisonError::into_inner);
            held.extend(holds.iter().flatten().filter_map(|hold| hold()));
            held.push(Box::new(holds));
        }
    });
}

/// The number of forks between the first process and this one, or twice that.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Returns a number that differs between a forked child and its parent, after the first call of [`heed`]. `getpid`
/// would be a system call each time.
pub(crate) fn generation() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn after_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    after();
}

extern "C" fn after() {
    let _ = HELD.try_with(RefCell::take);
}
