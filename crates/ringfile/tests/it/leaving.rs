//! What leaving a loop waits for, and what it does not wait for.

use std::future::{Future, IntoFuture};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::support::fuse::{Act, Op, Server};
use crate::support::handles::Handles as _;
use crate::support::{
    Folder, assert_content, content, in_child, is_without_ring, keep, must_end, needs_ring, open_descriptors,
    open_on_ring, poll_once, wait_for, yield_now, yield_until,
};
use ringfile::{Batch, File, OpenOptions, Pool, Queue, Route, block_on};

const PAGE: usize = 4096;

/// Makes a pipe without data.
fn pipe() -> (File, std::io::PipeWriter) {
    let (theirs, ours) = std::io::pipe().unwrap();
    (File::from(std::fs::File::from(OwnedFd::from(theirs))), ours)
}

#[test]
fn pipe_reads_of_a_dropped_batch_or_future_are_cancelled() {
    must_end("a loop with reads of a pipe dropped", || {
        let (pool, (pipe, mut writer)) = (Pool::new(1 << 20), pipe());
        for turns in 0..3 {
            block_on(async {
                let mut batch = Batch::new();
                batch.add(pipe.read_at(pool.get(PAGE).unwrap(), 0));
                let (mut run, mut read) =
                    (batch.into_future(), Box::pin(pipe.read_at(pool.get(PAGE).unwrap(), 0)));
                assert!(poll_once(&mut run).await.is_pending() && poll_once(&mut read).await.is_pending());
                for _ in 0..turns {
                    yield_now().await;
                }
            });
            wait_for("the memory", || pool.metrics().in_use == 0);
        }
        writer.write_all(b"for who comes now").unwrap();
        assert_eq!(block_on(pipe.read_at(Vec::with_capacity(100), 0)).unwrap(), b"for who comes now");
    });
}

#[test]
fn a_sync_of_a_directory_is_waited_for() {
    let folder = Folder::new();
    for route in [Route::Auto, Route::Workers] {
        let directory = OpenOptions::new().read(true).route(route).open_blocking(folder.path()).unwrap();
        let mut sync = Box::pin(directory.sync_all());
        assert!(block_on(poll_once(&mut sync)).is_pending());
        block_on(sync).unwrap();
    }
}

#[test]
fn reads_that_wait_for_room_when_the_loop_ends_end_without_being_begun() {
    const READS: usize = 600;
    must_end("a loop with more reads of a pipe than its ring has room for", || {
        let (pipe, mut writer) = pipe();
        let mut reads: Vec<_> = (0..READS).map(|_| Box::pin(pipe.read_at(vec![0; 64], 0))).collect();
        block_on(async {
            for read in &mut reads {
                assert!(poll_once(read).await.is_pending());
            }
        });
        block_on(async {
            for read in &mut reads {
                let Poll::Ready(result) = poll_once(read).await else { panic!("a read is still open") };
                assert!(result.is_err(), "the pipe is silent");
            }
        });
        drop(reads);
        writer.write_all(b"for who comes now").unwrap();
        assert_eq!(block_on(pipe.read_at(Vec::with_capacity(100), 0)).unwrap(), b"for who comes now");
    });
}

#[test]
fn reads_that_the_thread_holds_open_itself_are_not_waited_for() {
    must_end("loops beside an open read", || {
        let folder = Folder::new();
        let file = File::open_blocking(folder.file("data", &content(0, PAGE))).unwrap();
        // Each route gets its own pipe: a worker that waits for data that another one took would block in its call.
        let ((first, mut writer), (second, _silent)) = (pipe(), pipe());
        let mut reads = Queue::new();
        let first = reads.start(&first, Vec::with_capacity(4), 0);
        let second = reads.start(&second, Vec::with_capacity(4), 0);
        assert_content(&block_on(file.read_exact_at(vec![0; PAGE], 0)).unwrap(), 0);
        let mut batch = Batch::new();
        batch.add(file.read_at(Vec::with_capacity(PAGE), 0));
        assert_content(batch.run()[0].buffer.as_ref().unwrap(), 0);
        block_on(async {});
        assert!(!reads.is_done(first) && !reads.is_done(second));
        writer.write_all(b"four").unwrap();
        assert_eq!(&reads.wait_for(first).unwrap().buffer.unwrap()[..], b"four");
        let aborted = reads.abort(second).unwrap();
        assert_eq!(aborted.result.unwrap_err().errno(), Some(libc::ECANCELED));
    });
}

