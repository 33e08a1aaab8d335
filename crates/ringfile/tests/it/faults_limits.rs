//! Limits: of queues, descriptors, and memory that may be locked (F06, F07, F09, F20, F21).

use crate::support::handles::Handles as _;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support;
use crate::support::filters::filter;
use crate::support::fuse::{Act, Op, Server};
use crate::support::{
    Folder, all, assert_content, content, has_registered_buffers, has_shared_registrations, in_child,
    in_child_with, is_child, is_root, is_without_ring, must_end, needs_ring, open_descriptors, open_on_ring,
    poll_once, record_warnings, ring_options, skip, wait_for, yield_now, yield_until,
};
use ringfile::fs::AllocateMode;
use ringfile::metrics::ring_features;
use ringfile::{Durability, File, Pool, Queue, RegisteredMemory, Runtime, block_on, metrics, thread_metrics};

const PAGE: usize = 4096;

#[test]
fn f06_more_completions_than_the_queue_holds_all_arrive() {
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 64 * PAGE)));
    let runtime = Runtime::builder().threads(1).entries(8).build().unwrap();
    let task = runtime.spawn(async move {
        let before = thread_metrics();
        for _ in 0..5 {
            // The reads are cached: they complete as they are submitted, long before anyone collects them.
            let reads = (0..3000_u64).map(|i| file.read_at(Vec::with_capacity(64), i % 512 * 512)).collect();
            for (i, result) in all(reads).await.into_iter().enumerate() {
                let got = result.unwrap();
                assert_eq!(got.len(), 64);
                assert_content(&got, i as u64 % 512 * 512);
            }
        }
        let counts = thread_metrics() - before;
        let ops = if is_without_ring() { 0 } else { 15_000 };
        assert_eq!((counts.ops, counts.failed, counts.stray), (ops, 0, 0));
    });
    must_end("more operations than the queues hold", move || task.join().unwrap());
}

#[test]
fn f07_operations_beyond_a_full_submission_queue_are_carried_out() {
    let name = "f07_operations_beyond_a_full_submission_queue_are_carried_out";
    for entries in [1, 2, 3, 16] {
        let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
        server.rule(Op::Read, 0..u64::MAX, usize::MAX, Act::Hold);
        let file = ring_options().read(true).open_blocking(server.path()).unwrap();
        let runtime = Runtime::builder().threads(1).entries(entries).build().unwrap();
        let pool = Pool::new(1 << 20);
        let memory = pool.clone();
        let task = runtime.spawn(async move {
            let mut reads: Vec<_> = (0..64)
                .map(|page| Box::pin(file.read_at(memory.get(PAGE).unwrap(), page * PAGE as u64)))
                .collect();
            for read in &mut reads {
                assert!(poll_once(read).await.is_pending());
            }
            // Some are dropped in the queue, others while the kernel has them.
            let kept: Vec<_> = reads.into_iter().enumerate().filter(|(page, _)| page % 3 != 0).collect();
            for (page, read) in kept {
                let buffer = read.await.unwrap();
                assert_eq!(buffer.len(), PAGE);
                assert_content(&buffer, (page * PAGE) as u64);
            }
            assert_eq!(thread_metrics().stray, 0);
        });
        server.wait_held(1);
        server.release();
        must_end("more operations than entries", move || task.join().unwrap());
        wait_for("memory to come back", || pool.metrics().in_use == 0);
    }
}

#[test]
fn f07_durable_writes_work_with_the_smallest_ring() {
    let folder = Folder::new();
    let mut options = ring_options();
    options.read(true).write(true).create(true).durability(ringfile::Durability::Fsync);
    let file = options.open_blocking(folder.path().join("data")).unwrap();
    let runtime = Runtime::builder().threads(1).entries(1).build().unwrap();
    let task = runtime.spawn(async move {
        let writes = (0..16).map(|i| file.write_durable_at(content(i * 100, 100), i * 100)).collect();
        assert!(all(writes).await.into_iter().all(|result| result.is_ok()));
        assert_content(&file.read_at(Vec::with_capacity(1600), 0).await.unwrap(), 0);
    });
    must_end("a write and its sync need two entries", move || task.join().unwrap());
}

fn limit(what: libc::__rlimit_resource_t, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: one valid record.
    assert_eq!(unsafe { libc::setrlimit(what, &limit) }, 0);
}

