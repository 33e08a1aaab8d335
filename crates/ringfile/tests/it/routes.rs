//! The route of operations: each route as its counts show it, and futures on every thread and executor.

use crate::support::handles::Handles as _;
use std::future::Future;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use crate::support;
use crate::support::{
    Random, TempPath, again, assert_ran, comes_true, in_child, is_without_ring, must_end, needs_ring,
    poll_once, workers_are_forced,
};
use ringfile::fs::RangeSync;
use ringfile::metrics::Metrics;
use ringfile::{Batch, Durability, File, OpenOptions, Pool, Queue, Route, block_on, thread_metrics};

const PAGE: usize = 4096;
const PAGES: usize = 64;
const EVERY: [Route; 4] = [Route::Auto, Route::Ring, Route::Inline, Route::Workers];

/// Returns bytes of which no two pages are alike.
fn content() -> Vec<u8> {
    (0..PAGES * PAGE / 4).flat_map(|word| (word as u32).wrapping_mul(0x9E37_79B9).to_le_bytes()).collect()
}

fn options(route: Route) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).route(route);
    options
}

/// Makes a file with [`content`] in `folder`.
fn filled(folder: impl AsRef<Path>, name: &str) -> TempPath {
    let path = TempPath::new(folder, name);
    std::fs::write(&path, content()).unwrap();
    path
}

fn on_disk(name: &str) -> TempPath {
    filled(env!("CARGO_TARGET_TMPDIR"), name)
}

/// Returns the routes that are available.
fn routes() -> impl Iterator<Item = Route> {
    EVERY.into_iter().filter(|&route| route != Route::Ring || !is_without_ring())
}

/// Returns this thread's counts for `run` on its loop.
fn counted<F: Future>(run: F) -> Metrics {
    block_on(async {
        let before = thread_metrics();
        run.await;
        thread_metrics() - before
    })
}

/// Reads and writes all pages once: 128 operations.
async fn read_and_write(file: &File) {
    let content = content();
    for page in 0..PAGES {
        let offset = (page * PAGE) as u64;
        let buffer = file.read_exact_at(vec![0; PAGE], offset).await.unwrap();
        assert_eq!(buffer, content[page * PAGE..][..PAGE]);
        file.write_at(buffer, offset).await.unwrap();
    }
}

const BOTH: u64 = 2 * PAGES as u64;
const BYTES: u64 = (PAGES * PAGE) as u64;

#[test]
fn operations_with_the_ring_route_go_to_the_ring() {
    let name = "operations_with_the_ring_route_go_to_the_ring";
    if !needs_ring(name) {
        return;
    }
    for folder in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let path = filled(folder, name);
        let file = options(Route::Ring).open_blocking(&path).unwrap();
        let counts = counted(read_and_write(&file));
        assert_eq!((counts.ops, counts.inline_ops, counts.worker_ops), (BOTH, 0, 0));
        assert_eq!((counts.bytes_read, counts.bytes_written), (BYTES, BYTES));
        assert!(counts.enters > 0);
    }
}

#[test]
fn inline_calls_are_made_by_the_thread_that_polls() {
    let name = "inline_calls_are_made_by_the_thread_that_polls";
    if !needs_ring(name) {
        return;
    }
    for folder in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let path = filled(folder, name);
        let file = options(Route::Inline).open_blocking(&path).unwrap();
        let counts = counted(read_and_write(&file));
        assert_eq!((counts.ops, counts.inline_ops, counts.worker_ops), (BOTH, BOTH, 0));
        assert_eq!((counts.bytes_read, counts.bytes_written, counts.enters), (BYTES, BYTES, 0));
        let counts = counted(async {
            file.sync_all().await.unwrap();
            file.sync_data().await.unwrap();
            file.set_len(BYTES).await.unwrap();
            let failed = file.read_exact_at(vec![0; 10], BYTES - 3).await.unwrap_err();
            assert_eq!((failed.kind(), failed.done()), (ErrorKind::UnexpectedEof, 3));
        });
        assert_eq!((counts.ops, counts.inline_ops, counts.failed), (4, 4, 0));
        // Then on a thread without a loop.
        let own = file.clone();
        std::thread::spawn(move || {
            futures::executor::block_on(read_and_write(&own));
            assert_eq!((thread_metrics().ops, thread_metrics().inline_ops), (BOTH, BOTH));
        })
        .join()
        .unwrap();
    }
}

