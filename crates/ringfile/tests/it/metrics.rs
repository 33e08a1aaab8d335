//! Process-wide counts while threads start and end: nothing counts twice, nothing is lost.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ringfile::{OpenOptions, Route};

use crate::support::{Folder, content, in_child, needs_ring, on_events};

#[test]
fn counts_of_threads_that_end_are_neither_lost_nor_counted_twice() {
    if !in_child("counts_of_threads_that_end_are_neither_lost_nor_counted_twice") {
        return;
    }
    const ROUNDS: u64 = 300;
    const AT_ONCE: u64 = 4;
    let path = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(path.path(), [7; 512]).expect("write");
    let file = OpenOptions::new().read(true).route(Route::Inline).open_blocking(path.path()).expect("open");
    let over = AtomicBool::new(false);
    let before = ringfile::metrics();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                std::thread::scope(|scope| {
                    for _ in 0..AT_ONCE {
                        scope.spawn(|| {
                            ringfile::block_on(file.read_at(Vec::with_capacity(512), 0)).expect("read")
                        });
                    }
                });
            }
            over.store(true, Ordering::Relaxed);
        });
        let mut last = ringfile::metrics().ops;
        while !over.load(Ordering::Relaxed) {
            let now = ringfile::metrics().ops;
            assert!(now >= last, "{now} operations after {last}");
            last = now;
        }
    });
    let counted = ringfile::metrics() - before;
    assert_eq!((counted.ops, counted.bytes_read), (ROUNDS * AT_ONCE, 512 * ROUNDS * AT_ONCE));
}

/// A program must not have to know of `attach_to_tokio` to find out what it lacks.
#[test]
fn operations_that_an_io_thread_takes_over_are_counted_and_the_first_is_told() {
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    let name = "operations_that_an_io_thread_takes_over_are_counted_and_the_first_is_told";
    if !in_child(name) || !needs_ring(name) {
        return;
    }
    on_events(|event| {
        if event.metadata().target().starts_with("ringfile")
            && *event.metadata().level() == tracing::Level::INFO
        {
            TOLD.fetch_add(1, Ordering::Relaxed);
        }
    });
    let folder = Folder::inside(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let path = folder.file("data", &content(0, 16 * 4096));
    let file = OpenOptions::new().read(true).route(Route::Ring).open_blocking(path).expect("open");
    for runtimes in 1..=2 {
        // Without I/O, so that it could not be attached.
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        runtime.block_on(async {
            for page in 0..16 {
                file.read_at(Vec::with_capacity(4096), page * 4096).await.expect("read");
            }
        });
        ringfile::block_on(file.read_at(Vec::with_capacity(4096), 0)).expect("read");
        assert_eq!(ringfile::metrics().io_thread_ops, runtimes * 16);
        assert_eq!(TOLD.load(Ordering::Relaxed), 1);
    }
}