fn most(what: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one record to fill.
    assert_eq!(unsafe { libc::getrlimit(what, &mut limit) }, 0);
    limit.rlim_max
}

#[test]
fn f09_a_thread_without_a_ring_reports_why_and_others_continue() {
    if !needs_ring("f09_a_thread_without_a_ring_reports_why_and_others_continue") {
        return;
    }
    if !in_child("f09_a_thread_without_a_ring_reports_why_and_others_continue") {
        return;
    }
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, PAGE)));
    let runtime = Runtime::builder().threads(1).build().unwrap();
    let task = |file: &File| {
        let file = file.clone();
        runtime.spawn(async move { file.read_at(Vec::with_capacity(PAGE), 0).await })
    };
    assert_content(&task(&file).join().unwrap().unwrap(), 0);
    let late = Runtime::builder().threads(1).build().unwrap();
    let descriptors = open_descriptors();
    // Fills gaps in the descriptor table first, so that none is left below the limit.
    let mut taken = Vec::new();
    limit(libc::RLIMIT_NOFILE, 64);
    while let Ok(another) = std::fs::File::open("/dev/null") {
        taken.push(another);
    }
    // With no free descriptor, and with one, which is enough for the wake-up descriptor but not for a ring.
    for free in 0..2 {
        taken.truncate(taken.len() - free);
        let own = file.clone();
        let failed =
            late.spawn(async move { own.read_at(vec![7; 10], 0).await }).join().unwrap().unwrap_err();
        assert_eq!(failed.errno(), Some(libc::EMFILE), "{failed}");
        assert!(failed.to_string().contains("RLIMIT_NOFILE"), "{failed}");
        assert_eq!(failed.into_buffer().capacity(), 10, "the buffer comes back");
        assert_content(&task(&file).join().unwrap().unwrap(), 0);
        // The library does not retry a failed set-up at once.
        std::thread::sleep(std::time::Duration::from_millis(1100));
    }
    drop(taken);
    let own = file.clone();
    let read = late.spawn(async move { own.read_at(Vec::with_capacity(PAGE), 0).await });
    assert_content(&read.join().unwrap().unwrap(), 0);
    late.shutdown();
    assert_eq!(open_descriptors(), descriptors, "a set-up that failed left a descriptor behind");
}

#[test]
fn f09_without_descriptors_for_a_ring_workers_carry_everything() {
    let name = "f09_without_descriptors_for_a_ring_workers_carry_everything";
    if !in_child(name) {
        return;
    }
    let warnings = record_warnings();
    let folder = Folder::new();
    let file = File::open_blocking(folder.file("data", &content(0, 64 * PAGE))).unwrap();
    let runtime = Runtime::builder().threads(2).build().unwrap();
    let (theirs, mut ours) = std::io::pipe().unwrap();
    let pipe = File::from(std::fs::File::from(std::os::fd::OwnedFd::from(theirs)));
    std::io::Write::write_all(&mut ours, b"some").unwrap();
    let mut taken = Vec::new();
    limit(libc::RLIMIT_NOFILE, 64);
    while let Ok(another) = std::fs::File::open("/dev/null") {
        taken.push(another);
    }
    let tasks: Vec<_> = (0..64_u64)
        .map(|page| {
            let file = file.clone();
            runtime.spawn(async move {
                let offset = page * PAGE as u64;
                assert_content(&file.read_exact_at(vec![0; PAGE], offset).await.unwrap(), offset);
                file.sync_data().await.unwrap();
            })
        })
        .collect();
    tasks.into_iter().for_each(|task| task.join().unwrap());
    // A pipe is never read inline.
    let task = runtime.spawn(async move { pipe.read_at(Vec::with_capacity(100), 0).await.unwrap() });
    assert_eq!(task.join().unwrap(), b"some");
    assert!(ringfile::metrics().worker_ops >= 65, "{:?}", ringfile::metrics());
    if !is_without_ring() {
        // The thread that warns may do so after all operations have ended.
        wait_for("the warning", || !warnings.lock().unwrap().is_empty());
        let warnings = warnings.lock().unwrap();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].contains("RLIMIT_NOFILE") && warnings[0].contains("worker threads"),
            "{warnings:?}"
        );
    }
}

