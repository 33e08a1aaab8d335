//! Processes that fork and continue on both sides: the parent's operations and memory stay intact, and the child gets
//! errors (F22).

use std::future::{Future, IntoFuture};
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::support::fuse::{Act, Op, Server};
use crate::support::handles::Handles as _;
use crate::support::{
    Folder, all, assert_content, assert_passed, content, end_if_it_hangs, fork, has_registered_buffers,
    in_child, is_without_ring, needs_ring, open_on_ring, page_size, poll_once, skip, workers_are_forced,
    yield_now, yield_until,
};
use ringfile::{File, OpenOptions, Pool, Queue, Route, block_on, metrics, thread_metrics};

const PAGE: usize = 4096;

/// Returns the routes on which an operation that the server holds back is in flight, or with another thread.
fn routes() -> impl Iterator<Item = Route> {
    [Route::Ring, Route::Workers].into_iter().filter(|&route| route == Route::Workers || !is_without_ring())
}

fn assert_is_the_parents(error: &ringfile::Error) {
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("fork"), "{error}");
}

#[test]
fn f22_a_forked_child_gets_clear_errors_and_the_parent_its_data() {
    let name = "f22_a_forked_child_gets_clear_errors_and_the_parent_its_data";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 64 * PAGE)));
    let pool = Pool::new(4 << 20);
    let kept = block_on(file.read_exact_at(pool.get(8 * PAGE).unwrap(), 0)).unwrap();
    let child = fork(|| {
        assert_content(&kept, 0);
        for _ in 0..3 {
            let failed = block_on(file.read_at(pool.get(PAGE).unwrap(), 0)).unwrap_err();
            assert_is_the_parents(failed.error());
            assert_is_the_parents(&block_on(file.sync_all()).unwrap_err());
        }
        // Anything that needs no ring works, and the loop sleeps rather than spins.
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // Another thread of the child has a ring of its own.
            let file = open_on_ring("/proc/self/exe");
            sender.send(block_on(file.read_at(vec![0; 4], 0))).unwrap();
        });
        match receiver.recv().unwrap() {
            Ok(got) => assert_eq!(got, b"\x7fELF"),
            // The workers belong to the parent, for all threads of the child.
            Err(failed) => {
                assert!(is_without_ring(), "{failed}");
                assert_is_the_parents(failed.error());
            }
        }
        let (polls, woken) = (std::cell::Cell::new(0), std::cell::Cell::new(false));
        block_on(std::future::poll_fn(|context| {
            polls.set(polls.get() + 1);
            if woken.replace(true) {
                return std::task::Poll::Ready(());
            }
            let waker = context.waker().clone();
            std::thread::spawn(move || {
                // Time for the other thread to wait before the fork; processes are not simulated.
                std::thread::sleep(std::time::Duration::from_millis(50));
                waker.wake();
            });
            std::task::Poll::Pending
        }));
        assert_eq!(polls.get(), 2);
        drop((file.clone(), pool.clone()));
    });
    // The parent continues meanwhile.
    block_on(async {
        for round in 0..200_u64 {
            let offset = round % 64 * PAGE as u64;
            assert_content(&file.read_exact_at(pool.get(PAGE).unwrap(), offset).await.unwrap(), offset);
        }
    });
    assert_passed(child);
    block_on(async {
        let before = thread_metrics();
        assert_content(&file.read_exact_at(pool.get(PAGE).unwrap(), 5).await.unwrap(), 5);
        let counts = thread_metrics() - before;
        if !is_without_ring() {
            assert_eq!(
                (counts.ops, counts.fixed_ops, counts.stray),
                (1, u64::from(has_registered_buffers()), 0),
                "the child took nothing from the parent"
            );
        }
    });
}

#[test]
fn f22_a_forked_child_writes_durably_without_a_ring() {
    let name = "f22_a_forked_child_writes_durably_without_a_ring";
    if workers_are_forced() {
        return skip(name, "RINGFILE_DISABLE=io_uring,aio forbids plain calls too");
    }
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &[0; PAGE]);
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).custom_flags(libc::O_DSYNC).open_blocking(&path).unwrap();
    block_on(file.write_at(content(0, PAGE / 2), 0)).unwrap();
    let child = fork(|| {
        block_on(file.write_at(content(PAGE as u64 / 2, PAGE / 2), PAGE as u64 / 2)).unwrap();
        block_on(file.sync_data()).unwrap();
    });
    assert_passed(child);
    assert_content(&std::fs::read(&path).unwrap(), 0);
}

