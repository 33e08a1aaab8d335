//! Reads with handles, as a thread without an executor uses them: RocksDB's ReadAsync, Poll and AbortIO.

use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::support;
use crate::support::fuse::{Act, Op, Server};
use crate::support::handles::Handles as _;
use crate::support::{Folder, Random, assert_content, content, must_end};
use ringfile::{Batch, File, OpenOptions, Pool, Queue, Route, Token};

const PAGE: usize = 4096;

/// Makes a pipe without data, and returns its other end too.
fn silent_pipe() -> (File, std::fs::File, Folder) {
    let folder = Folder::new();
    let path = folder.path().join("pipe");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a string that ends with 0.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let other = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    (OpenOptions::new().read(true).open_blocking(&path).unwrap(), other, folder)
}

#[test]
fn each_read_returns_its_bytes_with_every_way_of_waiting() {
    let folder = Folder::new();
    let file = File::open_blocking(folder.file("data", &content(0, 100 * PAGE))).unwrap();
    let pool = Pool::new(1 << 20);
    let mut reads = Queue::new();
    let handles: Vec<(Token, u64)> = (0..60)
        .map(|i| {
            let offset = (i * 37 % 100) * PAGE as u64;
            let handle = match i % 2 {
                0 => reads.start(&file, pool.get(PAGE).unwrap(), offset),
                _ => reads.start(&file, Vec::with_capacity(PAGE), offset),
            };
            (handle, offset)
        })
        .collect();
    reads.settle(5);
    reads.settle(1000);
    for (i, (handle, offset)) in handles.into_iter().enumerate() {
        assert!(reads.is_done(handle));
        let done = match i % 2 {
            0 => reads.wait_for(handle).unwrap(),
            _ => reads.abort(handle).unwrap(),
        };
        assert_eq!(done.result.unwrap(), PAGE);
        assert_content(&done.buffer.unwrap(), offset);
        assert_eq!(reads.wait_for(handle).unwrap_err().kind(), ErrorKind::InvalidInput, "taken");
        assert_eq!(reads.abort(handle).unwrap_err().kind(), ErrorKind::InvalidInput, "taken");
        assert!(!reads.is_done(handle) && !reads.contains(handle));
    }
    assert!(reads.ends(1).is_empty());
}

#[test]
fn abort_returns_the_memory_of_a_read_that_gets_no_data() {
    must_end("abort", || {
        let (pipe, _other, _folder) = silent_pipe();
        let mut reads = Queue::new();
        let handle = reads.start(&pipe, Vec::with_capacity(100), 0);
        assert!(reads.ends(0).is_empty());
        assert!(!reads.is_done(handle));
        let done = reads.abort(handle).unwrap();
        let error = done.result.unwrap_err();
        assert_eq!(error.errno(), Some(libc::ECANCELED));
        assert!(error.to_string().contains("cancelled"), "{error}");
        let buffer = done.buffer.unwrap().into_vec().unwrap();
        assert_eq!((buffer.len(), buffer.capacity()), (0, 100));
        // Dropping the reads cancels those that were not cancelled before.
        reads.start(&pipe, Vec::with_capacity(100), 0);
        drop(reads);
    });
}

#[test]
fn abort_waits_until_the_kernel_has_finished() {
    let Some(server) = Server::or_skip("abort_waits_until_the_kernel_has_finished", content(0, 8 * PAGE))
    else {
        return;
    };
    server.rule(Op::Read, 0..PAGE as u64, 1, Act::Hold);
    std::thread::scope(|scope| {
        let (held, is_held) = std::sync::mpsc::channel();
        let server = &server;
        let thread = scope.spawn(move || {
            let forced = std::env::var("RINGFILE_DISABLE")
                .is_ok_and(|disabled| matches!(disabled.as_str(), "io_uring" | "io_uring,aio"));
            let route = if forced { Route::Workers } else { Route::Ring };
            let file =
                OpenOptions::new().read(true).direct(true).route(route).open_blocking(server.path()).unwrap();
            let pool = Pool::new(1 << 20);
            let mut reads = Queue::new();
            let handle = reads.start(&file, pool.get(PAGE).unwrap(), 0);
            server.wait_held(1);
            assert!(!reads.is_done(handle));
            held.send(()).unwrap();
            let done = reads.abort(handle).unwrap();
            assert_eq!(server.held(), 0, "abort returned while the server had the request");
            match done.result {
                Ok(len) => assert_content(&done.buffer.unwrap()[..len], 0),
                Err(error) => assert_eq!(error.errno(), Some(libc::ECANCELED)),
            }
        });
        is_held.recv().unwrap();
        // Time in which the other thread must not return; threads are not simulated.
        std::thread::sleep(std::time::Duration::from_millis(50));
        server.release();
        thread.join().unwrap();
    });
}

