//! Operations whose future, thread, file or runtime goes away while they are in flight (F01 to F05).

#![allow(clippy::async_yields_async, reason = "what waits is handed out on purpose")]

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc;

use crate::support::filters::deny;
use crate::support::fuse::{Act, Op, Server};
use crate::support::mounts::Loop;
use crate::support::{
    Folder, Random, all, assert_content, content, in_child, is_without_ring, must_end, needs_ring,
    open_descriptors, open_on_ring, pipe, poll_once, ring_options, wait_closed, wait_for, yield_now,
    yield_until,
};
use ringfile::{BufResult, Buffer, File, Pool, Queue, Runtime, block_on, metrics, thread_metrics};

const PAGE: usize = 4096;

type Read = Pin<Box<dyn Future<Output = BufResult<Buffer>> + Send>>;

/// A read that owns its file, so that it can be moved anywhere.
fn read(file: &File, pool: &Pool, page: u64) -> Read {
    let (file, buffer) = (file.clone(), pool.get(PAGE).unwrap());
    Box::pin(async move { file.read_at(buffer, page * PAGE as u64).await })
}

/// Makes a server that holds all reads back.
fn holding(test: &str, pages: usize) -> Option<Server> {
    let server = Server::or_skip(test, content(0, pages * PAGE))?;
    server.rule(Op::Read, 0..u64::MAX, usize::MAX, Act::Hold);
    Some(server)
}

/// Asserts that all memory is back: leaving the loop waits for the ring, but not for workers.
#[track_caller]
fn assert_came_back(pool: &Pool) {
    if is_without_ring() {
        assert_comes_back(pool);
    }
    assert_eq!(pool.metrics().in_use, 0);
}

#[track_caller]
fn assert_comes_back(pool: &Pool) {
    wait_for("memory to come back to the pool", || pool.metrics().in_use == 0);
}

#[test]
fn f01_a_thread_that_ends_waits_for_its_operations_and_their_results_arrive() {
    let name = "f01_a_thread_that_ends_waits_for_its_operations_and_their_results_arrive";
    let Some(server) = holding(name, 64) else { return };
    let file = open_on_ring(server.path());
    let pool = Pool::new(1 << 20);
    let mut reads: Vec<Read> = (0..64).map(|page| read(&file, &pool, page)).collect();
    let thread = std::thread::spawn(move || {
        block_on(async move {
            for read in &mut reads {
                assert!(poll_once(read).await.is_pending());
            }
            reads
        })
    });
    server.wait_held(1);
    assert!(!thread.is_finished(), "the thread ended with operations in flight");
    server.release();
    let reads = must_end("the thread that submitted", move || thread.join().unwrap());
    for (page, result) in block_on(all(reads)).into_iter().enumerate() {
        let buffer = result.unwrap();
        assert_eq!(buffer.len(), PAGE);
        assert_content(&buffer, (page * PAGE) as u64);
    }
    drop(file);
    assert_comes_back(&pool);
}

#[test]
fn f01_results_wait_for_futures_that_are_never_polled_again() {
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 64 * PAGE)));
    let pool = Pool::new(1 << 20);
    let mut reads: Vec<Read> = (0..64).map(|page| read(&file, &pool, page)).collect();
    let reads = must_end("a thread with operations in flight", move || {
        block_on(async {
            for read in &mut reads {
                assert!(poll_once(read).await.is_pending());
            }
        });
        reads
    });
    assert_eq!(pool.metrics().in_use, 64 * PAGE, "the results are kept for their futures");
    drop(reads);
    assert_comes_back(&pool);
}

