//! What happens around operations: forks, descriptors that others close, futures that are leaked, leaks (F22, F29).

#![allow(clippy::unwrap_used, reason = "a test's helpers")]

mod support;

use std::future::Future;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::pin;
use std::sync::OnceLock;

use ringfile::{File, Pool, Runtime, block_on, metrics, thread_metrics};
use support::fuse::{Act, Op, Server};
use support::{
    Folder, all, assert_content, content, in_child, is_without_ring, must_end, needs_ring, open_descriptors,
    open_on_ring, poll_once, ring_options, yield_now,
};

const PAGE: usize = 4096;

/// Forks. The child does `check` and ends, with an alarm against hanging; gives the child's number.
fn fork(check: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child has this thread alone, and the C library's allocator is made for that; it ends with `_exit`, so
    // that nothing of the parent's is run twice.
    unsafe {
        match libc::fork() {
            0 => {
                libc::alarm(15);
                let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_ok();
                libc::_exit(if passed { 0 } else { 1 });
            }
            child => {
                assert!(child > 0, "fork failed");
                child
            }
        }
    }
}

#[track_caller]
fn assert_passed(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: one valid number to write to.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the forked child failed (1 << 8), or hung (14)");
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
        // What needs no ring works, and the loop sleeps rather than spins.
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // Another thread of the child has a ring of its own.
            let file = open_on_ring("/proc/self/exe");
            sender.send(block_on(file.read_at(vec![0; 4], 0))).unwrap();
        });
        match receiver.recv().unwrap() {
            Ok(got) => assert_eq!(got, b"\x7fELF"),
            // Workers are the parent's, for all of the child's threads.
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
                std::thread::sleep(std::time::Duration::from_millis(50));
                waker.wake();
            });
            std::task::Poll::Pending
        }));
        assert_eq!(polls.get(), 2);
        drop((file.clone(), pool.clone()));
    });
    // The parent goes on meanwhile.
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
                (1, 1, 0),
                "the child took nothing away"
            );
        }
    });
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
            (0..8).map(|page| file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64)).collect();
        for read in &mut reads {
            assert!(poll_once(read).await.is_pending());
        }
        while server.held() < 8 {
            yield_now().await;
        }
        let mut dropped = Some(reads.pop().unwrap());
        let before = metrics();
        // In the loop: the child must come out of it.
        let mut waits = Some(reads.pop().unwrap());
        // SAFETY: as in `fork`; the child ends with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: plain system calls.
            unsafe { libc::alarm(15) };
            drop(dropped.take());
            let failed = waits.take().unwrap().await.unwrap_err();
            let right = failed.errno() == Some(libc::ECANCELED) && failed.to_string().contains("fork");
            // SAFETY: as above.
            unsafe { libc::_exit(if right { 0 } else { 1 }) };
        }
        assert_passed(child);
        assert_eq!((metrics() - before).cancelled, 0, "the child reached into the parent's ring");
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
fn f22_memory_that_a_child_gets_back_wakes_who_waits_for_it() {
    let name = "f22_memory_that_a_child_gets_back_wakes_who_waits_for_it";
    if !needs_ring(name) {
        return;
    }
    if !in_child(name) {
        return;
    }
    let (theirs, ours) = std::io::pipe().unwrap();
    let pipe = File::from(std::fs::File::from(std::os::fd::OwnedFd::from(theirs)));
    let pool = Pool::new(PAGE);
    block_on(async {
        let mut read = pipe.read_at(pool.get(PAGE).unwrap(), 0);
        assert!(poll_once(&mut read).await.is_pending());
        yield_now().await;
        drop(read);
        assert_eq!(pool.metrics().in_use, PAGE, "it waits for the pipe, and the kernel has its memory");
        // SAFETY: as in `fork`; the child goes on as a task and ends with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: both change this process alone.
            unsafe { libc::alarm(15) };
            let passed = pool.get_async(PAGE).await.is_ok();
            // SAFETY: ends this process, and touches no memory.
            unsafe { libc::_exit(if passed { 0 } else { 1 }) };
        }
        assert_passed(child);
        assert_eq!(pool.get_async(PAGE).await.unwrap().capacity(), PAGE);
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
        // Often enough that the file is registered.
        for page in 0..32 {
            read(page).await;
        }
        for round in 0..5 {
            let last = open_on_ring(&path);
            for _ in 0..16 {
                assert_content(&last.read_exact_at(pool.get(PAGE).unwrap(), 0).await.unwrap(), 0);
            }
            let child = fork(|| {
                // The last handle goes there, and a thread that leaves its loop.
                drop(last);
                let synced =
                    std::thread::spawn(|| block_on(ringfile::sync_dir("/tmp")).is_ok()).join().unwrap();
                assert!(synced || is_without_ring(), "workers are the parent's");
            });
            assert_passed(child);
            read(round).await;
        }
        assert_eq!((thread_metrics().failed, thread_metrics().stray), (0, 0));
    });
}

