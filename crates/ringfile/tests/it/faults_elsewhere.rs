//! Threads, executors and processes that end, move, fork or go to sleep while other threads carry out their operations
//! (F01 to F05, F09, F22 to F24, F31).

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Waker};
use std::time::Duration;

use crate::support;
use crate::support::forms::{READING, routes};
use crate::support::fuse::{Act, Op, Server};
use crate::support::handles::Handles as _;
use crate::support::{
    Folder, Random, assert_content, assert_passed, content, fork, in_child, is_without_ring, must_end,
    needs_ring, wait_for,
};
use ringfile::queue::BatchRun;
use ringfile::{Batch, File, OpenOptions, Pool, Queue, Route, Runtime, block_on, metrics};

const PAGE: usize = 4096;
const EVERYWHERE: std::ops::Range<u64> = 0..u64::MAX;

/// Returns the routes on which an operation that the server holds back is in flight, and not in a call of this thread.
fn routes_that_wait() -> impl Iterator<Item = Route> {
    // Operations that other tests hold back at the same time occupy workers too.
    ringfile::runtime::set_worker_threads(128);
    routes().filter(|route| matches!(route, Route::Ring | Route::Workers))
}

fn open(server: &Server, route: Route) -> File {
    OpenOptions::new().read(true).write(true).route(route).open_blocking(server.path()).unwrap()
}

/// Opens with direct I/O, for which every kernel sends any number of requests to the server without a thread for each.
fn open_direct(server: &Server, route: Route) -> File {
    OpenOptions::new().read(true).direct(true).route(route).open_blocking(server.path()).unwrap()
}

fn batch_of(file: &File, pool: &Pool, pages: u64) -> BatchRun {
    let mut batch = Batch::new();
    for page in 0..pages {
        batch.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64));
    }
    batch.into_future()
}

fn begin<F: Future + Unpin>(future: &mut F) {
    assert!(Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[track_caller]
fn assert_pages(results: Vec<ringfile::Completion>) {
    for (page, done) in results.into_iter().enumerate() {
        assert_eq!(done.result.unwrap(), PAGE);
        assert_content(&done.buffer.unwrap(), (page * PAGE) as u64);
    }
}

#[test]
fn f02_reads_that_no_worker_has_started_return_their_memory_at_once() {
    const WORKERS: usize = 2;
    let name = "f02_reads_that_no_worker_has_started_return_their_memory_at_once";
    if !in_child(name) {
        return;
    }
    let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
    ringfile::runtime::set_worker_threads(WORKERS);
    let file = open(&server, Route::Workers);
    let pool = Pool::new(1 << 20);
    let in_use = || pool.metrics().in_use / PAGE;
    let hold = || server.rule(Op::Read, EVERYWHERE, usize::MAX, Act::Hold);
    let end = || {
        assert_eq!(in_use(), WORKERS, "of what was withdrawn");
        server.release();
        wait_for("the workers' memory", || in_use() == 0);
    };

    hold();
    let mut reads: Vec<_> =
        (0..10).map(|page| Box::pin(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64))).collect();
    reads.iter_mut().for_each(begin);
    server.wait_held(WORKERS);
    drop(reads);
    end();

    hold();
    let mut batch = batch_of(&file, &pool, 10);
    begin(&mut batch);
    server.wait_held(WORKERS);
    drop(batch);
    end();

    hold();
    let mut queue = Queue::new();
    let tokens: Vec<_> = (0..10)
        .map(|page| queue.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64), page))
        .collect();
    queue.submit();
    server.wait_held(WORKERS);
    assert!(tokens.iter().all(|&token| queue.cancel(token)));
    queue.submit();
    for _ in WORKERS..10 {
        let done = queue.next().expect("a result without waiting");
        assert_eq!(done.result.unwrap_err().errno(), Some(libc::ECANCELED));
    }
    assert!(queue.next().is_none());
    assert_eq!(in_use(), WORKERS, "of what was withdrawn");
    server.release();
    assert_eq!(queue.ends(WORKERS).len(), WORKERS, "what had begun");
}

