//! What happens where io_uring is not available: under a seccomp filter, as in a container, which the test really
//! installs.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::filters::{deny, deny_registering};
use crate::support::forms::READING;
use crate::support::{
    Folder, all, assert_content, content, in_child, in_child_with, is_child, must_end, needs_ring,
    open_descriptors, open_on_ring, page_size, poll_once, record_warnings, skip, wait_for,
};
use ringfile::buf::refused_registration;
use ringfile::fs::AllocateMode;
use ringfile::metrics::ring_features;
use ringfile::queue::ReadRequest;
use ringfile::{
    Batch, Durability, File, OpenOptions, Pool, Queue, Route, Runtime, WhenFull, block_on, metrics, spawn,
    thread_metrics,
};

const PAGE: usize = 4096;

/// Asserts what must hold without a ring for every operation of a file that needs one, and for tasks, memory and other
/// threads.
fn everything_but_io(file: &File, errno: i32, cause: &str) {
    let page = page_size();
    let pool = Pool::builder().capacity(page).when_full(WhenFull::Wait).build().unwrap();
    block_on(async {
        let failed = file.read_at(pool.get(page).unwrap(), 0).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Unsupported, "{failed}");
        assert_eq!(failed.errno(), Some(errno), "{failed}");
        assert!(failed.to_string().contains(cause), "{failed}");
        let held = failed.into_buffer();
        assert_eq!(file.sync_data().await.unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(file.write_at(&b"x"[..], 0).await.unwrap_err().errno(), Some(errno));
        let vectored = file.read_vectored_at(vec![vec![1, 2], vec![3]], 0).await.unwrap_err();
        let nothing: Vec<u8> = Vec::new();
        assert_eq!(vectored.into_buffer(), [nothing.clone(), nothing], "both come back, with what was read");
        // Tasks, memory and other threads still work.
        let waiting = pool.clone();
        let task = spawn(async move { waiting.get_async(page).await.unwrap().capacity() });
        let elsewhere = std::thread::spawn(move || {
            // Time for the task to wait for memory; filters are not simulated.
            std::thread::sleep(Duration::from_millis(20));
            drop(held);
        });
        assert_eq!(task.await.unwrap(), page);
        elsewhere.join().unwrap();
        let mut reader = file.reader(&pool).block(PAGE);
        assert_eq!(reader.next().await.unwrap().unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(reader.next().await.is_none());
    });
    assert_eq!(pool.metrics().in_use, 0);
    let runtime = Runtime::builder().threads(2).build().unwrap();
    let own = file.clone();
    let read = runtime.spawn(async move { own.read_at(Vec::with_capacity(PAGE), 0).await });
    assert_eq!(read.join().unwrap().unwrap_err().errno(), Some(errno));
    assert_eq!(runtime.spawn(async { 42 }).join().unwrap(), 42);
    runtime.shutdown();
    assert_eq!(ring_features().unwrap_err().kind(), ErrorKind::Unsupported);
}

/// Asserts what must hold without a ring for every operation of a file with `Route::Auto`.
fn every_operation(path: &std::path::Path) {
    let pool = Pool::new(1 << 20);
    let options = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options
    };
    let direct = options().direct(true).buffered_fallback(true).open_blocking(path).unwrap();
    let files = [
        options().open_blocking(path).unwrap(),
        options().durability(Durability::Fsync).route(Route::Workers).open_blocking(path).unwrap(),
        options().durability(Durability::Dsync).open_blocking(path).unwrap(),
    ];
    for (file, form) in files.iter().chain([&direct]).flat_map(|file| READING.map(|form| (file, form))) {
        let reads = (0..32).map(|page| (pool.get(PAGE).unwrap(), page * PAGE as u64)).collect();
        for (page, (buffer, error)) in form.read(file, reads).into_iter().enumerate() {
            assert!(error.is_none(), "{form:?}: {}", error.unwrap());
            assert_eq!(buffer.len(), PAGE);
            assert_content(&buffer, (page * PAGE) as u64);
        }
    }
    block_on(async {
        for file in &files {
            let reads =
                (0..32).map(|page| file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64)).collect();
            for (page, result) in all(reads).await.into_iter().enumerate() {
                let buffer = result.unwrap();
                assert_eq!(buffer.len(), PAGE);
                assert_content(&buffer, (page * PAGE) as u64);
            }
            file.write_at(content(100, 5000), 100).await.unwrap();
            file.write_durable_at(content(7000, 3000), 7000).await.unwrap();
            let parts = (0..20).map(|part| content(part * 1000, 1000)).collect();
            file.write_vectored_at(parts, 0).await.unwrap();
            file.sync_all().await.unwrap();
            file.allocate(AllocateMode::KeepSize, 0, 64 * PAGE as u64).await.unwrap();
            let parts = file.read_vectored_at(vec![vec![0; 100], vec![0; 9000]], 77).await.unwrap();
            assert_content(&parts.concat(), 77);
            let mut reader = file.reader(&pool).block(PAGE);
            let mut seen = 0;
            while let Some(piece) = reader.next().await {
                let piece = piece.unwrap();
                assert_content(&piece, seen);
                seen += piece.len() as u64;
            }
            assert_eq!(seen, 64 * PAGE as u64);
            let failed = file.read_exact_at(vec![0; 100], 64 * PAGE as u64 - 10).await.unwrap_err();
            assert_eq!((failed.kind(), failed.done()), (ErrorKind::UnexpectedEof, 10));
            assert_content(&failed.into_buffer(), 64 * PAGE as u64 - 10);
        }
        // As many as a disk's queue holds, at unaligned offsets.
        let reads = (0..64).map(|i| direct.read_at(Vec::with_capacity(3000), i * 1234 + 1)).collect();
        for (i, result) in all(reads).await.into_iter().enumerate() {
            let buffer = result.unwrap();
            assert_eq!(buffer.len(), 3000);
            assert_content(&buffer, i as u64 * 1234 + 1);
        }
        // Half of them are dropped half way.
        let mut reads: Vec<_> =
            (0..32).map(|page| Box::pin(files[1].read_at(pool.get(PAGE).unwrap(), page * 4096))).collect();
        for read in &mut reads {
            assert!(poll_once(read).await.is_pending());
        }
        for (page, read) in reads.into_iter().enumerate().filter(|(page, _)| page % 2 == 0) {
            assert_content(&read.await.unwrap(), page as u64 * 4096);
        }
    });
    let (reader, mut writer) = std::io::pipe().unwrap();
    let pipe = File::from(std::fs::File::from(std::os::fd::OwnedFd::from(reader)));
    let writing = std::thread::spawn(move || {
        // Time for the reader to wait; filters are not simulated.
        std::thread::sleep(Duration::from_millis(20));
        std::io::Write::write_all(&mut writer, b"some").unwrap();
    });
    assert_eq!(futures::executor::block_on(pipe.read_at(Vec::with_capacity(100), 0)).unwrap(), b"some");
    writing.join().unwrap();
    let runtime = Runtime::builder().threads(2).build().unwrap();
    let tasks: Vec<_> = (0..64_u64)
        .map(|page| {
            let file = files[1].clone();
            runtime.spawn(async move {
                assert_content(&file.read_exact_at(vec![0; PAGE], page * 4096).await.unwrap(), page * 4096);
            })
        })
        .collect();
    tasks.into_iter().for_each(|task| task.join().unwrap());
    runtime.shutdown();
    wait_for("memory to come back", || pool.metrics().in_use == 0);
    assert_eq!(ring_features().unwrap_err().kind(), ErrorKind::Unsupported);
}

