//! Counts heap allocations.
//!
//! By default each thread counts its own allocations in a thread-local cell, so counting costs every side of a
//! comparison the same nanosecond. [`count_all_threads`] adds a shared counter, so that allocations of helper threads
//! count too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static ALL_THREADS: AtomicBool = AtomicBool::new(false);
static EVERYWHERE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static HERE: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // The counter of a thread that ends is gone before the thread's last allocations, which do not matter here.
    let _ = HERE.try_with(|n| n.set(n.get() + 1));
    if ALL_THREADS.load(Ordering::Relaxed) {
        EVERYWHERE.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is handed to the system allocator unchanged; `count` itself never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(old, layout, new_size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(old, layout) }
    }
}

/// Returns this thread's allocations.
pub fn here() -> u64 {
    HERE.with(Cell::get)
}

/// Makes [`everywhere`] count from now on.
pub fn count_all_threads() {
    ALL_THREADS.store(true, Ordering::Relaxed);
}

/// Returns the allocations of all threads since [`count_all_threads`].
pub fn everywhere() -> u64 {
    EVERYWHERE.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_counts_once_here_and_everywhere() {
        count_all_threads();
        let (here_before, everywhere_before) = (here(), everywhere());
        drop(std::hint::black_box(Box::new(7_u64)));
        assert_eq!(here() - here_before, 1);
        assert!(everywhere() > everywhere_before);
    }
}
