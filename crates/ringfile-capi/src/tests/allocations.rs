//! Counts the allocations of a thread during operations that should allocate nothing once there was room for them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

use libc::iovec;

use super::ops::*;
use super::*;
use crate::file::*;
use crate::io::{ringfile_readv, ringfile_writev};
use crate::op::ringfile_result;
use crate::queue::*;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: the system's allocator does everything.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the one that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Operations in flight.
const DEPTH: usize = 16;

/// Counts the allocations of this thread in a run that follows an equal one: the fewest of several, since starting a worker
/// allocates, and a run may start one.
fn again(mut run: impl FnMut()) -> u64 {
    run();
    let count = |_| {
        let before = COUNT.get();
        run();
        COUNT.get() - before
    };
    (0..5).map(count).min().unwrap_or_default()
}

#[test]
fn vectored_operations_allocate_nothing_once_there_was_room_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, content(8)).unwrap();
    for route in [ring(), RINGFILE_ROUTE_INLINE] {
        let file = open(&path, RINGFILE_READ | RINGFILE_WRITE, route);
        // Each operation in flight has memory of its own.
        let mut memory = vec![0; DEPTH * 2 * PAGE];
        let parts: Vec<[iovec; 2]> = memory
            .chunks_mut(2 * PAGE)
            .map(|pages| {
                let (first, second) = pages.split_at_mut(PAGE);
                [second, first].map(|page| iovec { iov_base: page.as_mut_ptr().cast(), iov_len: PAGE })
            })
            .collect();
        let one = parts[0].as_ptr();
        let blocking = again(|| {
            for _ in 0..100 {
                // SAFETY: the memory is valid until the calls return.
                unsafe {
                    assert_eq!(well(ringfile_readv(file, one, 2, 0)), 2 * PAGE as i64);
                    assert_eq!(well(ringfile_writev(file, one, 2, 0)), 2 * PAGE as i64);
                }
            }
        });
        assert_eq!(blocking, 0, "blocking calls");
        for flags in [0, RINGFILE_QUEUE_SHARED] {
            let mut queue = ptr::null_mut();
            // SAFETY: the pointer is to a local value.
            well(unsafe { ringfile_queue_create(DEPTH, flags, &mut queue) });
            let mut results = [ringfile_result { user_data: 0, result: 0 }; DEPTH];
            let in_queue = again(|| {
                for round in 0..100 {
                    for parts in &parts {
                        let (parts, any) = (parts.as_ptr(), ptr::null_mut());
                        // SAFETY: the memory is valid until the results were taken.
                        well(unsafe {
                            ringfile_queue_add(queue, ringfile_op_readv(file, parts, 2, 0), round, any)
                        });
                    }
                    // SAFETY: there is room for the results.
                    let taken = unsafe { ringfile_queue_wait(queue, results.as_mut_ptr(), DEPTH, DEPTH, -1) };
                    assert_eq!(well(taken), DEPTH as i64);
                    let right = ringfile_result { user_data: round, result: 2 * PAGE as i64 };
                    assert!(
                        results.iter().all(
                            |result| (result.user_data, result.result) == (right.user_data, right.result)
                        )
                    );
                }
            });
            assert_eq!(in_queue, 0, "a queue with flags {flags}");
            let by_token = again(|| {
                for _ in 0..100 {
                    let mut token = 0;
                    // SAFETY: the memory is valid until the result was taken.
                    well(unsafe {
                        ringfile_queue_add(queue, ringfile_op_readv(file, one, 2, 0), 0, &mut token)
                    });
                    assert_eq!(well(ringfile_queue_wait_for(queue, token)), 2 * PAGE as i64);
                }
            });
            assert_eq!(by_token, 0, "by token, from a queue with flags {flags}");
            well(ringfile_queue_free(queue));
        }
        well(ringfile_close(file));
        assert!(is_page(&memory[..PAGE], 1) && is_page(&memory[PAGE..][..PAGE], 0));
    }
}