/// `cause`: what the warning and the errors have to name.
fn no_ring(errno: i32, cause: &'static str) {
    let warnings = record_warnings();
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    let file = OpenOptions::new().read(true).route(Route::Ring).open_blocking(&path).unwrap();
    // On its own thread, so that the descriptors of its driver are closed at the end.
    std::thread::spawn(move || {
        deny(libc::SYS_io_uring_setup, errno);
        // Makes what the process keeps: workers, and an I/O thread, which has no ring either.
        every_operation(&path);
        let before = open_descriptors();
        let thread = std::thread::spawn(move || {
            everything_but_io(&file, errno, cause);
            every_operation(&path);
            // A second later the library tries to set up a ring again, with the same result.
            std::thread::sleep(Duration::from_millis(1100));
            everything_but_io(&file, errno, cause);
            every_operation(&path);
            // A thread without a loop of ringfile's has no ring either.
            let failed = futures::executor::block_on(file.read_at(vec![7; 10], 0)).unwrap_err();
            assert_eq!((failed.kind(), failed.errno()), (ErrorKind::Unsupported, Some(errno)), "{failed}");
            assert!(failed.to_string().contains(cause), "{failed}");
            let failed = futures::executor::block_on(file.sync_all()).unwrap_err();
            assert!(failed.to_string().contains(cause), "{failed}");
            file
        });
        let _file = thread.join().unwrap();
        // The I/O thread closes files at its next turn.
        wait_for("descriptors to be given back", || open_descriptors() <= before);
    })
    .join()
    .unwrap();
    let counts = metrics();
    assert!(counts.worker_ops > 0 && counts.inline_ops > 0 && counts.enters == 0, "{counts:?}");
    let warnings = warnings.lock().unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains(cause) && warnings[0].contains("worker threads"), "{warnings:?}");
}

