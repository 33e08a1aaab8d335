//! Forks: a child finds the locks of this interface free, whatever other threads of the parent were doing.
//!
//! Invariants: a thread that forks holds the locks of all tables, and of the known memory, until both processes exist.
//! They are taken in the order in which they are nested elsewhere.

use std::any::Any;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::{any_thread, batch, file, local, log, memory, pool};

/// The guard of a lock that is held while a process forks.
pub(crate) type Guard = Box<dyn Any>;

thread_local! {
    static HELD: RefCell<Vec<Guard>> = const { RefCell::new(Vec::new()) };
}

/// Makes this interface watch forks from now on. Must be called before any lock is taken that a child could find
/// locked.
#[inline]
pub(crate) fn heed() {
    static DONE: AtomicBool = AtomicBool::new(false);
    // No `Once`: a child forked in the middle of one would wait for it forever.
    if !DONE.load(Ordering::Relaxed) && !DONE.swap(true, Ordering::Relaxed) {
        // SAFETY: the functions exist as long as the library; unloading it removes the handlers. If there is no memory
        // for the entry, forks work as without it.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after_in_child)) };
    }
}

extern "C" fn before() {
    // A thread that is ending has no place for the guards, and takes no lock.
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        held.push(file::hold());
        held.extend(pool::hold());
        held.push(local::hold());
        held.push(batch::hold());
        held.extend(any_thread::hold());
        held.extend(memory::hold());
        held.extend(log::hold());
    });
}

/// The number of forks between the first process and this one.
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