#[test]
fn f22_operations_in_flight_stay_the_parents() {
    let name = "f22_operations_in_flight_stay_the_parents";
    if !needs_ring(name) {
        return;
    }
    if !in_child(name) {
        return;
    }
    let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
    server.rule(Op::Read, 0..u64::MAX, usize::MAX, Act::Hold);
    let file = open_on_ring(server.path());
    let pool = Pool::new(1 << 20);
    block_on(async {
        let mut reads: Vec<_> =
            (0..8).map(|page| Box::pin(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64))).collect();
        for read in &mut reads {
            assert!(poll_once(read).await.is_pending());
        }
        yield_until("requests at the server", || server.held() >= 8).await;
        let mut dropped = Some(reads.pop().unwrap());
        let before = metrics();
        // In the loop: the child must be able to leave it.
        let mut waits = Some(reads.pop().unwrap());
        // SAFETY: as in `fork`; the child ends with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            end_if_it_hangs();
            drop(dropped.take());
            let failed = waits.take().unwrap().await.unwrap_err();
            let right = failed.errno() == Some(libc::ECANCELED) && failed.to_string().contains("fork");
            // SAFETY: as above.
            unsafe { libc::_exit(if right { 0 } else { 1 }) };
        }
        assert_passed(child);
        assert_eq!((metrics() - before).cancelled, 0, "the child used the parent's ring");
        server.release();
        reads.extend(waits);
        reads.extend(dropped);
        for (page, result) in all(reads).await.into_iter().enumerate() {
            assert_content(&result.unwrap(), (page * PAGE) as u64);
        }
        assert_eq!(thread_metrics().stray, 0);
    });
    assert_eq!(pool.metrics().in_use, 0);
}

#[test]
fn f22_memory_returned_in_a_child_wakes_tasks_that_wait_for_it() {
    let name = "f22_memory_returned_in_a_child_wakes_tasks_that_wait_for_it";
    if !needs_ring(name) {
        return;
    }
    if !in_child(name) {
        return;
    }
    let (theirs, ours) = std::io::pipe().unwrap();
    let pipe = File::from(std::fs::File::from(std::os::fd::OwnedFd::from(theirs)));
    let page = page_size();
    let pool = Pool::new(page);
    block_on(async {
        let mut read = Box::pin(pipe.read_at(pool.get(page).unwrap(), 0));
        assert!(poll_once(&mut read).await.is_pending());
        yield_now().await;
        drop(read);
        assert_eq!(pool.metrics().in_use, page, "it waits for the pipe, and the kernel has its memory");
        // SAFETY: as in `fork`; the child continues as a task and ends with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            end_if_it_hangs();
            let passed = pool.get_async(page).await.is_ok();
            // SAFETY: ends this process, and touches no memory.
            unsafe { libc::_exit(if passed { 0 } else { 1 }) };
        }
        assert_passed(child);
        assert_eq!(pool.get_async(page).await.unwrap().capacity(), page);
    });
    drop(ours);
}

#[test]
fn f22_a_child_that_ends_as_any_process_disturbs_nothing() {
    let name = "f22_a_child_that_ends_as_any_process_disturbs_nothing";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    let file = open_on_ring(&path);
    let pool = Pool::new(1 << 20);
    block_on(async {
        let read = async |page: u64| {
            let offset = page * PAGE as u64;
            assert_content(&file.read_exact_at(pool.get(PAGE).unwrap(), offset).await.unwrap(), offset);
        };
        // Often enough for the file to be registered.
        for page in 0..32 {
            read(page).await;
        }
        for round in 0..5 {
            let last = open_on_ring(&path);
            for _ in 0..16 {
                assert_content(&last.read_exact_at(pool.get(PAGE).unwrap(), 0).await.unwrap(), 0);
            }
            let own = folder.path().to_owned();
            let child = fork(|| {
                // Drops the last handle, and ends a thread that leaves its loop.
                drop(last);
                let sync = move || block_on(ringfile::fs::sync_dir(own)).is_ok();
                let synced = std::thread::spawn(sync).join().unwrap();
                assert!(synced || is_without_ring(), "workers are the parent's");
            });
            assert_passed(child);
            read(round).await;
        }
        assert_eq!((thread_metrics().failed, thread_metrics().stray), (0, 0));
    });
}

