//! Batches: bytes, order, errors, limits, from plain threads and inside executors.

use std::io::ErrorKind;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use std::future::{Future, IntoFuture};
use std::pin::Pin;

use crate::support;
use crate::support::fuse::{Act, Op, Server};
use crate::support::{
    Folder, Random, assert_content, content, is_without_ring, must_end, skip, workers_are_forced,
};
use ringfile::{AnyBuffer, Batch, Completion, File, OpenOptions, Pool, Route, metrics, thread_metrics};

const PAGE: usize = 4096;

fn direct(path: &std::path::Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .direct(true)
        .buffered_fallback(true)
        .open_blocking(path)
        .unwrap()
}

/// Opens a file on the test's server, so that operations overlap. Its first call would be an inline one that blocks.
fn overlapping(server: &Server) -> File {
    let route = if is_without_ring() { Route::Workers } else { Route::Ring };
    OpenOptions::new().read(true).direct(true).route(route).open_blocking(server.path()).unwrap()
}

/// Returns a batch of reads into both kinds of buffer, and their offsets.
fn reads(file: &File, pool: &Pool, pages: u64, count: u64) -> (Batch, Vec<u64>) {
    let mut batch = Batch::new().depth(16);
    let offsets: Vec<u64> = (0..count).map(|i| i * 31 % pages * PAGE as u64).collect();
    for (i, &offset) in offsets.iter().enumerate() {
        let index = match i % 2 {
            0 => batch.add(file.read_at(pool.get(PAGE).unwrap(), offset)),
            _ => batch.add(file.read_at(Vec::with_capacity(PAGE), offset)),
        };
        assert_eq!(index, i);
    }
    (batch, offsets)
}

#[track_caller]
fn assert_read(results: Vec<Completion>, offsets: &[u64]) {
    assert_eq!(results.len(), offsets.len());
    for (i, (done, &offset)) in results.into_iter().zip(offsets).enumerate() {
        assert_eq!(done.result.unwrap(), PAGE, "read {i}");
        let buffer = done.buffer.unwrap();
        assert_eq!(matches!(buffer, AnyBuffer::Pooled(_)), i % 2 == 0, "the buffer that was given");
        assert_content(&buffer, offset);
    }
}

#[test]
fn results_are_in_the_order_added_with_their_own_bytes_on_every_route() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    let pool = Pool::new(4 << 20);
    for route in [Route::Auto, Route::Inline, Route::Workers] {
        let file = OpenOptions::new().read(true).route(route).open_blocking(&path).unwrap();
        let (batch, offsets) = reads(&file, &pool, 64, 300);
        assert_eq!(batch.len(), 300);
        assert_read(batch.run(), &offsets);
    }
    let file = direct(&path);
    let (batch, offsets) = reads(&file, &pool, 64, 300);
    assert_read(batch.run(), &offsets);
    assert_eq!(thread_metrics().stray, 0);
    assert!(Batch::new().run().is_empty());
}

#[test]
fn operations_after_a_barrier_see_the_writes_before_it() {
    let folder = Folder::new();
    let file = direct(&folder.file("data", &[]));
    let pool = Pool::new(1 << 20);
    let mut batch = Batch::new();
    for page in 0..32 {
        let mut buffer = pool.get(PAGE).unwrap();
        buffer.extend_from_slice(&content(page * PAGE as u64, PAGE));
        batch.add(file.write_at(buffer, page * PAGE as u64));
    }
    batch.barrier();
    let sync = batch.add(file.sync_data());
    batch.add(file.sync_all());
    batch.barrier();
    batch.barrier();
    let read = batch.add(file.read_at(pool.get(32 * PAGE).unwrap(), 0));
    batch.barrier();
    let mut results = batch.run();
    assert_eq!(*results[sync].result.as_ref().unwrap(), 0);
    assert!(results[sync].buffer.is_none());
    let read = results.swap_remove(read);
    assert_eq!(read.result.unwrap(), 32 * PAGE);
    assert_content(&read.buffer.unwrap(), 0);
}