#[test]
fn operations_with_the_workers_route_go_to_workers() {
    if !in_child("operations_with_the_workers_route_go_to_workers") {
        return;
    }
    let path = on_disk("workers");
    let file = options(Route::Workers).open_blocking(&path).unwrap();
    let before = ringfile::metrics();
    let counts = counted(read_and_write(&file));
    assert_eq!((counts.ops, counts.inline_ops, counts.worker_ops), (0, 0, 0), "workers count for themselves");
    let workers = (ringfile::metrics() - before).worker_ops;
    assert!(workers >= BOTH, "{workers}");
    let counts = counted(async {
        let mut reads: Vec<_> = (0..PAGES)
            .map(|page| Box::pin(file.read_exact_at(vec![0; PAGE], (page * PAGE) as u64)))
            .collect();
        for read in &mut reads {
            assert!(poll_once(read).await.is_pending(), "it is another thread's");
        }
        let content = content();
        for (page, result) in support::all(reads).await.into_iter().enumerate() {
            assert_eq!(result.unwrap(), content[page * PAGE..][..PAGE]);
        }
    });
    assert_eq!(counts.ops, 0);
}

#[test]
fn tmpfs_is_read_and_written_inline() {
    let name = "tmpfs_is_read_and_written_inline";
    if !needs_ring(name) {
        return;
    }
    let path = filled("/dev/shm", name);
    let file = options(Route::Auto).open_blocking(&path).unwrap();
    let counts = counted(read_and_write(&file));
    assert_eq!((counts.ops, counts.inline_ops), (BOTH, BOTH));
    assert_eq!(counts.enters, 0);
}

#[test]
fn cached_reads_do_not_wait_and_direct_reads_are_queued() {
    let name = "cached_reads_do_not_wait_and_direct_reads_are_queued";
    if !needs_ring(name) {
        return;
    }
    let path = on_disk(name);
    let file = options(Route::Auto).open_blocking(&path).unwrap();
    let counts = counted(read_and_write(&file));
    assert_eq!((counts.ops, counts.worker_ops, counts.failed), (BOTH, 0, 0));
    assert!(counts.inline_ops > 0, "at least the first read: it is cached");
    // On a thread without a ring, each read first tries an inline call. Some are not inline if a page was evicted, or if
    // the file system has no non-blocking reads, so that calls are timed, and one took long on a busy machine.
    let elsewhere = || {
        let own = file.clone();
        let reads = move || {
            futures::executor::block_on(async {
                for page in 0..PAGES {
                    own.read_exact_at(vec![0; PAGE], (page * PAGE) as u64).await.unwrap();
                }
            });
            thread_metrics()
        };
        std::thread::spawn(reads).join().unwrap()
    };
    support::wait_for("a thread whose reads are all inline", || {
        let counts = elsewhere();
        assert_eq!((counts.ops - counts.inline_ops, counts.enters), (0, 0), "{counts:?}");
        counts.inline_ops == PAGES as u64
    });
    let Ok(direct) = options(Route::Auto).direct(true).open_blocking(&path) else {
        return support::skip(name, "the disk has no direct I/O");
    };
    let pool = Pool::new(1 << 20);
    let counts = counted(async {
        for _ in 0..4 {
            let reads =
                (0..PAGES).map(|page| direct.read_exact_at(pool.get(PAGE).unwrap(), (page * PAGE) as u64));
            let content = content();
            for (page, result) in support::all(reads.collect()).await.into_iter().enumerate() {
                assert_eq!(result.unwrap()[..], content[page * PAGE..][..PAGE]);
            }
        }
    });
    assert_eq!((counts.ops, counts.worker_ops, counts.failed), (4 * PAGES as u64, 0, 0));
    assert!(counts.inline_ops <= 1, "{counts:?}");
}