#[test]
fn f02_the_buffer_of_a_dropped_future_stays_with_the_kernel_until_it_answers() {
    let name = "f02_the_buffer_of_a_dropped_future_stays_with_the_kernel_until_it_answers";
    let Some(server) = holding(name, 8) else { return };
    let file = open_on_ring(server.path());
    let pool = Pool::new(1 << 20);
    block_on(async {
        let buffer = pool.get(PAGE).unwrap();
        let address = buffer.as_ptr();
        let mut dropped = Box::pin(file.read_at(buffer, 0));
        assert!(poll_once(&mut dropped).await.is_pending());
        yield_until("a request at the server", || server.held() > 0).await;
        drop(dropped);
        // The kernel is asked to cancel, but cannot take the request back from the server.
        for _ in 0..100 {
            yield_now().await;
            assert_eq!(pool.metrics().in_use, PAGE);
        }
        let others: Vec<Buffer> = std::iter::from_fn(|| pool.get(PAGE).ok()).collect();
        assert_eq!(others.len(), (1 << 20) / PAGE - 1);
        assert!(others.iter().all(|other| other.as_ptr() != address), "memory was reused under the kernel");
        drop(others);
        server.release();
    });
    assert_eq!(pool.metrics().in_use, 0, "block_on returns when the kernel has answered");
}

#[test]
fn f02_unsubmitted_operations_are_withdrawn_at_once() {
    let name = "f02_unsubmitted_operations_are_withdrawn_at_once";
    if !needs_ring(name) {
        return;
    }
    let Some(server) = Server::or_skip(name, content(0, 8 * PAGE)) else { return };
    let file = ring_options().write(true).open_blocking(server.path()).unwrap();
    let pool = Pool::new(1 << 20);
    block_on(async {
        let before = thread_metrics();
        let mut buffer = pool.get(PAGE).unwrap();
        buffer.resize(PAGE, 0);
        let mut write = Box::pin(file.write_at(buffer, 0));
        assert!(poll_once(&mut write).await.is_pending());
        drop(write);
        assert_eq!(pool.metrics().in_use, 0, "the buffer is free without waiting");
        yield_now().await;
        let counts = thread_metrics() - before;
        assert_eq!((counts.cancelled, counts.stray), (1, 0));
    });
    assert_eq!(server.log(), [], "nothing reached the file");
    assert_eq!(server.data(), content(0, 8 * PAGE));
}

#[test]
fn f02_memory_of_cancelled_reads_from_a_device_is_not_written_to_afterwards() {
    let name = "f02_memory_of_cancelled_reads_from_a_device_is_not_written_to_afterwards";
    let Some(device) = Loop::over(name, &content(0, 1 << 20)) else { return };
    let file = ring_options().read(true).direct(true).open_blocking(device.device()).unwrap();
    let pool = Pool::new(2 << 20);
    let mut random = Random::new();
    block_on(async {
        let before = thread_metrics();
        for _ in 0..200 {
            let mut reads = Vec::new();
            for _ in 0..32 {
                // A dropped read that waits for a worker keeps its memory until a worker takes it.
                let buffer = loop {
                    match pool.get(PAGE) {
                        Ok(buffer) => break buffer,
                        Err(error) => assert!(is_without_ring(), "{error}"),
                    }
                    yield_now().await;
                };
                reads.push(Box::pin(file.read_at(buffer, random.below(256) * PAGE as u64)));
            }
            for read in &mut reads {
                assert!(poll_once(read).await.is_pending());
            }
            for _ in 0..random.below(3) {
                yield_now().await;
            }
            drop(reads);
            let canaries: Vec<Buffer> = std::iter::from_fn(|| {
                let mut buffer = pool.get(PAGE).ok()?;
                buffer.resize(PAGE, 0);
                Some(buffer)
            })
            .take(64)
            .collect();
            for _ in 0..4 {
                yield_now().await;
            }
            assert!(canaries.iter().all(|buffer| buffer.iter().all(|&byte| byte == 0)));
        }
        assert_eq!((thread_metrics() - before).stray, 0);
    });
    assert_came_back(&pool);
}