#[test]
fn f23_a_filter_that_forbids_io_uring_is_named_and_workers_carry_everything() {
    let name = "f23_a_filter_that_forbids_io_uring_is_named_and_workers_carry_everything";
    if needs_ring(name) && in_child(name) {
        no_ring(libc::EPERM, "kernel.io_uring_disabled");
    }
}

#[test]
fn f23_a_filter_that_hides_io_uring_is_named_and_workers_carry_everything() {
    let name = "f23_a_filter_that_hides_io_uring_is_named_and_workers_carry_everything";
    if needs_ring(name) && in_child(name) {
        no_ring(libc::ENOSYS, "seccomp");
    }
}

/// The switch affects the whole machine, on which other programs need it: only if the user who runs the tests asks for
/// it.
#[test]
fn f23_the_sysctl_that_switches_io_uring_off_is_named_and_workers_carry_everything() {
    const SWITCH: &str = "/proc/sys/kernel/io_uring_disabled";
    struct Restore(String);
    impl Drop for Restore {
        fn drop(&mut self) {
            std::fs::write(SWITCH, &self.0).unwrap();
        }
    }
    let name = "f23_the_sysctl_that_switches_io_uring_off_is_named_and_workers_carry_everything";
    if !needs_ring(name) {
        return;
    }
    if is_child(name) {
        std::fs::write(SWITCH, "2").unwrap();
        let folder = Folder::new();
        let path = folder.file("data", &content(0, 64 * PAGE));
        let file = OpenOptions::new().read(true).route(Route::Ring).open_blocking(&path).unwrap();
        everything_but_io(&file, libc::EPERM, "kernel.io_uring_disabled");
        every_operation(&path);
        assert_eq!(metrics().enters, 0);
    } else if std::env::var("RINGFILE_TEST_SYSCTL").is_ok_and(|value| value == "1") {
        // In this process, so that it is restored even if the other one hangs and is killed.
        let _restore = Restore(std::fs::read_to_string(SWITCH).unwrap());
        in_child_with(name, |_| ());
    } else {
        skip(
            name,
            "it changes kernel.io_uring_disabled for all programs; RINGFILE_TEST_SYSCTL=1 allows that",
        );
    }
}

/// Linux 5.10 to 5.18 support registered memory, but no sparse tables for it.
#[test]
fn f46_a_kernel_without_sparse_tables_is_named_as_the_cause_and_not_a_limit() {
    let name = "f46_a_kernel_without_sparse_tables_is_named_as_the_cause_and_not_a_limit";
    if !needs_ring(name) || !in_child(name) {
        return;
    }
    const REGISTER_BUFFERS2: u32 = 15;
    let warnings = record_warnings();
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 4 * PAGE)));
    deny_registering(REGISTER_BUFFERS2, libc::EINVAL);
    let plain = Pool::builder().capacity(1 << 20).registered(false).build().unwrap();
    block_on(async {
        assert_content(&file.read_at(plain.get(PAGE).unwrap(), 0).await.unwrap(), 0);
        assert_eq!(thread_metrics().refused_registrations, 0, "this pool registers nothing");
        let pool = Pool::new(1 << 20);
        for page in 0..4 {
            let offset = page * PAGE as u64;
            assert_content(&file.read_at(pool.get(PAGE).unwrap(), offset).await.unwrap(), offset);
        }
        let counts = thread_metrics();
        assert_eq!((counts.fixed_ops, counts.refused_registrations), (0, 1), "{counts:?}");
        assert_eq!(pool.metrics().registered_regions, 0);
    });
    assert!(!ring_features().unwrap().iter().any(|feature| feature == "registered_buffers"));
    let refused = refused_registration().expect("it was refused");
    assert_eq!(refused.errno(), libc::EINVAL);
    let warnings = warnings.lock().unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for said in [&warnings[0], &refused.to_string()] {
        assert!(
            said.contains("this kernel has no sparse tables") && !said.contains("RLIMIT_MEMLOCK"),
            "{said}"
        );
    }
}