/// A file of which the last operations were plain calls has the next ones without a decision; each still ends as it must.
#[test]
fn an_operation_that_ends_otherwise_than_the_ones_before_is_noticed() {
    let whole = content();
    let shm = filled("/dev/shm", "ringfile-settled");
    let disk = on_disk("settled");
    for path in [&shm, &disk] {
        let writer = options(Route::Auto).open_blocking(path).unwrap();
        let reader = File::open_blocking(path).unwrap();
        let settle = async || {
            for page in (0..300).map(|at| at % PAGES) {
                let read = reader.read_at(Vec::with_capacity(PAGE), (page * PAGE) as u64).await.unwrap();
                assert_eq!(read, whole[page * PAGE..][..PAGE]);
                let write = whole[page * PAGE..][..PAGE].to_vec();
                writer.write_at(write, (page * PAGE) as u64).await.unwrap();
            }
        };
        block_on(async {
            let end = (PAGES * PAGE) as u64;
            for _ in 0..9 {
                settle().await;
                assert_eq!(reader.read_at(vec![7; 0], end).await.unwrap(), []);
                assert_eq!(reader.read_at(Vec::with_capacity(PAGE), end).await.unwrap(), []);
                let short = reader.read_at(Vec::with_capacity(PAGE), end - 5).await.unwrap();
                assert_eq!(short, whole[whole.len() - 5..]);
                let exact = reader.read_exact_at(Vec::with_capacity(PAGE), end - 5).await.unwrap_err();
                assert_eq!(exact.error().kind(), ErrorKind::UnexpectedEof);
                assert_eq!(exact.into_buffer(), short);
                let beyond = reader.read_at(Vec::with_capacity(PAGE), u64::MAX).await.unwrap_err();
                assert_eq!(beyond.error().kind(), ErrorKind::InvalidInput);
                let refused = reader.write_at(b"no".to_vec(), 0).await.unwrap_err();
                assert_eq!(refused.error().errno(), Some(libc::EBADF));
            }
        });
    }
}

/// These writes wait for the disk: neither this thread's tasks may wait for them, nor may other writes look as slow.
/// Writes durably in every way, one operation at a time. Returns the number of operations.
async fn sync_one_by_one(file: &File, durability: Durability) -> u64 {
    for page in 0..8 {
        file.write_durable_at(vec![page as u8; PAGE], page * PAGE as u64).await.unwrap();
        file.sync_data().await.unwrap();
        file.sync_all().await.unwrap();
        file.sync_range(0, PAGE as u64, RangeSync::Finish).await.unwrap();
    }
    8 * (3 + if durability == Durability::Fsync { 2 } else { 1 })
}

#[test]
fn a_loop_without_anything_else_to_do_syncs_by_plain_calls() {
    let name = "a_loop_without_anything_else_to_do_syncs_by_plain_calls";
    if !needs_ring(name) {
        return;
    }
    let path = on_disk(name);
    for durability in [Durability::Dsync, Durability::Fsync] {
        let file = options(Route::Auto).durability(durability).open_blocking(&path).unwrap();
        let mut ops = 0;
        // The first turn makes the ring watch for other threads.
        block_on(sync_one_by_one(&file, durability));
        let counts = counted(async { ops = sync_one_by_one(&file, durability).await });
        assert_eq!((counts.ops, counts.inline_ops, counts.enters), (ops, ops, 0), "{durability:?}");
        let bytes = std::fs::read(&path).unwrap();
        assert!((0..8).all(|page| bytes[page * PAGE..][..PAGE] == [page as u8; PAGE]));
    }
}

#[test]
fn syncs_of_a_loop_that_has_other_work_go_through_the_ring() {
    let name = "syncs_of_a_loop_that_has_other_work_go_through_the_ring";
    if !needs_ring(name) {
        return;
    }
    let path = on_disk(name);
    let (pipe, mut writer) = support::pipe();
    for durability in [Durability::Dsync, Durability::Fsync] {
        let file = options(Route::Auto).durability(durability).open_blocking(&path).unwrap();
        let on_ring = options(Route::Ring).durability(durability).open_blocking(&path).unwrap();
        // The user's choice.
        let counts = counted(sync_one_by_one(&on_ring, durability));
        assert_eq!(counts.inline_ops, 0, "{durability:?}");
        // Another task, which another thread may wake.
        let counts = counted(async {
            let other = ringfile::spawn(std::future::pending::<()>());
            sync_one_by_one(&file, durability).await;
            drop(other);
        });
        assert_eq!(counts.inline_ops, 0, "{durability:?}");
        // Another operation, on the ring already.
        let counts = counted(async {
            let mut read = Box::pin(pipe.read_at(Vec::with_capacity(1), 0));
            assert!(poll_once(&mut read).await.is_pending());
            sync_one_by_one(&file, durability).await;
            writer.write_all(b"x").unwrap();
            assert_eq!(read.await.unwrap(), b"x");
        });
        assert_eq!(counts.inline_ops, 0, "{durability:?}");
        // Two operations at once.
        let counts = counted(async {
            let (one, two) = futures::join!(file.sync_data(), file.sync_all());
            one.and(two).unwrap();
        });
        assert_eq!((counts.ops, counts.inline_ops), (2, 0), "{durability:?}");
        // A thread of a runtime, which other threads give tasks.
        let runtime = ringfile::Runtime::builder().threads(1).build().unwrap();
        let of_runtime = file.clone();
        let task = runtime.spawn(async move {
            let before = thread_metrics();
            sync_one_by_one(&of_runtime, durability).await;
            (thread_metrics() - before).inline_ops
        });
        assert_eq!(task.join().unwrap(), 0, "{durability:?}");
    }
}