#[test]
fn f03_a_runtime_dropped_with_operations_in_flight_leaks_nothing() {
    let name = "f03_a_runtime_dropped_with_operations_in_flight_leaks_nothing";
    if !in_child(name) {
        return;
    }
    let Some(server) = holding(name, 64) else { return };
    let pool = Pool::new(1 << 20);
    // The process makes the holder of registrations once, and keeps it.
    must_end("a first ring", || block_on(ringfile::fs::sync_dir("/tmp")).unwrap());
    wait_closed("/tmp");
    let before = open_descriptors();
    let runtime = Runtime::builder().threads(2).build().unwrap();
    let file = open_on_ring(server.path());
    for page in 0..64 {
        drop(runtime.spawn(read(&file, &pool, page)));
    }
    drop(file);
    server.wait_held(1);
    let runtime = std::thread::spawn(move || drop(runtime));
    assert!(!runtime.is_finished(), "the runtime went with operations in flight");
    server.release();
    must_end("dropping the runtime", move || runtime.join().unwrap());
    if is_without_ring() {
        // Workers outlive the runtime that used them.
        wait_for("the workers' operations to end", || {
            pool.metrics().in_use == 0 && open_descriptors() <= before
        });
    }
    assert_eq!(pool.metrics().in_use, 0);
    assert_eq!(open_descriptors(), before);
    wait_for("the file to be closed", || server.closed() == 1);
    assert_eq!(metrics().stray, 0);
}

#[test]
fn f03_a_file_closed_with_operations_in_flight_closes_after_the_last() {
    let name = "f03_a_file_closed_with_operations_in_flight_closes_after_the_last";
    let Some(server) = holding(name, 8) else { return };
    let pool = Pool::new(1 << 20);
    block_on(async {
        let file = open_on_ring(server.path());
        let mut kept = read(&file, &pool, 1);
        let mut dropped = read(&file, &pool, 2);
        assert!(poll_once(&mut kept).await.is_pending() && poll_once(&mut dropped).await.is_pending());
        yield_until("requests at the server", || server.held() >= 2).await;
        drop((file, dropped));
        yield_now().await;
        assert_eq!(server.closed(), 0, "the file was closed under the kernel");
        server.release();
        assert_content(&kept.await.unwrap(), PAGE as u64);
        yield_until("the memory", || pool.metrics().in_use == 0).await;
        wait_for("the file to be closed, with its thread still in the loop", || server.closed() == 1);
    });
}

#[test]
fn f03_a_file_closed_on_another_thread_is_given_up_by_a_thread_that_sleeps() {
    let name = "f03_a_file_closed_on_another_thread_is_given_up_by_a_thread_that_sleeps";
    let Some(server) = Server::or_skip(name, content(0, 8 * PAGE)) else { return };
    let pool = Pool::new(1 << 20);
    let runtime = Runtime::builder().threads(2).build().unwrap();
    for _ in 0..20 {
        let closed = server.closed();
        let file = open_on_ring(server.path());
        // So often that the file is registered with each ring.
        for round in 0..24 {
            assert_content(
                &runtime.spawn(read(&file, &pool, round % 8)).join().unwrap().unwrap(),
                round % 8 * 4096,
            );
        }
        drop(file);
        wait_for("the file to be closed", || server.closed() == closed + 1);
    }
}

#[test]
fn f03_reused_file_numbers_name_the_new_file() {
    let folder = Folder::new();
    let pool = Pool::new(1 << 20);
    block_on(async {
        for round in 0..50u64 {
            let path = folder.file(&format!("{}", round % 3), &content(round * 7, 4 * PAGE));
            let file = open_on_ring(&path);
            for _ in 0..12 {
                assert_content(&file.read_at(pool.get(PAGE).unwrap(), 0).await.unwrap(), round * 7);
            }
            let mut dropped = read(&file, &pool, 1);
            if round % 2 == 0 {
                assert!(poll_once(&mut dropped).await.is_pending());
            }
            if round % 4 == 0 {
                yield_now().await;
            }
        }
    });
    assert_eq!(pool.metrics().in_use, 0);
}