#[test]
fn f22_another_threads_operation_fails_in_the_child_and_continues_in_the_parent() {
    let name = "f22_another_threads_operation_fails_in_the_child_and_continues_in_the_parent";
    if !in_child(name) {
        return;
    }
    for route in routes() {
        let Some(server) = Server::or_skip(name, content(0, PAGE)) else { return };
        if !server.reads_survive_forks(name) {
            return;
        }
        server.rule(Op::Sync, 0..u64::MAX, usize::MAX, Act::Hold);
        server.rule(Op::Read, 0..u64::MAX, usize::MAX, Act::Hold);
        let file =
            OpenOptions::new().read(true).write(true).route(route).open_blocking(server.path()).unwrap();
        let mut sync = Some(Box::pin(file.sync_all().into_future()));
        let mut read = Some(Box::pin(file.read_at(Vec::with_capacity(10), 0)));
        futures::executor::block_on(async {
            assert!(poll_once(sync.as_mut().unwrap()).await.is_pending());
            assert!(poll_once(read.as_mut().unwrap()).await.is_pending());
        });
        server.wait_held(2);
        let child = fork(|| {
            drop(read.take());
            let error = futures::executor::block_on(sync.take().unwrap()).unwrap_err();
            assert_eq!(error.errno(), Some(libc::ECANCELED), "{error}");
        });
        assert_passed(child);
        server.release();
        futures::executor::block_on(async {
            sync.unwrap().await.unwrap();
            assert_eq!(read.unwrap().await.unwrap(), content(0, 10), "{route:?}: the parent's read");
        });
    }
}

#[test]
fn f22_a_child_lets_go_of_open_reads_without_waiting_for_them() {
    let name = "f22_a_child_lets_go_of_open_reads_without_waiting_for_them";
    if !in_child(name) {
        return;
    }
    for route in routes() {
        let Some(server) = Server::or_skip(name, content(0, PAGE)) else { return };
        if !server.reads_survive_forks(name) {
            return;
        }
        server.rule(Op::Read, 0..u64::MAX, usize::MAX, Act::Hold);
        let file = OpenOptions::new().read(true).route(route).open_blocking(server.path()).unwrap();
        let mut reads = Some(Queue::new());
        let handles = [0, 1].map(|i| reads.as_mut().unwrap().start(&file, Vec::with_capacity(10), i));
        reads.as_mut().unwrap().submit();
        server.wait_held(2);
        let child = fork(|| {
            let mut theirs = reads.take().unwrap();
            let error = theirs.wait_for(handles[0]).and_then(|done| done.result).unwrap_err();
            assert!(error.to_string().contains("fork"), "{error}");
            drop(theirs);
        });
        assert_passed(child);
        server.release();
        for (offset, handle) in handles.into_iter().enumerate() {
            let done = reads.as_mut().unwrap().wait_for(handle).unwrap();
            assert_eq!(done.result.unwrap(), 10, "{route:?}: the parent's read");
            assert_content(&done.buffer.unwrap(), offset as u64);
        }
    }
}

#[test]
fn f22_a_child_that_polls_a_read_which_another_thread_carries_out_gets_an_error_and_the_buffer() {
    let (theirs, mut ours) = std::io::pipe().unwrap();
    let pipe = File::from(std::fs::File::from(OwnedFd::from(theirs)));
    let mut read = Box::pin(pipe.read_at(Vec::with_capacity(10), 0));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut read).poll(context).is_pending());
    let child = fork(|| {
        let Poll::Ready(Err(failed)) = Pin::new(&mut read).poll(context) else { panic!("no error") };
        assert_eq!(failed.errno(), Some(libc::ECANCELED));
        assert!(failed.to_string().contains("fork"), "{failed}");
        assert_eq!(failed.into_buffer().capacity(), 10);
    });
    assert_passed(child);
    ours.write_all(b"parent").unwrap();
    assert_eq!(futures::executor::block_on(read).unwrap(), b"parent", "the parent's operation continues");
}