#[test]
fn a_thread_that_waits_for_one_sync_of_a_batch_or_queue_makes_it_itself() {
    let name = "a_thread_that_waits_for_one_sync_of_a_batch_or_queue_makes_it_itself";
    if !needs_ring(name) {
        return;
    }
    let file = options(Route::Auto).durability(Durability::Dsync).open_blocking(on_disk(name)).unwrap();
    let run = || {
        let before = thread_metrics();
        let mut batch = Batch::new();
        batch.add(file.write_durable_at(vec![1_u8; PAGE], 0));
        assert!(batch.run()[0].result.is_ok());
        let mut batch = Batch::new();
        batch.add(file.sync_data());
        assert!(batch.run()[0].result.is_ok());
        let mut queue = Queue::new();
        queue.add(file.write_durable_at(vec![2_u8; PAGE], 0), 1);
        assert!(queue.end().result.is_ok());
        queue.add(file.sync_all(), 2);
        assert!(queue.end().result.is_ok());
        let counts = thread_metrics() - before;
        (counts.ops, counts.inline_ops, counts.enters)
    };
    run();
    assert_eq!(run(), (4, 4, 0));
    // With a read of a pipe under way, the sync must not keep its result waiting.
    let (pipe, mut writer) = support::pipe();
    let mut queue = Queue::new();
    queue.add(pipe.read_at(Vec::with_capacity(1), 0), 1);
    queue.submit();
    let before = thread_metrics();
    queue.add(file.sync_data(), 2);
    assert_eq!(queue.end().user_data, 2);
    assert_eq!((thread_metrics() - before).inline_ops, 0);
    writer.write_all(b"x").unwrap();
    queue.end();
}

#[test]
fn a_dropped_sync_is_never_begun() {
    let name = "a_dropped_sync_is_never_begun";
    if !needs_ring(name) {
        return;
    }
    let file = options(Route::Auto).open_blocking(on_disk(name)).unwrap();
    let counts = counted(async {
        assert!(poll_once(&mut Box::pin(file.sync_data())).await.is_pending());
        assert!(poll_once(&mut Box::pin(file.write_durable_at(vec![0; PAGE], 0))).await.is_pending());
        file.sync_all().await.unwrap();
    });
    assert_eq!((counts.ops, counts.cancelled, counts.inline_ops), (1, 2, 1));
}

#[test]
fn a_pipe_is_never_waited_for_inline() {
    must_end("a_pipe_is_never_waited_for_inline", || {
        let (file, mut writer) = support::pipe();
        let counts = counted(async {
            let mut read = Box::pin(file.read_at(Vec::with_capacity(100), 0));
            assert!(poll_once(&mut read).await.is_pending());
            writer.write_all(b"some").unwrap();
            assert_eq!(read.await.unwrap(), b"some");
        });
        assert_eq!(counts.inline_ops, 0);
        // The same on another executor.
        let mut read = Box::pin(file.read_at(Vec::with_capacity(100), 0));
        let waker = futures::task::noop_waker();
        let mut context = std::task::Context::from_waker(&waker);
        assert!(std::pin::Pin::new(&mut read).poll(&mut context).is_pending());
        writer.write_all(b"more").unwrap();
        assert_eq!(futures::executor::block_on(read).unwrap(), b"more");
    });
}