#[test]
fn a_failure_before_a_barrier_cancels_only_later_operations() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    let (read_only, file) = (File::open_blocking(&path).unwrap(), direct(&path));
    let mut batch = Batch::new();
    batch.add(read_only.write_at(b"no".to_vec(), 0));
    let beside = batch.add(read_only.read_at(Vec::with_capacity(10), 0));
    batch.barrier();
    let sync = batch.add(file.sync_data());
    batch.barrier();
    let after = batch.add(read_only.read_at(Vec::with_capacity(10), 0));
    let results = batch.run();
    let error = results[0].result.as_ref().unwrap_err();
    assert_eq!(error.errno(), Some(libc::EBADF));
    assert_eq!(error.path(), Some(path.as_path()));
    assert_eq!(&results[0].buffer.as_ref().unwrap()[..], b"no", "what was not written");
    assert_eq!(*results[beside].result.as_ref().unwrap(), 10);
    for cancelled in [sync, after] {
        let error = results[cancelled].result.as_ref().unwrap_err();
        assert_eq!(error.errno(), Some(libc::ECANCELED));
        assert!(error.to_string().contains("barrier"), "{error}");
    }
}

#[test]
fn bad_operations_get_clear_errors_and_the_others_are_done() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 8 * PAGE));
    let (file, direct) = (File::open_blocking(&path).unwrap(), direct(&path));
    let write_only = OpenOptions::new().write(true).open_blocking(&path).unwrap();
    let mut batch = Batch::new();
    let empty = batch.add(file.read_at(Vec::new(), 0));
    let nothing = batch.add(write_only.write_at(Vec::new(), 0));
    let overflow = batch.add(file.read_at(Vec::with_capacity(10), u64::MAX - 5));
    let negative = batch.add(write_only.write_at(vec![1], -1i64 as u64));
    let wrong = batch.add(write_only.read_at(Vec::with_capacity(10), 7));
    // Without direct I/O the write is carried out, and changes nothing.
    let misaligned = batch.add(direct.write_at(content(100, 100), 100));
    let tail = batch.add(file.read_at(Vec::with_capacity(100), 8 * PAGE as u64 - 30));
    let beyond = batch.add(file.read_at(Vec::with_capacity(100), 100 * PAGE as u64));
    let good = batch.add(file.read_at(Vec::with_capacity(PAGE), 5));
    let results = batch.run();
    let error = |index: usize| results[index].result.as_ref().unwrap_err();
    assert_eq!(*results[empty].result.as_ref().unwrap(), 0);
    assert_eq!(*results[nothing].result.as_ref().unwrap(), 0);
    assert_eq!(error(overflow).kind(), ErrorKind::InvalidInput);
    assert_eq!(error(negative).kind(), ErrorKind::InvalidInput);
    assert_eq!((error(wrong).errno(), error(wrong).offset()), (Some(libc::EBADF), Some(7)));
    assert!(error(wrong).to_string().contains("not opened for reading"));
    if direct.is_direct() {
        assert_eq!(error(misaligned).kind(), ErrorKind::InvalidInput);
        assert!(error(misaligned).to_string().contains("multiples of"), "{}", error(misaligned));
    }
    assert_eq!(*results[tail].result.as_ref().unwrap(), 30);
    assert_content(results[tail].buffer.as_ref().unwrap(), 8 * PAGE as u64 - 30);
    assert_eq!(*results[beyond].result.as_ref().unwrap(), 0);
    assert_content(results[good].buffer.as_ref().unwrap(), 5);
    assert_eq!(std::fs::read(&path).unwrap(), content(0, 8 * PAGE));
}