/// Makes `io_uring_enter` on this thread fail with `errno` if it would submit this number of entries.
fn refuse_submissions_of(entries: u32, errno: i32) {
    // The call's number is at offset 0, the low half of its second argument at 24 (little-endian).
    filter(&[(0, libc::SYS_io_uring_enter as u32), (24, entries)], errno);
}

/// Runs `test` on its own thread, in a loop that has its ring, with a file of 64 pages.
fn with_refusals<F: Future<Output = ()>>(errno: i32, test: impl FnOnce(File, Pool) -> F + Send + 'static) {
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 64 * PAGE)));
    let pool = Pool::new(1 << 20);
    let memory = pool.clone();
    must_end("operations that the kernel does not take", move || {
        block_on(async {
            assert_content(&file.read_at(memory.get(PAGE).unwrap(), 0).await.unwrap(), 0);
            refuse_submissions_of(3, errno);
            test(file.clone(), memory.clone()).await;
            for count in [1, 2, 4, 5] {
                let reads = (0..count).map(|_| file.read_at(memory.get(PAGE).unwrap(), 0)).collect();
                assert!(all(reads).await.into_iter().all(|result| result.is_ok()), "the driver is usable");
            }
            assert_eq!(thread_metrics().stray, 0);
        });
    });
    assert_eq!(pool.metrics().in_use, 0);
}

#[test]
fn f07_a_failed_submission_fails_the_operations_that_were_not_taken() {
    if !needs_ring("f07_a_failed_submission_fails_the_operations_that_were_not_taken") {
        return;
    }
    with_refusals(libc::ENXIO, async |file, pool| {
        let reads = (0..3).map(|_| file.read_at(pool.get(PAGE).unwrap(), 0)).collect();
        for result in all(reads).await {
            let failed = result.unwrap_err();
            assert_eq!((failed.errno(), failed.done()), (Some(libc::ENXIO), 0));
        }
    });
}

#[test]
fn f07_submission_is_retried_while_the_kernel_is_short_of_memory() {
    if !needs_ring("f07_submission_is_retried_while_the_kernel_is_short_of_memory") {
        return;
    }
    for errno in [libc::EAGAIN, libc::EBUSY, libc::ENOMEM] {
        with_refusals(errno, async |file, pool| {
            let mut reads: Vec<_> =
                (0..3).map(|_| Box::pin(file.read_at(pool.get(PAGE).unwrap(), 0))).collect();
            for read in &mut reads {
                assert!(poll_once(read).await.is_pending());
            }
            for _ in 0..5 {
                yield_now().await;
            }
            // The kernel accepts four entries where it refused three.
            reads.push(Box::pin(file.read_at(pool.get(PAGE).unwrap(), 0)));
            for result in all(reads).await {
                assert_content(&result.unwrap(), 0);
            }
        });
    }
}

#[test]
fn f07_a_lasting_shortage_of_memory_is_an_error_and_the_thread_does_not_spin() {
    if !needs_ring("f07_a_lasting_shortage_of_memory_is_an_error_and_the_thread_does_not_spin") {
        return;
    }
    with_refusals(libc::EAGAIN, async |file, pool| {
        let before = thread_metrics();
        let reads = (0..3).map(|_| file.read_at(pool.get(PAGE).unwrap(), 0)).collect();
        for result in all(reads).await {
            assert_eq!(result.unwrap_err().errno(), Some(libc::EAGAIN));
        }
        let enters = (thread_metrics() - before).enters;
        assert!(enters <= 1100, "{enters} calls within a second");
    });
}

/// Runs `test` on its own thread, whose ring cannot submit three entries at once for now.
fn queue_with_refusals(test: impl FnOnce(Queue, OwnedFd, &dyn Fn(&mut Queue, u64)) + Send + 'static) {
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 64 * PAGE)));
    must_end("a queue whose operations the kernel does not take", move || {
        let mut queue = Queue::new();
        let descriptor = queue.descriptor().unwrap();
        let read = |queue: &mut Queue, page: u64| {
            queue.add(file.read_at(Vec::with_capacity(PAGE), page * PAGE as u64), page);
        };
        read(&mut queue, 0);
        queue.end().result.unwrap();
        refuse_submissions_of(3, libc::EAGAIN);
        (1..=3).for_each(|page| read(&mut queue, page));
        test(queue, descriptor, &read);
    });
}