#[test]
fn f02_a_read_dropped_in_another_executor_is_cancelled_on_its_ring() {
    if !needs_ring("f02_a_read_dropped_in_another_executor_is_cancelled_on_its_ring") {
        return;
    }
    must_end("f02_a_read_dropped_in_another_executor_is_cancelled_on_its_ring", || {
        let pool = Pool::new(1 << 20);
        let (file, mut writer) = support::pipe();
        for _ in 0..100 {
            let mut read = Box::pin(file.read_at(pool.get(PAGE).unwrap(), 0));
            assert!(futures::executor::block_on(poll_once(&mut read)).is_pending());
            drop(read);
        }
        assert!(comes_true(|| pool.metrics().in_use == 0), "memory is kept by reads that nobody wants");
        // None of the reads remains to take the next data.
        writer.write_all(b"wanted").unwrap();
        let read = file.read_at(pool.get(PAGE).unwrap(), 0);
        assert_eq!(futures::executor::block_on(read).unwrap()[..], b"wanted"[..]);
    });
}

#[test]
fn a_task_whose_operations_never_wait_yields_to_others() {
    let path = filled("/dev/shm", "yields");
    let file = options(Route::Inline).open_blocking(&path).unwrap();
    let theirs = file.clone();
    must_end("a_task_whose_operations_never_wait_yields_to_others", move || {
        block_on(async {
            let turns = std::rc::Rc::new(std::cell::Cell::new(0));
            let count = std::rc::Rc::clone(&turns);
            drop(ringfile::spawn(async move {
                loop {
                    count.set(count.get() + 1);
                    support::yields(1).await;
                }
            }));
            support::yields(1).await;
            let before = turns.get();
            for _ in 0..1280 {
                theirs.read_exact_at(vec![0; 16], 0).await.unwrap();
            }
            assert!(turns.get() >= before + 9, "{} turns in 1280 reads", turns.get() - before);
        });
    });
    drop(file);
}

#[test]
fn a_ring_that_is_switched_off_is_a_clear_error_where_it_was_asked_for() {
    let name = "a_ring_that_is_switched_off_is_a_clear_error_where_it_was_asked_for";
    if !is_without_ring() {
        // In its own process, where it is switched off.
        assert_ran(&again(name).env("RINGFILE_DISABLE", "io_uring,aio").output().unwrap());
        return;
    }
    let path = on_disk("switched-off");
    let file = options(Route::Ring).open_blocking(&path).unwrap();
    let check = |error: &ringfile::Error| {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let text = error.to_string();
        assert!(text.contains("RINGFILE_DISABLE=") && text.contains("switched-off"), "{text}");
    };
    for _ in 0..2 {
        let failed = block_on(file.read_at(vec![0; 10], 0)).unwrap_err();
        check(failed.error());
        assert_eq!(failed.into_buffer().capacity(), 10);
        check(&block_on(file.sync_all()).unwrap_err());
        check(futures::executor::block_on(file.write_at(vec![0; 10], 0)).unwrap_err().error());
        check(&futures::executor::block_on(file.sync_all()).unwrap_err());
    }
    assert_eq!(std::fs::read(&path).unwrap(), content());
    let file = options(Route::Auto).open_blocking(&path).unwrap();
    let counts = counted(read_and_write(&file));
    assert_eq!((counts.ops - counts.inline_ops, counts.enters), (0, 0), "workers do it, or plain calls");
    assert!(counts.inline_ops == 0 || !workers_are_forced(), "{counts:?}");
    assert!(counts.inline_ops + ringfile::metrics().worker_ops >= BOTH);
}