#[test]
fn a_thread_that_has_ended_has_no_descriptor_open_for_results_that_were_not_taken() {
    let name = "a_thread_that_has_ended_has_no_descriptor_open_for_results_that_were_not_taken";
    if !needs_ring(name) || !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let file = keep(open_on_ring(folder.file("data", &content(0, PAGE))));
    let begin = || {
        let mut read = Box::pin(file.read_exact_at(Vec::with_capacity(PAGE), 0));
        assert!(block_on(poll_once(&mut read)).is_pending());
        read
    };
    let on_a_thread = || std::thread::spawn(begin).join().unwrap();
    // The first ring of the process makes one that stays.
    block_on(on_a_thread()).unwrap();
    let before = open_descriptors();
    let reads: Vec<_> = (0..8).map(|_| on_a_thread()).collect();
    assert_eq!(open_descriptors(), before);
    for read in reads {
        assert_content(&block_on(read).unwrap(), 0);
    }
}

#[test]
fn operations_in_flight_of_a_dropped_batch_are_waited_for() {
    let name = "operations_in_flight_of_a_dropped_batch_are_waited_for";
    for route in [Route::Ring, Route::Workers] {
        if route == Route::Ring && is_without_ring() {
            continue;
        }
        let Some(server) = Server::or_skip(name, vec![0; PAGE]) else { return };
        server.rule(Op::Write, 0..u64::MAX, 1, Act::Hold);
        let file = OpenOptions::new().write(true).route(route).open_blocking(server.path()).unwrap();
        let pool = Pool::new(1 << 20);
        let mut buffer = pool.get(PAGE).unwrap();
        buffer.extend_from_slice(&content(0, PAGE));
        let mut batch = Batch::new();
        batch.add(file.write_at(buffer, 0));
        std::thread::scope(|scope| {
            block_on(async {
                let mut run = batch.into_future();
                assert!(poll_once(&mut run).await.is_pending());
                yield_until("a request at the server", || server.held() > 0).await;
                drop(run);
                scope.spawn(|| {
                    // Time in which the loop must not end; threads are not simulated.
                    std::thread::sleep(std::time::Duration::from_millis(100));
                    server.release();
                });
            });
            assert_eq!(server.held(), 0, "{route:?}: the server still has the write");
            // A worker gives the memory back within moments of its answer.
            wait_for("the memory", || pool.metrics().in_use == 0);
        });
        assert_eq!(server.data(), content(0, PAGE), "{route:?}");
    }
}

#[test]
fn a_pipe_read_that_outlives_the_loop_is_cancelled() {
    must_end("a loop that futures of a pipe outlive", || {
        let (pipe, mut writer) = pipe();
        // Operations that start later belong to the thread that polls the batch then, not to the loop.
        for route in [Route::Auto, Route::Workers] {
            let pipe = std::fs::File::from(std::os::fd::AsFd::as_fd(&pipe).try_clone_to_owned().unwrap());
            let pipe = OpenOptions::new().route(route).from_std(pipe).unwrap();
            let mut batch = Batch::new();
            for _ in 0..3 {
                batch.add(pipe.read_at(Vec::with_capacity(100), 0));
            }
            let (mut run, mut read) =
                (batch.into_future(), Box::pin(pipe.read_at(Vec::with_capacity(100), 0)));
            block_on(async {
                assert!(poll_once(&mut run).await.is_pending() && poll_once(&mut read).await.is_pending());
                yield_now().await;
            });
            let failed = futures::executor::block_on(read).unwrap_err();
            assert_eq!(failed.errno(), Some(libc::ECANCELED), "{route:?}: {failed}");
            assert_eq!(failed.into_buffer().capacity(), 100, "{route:?}");
            for done in futures::executor::block_on(run) {
                assert_eq!(done.result.unwrap_err().errno(), Some(libc::ECANCELED), "{route:?}");
            }
        }
        writer.write_all(b"for who comes now").unwrap();
        assert_eq!(block_on(pipe.read_at(Vec::with_capacity(100), 0)).unwrap(), b"for who comes now");
    });
}