#[test]
fn f08_batches_and_reads_in_turn_on_one_thread_each_get_their_own() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 256 * PAGE));
    let file =
        OpenOptions::new().read(true).direct(true).buffered_fallback(true).open_blocking(path).unwrap();
    let pool = Pool::new(4 << 20);
    let mut random = Random::new();
    let mut reads = Queue::new();
    let mut open: Vec<(Token, u64)> = Vec::new();
    for round in 0..300 {
        for _ in 0..random.below(6) {
            let offset = random.below(256) * PAGE as u64;
            open.push((reads.start(&file, pool.get(PAGE).unwrap(), offset), offset));
        }
        let mut batch = Batch::new().depth(1 + random.below(8) as usize);
        let offsets: Vec<u64> = (0..random.below(20)).map(|_| random.below(256) * PAGE as u64).collect();
        for &offset in &offsets {
            batch.add(file.read_at(pool.get(PAGE).unwrap(), offset));
        }
        let results = batch.run();
        assert_eq!(results.len(), offsets.len());
        for (done, offset) in results.into_iter().zip(offsets) {
            assert_eq!(done.result.unwrap(), PAGE, "round {round}");
            assert_content(&done.buffer.unwrap(), offset);
        }
        if round % 50 == 0 {
            // A loop between the reads collects their completions too.
            let buffer = ringfile::block_on(file.read_at(pool.get(PAGE).unwrap(), 0)).unwrap();
            assert_content(&buffer, 0);
        }
        while !open.is_empty() && random.below(3) > 0 {
            let (handle, offset) = open.swap_remove(random.below(open.len() as u64) as usize);
            let done =
                if random.below(4) == 0 { reads.abort(handle) } else { reads.wait_for(handle) }.unwrap();
            match done.result {
                Ok(len) => {
                    assert_eq!(len, PAGE);
                    assert_content(&done.buffer.unwrap(), offset);
                }
                Err(error) => assert_eq!(error.errno(), Some(libc::ECANCELED)),
            }
        }
    }
    assert_eq!(ringfile::thread_metrics().stray, 0);
    drop(reads);
    assert_eq!(pool.metrics().in_use, 0, "every buffer came back");
}

#[test]
fn an_executor_on_the_thread_is_not_kept_waiting_by_open_reads() {
    let folder = Folder::new();
    let file = File::open_blocking(folder.file("data", &content(0, PAGE))).unwrap();
    must_end("a read awaited beside open ones", move || {
        let mut reads = Queue::new();
        let handle = reads.start(&file, Vec::with_capacity(PAGE), 0);
        let direct = futures::executor::block_on(file.read_at(Vec::with_capacity(PAGE), 0)).unwrap();
        assert_content(&direct, 0);
        assert_eq!(reads.wait_for(handle).unwrap().result.unwrap(), PAGE);
    });
}