/// In its own process, because the setting is global.
#[test]
fn the_default_route_applies_to_files_opened_afterwards() {
    let name = "the_default_route_applies_to_files_opened_afterwards";
    if !needs_ring(name) || !in_child(name) {
        return;
    }
    let path = filled("/dev/shm", name);
    let before = File::open_blocking(&path).unwrap();
    let reads = |file: File| counted(async move { drop(file.read_exact_at(vec![0; 10], 0).await.unwrap()) });
    ringfile::set_default_route(Route::Ring);
    let counts = reads(File::open_blocking(&path).unwrap());
    assert_eq!((counts.ops, counts.inline_ops), (1, 0));
    assert_eq!(reads(File::from(std::fs::File::open(&path).unwrap())).inline_ops, 0);
    assert_eq!(
        reads(options(Route::Inline).open_blocking(&path).unwrap()).inline_ops,
        1,
        "the file's own counts"
    );
    ringfile::set_default_route(Route::Workers);
    assert_eq!(reads(File::open_blocking(&path).unwrap()).ops, 0);
    assert_eq!(ringfile::metrics().worker_ops, 1);
    ringfile::set_default_route(Route::Inline);
    assert_eq!(reads(File::open_blocking(&path).unwrap()).inline_ops, 1);
    assert_eq!(reads(before).inline_ops, 1, "opened with the default route of that time: tmpfs goes inline");
}

/// Does everything that a file can do, in any executor.
async fn everything(path: &Path, route: Route, direct: bool) {
    let name = format!("{route:?}, direct {direct}");
    let mut content = content();
    let file = options(route).direct(direct).durability(Durability::Fsync).open_blocking(path).unwrap();
    let dsync = options(route).direct(direct).durability(Durability::Dsync).open_blocking(path).unwrap();
    let pool = Pool::new(1 << 20);
    let page_of = |byte: u8| {
        let mut buffer = pool.get(PAGE).unwrap();
        buffer.resize(PAGE, byte);
        buffer
    };
    for (index, file) in [&file, &dsync].into_iter().enumerate() {
        let byte = 0xA0 + index as u8;
        file.write_at(page_of(byte), 0).await.unwrap();
        file.write_durable_at(page_of(byte + 8), PAGE as u64).await.unwrap();
        content[..PAGE].fill(byte);
        content[PAGE..2 * PAGE].fill(byte + 8);
        let parts = vec![page_of(byte + 16), page_of(byte + 17)];
        file.write_vectored_at(parts, 2 * PAGE as u64).await.unwrap();
        content[2 * PAGE..3 * PAGE].fill(byte + 16);
        content[3 * PAGE..4 * PAGE].fill(byte + 17);
        file.sync_data().await.unwrap();
        file.sync_all().await.unwrap();
    }
    // At odd offsets, across blocks and across the end.
    for (offset, len) in [(0, PAGE), (1, 10), (4095, 2), (777, 100_000), (BYTES as usize - 100, 5000)] {
        let got = file.read_at(Vec::with_capacity(len), offset as u64).await.unwrap();
        let expected = &content[offset..(offset + len).min(content.len())];
        assert_eq!(&got[..expected.len()], expected, "{name}: {len} bytes at {offset}");
        let vectored = file.read_vectored_at(vec![vec![0; len / 2], vec![0; len - len / 2]], offset as u64);
        assert_eq!(vectored.await.unwrap().concat(), expected, "{name}: {len} bytes at {offset}");
    }
    let failed = file.read_exact_at(vec![0; 100], BYTES - 10).await.unwrap_err();
    assert_eq!((failed.kind(), failed.done()), (ErrorKind::UnexpectedEof, 10), "{name}");
    let mut reader = file.reader(&pool).block(3 * PAGE).depth(3);
    let mut seen = Vec::new();
    while let Some(piece) = reader.next().await {
        seen.extend_from_slice(&piece.unwrap());
    }
    assert_eq!(seen, content, "{name}: the stream");
    // Half of them are dropped half way, and half of those before they start.
    let mut reads: Vec<_> = (0..PAGES)
        .map(|page| Box::pin(file.read_exact_at(pool.get(PAGE).unwrap(), (page * PAGE) as u64)))
        .collect();
    let mut done = Vec::new();
    for read in &mut reads[..PAGES / 2] {
        done.push(matches!(poll_once(read).await, Poll::Ready(Ok(_))));
    }
    for (page, read) in reads.into_iter().enumerate() {
        if page % 2 == 0 && !done.get(page).is_some_and(|&done| done) {
            assert_eq!(read.await.unwrap()[..], content[page * PAGE..][..PAGE], "{name}: page {page}");
        }
    }
    // Sleeping is not enough: this may be the thread whose ring has the reads.
    support::yield_until(&format!("every buffer: {name}"), || {
        std::thread::sleep(std::time::Duration::from_millis(1));
        pool.metrics().in_use == 0
    })
    .await;
}