#[test]
fn f29_a_descriptor_closed_or_replaced_by_others_disturbs_no_operation() {
    let name = "f29_a_descriptor_closed_or_replaced_by_others_disturbs_no_operation";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    let other = std::fs::File::open(folder.file("other", &[0; 64 * PAGE])).unwrap();
    let given = std::fs::File::open(&path).unwrap();
    let given_number = given.as_raw_fd();
    if !is_without_ring() {
        ringfile::set_default_route(ringfile::Route::Ring);
    }
    let files = [open_on_ring(&path), File::from(given)];
    assert_eq!(files[1].as_fd().as_raw_fd(), given_number, "the user's own descriptor is what AsFd shows");
    let pool = Pool::new(1 << 20);
    for file in &files {
        block_on(async {
            for round in 0..64_u64 {
                let offset = round % 64 * PAGE as u64;
                let mut read = file.read_exact_at(pool.get(PAGE).unwrap(), offset);
                assert!(poll_once(&mut read).await.is_pending());
                let shown = file.as_fd().as_raw_fd();
                if round == 10 {
                    // SAFETY: replaces what the number names; nothing here relies on it naming the old file.
                    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), shown) }, shown);
                }
                assert_content(&read.await.unwrap(), offset);
            }
        });
    }
    for file in &files {
        use std::os::unix::fs::MetadataExt;
        let (shown, truth) = (file.metadata().unwrap(), std::fs::metadata(&path).unwrap());
        assert_eq!(shown.ino(), truth.ino(), "the file's metadata, not those of what took its number");
    }
    // Closed for good, and its number taken by another file.
    let file = &files[0];
    let shown = file.as_fd().as_raw_fd();
    block_on(async {
        let mut read = file.read_exact_at(pool.get(PAGE).unwrap(), 0);
        assert!(poll_once(&mut read).await.is_pending());
        // SAFETY: what the file would close later is replaced below, so that no number is closed that is another's.
        assert_eq!(unsafe { libc::close(shown) }, 0);
        assert_content(&read.await.unwrap(), 0);
        for page in 0..64_u64 {
            let offset = page * PAGE as u64;
            assert_content(&file.read_exact_at(pool.get(PAGE).unwrap(), offset).await.unwrap(), offset);
        }
    });
    // SAFETY: gives the number back what it can close.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), shown) }, shown);
}

#[test]
fn f03_descriptors_and_memory_are_all_given_back() {
    let name = "f03_descriptors_and_memory_are_all_given_back";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    let round = || {
        let pool = Pool::new(4 << 20);
        let runtime = Runtime::builder().threads(3).build().unwrap();
        let file = open_on_ring(&path);
        let tasks: Vec<_> = (0..30_u64)
            .map(|i| {
                let (file, pool) = (file.clone(), pool.clone());
                runtime.spawn(async move {
                    for page in 0..20 {
                        let mut read = file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64);
                        if (i + page) % 5 == 0 {
                            let _ = poll_once(&mut read).await;
                            continue;
                        }
                        assert_content(&read.await.unwrap(), page * PAGE as u64);
                    }
                    assert!(i % 7 != 0, "a task that panics with memory and a file");
                })
            })
            .collect();
        for (i, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.join().is_err(), i % 7 == 0);
        }
        runtime.shutdown();
        assert_eq!(pool.metrics().in_use, 0);
    };
    round();
    let before = open_descriptors();
    for _ in 0..10 {
        round();
    }
    assert_eq!(open_descriptors(), before);
    assert_eq!(metrics().stray, 0);
}

#[test]
fn f03_threads_that_end_again_and_again_with_operations_in_flight_leave_nothing() {
    let name = "f03_threads_that_end_again_and_again_with_operations_in_flight_leave_nothing";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 256 * PAGE));
    let file = open_on_ring(&path);
    let pool = Pool::new(16 << 20);
    let thread = |which: u64| {
        let (file, pool) = (file.clone(), pool.clone());
        std::thread::spawn(move || {
            for round in 0..20_u64 {
                let moved = block_on(async {
                    let mut kept = Vec::new();
                    for i in 0..64 {
                        let mut read = Box::pin(
                            file.read_exact_at(pool.get(PAGE).unwrap(), (which * 7 + i + round) * 4096),
                        );
                        assert!(poll_once(&mut read).await.is_pending());
                        match i % 3 {
                            0 => drop(read),
                            1 => kept.push((i, read)),
                            _ => assert_content(&read.await.unwrap(), (which * 7 + i + round) * 4096),
                        }
                    }
                    kept
                });
                // Awaited in another loop than the one they began in.
                for (i, read) in moved {
                    assert_content(&block_on(read).unwrap(), (which * 7 + i + round) * 4096);
                }
            }
        })
    };
    let round = || {
        (0..8).map(thread).collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(pool.metrics().in_use, 0);
    };
    round();
    let before = open_descriptors();
    round();
    assert_eq!(open_descriptors(), before);
    assert_eq!((metrics().stray, metrics().failed), (0, 0));
}

