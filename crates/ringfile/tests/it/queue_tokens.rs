//! Queues beside other event sources: a descriptor to wait on, cancelling by token, and every kind of operation.

use crate::support::handles::Handles as _;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::support;
use crate::support::forms::routes;
use crate::support::fuse::{Act, Op, Server};
use crate::support::{Folder, Random, assert_content, comes_true, content, in_child, must_end, yield_now};
use ringfile::fs::{Advice, AllocateMode, RangeSync};
use ringfile::{Batch, Buffer, File, OpenOptions, Pool, Queue, Route, Token};
use rustix::event::epoll;

const PAGE: usize = 4096;

/// Makes a pipe without data, and returns its other end too.
fn silent_pipe() -> (File, std::io::PipeWriter) {
    let (theirs, ours) = std::io::pipe().unwrap();
    (File::from(std::fs::File::from(OwnedFd::from(theirs))), ours)
}

/// As [`silent_pipe`], on this route.
fn silent_pipe_on(route: Route) -> (File, std::io::PipeWriter) {
    let (theirs, ours) = std::io::pipe().unwrap();
    let theirs = std::fs::File::from(OwnedFd::from(theirs));
    (OpenOptions::new().route(route).from_std(theirs).unwrap(), ours)
}

/// Returns whether there is something to be had. A thread that releases registered memory tells every ring of the process,
/// so tests of descriptors that are not readable have a process of their own.
fn is_readable(descriptor: &impl AsFd, patience: Duration) -> bool {
    let mut polled = [rustix::event::PollFd::new(descriptor, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&patience.try_into().unwrap())).unwrap() > 0
}

/// Returns whether the descriptor of a queue without results is not readable any more. The thread or the kernel that
/// delivered a result may signal a moment after it was taken, so that there is one more turn without a result.
fn settles(queue: &mut Queue, descriptor: &impl AsFd) -> bool {
    comes_true(|| {
        queue.submit();
        !is_readable(descriptor, Duration::ZERO)
    })
}

#[test]
fn cancelling_gives_each_result_exactly_once() {
    for route in routes() {
        let folder = Folder::new();
        let path = folder.file("data", &content(0, 64 * PAGE));
        let file = OpenOptions::new().read(true).route(route).open_blocking(path).unwrap();
        let pool = Pool::new(4 << 20);
        let mut random = Random::new();
        let mut queue = Queue::new();
        let mut open: HashMap<u64, Token> = HashMap::new();
        let (mut added, mut seen, mut cancelled) = (0_u64, 0_u64, 0_u64);
        while seen < 2000 {
            for _ in 0..random.below(20) {
                let token = queue.add(file.read_at(pool.get(PAGE).unwrap(), added % 64 * PAGE as u64), added);
                assert!(open.insert(added, token).is_none());
                added += 1;
            }
            if random.below(2) == 0 {
                queue.submit();
            }
            let some: Vec<Token> = open.values().copied().filter(|_| random.below(4) == 0).collect();
            for token in some {
                queue.cancel(token);
            }
            for done in queue.ends(random.below(8) as usize) {
                let number = done.user_data;
                let token = open.remove(&number).expect("a result twice");
                assert!(!queue.cancel(token) && !queue.is_done(token) && !queue.contains(token));
                seen += 1;
                match done.result {
                    Ok(len) => {
                        assert_eq!(len, PAGE);
                        assert_content(&done.buffer.unwrap(), number % 64 * PAGE as u64);
                    }
                    Err(error) => {
                        assert_eq!(error.errno(), Some(libc::ECANCELED), "{error}");
                        assert_eq!(done.buffer.unwrap().len(), 0);
                        cancelled += 1;
                    }
                }
            }
        }
        assert_eq!(queue.len(), open.len());
        assert!(cancelled > 0, "{route:?}");
        drop(queue);
        assert_eq!(pool.metrics().in_use, 0, "{route:?}");
    }
}

#[test]
fn unsubmitted_operations_are_never_carried_out() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    for route in routes() {
        let file = OpenOptions::new().read(true).write(true).route(route).open_blocking(&path).unwrap();
        let mut queue = Queue::new();
        let token = queue.add(file.write_at(vec![0; PAGE], 0), 1);
        assert!(queue.cancel(token));
        assert!(queue.cancel(token), "it is open until its result exists");
        let error = queue.wait_for(token).unwrap().result.unwrap_err();
        assert_eq!(error.errno(), Some(libc::ECANCELED), "{error}");
        assert_eq!(queue.wait_for(token).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_content(&std::fs::read(&path).unwrap(), 0);
    }
}