/// Runs the test on separate files, in each folder and for each route.
async fn everywhere(name: &str) {
    for route in routes() {
        for folder in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
            let path = filled(folder, name);
            everything(&path, route, false).await;
        }
        let path = on_disk(name);
        if options(route).direct(true).open_blocking(&path).is_ok() {
            everything(&path, route, true).await;
        }
    }
}

#[test]
fn every_route_does_everything_on_ringfiles_own_threads() {
    must_end("every_route_does_everything_on_ringfiles_own_threads", || block_on(everywhere("own")));
}

#[test]
fn every_route_does_everything_under_the_executor_of_futures() {
    must_end("every_route_does_everything_under_the_executor_of_futures", || {
        futures::executor::block_on(everywhere("futures"))
    });
}

#[test]
fn every_route_does_everything_in_tokio() {
    must_end("every_route_does_everything_in_tokio", || {
        let one = tokio::runtime::Builder::new_current_thread().build().unwrap();
        one.block_on(everywhere("tokio-one"));
        let many = tokio::runtime::Builder::new_multi_thread().worker_threads(3).build().unwrap();
        many.block_on(async {
            let tasks: Vec<_> = (0..4)
                .map(|task| tokio::spawn(async move { everywhere(&format!("tokio-{task}")).await }))
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
}

#[test]
fn every_route_does_everything_from_several_plain_threads() {
    must_end("every_route_does_everything_from_several_plain_threads", || {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                std::thread::spawn(move || {
                    futures::executor::block_on(everywhere(&format!("thread-{thread}")));
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Tasks of tokio move between its threads while their reads are in flight; some are aborted.
#[test]
fn tasks_of_tokio_that_move_and_are_aborted_get_their_own_bytes() {
    let name = "tasks_of_tokio_that_move_and_are_aborted_get_their_own_bytes";
    let mut rng = Random::new();
    let content = Arc::new(content());
    let pool = Pool::new(16 << 20);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).build().unwrap();
    for route in routes() {
        let path = on_disk(name);
        let direct = route != Route::Inline && options(route).direct(true).open_blocking(&path).is_ok();
        let file = options(route).direct(direct).open_blocking(&path).unwrap();
        let done = Arc::new(AtomicU64::new(0));
        let tasks: Vec<_> = (0..256)
            .map(|_| {
                let (file, pool, content) = (file.clone(), pool.clone(), Arc::clone(&content));
                let (done, seed) = (Arc::clone(&done), u64::from_ne_bytes(rng.bytes(8).try_into().unwrap()));
                runtime.spawn(async move {
                    for round in 0..20 {
                        let page = (seed.rotate_left(round) % PAGES as u64) as usize;
                        let read = file.read_exact_at(pool.get(PAGE).unwrap(), (page * PAGE) as u64);
                        assert_eq!(read.await.unwrap()[..], content[page * PAGE..][..PAGE]);
                        tokio::task::yield_now().await;
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                })
            })
            .collect();
        let mut aborted = 0;
        for task in &tasks {
            if rng.chance(4) {
                task.abort();
                aborted += 1;
            }
        }
        for task in tasks {
            let ended = runtime.block_on(task);
            assert!(ended.is_ok() || ended.unwrap_err().is_cancelled(), "{route:?}");
        }
        assert!(done.load(Ordering::Relaxed) >= 256 - aborted, "{route:?}");
        drop(file);
        assert!(comes_true(|| pool.metrics().in_use == 0), "{route:?}: every buffer comes back");
    }
    assert_eq!(ringfile::metrics().stray, 0);
}

#[test]
fn a_write_and_its_sync_are_in_order_on_any_route() {
    let path = on_disk("order");
    for route in routes() {
        let file = options(route).durability(Durability::Auto).open_blocking(&path).unwrap();
        // Enough for `Auto` to find out which route is cheaper.
        for round in 0..20_u8 {
            let write = file.write_durable_at(vec![round; 100], u64::from(round) * 100);
            if round % 2 == 0 { futures::executor::block_on(write) } else { block_on(write) }.unwrap();
        }
        let bytes = std::fs::read(&path).unwrap();
        assert!(
            bytes.chunks(100).take(20).enumerate().all(|(i, part)| part == vec![i as u8; 100]),
            "{route:?}"
        );
    }
}