#[test]
fn each_route_returns_the_same_and_each_read_has_its_own_error() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 3 * PAGE));
    for route in [Route::Auto, Route::Inline, Route::Workers] {
        let file = OpenOptions::new().read(true).route(route).open_blocking(&path).unwrap();
        let mut reads = Queue::new();
        let whole = reads.start(&file, Vec::with_capacity(PAGE), 100);
        let tail = reads.start(&file, Vec::with_capacity(PAGE), 3 * PAGE as u64 - 10);
        let empty = reads.start(&file, Vec::new(), 0);
        let beyond = reads.start(&file, Vec::with_capacity(10), u64::MAX);
        assert_content(&reads.wait_for(whole).unwrap().buffer.unwrap(), 100);
        assert_eq!(reads.wait_for(tail).unwrap().result.unwrap(), 10);
        assert_eq!(reads.wait_for(empty).unwrap().result.unwrap(), 0);
        assert_eq!(reads.wait_for(beyond).unwrap().result.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    let write_only = OpenOptions::new().write(true).open_blocking(&path).unwrap();
    let mut reads = Queue::new();
    let handle = reads.start(&write_only, Vec::with_capacity(10), 0);
    let error = reads.wait_for(handle).unwrap().result.unwrap_err();
    assert_eq!(error.errno(), Some(libc::EBADF));
    assert!(error.to_string().contains("not opened for reading"), "{error}");
}

#[test]
fn waiting_on_a_ringfile_thread_is_an_error_that_says_what_to_do() {
    let (pipe, mut other, _folder) = silent_pipe();
    ringfile::block_on(async {
        let mut reads = Queue::new();
        let handle = reads.start(&pipe, Vec::with_capacity(10), 0);
        let error = reads.wait_for(handle).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(error.to_string().contains("await"), "{error}");
        other.write_all(b"four").unwrap();
        assert_eq!(reads.ready().await, 1);
        assert_eq!(&reads.wait_for(handle).unwrap().buffer.unwrap()[..], b"four");
    });
}

#[test]
fn a_handle_names_no_read_of_another_thread_or_of_other_reads() {
    let folder = Folder::new();
    let file = File::open_blocking(folder.file("data", &content(0, PAGE))).unwrap();
    let theirs = file.clone();
    let other_thread = std::thread::spawn(move || {
        let mut reads = Queue::new();
        let handle = reads.start(&theirs, Vec::with_capacity(10), 0);
        reads.wait_for(handle).unwrap();
        handle
    });
    let mut others = Queue::new();
    let foreign = [other_thread.join().unwrap(), others.start(&file, Vec::with_capacity(10), 0)];
    let mut reads = Queue::new();
    let own = reads.start(&file, Vec::with_capacity(20), 0);
    for handle in foreign {
        assert_ne!(handle, own);
        assert_eq!(reads.wait_for(handle).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(reads.abort(handle).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert!(!reads.is_done(handle) && !reads.contains(handle));
    }
    assert_eq!(reads.wait_for(own).unwrap().result.unwrap(), 20);
    assert_eq!(others.wait_for(foreign[1]).unwrap().result.unwrap(), 10);
}

#[test]
fn data_from_a_pipe_is_a_result() {
    let (pipe, mut other, _folder) = silent_pipe();
    let mut reads = Queue::new();
    let handle = reads.start(&pipe, Vec::with_capacity(100), 0);
    other.write_all(b"seven b").unwrap();
    let done = reads.wait_for(handle).unwrap();
    assert_eq!((done.result.unwrap(), &done.buffer.unwrap()[..]), (7, &b"seven b"[..]));
    drop(OwnedFd::from(other));
}

thread_local! {
    static READS: std::cell::RefCell<Option<Queue>> = const { std::cell::RefCell::new(None) };
    static AFTER: std::cell::RefCell<Option<Queue>> = const { std::cell::RefCell::new(None) };
}

#[test]
fn a_thread_ends_with_reads_open_that_it_keeps_for_itself_or_forgot() {
    must_end("a thread's end", || {
        let (pipe, _other, _folder) = silent_pipe();
        let pool = Pool::new(1 << 20);
        let run = |keep: fn(Queue)| {
            let (pipe, pool) = (&pipe, &pool);
            std::thread::scope(|scope| {
                let thread = scope.spawn(move || {
                    // The order in which a thread drops its thread-locals is not specified: these are dropped before
                    // and after the driver's.
                    READS.with_borrow(|reads| assert!(reads.is_none()));
                    let mut reads = Queue::new();
                    reads.start(pipe, pool.get(PAGE).unwrap(), 0);
                    AFTER.with_borrow(|reads| assert!(reads.is_none()));
                    keep(reads);
                });
                thread.join().unwrap();
            });
        };
        run(|reads| READS.set(Some(reads)));
        run(|reads| AFTER.set(Some(reads)));
        // A worker notices the cancellation within moments; operations on the thread's ring have ended when the thread
        // has.
        support::wait_for("the memory's return", || pool.metrics().in_use == 0);
        // Forgotten reads keep their memory; the end of the thread does not wait for them, and leaves no operation in
        // flight.
        run(|reads| {
            // Kept in a static, where a leak checker finds it.
            static FORGOTTEN: AtomicPtr<Queue> = AtomicPtr::new(std::ptr::null_mut());
            FORGOTTEN.store(Box::into_raw(Box::new(reads)), Ordering::Relaxed);
        });
        assert_eq!(pool.metrics().in_use, PAGE);
    });
}