#[test]
fn unaligned_direct_reads_return_exactly_their_bytes() {
    let folder = Folder::new();
    let size = (1 << 20) + 777;
    let file = direct(&folder.file("data", &content(0, size)));
    let mut random = Random::new();
    let mut batch = Batch::new();
    let mut asked = vec![(3, 900 << 10), (size as u64 - 5, 100), (size as u64 + 9, 10)];
    asked.extend((0..60).map(|_| (random.below(size as u64), 1 + random.below(300 << 10) as usize)));
    for &(offset, len) in &asked {
        batch.add(file.read_at(Vec::with_capacity(len), offset));
    }
    for (done, (offset, len)) in batch.run().into_iter().zip(asked) {
        let expected = len.min((size as u64).saturating_sub(offset) as usize);
        let buffer = done.buffer.unwrap();
        // A vector may have more capacity than was requested.
        assert!(done.result.unwrap() >= expected && buffer.len() >= expected);
        assert_content(&buffer, offset);
        assert!(offset + buffer.len() as u64 <= size.max(offset as usize) as u64);
    }
}

#[test]
fn f30_an_error_is_the_result_of_one_operation() {
    let Some(server) = Server::or_skip("f30_an_error_is_the_result_of_one_operation", content(0, 64 * PAGE))
    else {
        return;
    };
    server.rule(Op::Read, 7 * PAGE as u64..8 * PAGE as u64, 1000, Act::Fail(libc::EIO));
    let file = overlapping(&server);
    let pool = Pool::new(1 << 20);
    for merged in [false, true] {
        let mut batch = Batch::new().depth(4);
        for page in 0..64 {
            batch.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64));
        }
        let batch = if merged { batch.merge_reads(0) } else { batch };
        for (page, done) in batch.run().into_iter().enumerate() {
            if page == 7 {
                let error = done.result.unwrap_err();
                assert_eq!(error.errno(), Some(libc::EIO));
                assert_eq!(error.offset(), Some(7 * PAGE as u64));
                assert_eq!(done.buffer.unwrap().len(), 0);
            } else {
                assert_eq!(done.result.unwrap(), PAGE, "page {page}, merged: {merged}");
                assert_content(&done.buffer.unwrap(), (page * PAGE) as u64);
            }
        }
    }
}

#[test]
fn the_first_error_stops_operations_that_have_not_started_on_request() {
    let folder = Folder::new();
    let file = File::open_blocking(folder.file("data", &content(0, 64 * PAGE))).unwrap();
    let mut batch = Batch::new().depth(1).stop_on_error(true);
    for page in 0..64 {
        let offset = if page == 20 { u64::MAX } else { page * PAGE as u64 };
        batch.add(file.read_at(Vec::with_capacity(PAGE), offset));
    }
    for (page, done) in batch.run().into_iter().enumerate() {
        match page {
            0..20 => assert_content(&done.buffer.unwrap(), (page * PAGE) as u64),
            20 => assert_eq!(done.result.unwrap_err().kind(), ErrorKind::InvalidInput),
            _ => {
                assert_eq!(done.result.unwrap_err().errno(), Some(libc::ECANCELED));
                assert_eq!(done.buffer.unwrap().len(), 0);
            }
        }
    }
}

#[test]
fn no_more_are_in_flight_than_allowed() {
    let test = "no_more_are_in_flight_than_allowed";
    let Some(server) = Server::or_skip(test, content(0, 64 * PAGE)) else { return };
    server.rule(Op::Read, 0..u64::MAX, 8, Act::Hold);
    let file = overlapping(&server);
    let run = std::thread::spawn(move || {
        let pool = Pool::new(1 << 20);
        let mut batch = Batch::new().depth(3);
        for page in 0..40 {
            batch.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64));
        }
        batch.run()
    });
    server.wait_held(3);
    // Time in which the server must see no fourth request. The batch blocks its thread: `sim_time.rs` has awaited ones.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(server.held(), 3, "the limit");
    assert!(server.log().is_empty());
    server.release();
    for (page, done) in run.join().unwrap().into_iter().enumerate() {
        assert_content(&done.buffer.unwrap(), (page * PAGE) as u64);
        assert_eq!(done.result.unwrap(), PAGE);
    }
}

