//! Process-wide counts while threads start and end: nothing counts twice, nothing is lost.

use std::sync::atomic::{AtomicBool, Ordering};

use ringfile::{OpenOptions, Route};

use crate::support::in_child;

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