#[test]
fn f22_a_queue_used_before_a_fork_starts_no_operation_on_a_ring_in_the_child() {
    let name = "f22_a_queue_used_before_a_fork_starts_no_operation_on_a_ring_in_the_child";
    if !needs_ring(name) {
        return;
    }
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    let plain = OpenOptions::new().read(true).route(Route::Inline).open_blocking(&path).unwrap();
    let file = open_on_ring(&path);
    let (mut used, mut unused) = (Queue::new(), Queue::new());
    let read = |queue: &mut Queue, file: &File| {
        queue.add(file.read_at(Vec::with_capacity(PAGE), 0), 0);
        queue.end()
    };
    assert_passed(fork(|| {
        let done = read(&mut unused, &file);
        assert_eq!(done.result.unwrap(), PAGE, "nothing was begun before the fork");
        assert_content(&done.buffer.unwrap(), 0);
    }));
    assert_eq!(read(&mut used, &plain).result.unwrap(), PAGE);
    assert_passed(fork(|| {
        assert_eq!(read(&mut used, &plain).result.unwrap(), PAGE);
        for _ in 0..3 {
            assert_is_the_parents(&read(&mut used, &file).result.unwrap_err());
        }
        used.add(file.sync_data(), 0);
        assert_is_the_parents(&used.end().result.unwrap_err());
        assert!(used.is_empty());
    }));
}