#[test]
fn an_operation_that_takes_long_does_not_hold_up_the_others() {
    let test = "an_operation_that_takes_long_does_not_hold_up_the_others";
    let Some(server) = Server::or_skip(test, content(0, 64 * PAGE)) else { return };
    server.rule(Op::Read, 0..1, 1, Act::Hold);
    let file = overlapping(&server);
    let run = std::thread::spawn(move || {
        let mut batch = Batch::new().depth(8);
        for page in 0..64 {
            batch.add(file.read_at(Vec::with_capacity(PAGE), page * PAGE as u64));
        }
        batch.run()
    });
    server.wait_held(1);
    support::wait_for("the reads beside it", || server.log().len() == 63);
    server.release();
    for (page, done) in run.join().unwrap().into_iter().enumerate() {
        assert_content(&done.buffer.unwrap(), (page * PAGE) as u64);
    }
}

#[test]
fn a_batch_takes_a_million_reads() {
    let folder = Folder::new();
    let file = File::open_blocking(folder.file("data", &content(0, PAGE))).unwrap();
    let count = 1_000_000;
    let mut batch = Batch::with_capacity(count);
    for i in 0..count {
        batch.add(file.read_at(Vec::with_capacity(8), i as u64 % 4000));
    }
    let results = batch.run();
    assert_eq!(results.len(), count);
    for (i, done) in results.into_iter().enumerate() {
        assert_eq!(done.result.unwrap(), 8);
        assert_content(&done.buffer.unwrap(), i as u64 % 4000);
    }
}

#[test]
fn adjacent_reads_are_merged_on_request() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 256 * PAGE));
    let pool = Pool::new(4 << 20);
    for file in [File::open_blocking(&path).unwrap(), direct(&path)] {
        let offsets: Vec<u64> = (0..40).map(|i| (i * 7 % 40) * 2 * PAGE as u64).collect();
        for (gap, most) in [(PAGE - 1, u64::MAX), (PAGE, 4)] {
            let mut batch = Batch::new().merge_reads(gap);
            for &offset in &offsets {
                batch.add(file.read_at(pool.get(PAGE).unwrap(), offset));
            }
            let before = metrics_of_all();
            let results = batch.run();
            let ops = metrics_of_all() - before;
            for (done, &offset) in results.into_iter().zip(&offsets) {
                assert_eq!(done.result.unwrap(), PAGE);
                let buffer = done.buffer.unwrap().into_pooled().unwrap();
                assert_eq!(buffer.len(), PAGE);
                assert_content(&buffer, offset);
            }
            if !workers_are_forced() {
                assert!(ops <= most && (most < 40 || ops >= 40), "{ops} operations, gap {gap}");
            }
        }
        // The end of the file in the middle of a merged group, and before it.
        let mut batch = Batch::new().merge_reads(PAGE);
        let end = 256 * PAGE as u64;
        for offset in [end - 2 * PAGE as u64, end - PAGE as u64, end, end + PAGE as u64] {
            batch.add(file.read_at(pool.get(PAGE).unwrap(), offset));
        }
        let lens: Vec<usize> = batch.run().into_iter().map(|done| done.result.unwrap()).collect();
        assert_eq!(lens, [PAGE, PAGE, 0, 0]);
    }
    assert_eq!(pool.metrics().in_use, 0);
}

/// Counts this thread's operations; with `RINGFILE_DISABLE=io_uring,aio` other threads count them.
fn metrics_of_all() -> u64 {
    thread_metrics().ops
}

#[test]
fn merged_batches_return_the_same_as_others() {
    let folder = Folder::new();
    let size = 300 * PAGE + 123;
    let path = folder.file("data", &content(0, size));
    let pool = Pool::new(16 << 20);
    let mut random = Random::new();
    for round in 0..12 {
        let file = if round % 2 == 0 { File::open_blocking(&path).unwrap() } else { direct(&path) };
        let mut batch = Batch::new().merge_reads(random.below(20_000) as usize).depth(1 + round);
        let mut asked = Vec::new();
        for _ in 0..200 {
            let aligned = random.below(2) == 0;
            let unit = if aligned { PAGE as u64 } else { 1 };
            let offset = random.below(size as u64 + 5000) / unit * unit;
            let len = (1 + random.below(20_000) as usize).next_multiple_of(unit as usize);
            if random.below(10) == 0 {
                batch.barrier();
            }
            batch.add(file.read_at(pool.get(len).unwrap(), offset));
            asked.push((offset, len));
        }
        for (done, (offset, len)) in batch.run().into_iter().zip(asked) {
            let expected = len.min((size as u64).saturating_sub(offset) as usize);
            assert_eq!(done.result.unwrap(), expected, "{len} bytes at {offset} of {size}");
            let buffer = done.buffer.unwrap();
            assert_eq!(buffer.len(), expected);
            assert_content(&buffer, offset);
        }
    }
}