#[test]
fn a_deferred_operation_that_is_cancelled_is_never_carried_out() {
    const LEN: usize = 256 << 10;
    if support::is_without_ring() {
        return support::skip("operations that a loop defers", "workers have begun it");
    }
    let folder = Folder::new();
    let path = folder.file("data", &vec![0; 7 * LEN]);
    let file = OpenOptions::new().write(true).route(Route::Inline).open_blocking(&path).unwrap();
    let pool = Pool::new(16 << 20);
    let mut cancelled = 0;
    ringfile::block_on(async {
        for round in 1..=20_u8 {
            let mut queue = Queue::new();
            for at in 0..7 {
                let mut buffer = pool.get(LEN).unwrap();
                buffer.resize(LEN, round);
                let token = queue.add(file.write_at(buffer, at * LEN as u64), at);
                // After each long call the loop's other tasks have their turn, and this task waits for the next one.
                queue.submit();
                if !queue.is_done(token) {
                    assert!(queue.cancel(token));
                    queue.submit();
                    assert!(queue.is_done(token), "it has ended");
                    let done = queue.wait_for(token).unwrap();
                    assert_eq!(done.result.unwrap_err().errno(), Some(libc::ECANCELED));
                    assert_eq!(done.buffer.unwrap().len(), LEN, "the buffer comes back as it was");
                    cancelled += 1;
                }
                while queue.next().is_some() {}
                queue.ready().await;
            }
        }
    });
    assert!(cancelled > 0, "nothing was put off");
}

#[test]
fn other_threads_cancel_operations_of_a_queue_that_waits_or_not() {
    must_end("operations that another thread cancels", || {
        for route in [Route::Auto, Route::Workers] {
            let (pipe, _writer) = silent_pipe_on(route);
            let folder = Folder::new();
            let file = File::open_blocking(folder.file("data", &content(0, PAGE))).unwrap();
            let mut queue = Queue::new();
            let canceller = queue.canceller();
            let (orders, received) = std::sync::mpsc::channel();
            let thread = std::thread::spawn(move || {
                received.iter().for_each(|token| assert!(canceller.cancel(token)));
                canceller
            });
            for round in 0..300 {
                let token = queue.add(pipe.read_at(Vec::with_capacity(10), 0), round);
                queue.add(file.read_at(Vec::with_capacity(PAGE), 0), round);
                if round % 3 == 0 {
                    queue.submit();
                }
                orders.send(token).unwrap();
                if round % 2 == 0 {
                    let done = queue.wait_for(token).unwrap();
                    assert_eq!(done.result.unwrap_err().errno(), Some(libc::ECANCELED), "{route:?}");
                    assert_eq!(queue.end().result.unwrap(), PAGE, "{route:?}");
                } else {
                    let mut ended = queue.end_all(2);
                    ended.sort_by_key(|done| done.token != token);
                    let error = ended[0].result.as_ref().unwrap_err();
                    assert_eq!(error.errno(), Some(libc::ECANCELED), "{route:?}");
                    assert_eq!(*ended[1].result.as_ref().unwrap(), PAGE, "{route:?}");
                }
                assert!(queue.is_empty());
            }
            drop(orders);
            let canceller = thread.join().unwrap();
            let token = queue.add(pipe.read_at(Vec::with_capacity(10), 0), 0);
            drop(queue);
            assert!(!canceller.cancel(token), "the queue is gone");
        }
    });
}

