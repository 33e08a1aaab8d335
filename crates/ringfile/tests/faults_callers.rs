//! Callers that do what the library did not ask for: they poll without having been woken, drop what is in flight by the ten
//! thousand, and call back from their wakers.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod support;

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use ringfile::{Batch, OpenOptions, Pool, Route};
use support::{Folder, assert_content, content, in_child, is_without_ring, wait_for};

#[test]
fn f35_a_batch_with_merged_reads_may_be_polled_without_having_been_woken() {
    let name = "f35_a_batch_with_merged_reads_may_be_polled_without_having_been_woken";
    // The panic is a worker's or an I/O thread's, so all panics of a process are counted.
    if !in_child(name) {
        return;
    }
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        before(info);
    }));
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 8 * 512));
    let pool = Pool::new(1 << 20);
    let context = &mut Context::from_waker(Waker::noop());
    for route in [Route::Workers, Route::Ring] {
        if route == Route::Ring && is_without_ring() {
            continue;
        }
        let file = OpenOptions::new().read(true).route(route).open(&path).unwrap();
        for _ in 0..5_000 {
            let mut batch = Batch::new().in_flight(1).merge_reads(0);
            for i in 0..8 {
                batch.read(&file, pool.get(512).unwrap(), i * 512);
            }
            let mut run = batch.into_future();
            let results = loop {
                if let Poll::Ready(results) = Pin::new(&mut run).poll(context) {
                    break results;
                }
            };
            assert_eq!(results.len(), 8);
            for (i, done) in results.into_iter().enumerate() {
                assert_eq!(done.result.unwrap(), 512);
                assert_content(&done.buffer.unwrap(), i as u64 * 512);
            }
        }
    }
    wait_for("the memory", || pool.metrics().in_use == 0);
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "a thread of the library panicked");
}