#[test]
fn f01_f60_results_arrive_though_the_thread_that_began_is_gone() {
    let name = "f01_f60_results_arrive_though_the_thread_that_began_is_gone";
    for route in routes_that_wait() {
        let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
        server.rule(Op::Read, EVERYWHERE, 16, Act::Hold);
        let (file, pool) = (open_direct(&server, route), Pool::new(1 << 20));
        std::thread::scope(|scope| {
            let (file, pool) = (&file, &pool);
            // A plain thread, which ends at once.
            let plain = scope.spawn(|| {
                let (mut batch, mut read) =
                    (batch_of(file, pool, 8), Box::pin(file.read_at(pool.get(PAGE).unwrap(), 0)));
                begin(&mut batch);
                begin(&mut read);
                (batch, read)
            });
            let (batch, read) = plain.join().unwrap();
            // A loop, which waits for its operations when it is left.
            let in_loop = scope.spawn(|| {
                let mut batch = batch_of(file, pool, 7);
                block_on(async { begin(&mut batch) });
                batch
            });
            server.wait_held(16);
            server.release();
            let late = in_loop.join().unwrap();
            assert_pages(must_end_here(batch));
            assert_pages(must_end_here(late));
            assert_content(&futures::executor::block_on(read).unwrap(), 0);
        });
        assert_eq!((metrics().stray, pool.metrics().in_use), (0, 0), "{route:?}");
    }
}

/// Awaits a batch that may hang, on a thread that is watched.
fn must_end_here(batch: BatchRun) -> Vec<ringfile::Completion> {
    must_end("a batch", || futures::executor::block_on(batch))
}

#[test]
fn f01_a_thread_that_ends_with_open_reads_waits_for_them() {
    let name = "f01_a_thread_that_ends_with_open_reads_waits_for_them";
    for route in routes_that_wait() {
        let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
        server.rule(Op::Read, EVERYWHERE, 8, Act::Hold);
        let (file, pool) = (open(&server, route), Pool::new(1 << 20));
        let (ends, theirs) = (mpsc::channel::<()>(), pool.clone());
        let thread = std::thread::spawn(move || {
            let mut reads = Queue::new();
            for page in 0..8 {
                reads.start(&file, theirs.get(PAGE).unwrap(), page * PAGE as u64);
            }
            reads.submit();
            let _ = ends.1.recv();
        });
        server.wait_held(8);
        drop(ends.0);
        // Time in which the thread must not end; threads are not simulated.
        std::thread::sleep(Duration::from_millis(50));
        assert!(!thread.is_finished(), "{route:?}: it ended while the server had its requests");
        assert!(pool.metrics().in_use >= 8 * PAGE, "the kernel has the memory");
        server.release();
        must_end("the thread with open reads", move || thread.join().unwrap());
        wait_for("the memory", || pool.metrics().in_use == 0);
    }
}

#[test]
fn f02_buffers_of_futures_dropped_in_other_executors_stay_until_the_kernel_answers() {
    let name = "f02_buffers_of_futures_dropped_in_other_executors_stay_until_the_kernel_answers";
    for route in routes_that_wait() {
        let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
        server.rule(Op::Read, EVERYWHERE, 16, Act::Hold);
        let (file, pool) = (open_direct(&server, route), Pool::new(1 << 20));
        let mut reads: Vec<_> =
            (0..8).map(|page| Box::pin(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64))).collect();
        reads.iter_mut().for_each(begin);
        let mut batch = batch_of(&file, &pool, 8);
        begin(&mut batch);
        server.wait_held(16);
        drop((reads, batch));
        // Memory to which the kernel may still write must not be free: the test takes all free memory, which must not
        // change.
        let taken: Vec<_> = std::iter::from_fn(|| pool.get(PAGE).ok())
            .map(|mut buffer| {
                buffer.resize(PAGE, 0xEE);
                buffer
            })
            .collect();
        assert_eq!(taken.len(), (1 << 20) / PAGE - 16, "{route:?}");
        server.release();
        wait_for("the memory", || pool.metrics().in_use == taken.len() * PAGE);
        assert!(taken.iter().all(|buffer| buffer.iter().all(|&byte| byte == 0xEE)), "{route:?}");
    }
}