#[test]
fn a_cancellation_by_another_thread_is_announced_and_means_one_operation() {
    must_end("a cancellation that the queue's descriptor announces", || {
        let (pipe, mut writer) = silent_pipe();
        let mut queue = Queue::new();
        let canceller = queue.canceller();
        let descriptor = queue.descriptor().unwrap();
        let by_another = |token| {
            let canceller = canceller.clone();
            assert!(std::thread::spawn(move || canceller.cancel(token)).join().unwrap());
        };
        let first = queue.add(pipe.read_at(Vec::with_capacity(10), 0), 1);
        queue.submit();
        by_another(first);
        assert!(is_readable(&descriptor, support::patience()), "the queue must be called");
        while !queue.is_done(first) {
            queue.submit();
        }
        assert_eq!(queue.wait_for(first).unwrap().result.unwrap_err().errno(), Some(libc::ECANCELED));
        // The next operation takes the place of the first.
        let second = queue.add(pipe.read_at(Vec::with_capacity(10), 0), 2);
        by_another(first);
        queue.submit();
        writer.write_all(b"here").unwrap();
        assert_eq!(queue.wait_for(second).unwrap().result.unwrap(), 4);
        // A task that awaits the queue is woken.
        ringfile::block_on(async {
            let third = queue.add(pipe.read_at(Vec::with_capacity(10), 0), 3);
            queue.submit();
            let canceller = canceller.clone();
            let thread = std::thread::spawn(move || {
                // Time for the queue's thread to wait; threads are not simulated.
                std::thread::sleep(Duration::from_millis(10));
                canceller.cancel(third)
            });
            assert_eq!(queue.ready().await, 1);
            assert_eq!(queue.next().unwrap().result.unwrap_err().errno(), Some(libc::ECANCELED));
            assert!(thread.join().unwrap());
        });
    });
}

#[test]
fn a_read_of_a_silent_pipe_is_cancelled_and_other_operations_of_the_queue_continue() {
    must_end("cancelling a pipe's read", || {
        let (pipe, mut writer) = silent_pipe();
        let (other, mut other_writer) = silent_pipe();
        let mut queue = Queue::new();
        let silent = queue.add(pipe.read_at(Vec::with_capacity(10), 0), 1);
        let second = queue.add(other.read_at(Vec::with_capacity(10), 0), 2);
        queue.submit();
        assert!(queue.cancel(silent));
        let done = queue.wait_for(silent).unwrap();
        assert_eq!(done.result.unwrap_err().errno(), Some(libc::ECANCELED));
        other_writer.write_all(b"here").unwrap();
        assert_eq!(&queue.wait_for(second).unwrap().buffer.unwrap()[..], b"here");
        writer.write_all(b"kept").unwrap();
        let third = queue.add(pipe.read_at(Vec::with_capacity(10), 0), 3);
        assert_eq!(&queue.wait_for(third).unwrap().buffer.unwrap()[..], b"kept", "nothing was lost");
    });
}

#[test]
fn a_queue_is_one_source_of_an_epoll_beside_a_socket() {
    if !in_child("a_queue_is_one_source_of_an_epoll_beside_a_socket") {
        return;
    }
    for route in routes() {
        let folder = Folder::new();
        let path = folder.file("data", &content(0, 64 * PAGE));
        let file = OpenOptions::new().read(true).route(route).open_blocking(path).unwrap();
        must_end("an epoll loop", move || {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            let mut queue = Queue::new();
            let descriptor = queue.descriptor().unwrap();
            let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            let add = |source: &dyn AsFdOnly, number| {
                let data = epoll::EventData::new_u64(number);
                epoll::add(&set, source.fd(), data, epoll::EventFlags::IN).unwrap();
            };
            add(&descriptor, 1);
            add(&ours, 2);
            assert!(!is_readable(&descriptor, Duration::ZERO) || queue.next().is_none());
            let (mut asked, mut answered, mut messages) = (0_u64, 0, 0);
            while answered < 400 || messages < 100 {
                while asked < 400 && asked - answered < 16 {
                    queue.add(file.read_at(Vec::with_capacity(PAGE), asked % 64 * PAGE as u64), asked);
                    asked += 1;
                }
                queue.submit();
                if messages < 100 {
                    theirs.write_all(b"x").unwrap();
                }
                let mut events =
                    [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
                        4];
                let count = epoll::wait(&set, events.as_mut_slice(), None).unwrap();
                for event in &events[..count] {
                    match event.data.u64() {
                        1 => {
                            queue.submit();
                            while let Some(done) = queue.next() {
                                let number = done.user_data;
                                assert_content(&done.buffer.unwrap(), number % 64 * PAGE as u64);
                                answered += 1;
                            }
                        }
                        _ => {
                            ours.read_exact(&mut [0]).unwrap();
                            messages += 1;
                        }
                    }
                }
            }
            assert!(settles(&mut queue, &descriptor), "nothing is left");
        });
    }
}