#[test]
fn f04_cancelling_at_any_moment_leaves_one_right_result_for_the_others() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 256 * PAGE));
    // A cancelled read that waits for a worker keeps its memory until a worker takes it, so the pool has room for all
    // rounds.
    let pool = Pool::new(256 << 20);
    let mut random = Random::new();
    for direct in [false, true] {
        let file =
            ring_options().read(true).direct(direct).buffered_fallback(true).open_blocking(&path).unwrap();
        block_on(async {
            let before = thread_metrics();
            for _ in 0..300 {
                let mut reads: Vec<Option<(u64, Read)>> = (0..64)
                    .map(|_| {
                        let page = random.below(256);
                        Some((page, read(&file, &pool, page)))
                    })
                    .collect();
                for (_, read) in reads.iter_mut().flatten() {
                    assert!(poll_once(read).await.is_pending());
                }
                while reads.iter().any(Option::is_some) {
                    let victim = random.below(64) as usize;
                    if random.below(3) == 0 {
                        reads[victim] = None;
                    } else if let Some((page, read)) = &mut reads[victim]
                        && let std::task::Poll::Ready(result) = poll_once(read).await
                    {
                        let buffer = result.unwrap();
                        assert_eq!(buffer.len(), PAGE);
                        assert_content(&buffer, *page * PAGE as u64);
                        reads[victim] = None;
                    }
                    if random.below(8) == 0 {
                        yield_now().await;
                    }
                }
            }
            let counts = thread_metrics() - before;
            assert_eq!(counts.stray, 0);
            if !is_without_ring() {
                assert!(counts.failed <= counts.cancelled && counts.cancelled > 0 && counts.ops > 0);
            }
        });
        assert_came_back(&pool);
    }
}

#[test]
fn f05_a_future_dropped_on_another_thread_is_cancelled_on_its_own() {
    let name = "f05_a_future_dropped_on_another_thread_is_cancelled_on_its_own";
    if !needs_ring(name) {
        return;
    }
    let Some(server) = holding(name, 8) else { return };
    let pool = Pool::new(1 << 20);
    let runtime = Runtime::builder().threads(1).build().unwrap();
    let file = open_on_ring(server.path());
    let mut moves = read(&file, &pool, 0);
    let task = runtime.spawn(async move {
        assert!(poll_once(&mut moves).await.is_pending());
        moves
    });
    let moves = task.join().unwrap();
    server.wait_held(1);
    assert_eq!(runtime.spawn(async { thread_metrics().cancelled }).join().unwrap(), 0);
    drop(moves);
    wait_for("the cancellation", || runtime.spawn(async { thread_metrics().cancelled }).join().unwrap() == 1);
    assert_eq!(pool.metrics().in_use, PAGE, "the server has not answered");
    server.release();
    assert_comes_back(&pool);
}

/// A thread that can't have a ring while the I/O threads have theirs (F09).
#[test]
fn f05_an_operation_of_a_queue_is_cancelled_on_another_threads_ring() {
    if !needs_ring("f05_an_operation_of_a_queue_is_cancelled_on_another_threads_ring") {
        return;
    }
    let (pipe, _writer) = pipe();
    // Starts the I/O threads without the filter.
    let mut read = Box::pin(pipe.read_at(Vec::with_capacity(4), 0));
    assert!(futures::executor::block_on(poll_once(&mut read)).is_pending());
    drop(read);
    must_end("reads of a silent pipe", move || {
        deny(libc::SYS_io_uring_setup, libc::EPERM);
        let mut queue = Queue::new();
        let [first, second] = [0, 1].map(|number| queue.add(pipe.read_at(Vec::with_capacity(4), 0), number));
        queue.submit();
        assert!(queue.cancel(first));
        let done = queue.wait_for(first).unwrap();
        assert_eq!(done.result.unwrap_err().errno(), Some(libc::ECANCELED));
        assert!(!queue.is_done(second), "it was not cancelled");
    });
}