fn is_readable(descriptor: &OwnedFd) -> bool {
    let mut polled = [rustix::event::PollFd::new(descriptor, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}

#[test]
fn f07_submitting_does_not_wait_for_a_kernel_that_is_short_of_memory() {
    let name = "f07_submitting_does_not_wait_for_a_kernel_that_is_short_of_memory";
    if !needs_ring(name) || !in_child(name) {
        return;
    }
    queue_with_refusals(|mut queue, descriptor, read| {
        queue.submit();
        assert!(queue.next().is_none());
        let calls = thread_metrics().enters;
        for _ in 0..3 {
            queue.submit();
            assert!(is_readable(&descriptor), "nothing else makes the program submit the rest");
        }
        let calls = thread_metrics().enters - calls;
        assert_eq!(calls, 3, "one for each");
        // The kernel takes four.
        read(&mut queue, 4);
        queue.submit();
        for done in queue.end_all(4) {
            let page = done.user_data;
            assert_eq!(done.result.unwrap(), PAGE, "page {page}");
        }
        queue.submit();
        assert!(!is_readable(&descriptor));
    });
    // Without a wait, too, operations end when the kernel has refused them for long.
    queue_with_refusals(|mut queue, descriptor, _| {
        queue.submit();
        let mut failed = 0;
        while failed < 3 {
            assert!(is_readable(&descriptor));
            queue.submit();
            while let Some(done) = queue.next() {
                assert_eq!(done.result.unwrap_err().errno(), Some(libc::EAGAIN));
                failed += 1;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    // Refusals that are far apart do not mean that the kernel has refused all the time in between.
    queue_with_refusals(|mut queue, _descriptor, read| {
        for _ in 0..3 {
            queue.submit();
            assert!(queue.next().is_none());
            // A refused ring is tried again after a second.
            std::thread::sleep(Duration::from_millis(1100));
        }
        read(&mut queue, 4);
        for done in queue.end_all(4) {
            let page = done.user_data;
            assert_eq!(done.result.unwrap(), PAGE, "page {page}");
        }
    });
    // A thread that waits pauses between attempts.
    queue_with_refusals(|mut queue, _descriptor, _| {
        let calls = thread_metrics().enters;
        queue.settle(3);
        let calls = thread_metrics().enters - calls;
        assert!((10..=1100).contains(&calls), "{calls} calls within a second");
        while let Some(done) = queue.next() {
            assert_eq!(done.result.unwrap_err().errno(), Some(libc::EAGAIN));
        }
    });
    // So does one that leaves its loop, though it waits for nothing.
    queue_with_refusals(|mut queue, _descriptor, _| {
        let calls = thread_metrics().enters;
        block_on(async { queue.submit() });
        let calls = thread_metrics().enters - calls;
        assert!((10..=1100).contains(&calls), "{calls} calls within a second");
        for done in queue.end_all(3) {
            assert_eq!(done.result.unwrap_err().errno(), Some(libc::EAGAIN));
        }
    });
}

#[test]
fn f09_a_file_that_gets_no_descriptor_of_its_own_still_works() {
    if !in_child("f09_a_file_that_gets_no_descriptor_of_its_own_still_works") {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    let file = open_on_ring(&path);
    let (theirs, mut ours) = std::io::pipe().unwrap();
    assert!(block_on(file.read_at(vec![0; 10], 0)).is_ok(), "the thread has its ring");
    limit(libc::RLIMIT_NOFILE, 64);
    let mut taken = Vec::new();
    while let Ok(another) = std::fs::File::open("/dev/null") {
        taken.push(another);
    }
    assert_eq!(file.metadata().unwrap().len(), PAGE as u64);
    let pipe = File::from(std::fs::File::from(std::os::fd::OwnedFd::from(theirs)));
    assert!(!pipe.metadata().unwrap().is_file());
    std::io::Write::write_all(&mut ours, b"some").unwrap();
    // On this thread, which has its ring; the other thread ends a wait that would have no end.
    let (answered, is_answered) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        let was_answered = is_answered.recv_timeout(support::patience()).is_ok();
        drop(ours);
        was_answered
    });
    let got = block_on(pipe.read_at(Vec::with_capacity(100), 0)).unwrap();
    assert_eq!(got, b"some");
    let _ = answered.send(());
    assert!(writer.join().unwrap(), "a read of a pipe returns what is there, without waiting for more");
}

/// Makes the process one of an unprivileged user that may lock this much memory. No other process has that user, since
/// the kernel counts over all processes of a user.
fn unprivileged(command: &mut Command, memlock: u64) {
    let user = 61_000 + std::process::id() % 1000 + if memlock > 1 << 20 { 1000 } else { 0 };
    // SAFETY: the closure makes two system calls, which are safe between fork and exec.
    unsafe {
        command.uid(user).gid(user).pre_exec(move || {
            // Before Linux 5.16 no more than 64 KiB are allowed.
            limit(libc::RLIMIT_MEMLOCK, memlock.min(most(libc::RLIMIT_MEMLOCK)));
            Ok(())
        });
    }
}

/// As [`in_child_with`], by [`unprivileged`]; false too, and the test is skipped, if that is not possible.
fn in_unprivileged_child(name: &str, memlock: u64) -> bool {
    if !is_root() && !is_child(name) {
        skip(name, "becoming another user needs root");
        return false;
    }
    in_child_with(name, |command| unprivileged(command, memlock))
}

/// Keeps this process from creating threads and processes, if root does not run it.
struct NoNewThreads(libc::rlimit);

impl NoNewThreads {
    fn begin() -> Self {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let none = |limit: &libc::rlimit| libc::rlimit { rlim_cur: 1, ..*limit };
        // SAFETY: one record to fill, and one valid one.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NPROC, &mut before), 0);
            assert_eq!(libc::setrlimit(libc::RLIMIT_NPROC, &none(&before)), 0);
        }
        Self(before)
    }
}

impl Drop for NoNewThreads {
    fn drop(&mut self) {
        // SAFETY: one valid record.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &self.0) }, 0);
    }
}

/// The threads of a ring count towards the user's limit.
#[test]
fn f09_an_operation_without_a_kernel_thread_fails_with_that_reason_and_names_no_signal() {
    let name = "f09_an_operation_without_a_kernel_thread_fails_with_that_reason_and_names_no_signal";
    if !needs_ring(name) {
        return;
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    if release.starts_with("5.") {
        return skip(
            name,
            "this kernel (before 6.11, or a later 6.1 or 6.6) never stops trying to create the thread",
        );
    }
    if !in_unprivileged_child(name, 8 << 20) {
        return;
    }
    let folder = Folder::new();
    let file =
        ring_options().read(true).write(true).open_blocking(folder.file("data", &content(0, PAGE))).unwrap();
    block_on(async {
        file.read_at(Vec::with_capacity(PAGE), 0).await.unwrap();
        // Lifted again at the end: AddressSanitizer looks for leaks in a child of its own.
        let _limited = NoNewThreads::begin();
        for operation in [file.allocate(AllocateMode::KeepSize, 0, 1 << 20), file.sync_all()] {
            let before = thread_metrics();
            match operation.await {
                Ok(()) => return skip(name, "the ring had a thread already"),
                Err(error) => {
                    assert_eq!(error.errno(), Some(libc::EAGAIN), "{error}");
                    assert!(error.to_string().contains("RLIMIT_NPROC"), "{error}");
                    let resubmitted = (thread_metrics() - before).resubmitted;
                    assert!(resubmitted < 20, "{resubmitted}");
                }
            }
        }
        assert_content(&file.read_at(Vec::with_capacity(PAGE), 0).await.unwrap(), 0);
    });
}

/// Asserts that a queue's descriptor announces a completion of the thread's ring, made by now at the latest.
fn announces(queue: &mut Queue, descriptor: &std::os::fd::OwnedFd, how: &str) {
    // A failed set-up is not retried at once.
    std::thread::sleep(Duration::from_millis(1100));
    let (reader, mut writer) = std::io::pipe().unwrap();
    // A file with another route would go to an I/O thread, since this thread's ring has failed before.
    let reader = std::fs::File::from(std::os::fd::OwnedFd::from(reader));
    let pipe = ring_options().read(true).from_std(reader).unwrap();
    queue.add(pipe.read_at(Vec::with_capacity(4), 0), 7);
    queue.submit();
    assert!(ring_features().is_ok(), "{how}");
    std::io::Write::write_all(&mut writer, b"word").unwrap();
    let mut polled = [rustix::event::PollFd::new(descriptor, rustix::event::PollFlags::IN)];
    let patience = support::patience().try_into().unwrap();
    assert_eq!(
        rustix::event::poll(&mut polled, Some(&patience)),
        Ok(1),
        "{how}: nothing announces the result"
    );
    queue.submit();
    let done = queue.next().unwrap();
    let number = done.user_data;
    assert_eq!((number, done.result.unwrap()), (7, 4), "{how}");
}

#[test]
fn f09_the_descriptor_of_a_queue_announces_a_ring_that_was_made_later() {
    let name = "f09_the_descriptor_of_a_queue_announces_a_ring_that_was_made_later";
    if !needs_ring(name) || !in_unprivileged_child(name, 8 << 20) {
        return;
    }
    let most = most(libc::RLIMIT_MEMLOCK);
    let lock_most = |bytes| {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: most };
        // SAFETY: one valid record.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) }, 0);
    };
    lock_most(0);
    if ring_features().is_ok() {
        return skip(name, "this kernel does not count rings as locked memory");
    }
    let mut queue = Queue::new();
    let descriptor = queue.descriptor().unwrap();
    lock_most(most);
    announces(&mut queue, &descriptor, "no memory");
}

#[test]
fn f09_a_queue_gets_no_descriptor_that_announces_nothing() {
    let name = "f09_a_queue_gets_no_descriptor_that_announces_nothing";
    if !needs_ring(name) || !in_child(name) {
        return;
    }
    // Each thread has a driver of its own, without a ring.
    for free in 0..8 {
        let how = format!("{free} free descriptors");
        std::thread::spawn(move || {
            let mut queue = Queue::new();
            let hard = most(libc::RLIMIT_NOFILE);
            let open_most = |files| {
                let limit = libc::rlimit { rlim_cur: files, rlim_max: hard };
                // SAFETY: one valid record.
                assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
            };
            open_most(64);
            let mut taken = Vec::new();
            while let Ok(another) = std::fs::File::open("/dev/null") {
                taken.push(another);
            }
            taken.truncate(taken.len() - free);
            let made = queue.descriptor();
            drop(taken);
            open_most(hard);
            match made {
                Ok(descriptor) => announces(&mut queue, &descriptor, &how),
                Err(error) => {
                    assert_eq!(error.errno(), Some(libc::EMFILE), "{how}: {error}");
                    assert!(error.to_string().contains("RLIMIT_NOFILE"), "{how}: {error}");
                    let descriptor = queue.descriptor().unwrap();
                    announces(&mut queue, &descriptor, &how);
                }
            }
        })
        .join()
        .unwrap();
    }
}

/// Reads and writes on this number of threads, each with a ring if possible. Returns how many had one, and the
/// registered operations.
fn io_with(threads: usize, file: &File, pool: &Pool) -> (usize, u64) {
    let runtime = Runtime::builder().threads(threads).build().unwrap();
    let tasks: Vec<_> = (0..threads)
        .map(|thread| {
            let (file, pool) = (file.clone(), pool.clone());
            runtime.spawn_on(thread, move || async move {
                let before = thread_metrics();
                for round in 0..50_u64 {
                    let page = round % 16;
                    match file.read_exact_at(pool.get(PAGE).unwrap(), page * PAGE as u64).await {
                        Ok(buffer) => assert_content(&buffer, page * PAGE as u64),
                        Err(failed) => {
                            // If there is no ring, this is the only error, and says what to do.
                            assert_eq!(failed.errno(), Some(libc::ENOMEM), "{failed}");
                            assert!(failed.to_string().contains("RLIMIT_MEMLOCK"), "{failed}");
                            return None;
                        }
                    }
                }
                Some((thread_metrics() - before).fixed_ops)
            })
        })
        .collect();
    let results: Vec<_> = tasks.into_iter().filter_map(|task| task.join().unwrap()).collect();
    runtime.shutdown();
    (results.len(), results.iter().sum())
}

#[test]
fn f20_64_kib_of_locked_memory_give_a_ring_without_registration_and_one_warning() {
    let name = "f20_64_kib_of_locked_memory_give_a_ring_without_registration_and_one_warning";
    if !needs_ring(name) {
        return;
    }
    if !in_unprivileged_child(name, 64 << 10) {
        return;
    }
    let warnings = record_warnings();
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 16 * PAGE));
    let file = open_on_ring(&path);
    let pool = Pool::new(16 << 20);
    // Larger than may be locked: the ring is made smaller.
    let runtime = Runtime::builder().threads(1).entries(4096).build().unwrap();
    let own = file.clone();
    let features = runtime.spawn(async move {
        assert_content(&own.read_exact_at(Vec::with_capacity(PAGE), 0).await.unwrap(), 0);
        ringfile::metrics::ring_features().unwrap()
    });
    let features = features.join().unwrap();
    let entries = features.iter().find_map(|feature| feature.strip_prefix("entries=")).unwrap();
    // Linux 5.12 to 6.12 do not count rings.
    assert!((8..=4096).contains(&entries.parse().unwrap()), "{features:?}");
    runtime.shutdown();
    // One after the other: the kernel gives back the charge of a ring late.
    for _ in 0..5 {
        assert_eq!(io_with(1, &file, &pool), (1, 0), "rings and registered operations");
    }
    // A few of many threads get a ring; all others get an error.
    let (rings, fixed) = io_with(8, &file, &pool);
    assert!(rings >= 1 && fixed == 0, "{rings} rings, {fixed} registered operations");
    assert_eq!(warnings.lock().unwrap().len(), 1, "{warnings:?}");
    // If the route does not require a ring, workers carry out the operations of threads that get none.
    let anyhow = File::open_blocking(&path).unwrap();
    assert_eq!(io_with(8, &anyhow, &pool), (8, 0), "threads that could read");
    assert!(metrics().refused_registrations >= 1);
    assert!(pool.metrics().refused_registrations >= 1 || !has_shared_registrations());
    assert_eq!(pool.metrics().in_use, 0);
    let warnings = warnings.lock().unwrap();
    let (of_workers, of_memory): (Vec<_>, Vec<_>) =
        warnings.iter().partition(|text| text.contains("worker threads"));
    assert_eq!(of_memory.len(), 1, "{warnings:?}");
    assert!(of_workers.len() <= 1, "{warnings:?}");
}

#[test]
fn f20_with_8_mib_of_locked_memory_small_pools_are_registered_and_large_ones_work_unregistered() {
    let name = "f20_with_8_mib_of_locked_memory_small_pools_are_registered_and_large_ones_work_unregistered";
    if !needs_ring(name) {
        return;
    }
    if !has_shared_registrations() {
        return skip(name, "this kernel (before 6.13) counts what is registered for each thread's ring");
    }
    if !in_unprivileged_child(name, 8 << 20) {
        return;
    }
    let warnings = record_warnings();
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 16 * PAGE)));
    let pool = Pool::new(64 << 20);
    for _ in 0..3 {
        assert_eq!(io_with(8, &file, &pool), (8, 8 * 50), "rings and registered operations");
    }
    assert_eq!(warnings.lock().unwrap().len(), 0, "{warnings:?}");
    // More than may be locked: reads continue all the same.
    block_on(async {
        let buffers: Vec<_> = (0..32).map(|_| pool.get(1 << 20).unwrap()).collect();
        for buffer in buffers {
            assert_content(&file.read_at(buffer, 0).await.unwrap(), 0);
        }
    });
    let counts = pool.metrics();
    assert!(counts.registered_bytes > 0 && counts.registered_bytes <= 8 << 20, "{counts:?}");
    assert!(counts.refused_registrations >= 1, "{counts:?}");
    assert_eq!(warnings.lock().unwrap().len(), 1, "{warnings:?}");
}