trait AsFdOnly {
    fn fd(&self) -> std::os::fd::BorrowedFd<'_>;
}

impl<T: AsFd> AsFdOnly for T {
    fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.as_fd()
    }
}

#[test]
fn the_descriptor_stays_right_when_others_of_the_thread_collect_the_completion() {
    if !in_child("the_descriptor_stays_right_when_others_of_the_thread_collect_the_completion") {
        return;
    }
    for route in routes() {
        let folder = Folder::new();
        let path = folder.file("data", &content(0, 64 * PAGE));
        let file = OpenOptions::new().read(true).route(route).open_blocking(path).unwrap();
        must_end("queues of one thread", move || {
            let mut first = Queue::new();
            let mut second = Queue::new();
            let descriptor = first.descriptor().unwrap();
            for round in 0..200_u64 {
                // Every other read meets the end of the file, so that its first answer is not the last.
                let (page, room) = if round % 2 == 0 { (round % 64, PAGE) } else { (63, 2 * PAGE) };
                let offset = page * PAGE as u64;
                first.add(file.read_at(Vec::with_capacity(room), offset), round);
                first.submit();
                match round % 3 {
                    0 => {
                        second.add(file.read_at(Vec::with_capacity(PAGE), 0), 0);
                        second.end();
                    }
                    1 => {
                        let mut batch = Batch::new();
                        (0..20).for_each(|page| {
                            _ = batch.add(file.read_at(Vec::with_capacity(PAGE), page * PAGE as u64))
                        });
                        assert!(batch.run().into_iter().all(|done| done.result.unwrap() == PAGE));
                    }
                    _ => {
                        let read = ringfile::block_on(file.read_at(Vec::with_capacity(PAGE), 0)).unwrap();
                        assert_content(&read, 0);
                    }
                }
                // No matter which queue collected the completion, the descriptor stays readable until the result is
                // taken.
                loop {
                    assert!(is_readable(&descriptor, support::patience()), "round {round}: lost");
                    assert!(is_readable(&descriptor, Duration::ZERO) || first.len() == 1);
                    first.submit();
                    if let Some(done) = first.next() {
                        let number = done.user_data;
                        assert_eq!((number, done.result.unwrap()), (round, PAGE));
                        assert_content(&done.buffer.unwrap(), offset);
                        break;
                    }
                }
                assert!(
                    settles(&mut first, &descriptor),
                    "{route:?}, round {round}: permanently readable without a result"
                );
            }
        });
    }
}

#[test]
fn the_descriptor_announces_operations_that_waited_for_room_and_the_rest_of_reads() {
    for route in routes() {
        let folder = Folder::new();
        let path = folder.file("data", &content(0, 64 * PAGE + 100));
        let file = OpenOptions::new().read(true).route(route).open_blocking(path).unwrap();
        must_end("a queue with more reads than the ring has room for", move || {
            let mut queue = Queue::new();
            let descriptor = queue.descriptor().unwrap();
            for number in 0..1000 {
                queue.add(file.read_at(Vec::with_capacity(PAGE), number % 65 * PAGE as u64), number);
            }
            queue.submit();
            let mut ended = 0;
            while ended < 1000 {
                assert!(
                    is_readable(&descriptor, support::patience()),
                    "{route:?}: {ended} of 1000 have ended"
                );
                queue.submit();
                while let Some(done) = queue.next() {
                    let number = done.user_data;
                    assert_eq!(done.result.unwrap(), if number % 65 == 64 { 100 } else { PAGE });
                    assert_content(&done.buffer.unwrap(), number % 65 * PAGE as u64);
                    ended += 1;
                }
            }
        });
    }
}

#[test]
fn the_descriptor_announces_the_end_of_a_cancelled_operation() {
    if !in_child("the_descriptor_announces_the_end_of_a_cancelled_operation") {
        return;
    }
    let (pipe, _writer) = silent_pipe();
    let folder = Folder::new();
    let file = File::open_blocking(folder.file("data", &content(0, PAGE))).unwrap();
    let mut queue = Queue::new();
    let descriptor = queue.descriptor().unwrap();
    let cancelled = queue.add(pipe.read_at(Vec::with_capacity(8), 0), 1);
    queue.submit();
    assert!(!is_readable(&descriptor, Duration::ZERO));
    // An operation that was only added is not started by this.
    let added = queue.add(file.read_at(Vec::with_capacity(PAGE), 0), 2);
    assert!(queue.cancel(cancelled));
    assert!(is_readable(&descriptor, support::patience()), "nothing announces the end");
    assert!(!queue.is_done(added));
    let done = queue.wait_for(cancelled).unwrap();
    assert_eq!(done.result.unwrap_err().errno(), Some(libc::ECANCELED));
    assert!(queue.wait_for(added).unwrap().result.is_ok());
}