#[test]
fn f03_executors_and_files_dropped_with_operations_in_flight_leave_nothing() {
    let name = "f03_executors_and_files_dropped_with_operations_in_flight_leave_nothing";
    for route in routes_that_wait() {
        let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
        server.rule(Op::Read, EVERYWHERE, 12, Act::Hold);
        let pool = Pool::new(1 << 20);
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let runtime = Runtime::builder().threads(1).build().unwrap();
        let file = open(&server, route);
        for page in 0..4 {
            let (file, buffer) = (file.clone(), pool.get(PAGE).unwrap());
            tokio.spawn(async move { file.read_at(buffer, page * PAGE as u64).await });
        }
        tokio.spawn(batch_of(&file, &pool, 4));
        drop(runtime.spawn(batch_of(&file, &pool, 4)));
        server.wait_held(12);
        drop(file);
        tokio.shutdown_background();
        let dropping = std::thread::spawn(move || drop(runtime));
        assert!(pool.metrics().in_use >= 12 * PAGE, "the kernel has the memory");
        assert_eq!(server.closed(), 0, "closed with operations in flight");
        server.release();
        dropping.join().unwrap();
        wait_for("the memory", || pool.metrics().in_use == 0);
        wait_for("the file to be closed", || server.closed() == 1);
    }
}

#[test]
fn f04_f05_batches_and_futures_dropped_elsewhere_at_any_moment_disturb_no_other() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    let pool = Pool::new(8 << 20);
    let mut random = Random::new();
    for route in routes() {
        let mut options = OpenOptions::new();
        let options = options.read(true).direct(true).buffered_fallback(true).route(route);
        let file = options.open_blocking(&path).unwrap();
        let (send, receive) = mpsc::channel::<BatchRun>();
        let dropping = std::thread::spawn(move || receive.into_iter().for_each(drop));
        let runtime = Runtime::builder().threads(1).build().unwrap();
        for round in 0..200 {
            let mut batch = batch_of(&file, &pool, 1 + random.below(20));
            let (kept, wait) = (batch_of(&file, &pool, 8), random.below(200));
            let send = send.clone();
            let task = async move {
                let begun = Pin::new(&mut batch).poll(&mut Context::from_waker(Waker::noop()));
                (0..wait).for_each(|_| std::hint::spin_loop());
                if begun.is_pending() {
                    send.send(batch).unwrap();
                }
                kept.await
            };
            // On the thread's own ring, or on that of an I/O thread.
            let results = if round % 2 == 0 {
                must_end("a batch", || futures::executor::block_on(task))
            } else {
                runtime.spawn(task).join().unwrap()
            };
            assert_pages(results);
        }
        drop(send);
        dropping.join().unwrap();
        wait_for("the memory", || pool.metrics().in_use == 0);
    }
    assert_eq!(metrics().stray, 0);
}

#[test]
fn f09_batches_and_handles_work_on_a_thread_that_gets_no_ring() {
    let name = "f09_batches_and_handles_work_on_a_thread_that_gets_no_ring";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    let auto =
        OpenOptions::new().read(true).direct(true).buffered_fallback(true).open_blocking(&path).unwrap();
    let ring = OpenOptions::new().read(true).route(Route::Ring).open_blocking(&path).unwrap();
    let pool = Pool::new(4 << 20);
    let mut taken = Vec::new();
    let few = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: a valid record to read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &few) }, 0);
    while let Ok(another) = std::fs::File::open("/dev/null") {
        taken.push(another);
    }
    // Tokio itself needs descriptors.
    for form in READING.into_iter().filter(|form| *form != support::forms::Form::Tokio) {
        let reads = |_| (0..32).map(|page| (pool.get(PAGE).unwrap(), page * PAGE as u64)).collect();
        for (page, (buffer, error)) in form.read(&auto, reads(())).into_iter().enumerate() {
            assert!(error.is_none(), "{form:?}: {}", error.unwrap());
            assert_content(&buffer, (page * PAGE) as u64);
        }
        for (buffer, error) in form.read(&ring, reads(())) {
            let error = error.unwrap_or_else(|| panic!("{form:?}: no ring, and no error"));
            let cause = if is_without_ring() { "RINGFILE_DISABLE" } else { "RLIMIT_NOFILE" };
            assert!(error.to_string().contains(cause), "{form:?}: {error}");
            assert_eq!(buffer.capacity(), PAGE, "the buffer comes back");
        }
    }
    assert_eq!(pool.metrics().in_use, 0);
}