/// A program that installs its filter after its first I/O.
#[test]
fn f23_a_ring_that_may_not_be_entered_any_more_fails_operations_and_does_not_spin() {
    let name = "f23_a_ring_that_may_not_be_entered_any_more_fails_operations_and_does_not_spin";
    if !needs_ring(name) || !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, PAGE)));
    block_on(async {
        assert_content(&file.read_at(Vec::with_capacity(PAGE), 0).await.unwrap(), 0);
        deny(libc::SYS_io_uring_enter, libc::EPERM);
        for _ in 0..3 {
            let failed = file.read_at(vec![7; 10], 0).await.unwrap_err();
            assert_eq!(failed.errno(), Some(libc::EPERM), "{failed}");
        }
        let began = Instant::now();
        let before = thread_metrics().enters;
        let (send, receive) = signal();
        let elsewhere = std::thread::spawn(move || {
            // Time in which the waiting thread must make no system call; filters are not simulated.
            std::thread::sleep(Duration::from_millis(300));
            send();
        });
        receive.await;
        assert!(began.elapsed() >= Duration::from_millis(300));
        let enters = thread_metrics().enters - before;
        assert!(enters < 10, "{enters} system calls while there was nothing to do");
        elsewhere.join().unwrap();
    });
}

#[test]
fn f23_many_reads_fail_together_where_a_ring_may_not_be_entered_any_more() {
    let name = "f23_many_reads_fail_together_where_a_ring_may_not_be_entered_any_more";
    if !needs_ring(name) || !in_child(name) {
        return;
    }
    must_end("reads on a ring that may not be entered", many_reads_on_a_ring_that_is_shut);
}

fn many_reads_on_a_ring_that_is_shut() {
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 16 * PAGE)));
    let (pool, mut queue) = (Pool::new(16 << 20), Queue::new());
    let offsets = || (0..600).map(|at| at % 16 * PAGE as u64);
    let mut requests: Vec<_> =
        offsets().map(|offset| ReadRequest::new(pool.get(PAGE).unwrap(), offset)).collect();
    queue.read_many(&file, &mut requests).unwrap();
    assert!(requests.iter().all(|request| request.result.as_ref().is_ok_and(|&read| read == PAGE)));
    deny(libc::SYS_io_uring_enter, libc::EPERM);
    for _ in 0..3 {
        queue.read_many(&file, &mut requests).unwrap();
        for request in &requests {
            assert_eq!(request.result.as_ref().unwrap_err().errno(), Some(libc::EPERM));
            assert_eq!((request.buffer.capacity(), request.buffer.len()), (PAGE, 0));
        }
        let mut batch = Batch::new();
        for offset in offsets() {
            batch.add(file.read_at(pool.get(PAGE).unwrap(), offset));
        }
        for done in batch.run() {
            assert_eq!(done.result.unwrap_err().errno(), Some(libc::EPERM));
        }
    }
}

/// Returns a function and a future, which becomes ready when another thread calls the function.
fn signal() -> (impl FnOnce() + Send, impl Future<Output = ()>) {
    use std::sync::{Arc, Mutex};
    use std::task::{Poll, Waker};
    let state: Arc<Mutex<(bool, Option<Waker>)>> = Arc::default();
    let theirs = Arc::clone(&state);
    let send = move || {
        let mut state = theirs.lock().unwrap();
        state.0 = true;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    };
    let receive = std::future::poll_fn(move |context| {
        let mut state = state.lock().unwrap();
        if state.0 {
            return Poll::Ready(());
        }
        state.1 = Some(context.waker().clone());
        Poll::Pending
    });
    (send, receive)
}