#[test]
fn a_result_that_was_not_taken_keeps_the_descriptor_readable() {
    if !in_child("a_result_that_was_not_taken_keeps_the_descriptor_readable") {
        return;
    }
    let folder = Folder::new();
    let file = File::open_blocking(folder.file("data", &content(0, 2 * PAGE))).unwrap();
    let mut queue = Queue::new();
    let descriptor = queue.descriptor().unwrap();
    let later = queue.descriptor().unwrap();
    let [first, second] =
        [0, 1].map(|page| queue.add(file.read_at(Vec::with_capacity(PAGE), page * PAGE as u64), page));
    queue.settle(2);
    for _ in 0..3 {
        assert!(is_readable(&descriptor, Duration::ZERO) && is_readable(&later, Duration::ZERO));
    }
    assert!(queue.is_done(second) && queue.wait_for(second).is_ok());
    assert!(is_readable(&descriptor, Duration::ZERO));
    assert!(queue.is_done(first) && queue.wait_for(first).is_ok());
    queue.submit();
    assert!(!is_readable(&descriptor, Duration::ZERO) && !is_readable(&later, Duration::ZERO));
    assert!(queue.next().is_none());
    // A descriptor that is made while a result is waiting is readable at once.
    queue.add(file.read_at(Vec::with_capacity(PAGE), 0), 0);
    queue.settle(1);
    assert!(is_readable(&queue.descriptor().unwrap(), Duration::ZERO));
}

#[test]
fn vectored_and_other_operations_go_through_batches_and_queues() {
    for route in routes() {
        let folder = Folder::new();
        let path = folder.path().join("data");
        let file =
            OpenOptions::new().read(true).write(true).create(true).route(route).open_blocking(&path).unwrap();
        let pool = Pool::new(1 << 20);
        let filled = |parts: u64| -> Vec<Buffer> {
            (0..parts)
                .map(|part| {
                    let mut buffer = pool.get(PAGE).unwrap();
                    buffer.extend_from_slice(&content(part * PAGE as u64, PAGE));
                    buffer
                })
                .collect()
        };
        let empty = |parts| (0..parts).map(|_| pool.get(PAGE).unwrap()).collect::<Vec<_>>();
        let mut batch = Batch::new();
        batch.add(file.allocate(AllocateMode::Extend, 0, 8 * PAGE as u64));
        batch.barrier();
        batch.add(file.write_vectored_at(filled(4), 0));
        batch.barrier();
        batch.add(file.set_len(3 * PAGE as u64 + 5));
        batch.barrier();
        batch.add(file.advise(0, 0, Advice::WillNeed));
        batch.add(file.write_durable_at(b"tail".to_vec(), 3 * PAGE as u64 + 5));
        let results = batch.run();
        let numbers: Vec<usize> = results.into_iter().map(|done| done.result.unwrap()).collect();
        assert_eq!(numbers, [0, 4 * PAGE, 0, 0, 4], "{route:?}");
        let mut queue = Queue::new();
        let token = queue.add(file.read_vectored_at(empty(5), 0), 7);
        let done = queue.wait_for(token).unwrap();
        assert_eq!((done.result.unwrap(), done.buffer.is_none()), (3 * PAGE + 9, true), "{route:?}");
        let lens: Vec<usize> = done.buffers.iter().map(|buffer| buffer.len()).collect();
        assert_eq!(lens, [PAGE, PAGE, PAGE, 9, 0], "{route:?}");
        (0..3).for_each(|part| assert_content(&done.buffers[part], (part * PAGE) as u64));
        assert_eq!(&done.buffers[3][5..], b"tail", "{route:?}");
        queue.add(file.write_vectored_at(filled(2), 0), 1);
        queue.add(file.sync_all(), 2);
        queue.add(file.sync_range(0, 0, RangeSync::Finish), 3);
        queue.add(file.sync_range(0, PAGE as u64, RangeSync::Start), 3);
        queue.add(file.allocate(AllocateMode::KeepSize, 0, 64 << 10), 3);
        queue.add(file.advise(0, 0, Advice::DontNeed), 4);
        queue.add(file.write_durable_at(filled(1).pop().unwrap(), 0), 5);
        for done in queue.end_all(7) {
            let number = done.user_data;
            let expected = [0, 2 * PAGE, 0, 0, 0, PAGE][number as usize];
            assert_eq!(done.result.unwrap(), expected, "{number}, {route:?}");
        }
        let token = queue.add(file.set_len(10), 0);
        assert_eq!(queue.wait_for(token).unwrap().result.unwrap(), 0);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 10);
        let refused = queue.add(file.set_len(u64::MAX), 0);
        assert_eq!(queue.wait_for(refused).unwrap().result.unwrap_err().errno(), Some(libc::EINVAL));
        drop(done.buffers);
        assert_eq!(pool.metrics().in_use, 0, "{route:?}");
    }
}