#[test]
fn f09_an_io_thread_that_could_not_be_started_starts_later() {
    let name = "f09_an_io_thread_that_could_not_be_started_starts_later";
    if !in_child(name) {
        return;
    }
    let warnings = support::record_warnings();
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    // A filter is for the thread that sets it.
    let refused = std::thread::spawn({
        let file = open_direct_or_not(&path);
        move || {
            support::filters::deny(libc::SYS_clone3, libc::EAGAIN);
            support::filters::deny(libc::SYS_clone, libc::EAGAIN);
            for page in 0..5 {
                let read = file.read_at(Pool::new(1 << 20).get(PAGE).unwrap(), page * PAGE as u64);
                assert_content(&futures::executor::block_on(read).unwrap(), page * PAGE as u64);
                let error = Batch::new().start(|_| ()).unwrap_err();
                assert_eq!(error.errno(), Some(libc::EAGAIN), "{error}");
            }
        }
    });
    refused.join().unwrap();
    let of_threads = |text: &&String| text.contains("could not start an I/O thread");
    assert_eq!(warnings.lock().unwrap().iter().filter(of_threads).count(), 1);

    let (tell, told) = mpsc::channel();
    Batch::new().start(move |_| tell.send(()).unwrap()).unwrap();
    told.recv().unwrap();
    support::threads::Thread::wait_for("ringfile-io-0", |_| true);
}

/// Opens with direct I/O, if the file system has it.
fn open_direct_or_not(path: &std::path::Path) -> File {
    OpenOptions::new().read(true).direct(true).buffered_fallback(true).open_blocking(path).unwrap()
}

#[test]
fn f22_forked_children_get_clear_errors_from_batches_and_handles() {
    let name = "f22_forked_children_get_clear_errors_from_batches_and_handles";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    let pool = Pool::new(4 << 20);
    let files: Vec<File> = routes()
        .filter(|route| *route != Route::Inline)
        .map(|route| {
            let mut options = OpenOptions::new();
            options.read(true).direct(true).buffered_fallback(true).route(route).open_blocking(&path).unwrap()
        })
        .collect();
    let forms = || READING.into_iter().filter(|form| *form != support::forms::Form::Tokio);
    let reads = || (0..16).map(|page| (pool.get(PAGE).unwrap(), page * PAGE as u64)).collect();
    let all_are_right = || {
        for (file, form) in files.iter().flat_map(|file| forms().map(move |form| (file, form))) {
            for (page, (buffer, error)) in form.read(file, reads()).into_iter().enumerate() {
                assert!(error.is_none(), "{form:?}: {}", error.unwrap());
                assert_content(&buffer, (page * PAGE) as u64);
            }
        }
    };
    all_are_right();
    let mut open = Queue::new();
    let handle = open.start(&files[0], pool.get(PAGE).unwrap(), 0);
    let child = fork(|| {
        for (file, form) in files.iter().flat_map(|file| forms().map(move |form| (file, form))) {
            for (page, (buffer, error)) in form.read(file, reads()).into_iter().enumerate() {
                // Either the bytes, from a call that needs nothing of the parent, or an error that gives the
                // reason.
                match error {
                    None => assert_content(&buffer, (page * PAGE) as u64),
                    Some(error) => assert!(error.to_string().contains("fork"), "{form:?}: {error}"),
                }
            }
        }
    });
    all_are_right();
    assert_passed(child);
    assert_eq!(open.wait_for(handle).unwrap().result.unwrap(), PAGE);
    drop(open);
    assert_eq!((metrics().stray, pool.metrics().in_use), (0, 0));
}