/// A durable write that nobody could begin has lost no data (F51 is about those that were tried).
#[test]
fn f51_a_durable_write_that_gets_no_ring_is_not_remembered() {
    let name = "f51_a_durable_write_that_gets_no_ring_is_not_remembered";
    if !needs_ring(name) || !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    let open = |durability| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).route(Route::Ring).durability(durability);
        options.open_blocking(&path).unwrap()
    };
    // Before the filter, since it holds for all threads that this one starts.
    let runtime = Runtime::builder().threads(1).build().unwrap();
    let sync = |file: &File| {
        let file = file.clone();
        runtime.spawn(async move { file.sync_all().await }).join().unwrap()
    };
    sync(&open(Durability::Auto)).unwrap();
    let files = [Durability::Dsync, Durability::Fsync].map(|durability| (durability, open(durability)));
    deny(libc::SYS_io_uring_setup, libc::EPERM);
    for (durability, file) in &files {
        let failed = [
            block_on(file.write_durable_at(content(0, PAGE), 0)),
            futures::executor::block_on(file.write_durable_at(content(0, PAGE), 0)),
        ];
        for failed in failed {
            assert_eq!(failed.unwrap_err().errno(), Some(libc::EPERM), "{durability:?}");
        }
        // A thread that has a ring.
        sync(file).unwrap_or_else(|error| panic!("{durability:?}: {error}"));
    }
}

/// As above, if the filter comes when the thread has a ring: the kernel then refuses the submission.
#[test]
fn f51_a_durable_write_whose_submission_is_refused_is_not_remembered() {
    let name = "f51_a_durable_write_whose_submission_is_refused_is_not_remembered";
    if !needs_ring(name) || !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    for durability in [Durability::Dsync, Durability::Fsync] {
        let mut options = OpenOptions::new();
        options.read(true).write(true).route(Route::Ring).durability(durability);
        let file = options.open_blocking(&path).unwrap();
        let own = file.clone();
        std::thread::spawn(move || {
            block_on(async {
                own.sync_all().await.unwrap();
                deny(libc::SYS_io_uring_enter, libc::EPERM);
                let failed = own.write_durable_at(content(0, PAGE), 0).await.unwrap_err();
                assert_eq!(failed.errno(), Some(libc::EPERM), "{durability:?}: {failed}");
            });
        })
        .join()
        .unwrap();
        block_on(file.sync_all()).unwrap_or_else(|error| panic!("{durability:?}: {error}"));
    }
}

/// As above, if the filter is about the plain calls. A write that syncs might have failed in its sync, so only a write
/// that does not is known to have lost nothing.
#[test]
fn f51_a_refusal_by_a_filter_is_remembered_if_it_may_have_been_a_failed_sync() {
    let name = "f51_a_refusal_by_a_filter_is_remembered_if_it_may_have_been_a_failed_sync";
    if support::workers_are_forced() {
        return support::skip(name, "workers would keep the filter of the thread that started them");
    }
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    let open = |durability| {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .route(Route::Inline)
            .durability(durability)
            .open_blocking(&path)
            .unwrap()
    };
    let files = [Durability::Fsync, Durability::Dsync, Durability::Auto].map(open);
    let [writes, writes_durably, syncs] = files.clone();
    std::thread::spawn(move || {
        for call in [libc::SYS_pwritev2, libc::SYS_pwritev, libc::SYS_pwrite64, libc::SYS_fsync] {
            deny(call, libc::EPERM);
        }
        for file in [writes, writes_durably] {
            let failed = block_on(file.write_durable_at(content(0, PAGE), 0)).unwrap_err();
            assert_eq!(failed.errno(), Some(libc::EPERM), "{failed}");
        }
        assert_eq!(block_on(syncs.sync_all()).unwrap_err().errno(), Some(libc::EPERM));
    })
    .join()
    .unwrap();
    let remembered = files.map(|file| {
        let failed = file.failed_sync().and_then(|error| error.errno());
        assert_eq!(block_on(file.sync_all()).err().and_then(|error| error.errno()), failed);
        failed
    });
    // The durable write is refused without its sync, too.
    assert_eq!(remembered, [None, None, Some(libc::EPERM)]);
}