#[test]
fn on_a_ringfile_thread_run_fails_and_awaiting_works() {
    let folder = Folder::new();
    let file = direct(&folder.file("data", &content(0, 64 * PAGE)));
    let pool = Pool::new(4 << 20);
    let (refused, _) = reads(&file, &pool, 64, 3);
    let (batch, offsets) = reads(&file, &pool, 64, 200);
    let results = ringfile::block_on(async {
        for done in refused.run() {
            let error = done.result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            assert!(error.to_string().contains("await"), "{error}");
            assert!(done.buffer.is_some());
        }
        batch.await
    });
    assert_read(results, &offsets);
    assert_eq!(thread_metrics().ops, if workers_are_forced() { 0 } else { 200 }, "no hop");
}

#[test]
fn eight_threads_run_batches_at_once() {
    let folder = Folder::new();
    let file = direct(&folder.file("data", &content(0, 64 * PAGE)));
    let pool = Pool::new(16 << 20);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let (batch, offsets) = reads(&file, &pool, 64, 50);
                    assert_read(batch.run(), &offsets);
                }
            });
        }
    });
    assert_eq!(pool.metrics().in_use, 0);
    assert_eq!(metrics().stray, 0);
}

#[test]
fn any_executor_can_await_a_batch() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    let pool = Pool::new(16 << 20);
    for route in [Route::Auto, Route::Ring, Route::Inline, Route::Workers] {
        if route == Route::Ring && is_without_ring() {
            continue;
        }
        for direct in [false, true] {
            let mut options = OpenOptions::new();
            let file = options
                .read(true)
                .direct(direct)
                .buffered_fallback(true)
                .route(route)
                .open_blocking(&path)
                .unwrap();
            let (batch, offsets) = reads(&file, &pool, 64, 500);
            assert_read(futures::executor::block_on(batch.into_future()), &offsets);
            let (batch, offsets) = reads(&file, &pool, 64, 500);
            let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
            assert_read(tokio.block_on(async { batch.await }), &offsets);
            let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(3).build().unwrap();
            tokio.block_on(async {
                let mut tasks = Vec::new();
                for _ in 0..10 {
                    let (batch, offsets) = reads(&file, &pool, 64, 50);
                    tasks.push((tokio::spawn(batch.into_future()), offsets));
                }
                for (task, offsets) in tasks {
                    assert_read(task.await.unwrap(), &offsets);
                }
            });
        }
    }
    assert_eq!(pool.metrics().in_use, 0);
}

#[test]
fn many_inline_operations_leave_others_their_turn() {
    if workers_are_forced() {
        return skip("many_inline_operations_leave_others_their_turn", "nothing is inline");
    }
    let folder = Folder::new();
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .route(Route::Inline)
        .open_blocking(folder.file("data", &content(0, PAGE)))
        .unwrap();
    let mut batch = Batch::new();
    for _ in 0..1000 {
        batch.add(file.read_at(Vec::with_capacity(10), 0));
    }
    let mut run = batch.into_future();
    let mut polls = 0;
    let results = loop {
        polls += 1;
        if let Poll::Ready(results) = Pin::new(&mut run).poll(&mut Context::from_waker(Waker::noop())) {
            break results;
        }
    };
    // Polls are bounded by time: a turn takes 14 µs. The clock is read for every fourth operation, which then waits for
    // the next turn.
    assert!((5..=334).contains(&polls), "{polls}");
    assert!(results.iter().all(|done| done.result.is_ok()));
}

struct Counted(std::sync::atomic::AtomicUsize);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