/// Memory that reports when it is dropped.
struct Told(Vec<u8>, Arc<AtomicBool>);

impl Drop for Told {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

// SAFETY: a vector's bytes stay where they are, and nothing else here touches them.
unsafe impl ringfile::buf::StableMemory for Told {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

#[test]
fn f21_more_than_a_gib_is_registered_in_parts() {
    let name = "f21_more_than_a_gib_is_registered_in_parts";
    let available = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = available.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = available.and_then(|kib| kib.trim().trim_end_matches(" kB").parse::<u64>().ok());
    if available.is_none_or(|kib| kib < 4 << 20) {
        return skip(name, "it needs 4 GiB of free memory");
    }
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, PAGE)));
    let len = (1 << 30) + (4 << 20);
    let memory = RegisteredMemory::new(vec![0_u8; len]);
    block_on(async {
        let before = thread_metrics();
        // In the first region, in the second, and across the border between them, which no registered buffer covers.
        for (start, fixed) in [(0, 1), (len - PAGE, 1), ((1 << 30) - PAGE / 2, 0), ((1 << 30) - PAGE, 1)] {
            let counted = thread_metrics();
            let buffer = file.read_exact_at(memory.lend(start..start + PAGE).unwrap(), 0).await.unwrap();
            assert_content(&buffer, 0);
            let counts = thread_metrics() - counted;
            if fixed == 0 {
                assert_eq!(counts.fixed_ops, 0);
            }
        }
        // If locked memory is limited, registration of a region of 1 GiB may have been refused, but reads never are.
        let counts = thread_metrics() - before;
        assert_eq!((counts.ops, counts.failed), (if is_without_ring() { 0 } else { 4 }, 0));
        if is_root() && !is_without_ring() && has_registered_buffers() {
            assert_eq!(counts.fixed_ops, 3);
        }
    });
}