#[test]
fn disk_operations_that_outlive_the_loop_are_waited_for() {
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, PAGE)));
    let mut read = Box::pin(file.read_at(Vec::with_capacity(PAGE), 0));
    block_on(async { assert!(poll_once(&mut read).await.is_pending()) });
    assert_content(&futures::executor::block_on(read).unwrap(), 0);
}

/// A read that several wakers may poll.
type Shared = Arc<Mutex<Pin<Box<dyn Future<Output = ringfile::BufResult<Vec<u8>>> + Send>>>>;

fn shared_read(file: &'static File) -> Shared {
    Arc::new(Mutex::new(Box::pin(file.read_at(Vec::with_capacity(PAGE), 0))))
}

fn poll_shared(read: &Shared, waker: &Waker) -> Poll<ringfile::BufResult<Vec<u8>>> {
    read.lock().unwrap().as_mut().poll(&mut Context::from_waker(waker))
}

/// Makes a waker that calls a function.
fn waker(call: impl Fn() + Send + Sync + 'static) -> Waker {
    struct Calls<F>(F);
    impl<F: Fn() + Send + Sync> Wake for Calls<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }
    Waker::from(Arc::new(Calls(call)))
}

#[test]
fn a_read_that_a_waker_begins_while_the_loop_is_left_is_waited_for() {
    let name = "a_read_that_a_waker_begins_while_the_loop_is_left_is_waited_for";
    if !needs_ring(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    must_end(name, move || {
        let on_worker = OpenOptions::new().read(true).route(Route::Workers).open_blocking(&path).unwrap();
        let (on_worker, on_ring) = (keep(on_worker), keep(open_on_ring(&path)));
        let (first, second, third) = (shared_read(on_worker), shared_read(on_ring), shared_read(on_ring));
        let (drained, begun) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        // 1: the ring is drained, and the loop waits for the worker.
        let drains = {
            let drained = Arc::clone(&drained);
            waker(move || _ = drained.wait())
        };
        // 3: the loop's thread hands the second result over to the worker, and calls this. The third read begins.
        let begins = {
            let (third, begun) = (Arc::clone(&third), Arc::clone(&begun));
            waker(move || {
                assert!(poll_shared(&third, Waker::noop()).is_pending());
                begun.wait();
                // Meanwhile the worker's operation ends, for which the loop has waited.
                std::thread::sleep(std::time::Duration::from_millis(50));
            })
        };
        // 2: the worker polls the second read.
        let polls = {
            let second = Arc::clone(&second);
            waker(move || {
                drained.wait();
                assert!(poll_shared(&second, &begins).is_pending());
                begun.wait();
            })
        };
        block_on(async {
            assert!(poll_shared(&first, &polls).is_pending());
            assert!(poll_shared(&second, &drains).is_pending());
        });
        for read in [first, second, third] {
            let Poll::Ready(result) = poll_shared(&read, Waker::noop()) else { panic!("it is still open") };
            assert_content(&result.unwrap(), 0);
        }
    });
}

/// Leaving `block_on` waits for everything in flight, so calling it for each piece would wait for the reads ahead.
#[test]
fn a_reader_that_is_iterated_over_does_not_wait_for_its_reads_ahead() {
    let name = "a_reader_that_is_iterated_over_does_not_wait_for_its_reads_ahead";
    let expected = content(0, 16 * PAGE);
    let Some(server) = Server::or_skip(name, expected.clone()) else { return };
    must_end(name, move || {
        server.rule(Op::Read, PAGE as u64..u64::MAX, usize::MAX, Act::Hold);
        let mut options = OpenOptions::new();
        let file =
            options.read(true).direct(true).route(Route::Workers).open_blocking(server.path()).unwrap();
        let pool = Pool::new(1 << 20);
        let mut pieces = file.reader(&pool).block(PAGE).depth(4).into_iter();
        let mut read = pieces.next().unwrap().unwrap().to_vec();
        server.wait_held(3);
        server.release();
        pieces.for_each(|piece| read.extend(piece.unwrap()));
        assert!(read == expected);
    });
    let within = std::panic::catch_unwind(|| {
        block_on(async {
            let pool = Pool::new(1 << 20);
            File::open_blocking("/proc/self/exe").unwrap().reader(&pool).into_iter().next()
        })
    });
    assert!(within.is_err(), "the loop's tasks could not run");
}