/// A thread that goes to sleep just when its event arrives: an I/O thread that gets an operation, or a plain thread
/// that is notified by an I/O thread or a worker. 600,000 round trips in release builds.
#[test]
fn f24_a_thread_that_goes_to_sleep_misses_no_event_of_another_thread() {
    let rounds = if cfg!(debug_assertions) { 4000 } else { 100_000 };
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    for route in routes_that_wait() {
        let file = OpenOptions::new().read(true).route(route).open_blocking(&path).unwrap();
        for way in 0..3 {
            let file = file.clone();
            support::must_end("a round trip between threads", move || {
                let mut buffer = Vec::with_capacity(8);
                let mut reads = Queue::new();
                for round in 0..rounds {
                    // Varies whether the result comes before, after or while the other thread goes to sleep.
                    for _ in 0..round % 97 * (round % 3) * 20 {
                        std::hint::spin_loop();
                    }
                    let offset = round as u64 % 4000;
                    buffer = match way {
                        0 => futures::executor::block_on(file.read_at(buffer, offset)).unwrap(),
                        1 => {
                            let mut batch = Batch::new();
                            batch.add(file.read_at(buffer, offset));
                            batch.run().remove(0).buffer.unwrap().into_vec().unwrap()
                        }
                        _ => {
                            let handle = reads.start(&file, buffer, offset);
                            let done = reads.wait_for(handle).unwrap();
                            done.buffer.unwrap().into_vec().unwrap()
                        }
                    };
                    assert_eq!(buffer.len(), 8);
                    assert_content(&buffer, offset);
                }
            });
        }
    }
}

#[test]
fn f31_a_slow_file_does_not_hold_up_the_tasks_of_other_executors() {
    let name = "f31_a_slow_file_does_not_hold_up_the_tasks_of_other_executors";
    if !in_child(name) {
        return;
    }
    // The test reads counts of the whole process.
    if !needs_ring(name) || !in_child(name) {
        return;
    }
    let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
    server.rule(Op::Read, EVERYWHERE, 1, Act::Delay(Duration::from_millis(100)));
    server.rule(Op::Write, EVERYWHERE, 1, Act::Delay(Duration::from_millis(100)));
    let file = open(&server, Route::Auto);
    let tokio = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    tokio.block_on(async {
        let pool = Pool::new(1 << 20);
        // One slow operation of each direction teaches the route.
        file.read_at(pool.get(PAGE).unwrap(), 0).await.unwrap();
        file.write_at(content(0, PAGE), 0).await.unwrap();
        let before = metrics();
        // A read of the batch and a write of a future.
        server.rule(Op::Read, 0..PAGE as u64, 1, Act::Hold);
        server.rule(Op::Write, 0..PAGE as u64, 1, Act::Hold);
        let turns = Arc::new(AtomicUsize::new(0));
        let released = server.release_after_turns(2, &turns);
        let batch = tokio::spawn(batch_of(&file, &pool, 6));
        let own = file.clone();
        let futures = tokio::spawn(async move {
            for page in 0..3 {
                let offset = page * PAGE as u64;
                own.write_at(content(offset, PAGE), offset).await.unwrap();
                assert_content(&own.read_at(Vec::with_capacity(PAGE), offset).await.unwrap(), offset);
            }
        });
        while !(batch.is_finished() && futures.is_finished()) {
            tokio::task::yield_now().await;
            turns.fetch_add(1, Ordering::SeqCst);
        }
        released.join().unwrap();
        assert_pages(batch.await.unwrap());
        futures.await.unwrap();
        let counts = metrics() - before;
        assert_eq!((counts.ops, counts.inline_ops), (12, 0), "{counts:?}");
    });
}