#[test]
fn f03_a_queue_with_very_many_operations_on_workers_is_dropped_at_once() {
    must_end("dropping 30,000 reads that no worker has begun", || {
        let (reader, writer) = std::io::pipe().unwrap();
        let reader = std::fs::File::from(OwnedFd::from(reader));
        let pipe = OpenOptions::new().read(true).route(Route::Workers).from_std(reader).unwrap();
        let mut queue = Queue::new();
        for number in 0..30_000 {
            queue.add(pipe.read_at(Vec::with_capacity(1), 0), number);
        }
        queue.submit();
        assert_eq!(queue.len(), 30_000);
        drop(queue);
        drop(writer);
    });
}

#[test]
fn f03_a_loop_waits_for_the_operations_of_a_queue_dropped_in_it() {
    let name = "f03_a_loop_waits_for_the_operations_of_a_queue_dropped_in_it";
    if !support::needs_ring(name) {
        return;
    }
    for is_known in [false, true] {
        let Some(server) = Server::or_skip(name, content(0, 8 * PAGE)) else { return };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .route(Route::Ring)
            .open_blocking(server.path())
            .unwrap();
        let pool = Pool::new(1 << 20);
        let buffer = || {
            let mut buffer = pool.get(PAGE).unwrap();
            buffer.resize(PAGE, 7);
            buffer
        };
        // Another queue of the thread continues: only the loop can wait.
        let _other = Queue::new();
        let mut queue = Queue::new();
        if is_known {
            let token = queue.add(file.write_at(buffer(), 0), 0);
            queue.wait_for(token).unwrap().result.unwrap();
        }
        server.rule(Op::Write, 0..u64::MAX, usize::MAX, Act::Hold);
        std::thread::scope(|scope| {
            ringfile::block_on(async {
                queue.add(file.write_at(buffer(), PAGE as u64), 0);
                queue.submit();
                while server.held() == 0 {
                    yield_now().await;
                }
                drop(queue);
                scope.spawn(|| {
                    // Long enough for a loop to end that does not wait.
                    std::thread::sleep(Duration::from_millis(200));
                    server.release();
                });
            });
        });
        assert_eq!(pool.metrics().in_use, 0, "the kernel has the memory of a queue that is gone");
        assert_eq!(server.data()[PAGE..2 * PAGE], [7; PAGE]);
    }
}

#[test]
fn f03_an_operation_of_a_queue_continues_after_the_loop_in_which_it_was_submitted() {
    for route in routes().filter(|&route| route != Route::Inline) {
        must_end("a read of a pipe, over the end of a loop", move || {
            let (reader, mut writer) = std::io::pipe().unwrap();
            let reader = std::fs::File::from(OwnedFd::from(reader));
            let pipe = OpenOptions::new().read(true).route(route).from_std(reader).unwrap();
            let mut queue = Queue::new();
            let token = ringfile::block_on(async {
                let token = queue.add(pipe.read_at(Vec::with_capacity(1), 0), 0);
                queue.submit();
                token
            });
            writer.write_all(b"x").unwrap();
            let done = queue.wait_for(token).unwrap();
            assert_eq!(done.result.unwrap(), 1, "{route:?}");
        });
    }
}