#[test]
fn f05_a_future_polled_elsewhere_gets_the_result_that_is_already_there() {
    if !needs_ring("f05_a_future_polled_elsewhere_gets_the_result_that_is_already_there") {
        return;
    }
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 8 * PAGE)));
    let pool = Pool::new(1 << 20);
    let memory = pool.clone();
    must_end("a future that moved after its operation ended", move || {
        let elsewhere = Runtime::builder().threads(1).build().unwrap();
        let round = async || {
            let mut moves = read(&file, &memory, 3);
            let before = thread_metrics().ops;
            assert!(poll_once(&mut moves).await.is_pending());
            yield_until("the operation", || thread_metrics().ops != before).await;
            let (polled, was_polled) = mpsc::channel();
            let task = elsewhere.spawn(async move {
                let first = poll_once(&mut moves).await;
                polled.send(()).unwrap();
                match first {
                    std::task::Poll::Ready(result) => result,
                    std::task::Poll::Pending => moves.await,
                }
            });
            // Within one poll: this thread looks for requests of other threads only when it is about to sleep.
            was_polled.recv().unwrap();
            assert_content(&task.await.unwrap().unwrap(), 3 * PAGE as u64);
        };
        block_on(async {
            for _ in 0..100 {
                round().await;
            }
        });
    });
    assert_comes_back(&pool);
}

#[test]
fn f05_an_unwanted_result_is_not_kept() {
    if !needs_ring("f05_an_unwanted_result_is_not_kept") {
        return;
    }
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 8 * PAGE)));
    let pool = Pool::new(1 << 20);
    let elsewhere = Runtime::builder().threads(1).build().unwrap();
    block_on(async {
        let mut moves = read(&file, &pool, 3);
        let before = thread_metrics().ops;
        assert!(poll_once(&mut moves).await.is_pending());
        yield_until("the operation", || thread_metrics().ops != before).await;
        let task = elsewhere.spawn(async move {
            let _ = poll_once(&mut moves).await;
            drop(moves);
        });
        while !task.is_finished() {
            std::thread::yield_now();
        }
        for _ in 0..10 {
            yield_now().await;
        }
        assert_eq!(pool.metrics().in_use, 0, "a result was left for a future that is gone");
    });
}

#[test]
fn f05_futures_that_move_at_random_get_their_own_results() {
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 256 * PAGE)));
    let pool = Pool::new(8 << 20);
    let mut random = Random::new();
    let threads = Runtime::builder().threads(3).build().unwrap();
    for _ in 0..20 {
        let mut reads: Vec<(u64, Read)> = (0..100)
            .map(|_| {
                let page = random.below(256);
                (page, read(&file, &pool, page))
            })
            .collect();
        for round in 0..4 {
            let mut parts: Vec<Vec<(u64, Read)>> = (0..3).map(|_| Vec::new()).collect();
            reads.drain(..).for_each(|read| parts[random.below(3) as usize].push(read));
            let tasks: Vec<_> = parts
                .into_iter()
                .map(|mut part| {
                    let to_drop = random.below(10) as usize;
                    threads.spawn(async move {
                        part.truncate(part.len().saturating_sub(to_drop));
                        let mut left = Vec::new();
                        for (page, mut read) in part {
                            match poll_once(&mut read).await {
                                std::task::Poll::Ready(result) => {
                                    assert_content(&result.unwrap(), page * PAGE as u64);
                                }
                                std::task::Poll::Pending if round == 3 => {
                                    assert_content(&read.await.unwrap(), page * PAGE as u64);
                                }
                                std::task::Poll::Pending => left.push((page, read)),
                            }
                        }
                        left
                    })
                })
                .collect();
            for task in tasks {
                reads.extend(must_end("a part of the reads", move || task.join().unwrap()));
            }
        }
    }
    drop(file);
    assert_comes_back(&pool);
    assert_eq!(metrics().stray, 0);
}