#[test]
fn f38_no_child_waits_for_a_lock_that_another_thread_had() {
    let name = "f38_no_child_waits_for_a_lock_that_another_thread_had";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    let over = std::sync::atomic::AtomicBool::new(false);
    let is_over = || over.load(std::sync::atomic::Ordering::Relaxed);
    let (files, closer) = std::sync::mpsc::channel::<File>();
    // From here on the process has workers, which belong to the parent in each child.
    let by_workers = OpenOptions::new().read(true).route(Route::Workers).open_blocking(&path).unwrap();
    assert_content(&block_on(by_workers.read_at(vec![0; PAGE], 0)).unwrap(), 0);
    std::thread::scope(|scope| {
        let (path, is_over) = (&path, &is_over);
        // Closing files elsewhere leaves messages for the forking thread, which has used each of these files.
        scope.spawn(move || closer.into_iter().for_each(drop));
        // Threads come and go, and so do their drivers, loops and tasks.
        scope.spawn(move || {
            let file = open_on_ring(path);
            while !is_over() {
                let read = || block_on(file.read_at(vec![0; PAGE], 0)).unwrap();
                // No more at once: if they end more slowly than they start, hundreds would wait for one lock.
                let others = [(); 4].map(|()| {
                    let file = file.clone();
                    std::thread::spawn(move || block_on(file.read_at(vec![0; PAGE], 0)).unwrap())
                });
                assert_content(&read(), 0);
                others.into_iter().for_each(|other| assert_content(&other.join().unwrap(), 0));
            }
        });
        // Keeps the I/O thread and the workers busy.
        for route in routes() {
            scope.spawn(move || {
                let file = OpenOptions::new().read(true).route(route).open_blocking(path).unwrap();
                while !is_over() {
                    futures::executor::block_on(file.read_at(vec![0; PAGE], 0)).unwrap();
                }
            });
        }
        let mut queue = Queue::new();
        let began = std::time::Instant::now();
        // On an emulated machine with an old kernel a round takes up to a second.
        let is_enough = |forks| forks >= 40 && began.elapsed() > std::time::Duration::from_secs(10);
        let forks = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in (0..400).take_while(|&forks| !is_enough(forks)) {
                let used = [(); 48].map(|()| {
                    let file = open_on_ring(path);
                    queue.add(file.read_at(vec![0; PAGE], 0), 0);
                    assert_eq!(queue.end().result.unwrap(), PAGE);
                    file
                });
                used.into_iter().for_each(|file| files.send(file).unwrap());
                let child = fork(|| {
                    block_on(async { yield_now().await });
                    drop(OpenOptions::new().read(true).route(Route::Inline).open_blocking(path).unwrap());
                    let _ = metrics();
                    let plain =
                        OpenOptions::new().read(true).route(Route::Inline).open_blocking(path).unwrap();
                    let read = block_on(plain.read_at(vec![0; PAGE], 0));
                    // If everything goes to workers, they belong to the parent.
                    assert!(read.is_ok() || is_without_ring());
                    assert_is_the_parents(
                        block_on(by_workers.read_at(vec![0; PAGE], 0)).unwrap_err().error(),
                    );
                });
                assert_passed(child);
            }
        }));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        drop(files);
        if let Err(panic) = forks {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn f38_a_child_gets_an_error_for_a_batch_and_a_task_of_the_parent_s_threads() {
    let name = "f38_a_child_gets_an_error_for_a_batch_and_a_task_of_the_parent_s_threads";
    if !in_child(name) {
        return;
    }
    let (theirs, mut ours) = std::io::pipe().unwrap();
    let pipe = File::from(std::fs::File::from(OwnedFd::from(theirs)));
    let mut batch = ringfile::Batch::new();
    batch.add(pipe.read_at(Vec::with_capacity(10), 0));
    let mut run = Some(batch.into_future());
    let context = &mut Context::from_waker(Waker::noop());
    assert!(Pin::new(run.as_mut().unwrap()).poll(context).is_pending());
    let runtime = ringfile::Runtime::builder().threads(1).build().unwrap();
    let (end, ends) = futures::channel::oneshot::channel::<u8>();
    let mut handle = Some(runtime.spawn(ends));
    assert_passed(fork(|| {
        let Poll::Ready(results) = Pin::new(run.as_mut().unwrap()).poll(context) else {
            panic!("no results")
        };
        assert_eq!(results.len(), 1);
        assert_is_the_parents(results[0].result.as_ref().unwrap_err());
        drop(run.take());
        let handle = handle.take().unwrap();
        assert!(handle.is_finished());
        assert!(matches!(handle.join(), Err(ringfile::runtime::JoinError::Cancelled)));
    }));
    assert_passed(fork(|| drop((run.take(), handle.take()))));
    ours.write_all(b"parent").unwrap();
    let results = futures::executor::block_on(run.unwrap());
    assert_eq!(*results[0].result.as_ref().unwrap(), 6);
    end.send(7).unwrap();
    assert_eq!(handle.unwrap().join().unwrap(), Ok(7));
}

/// Asserts that a read which the parent has in flight has ended here with an error, and returns its buffer.
#[track_caller]
fn assert_given_up(read: &mut Pin<Box<ringfile::Op<'_, Vec<u8>>>>) {
    let context = &mut Context::from_waker(Waker::noop());
    let Poll::Ready(Err(failed)) = Pin::new(read).poll(context) else { panic!("no error") };
    assert_eq!(failed.errno(), Some(libc::ECANCELED), "{failed}");
    assert_is_the_parents(failed.error());
    let buffer = failed.into_buffer();
    assert_eq!((buffer.len(), buffer.capacity()), (0, 10));
}

#[test]
fn f22_a_child_that_polls_a_read_of_its_own_thread_s_ring_gets_an_error_at_once() {
    let name = "f22_a_child_that_polls_a_read_of_its_own_thread_s_ring_gets_an_error_at_once";
    if !in_child(name) {
        return;
    }
    let (theirs, mut ours) = std::io::pipe().unwrap();
    let pipe = File::from(std::fs::File::from(OwnedFd::from(theirs)));
    block_on(async {
        let mut read = Some(Box::pin(pipe.read_at(Vec::with_capacity(10), 0)));
        assert!(poll_once(read.as_mut().unwrap()).await.is_pending());
        yield_now().await;
        assert_passed(fork(|| assert_given_up(read.as_mut().unwrap())));
        assert_passed(fork(|| drop(read.take())));
        ours.write_all(b"parent").unwrap();
        assert_eq!(read.unwrap().await.unwrap(), b"parent", "the parent's operation continues");
    });
}

#[test]
fn f22_a_child_that_polls_a_read_which_moved_between_threads_gets_an_error_and_the_buffer() {
    let name = "f22_a_child_that_polls_a_read_which_moved_between_threads_gets_an_error_and_the_buffer";
    if !in_child(name) {
        return;
    }
    let (theirs, mut ours) = std::io::pipe().unwrap();
    static PIPE: std::sync::OnceLock<File> = std::sync::OnceLock::new();
    let pipe = PIPE.get_or_init(|| File::from(std::fs::File::from(OwnedFd::from(theirs))));
    let runtime = ringfile::Runtime::builder().threads(1).build().unwrap();
    let begun = runtime.spawn(async {
        let mut read = Box::pin(pipe.read_at(Vec::with_capacity(10), 0));
        assert!(poll_once(&mut read).await.is_pending());
        (read,)
    });
    let mut read = Some(begun.join().unwrap().0);
    // It makes no difference whether the thread has been told that the read moved.
    for _ in 0..2 {
        assert_passed(fork(|| assert_given_up(read.as_mut().unwrap())));
        assert_passed(fork(|| drop(read.take())));
        assert!(futures::executor::block_on(poll_once(read.as_mut().unwrap())).is_pending());
    }
    ours.write_all(b"parent").unwrap();
    assert_eq!(
        futures::executor::block_on(read.unwrap()).unwrap(),
        b"parent",
        "the parent's operation continues"
    );
}

#[test]
fn f22_a_child_that_polls_a_batch_of_its_own_thread_s_ring_gets_errors_and_the_buffers() {
    let name = "f22_a_child_that_polls_a_batch_of_its_own_thread_s_ring_gets_errors_and_the_buffers";
    if !needs_ring(name) {
        return;
    }
    if !in_child(name) {
        return;
    }
    let (theirs, mut ours) = std::io::pipe().unwrap();
    let pipe = File::from(std::fs::File::from(OwnedFd::from(theirs)));
    block_on(async {
        // The second read has not started before the fork.
        let mut batch = ringfile::Batch::new().depth(1);
        batch.add(pipe.read_at(Vec::with_capacity(6), 0));
        batch.add(pipe.read_at(Vec::with_capacity(6), 0));
        let mut run = Some(batch.into_future());
        assert!(poll_once(run.as_mut().unwrap()).await.is_pending());
        yield_now().await;
        assert_passed(fork(|| {
            let context = &mut Context::from_waker(Waker::noop());
            let Poll::Ready(results) = Pin::new(run.as_mut().unwrap()).poll(context) else {
                panic!("no results")
            };
            assert_eq!(results.len(), 2);
            for done in results {
                let error = done.result.unwrap_err();
                assert_eq!(error.errno(), Some(libc::ECANCELED), "{error}");
                assert_is_the_parents(&error);
                assert_eq!(done.buffer.unwrap().len(), 0);
            }
        }));
        assert_passed(fork(|| drop(run.take())));
        ours.write_all(b"parentparent").unwrap();
        for done in run.unwrap().await {
            assert_eq!(
                done.buffer.unwrap()[..],
                b"parent"[..],
                "{:?}: the parent's operation continues",
                done.result
            );
        }
    });
}

#[test]
fn f22_a_task_of_a_child_that_awaits_a_queue_gets_errors() {
    let name = "f22_a_task_of_a_child_that_awaits_a_queue_gets_errors";
    if !in_child(name) {
        return;
    }
    let (theirs, mut ours) = std::io::pipe().unwrap();
    let pipe = File::from(std::fs::File::from(OwnedFd::from(theirs)));
    let by_workers = {
        let path =
            format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&pipe)));
        OpenOptions::new().read(true).route(Route::Workers).open_blocking(path).unwrap()
    };
    block_on(async {
        let mut queue = Queue::new();
        let descriptor = queue.descriptor().unwrap();
        queue.add(pipe.read_at(Vec::with_capacity(6), 0), 1);
        queue.add(by_workers.read_at(Vec::with_capacity(6), 0), 2);
        queue.submit();
        yield_now().await;
        // SAFETY: as in `fork`; the child continues as a task and ends with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            end_if_it_hangs();
            let mut passed = true;
            for left in [2, 1] {
                passed &= queue.ready().await == left;
                let error = queue.next().unwrap().result.unwrap_err();
                passed &= error.errno() == Some(libc::ECANCELED) && error.to_string().contains("fork");
            }
            // SAFETY: ends this process, and touches no memory.
            unsafe { libc::_exit(if passed { 0 } else { 1 }) };
        }
        assert_passed(child);
        ours.write_all(b"parentparent").unwrap();
        while queue.ready().await < 2 {
            yield_now().await;
        }
        // The child that takes the results leaves the parent's descriptor as it is.
        assert_passed(fork(|| while queue.next().is_some() {}));
        let mut sources = [rustix_poll(&descriptor)];
        // SAFETY: one valid record.
        assert_eq!(unsafe { libc::poll(sources.as_mut_ptr(), 1, 0) }, 1, "there are results");
        for _ in 0..2 {
            assert_eq!(queue.next().unwrap().result.unwrap(), 6);
        }
    });
}