#[test]
fn f29_thousands_of_files_are_told_apart() {
    let name = "f29_thousands_of_files_are_told_apart";
    if !in_child(name) {
        return;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one valid record for each call.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    // A file has two descriptors. What counts is that there are more files than a ring registers, 1024.
    let want = 10_000.min(limit.rlim_max.saturating_sub(100) / 2);
    if want < 1500 {
        return support::skip(name, format_args!("{} descriptors are too few", limit.rlim_max));
    }
    let folder = Folder::new();
    let number = |file: u64| (file * 0x0123_4567_89AB) as u32;
    let paths: Vec<_> = (0..want).map(|i| folder.file(&i.to_string(), &number(i).to_ne_bytes())).collect();
    let read = async |file: &File, i: u64| {
        let got = file.read_exact_at(Vec::with_capacity(4), 0).await.unwrap();
        assert_eq!(u32::from_ne_bytes(got[..].try_into().unwrap()), number(i));
    };
    block_on(async {
        let before = open_descriptors();
        for round in 0..2 {
            // The second time other files get the numbers of the first.
            let which = |i: u64| if round == 0 { i } else { want - 1 - i };
            let files: Vec<_> = (0..want).map(|i| open_on_ring(&paths[which(i) as usize])).collect();
            for i in 0..want {
                read(&files[i as usize], which(i)).await;
            }
            // Often enough to be registered, below the registered numbers and above.
            for i in (0..want).step_by(97) {
                for _ in 0..12 {
                    read(&files[i as usize], which(i)).await;
                }
            }
            drop(files);
            yield_now().await;
        }
        assert_eq!(thread_metrics().failed, 0);
        // The ring and the eventfd came with the first read.
        assert!(open_descriptors() <= before + 3, "{} descriptors, {before} before", open_descriptors());
    });
}

#[test]
fn f03_a_panic_of_the_main_future_drains_and_leaves_the_thread_usable() {
    let name = "f03_a_panic_of_the_main_future_drains_and_leaves_the_thread_usable";
    if !needs_ring(name) {
        return;
    }
    let Some(server) = Server::or_skip(name, content(0, 8 * PAGE)) else { return };
    server.rule(Op::Read, 0..4096, 4, Act::Delay(std::time::Duration::from_millis(100)));
    let file = ring_options().read(true).open(server.path()).unwrap();
    let pool = Pool::new(1 << 20);
    let thrown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        block_on(async {
            let mut reads: Vec<_> = (0..4).map(|_| file.read_at(pool.get(PAGE).unwrap(), 0)).collect();
            for read in &mut reads {
                assert!(poll_once(read).await.is_pending());
            }
            yield_now().await;
            std::panic::panic_any(17);
        })
    }));
    assert_eq!(thrown.unwrap_err().downcast_ref(), Some(&17));
    assert_eq!(pool.metrics().in_use, 0);
    assert_content(&block_on(file.read_exact_at(pool.get(PAGE).unwrap(), 4096)).unwrap(), 4096);
}

#[test]
fn f03_futures_that_are_leaked_harm_nobody() {
    let folder = Folder::new();
    // In a static, where a leak detector sees it.
    static FILE: OnceLock<File> = OnceLock::new();
    let file = FILE.get_or_init(|| open_on_ring(folder.file("data", &content(0, 8 * PAGE))));
    let pool = Pool::new(1 << 20);
    let memory = pool.clone();
    must_end("a thread whose futures were leaked", move || {
        block_on(async {
            for _ in 0..100 {
                let mut read = file.read_at(memory.get(PAGE).unwrap(), 0);
                assert!(poll_once(&mut read).await.is_pending());
                std::mem::forget(read);
            }
            assert_content(&file.read_at(memory.get(PAGE).unwrap(), 0).await.unwrap(), 0);
        });
    });
    // Kept for futures that nobody knows to be gone: never reused.
    assert_eq!(pool.metrics().in_use, 100 * PAGE);
}

#[test]
fn f01_a_future_goes_through_several_loops() {
    if !needs_ring("f01_a_future_goes_through_several_loops") {
        return;
    }
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 8 * PAGE)));
    let mut read = pin!(file.read_exact_at(vec![0; PAGE], 0));
    for _ in 0..2 {
        let polled =
            block_on(std::future::poll_fn(|context| std::task::Poll::Ready(read.as_mut().poll(context))));
        if let std::task::Poll::Ready(result) = polled {
            return assert_content(&result.unwrap(), 0);
        }
    }
    panic!("a loop that was left drains its operations: the next poll has the result");
}