#[test]
fn f21_registered_memory_stays_until_its_operations_have_ended() {
    let name = "f21_registered_memory_stays_until_its_operations_have_ended";
    let Some(server) = Server::or_skip(name, content(0, 8 * PAGE)) else { return };
    server.rule(Op::Read, 0..u64::MAX, usize::MAX, Act::Hold);
    let file = open_on_ring(server.path());
    let dropped = Arc::new(AtomicBool::new(false));
    let memory = RegisteredMemory::new(Told(vec![0; 1 << 20], Arc::clone(&dropped)));
    let pool = Pool::new(1 << 20);
    block_on(async {
        let mut lent = Box::pin(file.read_at(memory.lend(..PAGE).unwrap(), 0));
        let mut pooled = Box::pin(file.read_at(pool.get(PAGE).unwrap(), 0));
        assert!(poll_once(&mut lent).await.is_pending() && poll_once(&mut pooled).await.is_pending());
        yield_until("requests at the server", || server.held() >= 2).await;
        drop((lent, memory));
        let closed = pool.clone();
        drop(pool);
        for _ in 0..10 {
            yield_now().await;
        }
        assert!(!dropped.load(Ordering::SeqCst), "memory was given back under the kernel");
        assert_eq!(closed.metrics().in_use, PAGE);
        server.release();
        let buffer = pooled.await.unwrap();
        drop(closed);
        assert_content(&buffer, 0);
        while !dropped.load(Ordering::SeqCst) {
            yield_now().await;
        }
    });
}