fn rustix_poll(descriptor: &OwnedFd) -> libc::pollfd {
    libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(descriptor), events: libc::POLLIN, revents: 0 }
}

#[test]
fn f38_a_child_ends_a_batch_whose_results_another_thread_was_handing_over() {
    let name = "f38_a_child_ends_a_batch_whose_results_another_thread_was_handing_over";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    let file = OpenOptions::new().read(true).route(Route::Workers).open_blocking(&path).unwrap();
    for round in 0..200 {
        let mut batch = ringfile::Batch::new();
        for _ in 0..64 {
            batch.add(file.read_at(Vec::with_capacity(PAGE), 0));
        }
        let mut run = Some(batch.into_future());
        let context = &mut Context::from_waker(Waker::noop());
        let mut results = match Pin::new(run.as_mut().unwrap()).poll(context) {
            Poll::Ready(results) => Some(results),
            Poll::Pending => None,
        };
        if results.is_none() {
            assert_passed(fork(|| match round % 2 {
                0 => drop(run.take()),
                _ => assert!(Pin::new(run.as_mut().unwrap()).poll(context).is_ready()),
            }));
            results = Some(futures::executor::block_on(run.unwrap()));
        }
        for done in results.unwrap() {
            assert_eq!(done.result.unwrap(), PAGE);
        }
    }
}