#[test]
fn a_dropped_future_starts_nothing_more_and_its_buffers_live_as_long_as_the_kernel_needs_them() {
    let test = "a_dropped_future_starts_nothing_more";
    let Some(server) = Server::or_skip(test, content(0, 64 * PAGE)) else { return };
    server.rule(Op::Read, 0..u64::MAX, 4, Act::Hold);
    let file = overlapping(&server);
    let pool = Pool::new(1 << 20);
    let mut batch = Batch::new().depth(4);
    for page in 0..64 {
        batch.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64));
    }
    let mut run = batch.into_future();
    let counted = Arc::new(Counted(0.into()));
    let waker = Waker::from(Arc::clone(&counted));
    assert!(Pin::new(&mut run).poll(&mut Context::from_waker(&waker)).is_pending());
    server.wait_held(4);
    drop(run);
    drop(waker);
    assert_eq!(Arc::strong_count(&counted), 1, "the waker is gone");
    assert!(pool.metrics().in_use >= 4 * PAGE, "the kernel still has four");
    server.release();
    support::wait_for("the buffers", || pool.metrics().in_use == 0);
    assert_eq!(server.log().len(), 4, "none was started after");
    assert_eq!(counted.0.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[test]
fn a_task_that_waits_for_a_batch_is_woken_once() {
    if is_without_ring() {
        return skip("a_task_that_waits_for_a_batch_is_woken_once", "the same on workers, but not timed");
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    let file = OpenOptions::new().read(true).route(Route::Ring).open_blocking(path).unwrap();
    let (batch, offsets) = reads(&file, &Pool::new(4 << 20), 64, 200);
    // All are in flight at once; otherwise the task would also be woken to start more.
    let mut run = batch.depth(200).into_future();
    let counted = Arc::new(Counted(0.into()));
    let waker = Waker::from(Arc::clone(&counted));
    let began = Instant::now();
    let mut context = Context::from_waker(&waker);
    let mut polled = Pin::new(&mut run).poll(&mut context);
    while polled.is_pending() && counted.0.load(std::sync::atomic::Ordering::SeqCst) == 0 {
        assert!(began.elapsed() < support::patience(), "never woken");
        std::thread::yield_now();
    }
    if polled.is_pending() {
        polled = Pin::new(&mut run).poll(&mut context);
    }
    let Poll::Ready(results) = polled else { panic!("woken before the end") };
    assert_read(results, &offsets);
    // No wake-up at all if the last operation had ended by the first poll.
    assert!(counted.0.load(std::sync::atomic::Ordering::SeqCst) <= 1);
}

#[test]
fn futures_and_batches_are_send() {
    fn check<T: Send + Unpin>(_: &T) {}
    let batch = Batch::new();
    check(&batch);
    check(&batch.into_future());
    must_end("an empty batch", || futures::executor::block_on(Batch::new().into_future()));
}

#[test]
fn a_merged_read_that_is_too_short_stops_what_comes_behind_it() {
    let folder = Folder::new();
    let file = File::open_blocking(folder.file("data", &content(0, PAGE + 100))).unwrap();
    let pool = Pool::new(1 << 20);
    for merged in [false, true] {
        for stops in [false, true] {
            let batch = if merged { Batch::new().merge_reads(0) } else { Batch::new() };
            let mut batch = batch.stop_on_error(stops).depth(1);
            batch.add(file.read_exact_at(pool.get(PAGE).unwrap(), 0));
            batch.add(file.read_exact_at(pool.get(PAGE).unwrap(), PAGE as u64));
            if !stops {
                batch.barrier();
            }
            batch.add(file.sync_data());
            let done = batch.run();
            assert_eq!(done[0].result.as_ref().ok(), Some(&PAGE));
            assert_eq!(done[1].result.as_ref().unwrap_err().kind(), ErrorKind::UnexpectedEof);
            let behind = done[2].result.as_ref().map_err(ringfile::Error::errno);
            assert_eq!(behind, Err(Some(libc::ECANCELED)), "merged: {merged}, stops: {stops}");
        }
    }
}