#[test]
fn f51_a_durable_write_without_a_free_descriptor_is_not_remembered() {
    let name = "f51_a_durable_write_without_a_free_descriptor_is_not_remembered";
    if !needs_ring(name) || !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    let files = [Durability::Dsync, Durability::Fsync].map(|durability| {
        let mut options = ring_options();
        (durability, options.read(true).write(true).durability(durability).open_blocking(&path).unwrap())
    });
    let mut taken = Vec::new();
    limit(libc::RLIMIT_NOFILE, 64);
    while let Ok(another) = std::fs::File::open("/dev/null") {
        taken.push(another);
    }
    for (durability, file) in &files {
        let failed = block_on(file.write_durable_at(content(0, PAGE), 0)).unwrap_err();
        assert_eq!(failed.errno(), Some(libc::EMFILE), "{durability:?}: {failed}");
    }
    drop(taken);
    // A refused ring is tried again after a second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    for (durability, file) in &files {
        block_on(file.sync_all()).unwrap_or_else(|error| panic!("{durability:?}: {error}"));
        block_on(file.write_durable_at(content(0, PAGE), 0)).unwrap();
    }
}

#[test]
fn f20_registering_memory_now_says_that_the_limit_is_too_low() {
    let name = "f20_registering_memory_now_says_that_the_limit_is_too_low";
    if !needs_ring(name) || !support::needs_registered_buffers(name) || !in_unprivileged_child(name, 64 << 10)
    {
        return;
    }
    let memory = ringfile::RegisteredMemory::new(vec![0_u8; 16 << 20]);
    let refused = ringfile::buf::register(&memory).unwrap_err();
    if refused.kind() == std::io::ErrorKind::Unsupported {
        return skip(name, "before Linux 6.13 nothing is pinned in advance");
    }
    assert_eq!(refused.errno(), Some(libc::ENOMEM), "{refused}");
    assert!(refused.to_string().contains("RLIMIT_MEMLOCK"), "{refused}");
    // Operations go on without.
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, PAGE)));
    let read = block_on(async { file.read_at(memory.lend(..PAGE).unwrap(), 0).await.unwrap() });
    assert_content(&read, 0);
}