#[test]
fn f22_memory_that_is_wiped_in_a_child_stays_the_pool_s_and_is_zero() {
    const LEN: usize = 2 << 20;
    let name = "f22_memory_that_is_wiped_in_a_child_stays_the_pool_s_and_is_zero";
    if !in_child(name) {
        return;
    }
    let full = |pool: &Pool| {
        let mut buffer = pool.get(LEN).unwrap();
        buffer.resize(LEN, 7);
        buffer
    };
    let pool = Pool::builder().capacity(16 << 20).dont_fork(true).build().unwrap();
    let outside = Pool::builder().capacity(16 << 20).dont_fork(true).pooling(false).build().unwrap();
    let mut held = Some((full(&pool), full(&pool).freeze(), full(&outside)));
    let kept = full(&pool);
    drop(full(&pool));
    let mut pools = Some((pool, outside));
    assert_passed(fork(|| {
        let (buffer, frozen, outside) = held.take().unwrap();
        let (pool, no_pool) = pools.take().unwrap();
        // The allocator maps vectors of this size, preferably in gaps just as large.
        let vectors: Vec<_> = (0..100).map(|_| vec![5_u8; LEN - PAGE]).collect();
        for piece in [&buffer[..], &frozen[..], &outside[..], &kept[..]] {
            assert!(piece.iter().all(|&byte| byte == 0), "the parent's memory is not there");
        }
        let mut cached = pool.get(LEN).unwrap();
        cached.resize(LEN, 9);
        let mut thawed = pool.thaw(frozen).unwrap();
        thawed.fill(9);
        let fresh = full(&no_pool);
        drop((buffer, outside, cached, thawed, fresh, pool, no_pool));
        assert!(vectors.iter().flatten().all(|&byte| byte == 5), "they are not the pool's");
    }));
    let (buffer, frozen, outside) = held.unwrap();
    for piece in [&buffer[..], &frozen[..], &outside[..], &kept[..]] {
        assert!(piece.iter().all(|&byte| byte == 7), "the parent's memory is unchanged");
    }
}

#[test]
fn f38_a_child_ends_a_runtime_of_the_parent_without_its_threads_and_its_tasks_are_cancelled() {
    let name = "f38_a_child_ends_a_runtime_of_the_parent_without_its_threads_and_its_tasks_are_cancelled";
    if !in_child(name) {
        return;
    }
    let mut runtime = Some(ringfile::Runtime::builder().threads(2).build().unwrap());
    let (end, ends) = futures::channel::oneshot::channel::<u8>();
    let handle = runtime.as_ref().unwrap().spawn(ends);
    assert_passed(fork(|| drop(runtime.take())));
    assert_passed(fork(|| runtime.take().unwrap().shutdown()));
    assert_passed(fork(|| {
        let runtime = runtime.as_ref().unwrap();
        for _ in 0..4 {
            let handle = runtime.spawn(async { 1 });
            assert!(matches!(handle.join(), Err(ringfile::runtime::JoinError::Cancelled)));
        }
        let handle = runtime.spawn_on(1, || async { 1 });
        assert!(matches!(block_on(handle), Err(ringfile::runtime::JoinError::Cancelled)));
        let own = ringfile::Runtime::builder().threads(1).build().unwrap();
        assert_eq!(own.spawn(async { 2 }).join().unwrap(), 2, "a runtime of the child's has threads");
    }));
    end.send(7).unwrap();
    assert_eq!(handle.join().unwrap(), Ok(7), "the parent's tasks continue");
    assert_eq!(runtime.as_ref().unwrap().spawn(async { 3 }).join().unwrap(), 3);
    runtime.take().unwrap().shutdown();
}

