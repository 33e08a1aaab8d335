//! A child of a process whose other threads used a cache at the fork, and which makes a cache of its own.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringfile::{OpenOptions, block_on};
use ringfile_cache::Cache;

use crate::support::skip;

const PAGE: usize = 4096;

/// Waits in a cache of its own for a page that is held, and then not any more.
fn wait_for_memory(path: &std::path::Path) -> io::Result<()> {
    let cache = Cache::new(PAGE)?;
    let pages = cache.open(OpenOptions::new().read(true).open_blocking(path)?, PAGE)?;
    drop(block_on(pages.read(0))?);
    let held = pages.get(0).expect("in memory");
    std::thread::scope(|scope| {
        let read = scope.spawn(|| block_on(pages.read(1)).map(drop));
        // Time for the read to be in flight before the fork; processes are not simulated.
        std::thread::sleep(Duration::from_millis(50));
        drop(held);
        read.join().expect("no panic")
    })
}

#[test]
fn a_child_waits_for_no_lock_of_its_parents_caches() -> io::Result<()> {
    if std::env::var("RINGFILE_DISABLE").is_ok_and(|disabled| disabled == "io_uring,aio") {
        skip("a_child_waits_for_no_lock_of_its_parents_caches", "workers belong to the parent");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("file");
    std::fs::write(&path, vec![7; 2048 * PAGE])?;
    let cache = Cache::new(2048 * PAGE)?;
    let pages = cache.open(OpenOptions::new().read(true).open_blocking(&path)?, PAGE)?;
    for page in 0..2048 {
        drop(block_on(pages.read(page))?);
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Has the cache's lock most of the time.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                std::hint::black_box(cache.metrics());
            }
        });
        let ends: Vec<_> = (0..10).map(|_| child(&path)).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ends.iter().all(|&end| end == 0), "{ends:?}: 14 is that of a child that did not end");
    });
    Ok(())
}

fn child(path: &std::path::Path) -> i32 {
    // SAFETY: the child uses nothing that another thread may have locked, which is what this is about; the allocator's
    // locks are free in it.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: calls without pointers.
            unsafe { libc::alarm(5) };
            // Threads of the child have rings of their own.
            let is_right = std::thread::scope(|scope| {
                scope.spawn(|| wait_for_memory(path)).join().is_ok_and(|end| end.is_ok())
            });
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!is_right)) }
        }
        child => {
            let mut end = -1;
            // SAFETY: the child was made above; `end` outlives the call.
            unsafe { libc::waitpid(child, &raw mut end, 0) };
            end
        }
    }
}