#[test]
fn f22_a_child_does_not_wait_behind_the_parent_s_blocked_threads() {
    let name = "f22_a_child_does_not_wait_behind_the_parent_s_blocked_threads";
    if !in_child(name) {
        return;
    }
    let page = page_size();
    let pool = Pool::builder().capacity(2 * page).when_full(ringfile::WhenFull::Wait).build().unwrap();
    let mut all = Some((pool.get(page).unwrap(), pool.get(page).unwrap()));
    std::thread::scope(|threads| {
        let blocked = threads.spawn(|| pool.get(2 * page).unwrap().capacity());
        while pool.metrics().waits == 0 {
            std::thread::yield_now();
        }
        // Behind the blocked thread, and of a thread that the child has.
        let context = &mut Context::from_waker(Waker::noop());
        let mut waits = pool.get_async(page);
        assert!(Pin::new(&mut waits).poll(context).is_pending());
        // Whether the child first returns memory or first asks for it.
        assert_passed(fork(|| {
            drop(all.take());
            assert!(Pin::new(&mut waits).poll(context).is_ready(), "the future is the first in the queue");
            assert_eq!(pool.get(page).unwrap().capacity(), page);
        }));
        assert_passed(fork(|| {
            let (one, _other) = all.take().unwrap();
            let asks = std::thread::spawn({
                let pool = pool.clone();
                move || pool.get(page).unwrap().capacity()
            });
            drop(one);
            let Poll::Ready(first) = Pin::new(&mut waits).poll(context) else { panic!("was not served") };
            drop(first);
            assert_eq!(asks.join().unwrap(), page);
        }));
        drop((waits, all));
        assert_eq!(blocked.join().unwrap(), 2 * page, "the parent's thread still waits its turn");
    });
}

#[test]
fn f38_a_child_copies_while_the_parent_looks_for_holes() {
    let name = "f38_a_child_copies_while_the_parent_looks_for_holes";
    if workers_are_forced() || !in_child(name) {
        return;
    }
    const HOLES: usize = 64;
    let folder = Folder::new();
    let path = folder.file("from", b"");
    let data = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    data.set_len((HOLES * 16 * PAGE) as u64).unwrap();
    for at in 0..HOLES {
        std::os::unix::fs::FileExt::write_all_at(&data, &content(0, PAGE), (at * 16 * PAGE) as u64).unwrap();
    }
    let source = OpenOptions::new().read(true).route(Route::Inline).open_blocking(&path).unwrap();
    let open = |name| OpenOptions::new().write(true).open_blocking(folder.file(name, b"")).unwrap();
    let (to, to_in_child) = (open("to"), open("to in the child"));
    let copy = |to: &File| {
        let copied = futures::executor::block_on(source.copy_range(0, to, 0, u64::MAX >> 2));
        assert_eq!(copied.unwrap(), (HOLES * 16 * PAGE) as u64);
    };
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                copy(&to);
            }
        });
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..200 {
                assert_passed(fork(|| copy(&to_in_child)));
            }
        }));
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        passed.unwrap();
    });
}

#[test]
fn f22_a_long_read_in_pieces_does_not_overflow_the_stack_of_a_child() {
    let name = "f22_a_long_read_in_pieces_does_not_overflow_the_stack_of_a_child";
    if workers_are_forced() {
        return skip(name, "a child has none of its parent's workers");
    }
    if !in_child(name) {
        return;
    }
    const LEN: usize = 128 << 20;
    let folder = Folder::new();
    let path = folder.file("data", &vec![7; LEN]);
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let file =
        OpenOptions::new().read(true).direct(true).buffered_fallback(true).open_blocking(&path).unwrap();
    let small_stack = std::thread::Builder::new().stack_size(192 << 10);
    let thread = small_stack.spawn(move || {
        block_on(file.read_at(Vec::with_capacity(PAGE), 0)).unwrap();
        // Each piece ends at once there.
        assert_passed(fork(|| {
            let got = futures::executor::block_on(file.read_at(Vec::with_capacity(LEN), 1)).unwrap();
            assert_eq!(got.len(), LEN - 1);
        }));
    });
    thread.unwrap().join().unwrap();
}
