//! Operations that other threads carry out: a cancelled one ends whatever the kernel answers (F04), files that are
//! closed while their operations start are closed in the end (F03), and an idle thread sleeps.

use std::future::{Future, IntoFuture};
use std::path::Path;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use crate::support::fuse::{Act, Op, Server};
use crate::support::handles::Handles as _;
use crate::support::{
    Folder, assert_content, content, in_child, must_end, needs_ring, open_on_ring, poll_once, ring_options,
    wait_for, yield_until,
};
use ringfile::{Batch, File, Pool, Queue, block_on};

const PAGE: usize = 4096;

/// Makes a file of one page, whose reads are held back and then fail with `EINTR`, over and over.
fn interrupting(test: &str) -> Option<(Server, File, Pool)> {
    let server = Server::or_skip(test, content(0, PAGE))?;
    server.rule(Op::Read, 0..u64::MAX, usize::MAX, Act::HoldFail(libc::EINTR));
    let file = ring_options().read(true).direct(true).open_blocking(server.path()).unwrap();
    Some((server, file, Pool::new(1 << 20)))
}

/// Releases held requests again and again until `is_done`. A dropped read is retried only until its cancellation has
/// reached the thread that carries it out: without cancellation there would be 250 requests each.
#[track_caller]
fn answer_until(server: &Server, mut is_done: impl FnMut() -> bool) {
    let before = server.log().len();
    wait_for("the end of what was cancelled", || {
        std::thread::sleep(Duration::from_millis(20));
        server.release();
        is_done()
    });
    let asked = server.log().len() - before;
    assert!(asked < 100, "{asked} requests for an unwanted read");
}

#[test]
fn f04_a_read_that_is_aborted_is_not_begun_again_when_it_is_interrupted() {
    let name = "f04_a_read_that_is_aborted_is_not_begun_again_when_it_is_interrupted";
    let Some((server, file, pool)) = interrupting(name) else { return };
    std::thread::scope(|scope| {
        let (begun, has_begun) = mpsc::channel();
        let server = &server;
        let aborting = scope.spawn(move || {
            let mut reads = Queue::new();
            let handle = reads.start(&file, pool.get(PAGE).unwrap(), 0);
            server.wait_held(1);
            begun.send(()).unwrap();
            let done = reads.abort(handle).unwrap();
            assert_eq!(done.result.unwrap_err().errno(), Some(libc::ECANCELED));
            assert_eq!(done.buffer.unwrap().len(), 0);
        });
        has_begun.recv().unwrap();
        answer_until(server, || aborting.is_finished());
        aborting.join().unwrap();
    });
}

#[test]
fn f04_a_read_that_is_dropped_is_not_begun_again_when_it_is_interrupted() {
    let name = "f04_a_read_that_is_dropped_is_not_begun_again_when_it_is_interrupted";
    let Some((server, file, pool)) = interrupting(name) else { return };
    // The read is on the ring of an I/O thread, or with a worker.
    let mut read = Box::pin(file.read_at(pool.get(PAGE).unwrap(), 0));
    assert!(futures::executor::block_on(poll_once(&mut read)).is_pending());
    server.wait_held(1);
    drop(read);
    answer_until(&server, || pool.metrics().in_use == 0);
    // The read is on the thread's own ring, whose loop runs until the end.
    std::thread::scope(|scope| {
        let in_loop = scope.spawn(|| {
            block_on(async {
                let mut read = Box::pin(file.read_at(pool.get(PAGE).unwrap(), 0));
                assert!(poll_once(&mut read).await.is_pending());
                yield_until("a request at the server", || server.held() > 0).await;
            });
        });
        wait_for("the read", || server.held() == 1 || in_loop.is_finished());
        answer_until(&server, || in_loop.is_finished());
        in_loop.join().unwrap();
    });
    assert_eq!(pool.metrics().in_use, 0);
}

fn begin(future: &mut (impl Future + Unpin)) {
    let _ = Pin::new(future).poll(&mut Context::from_waker(Waker::noop()));
}

/// Counts the descriptors of this process that refer to the file.
fn descriptors_of(path: &Path) -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    entries.flatten().filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|name| name == path)).count()
}

#[test]
fn f03_files_closed_just_as_their_operations_begin_leave_no_descriptor() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    let path = path.canonicalize().unwrap();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0_u32.. {
                    if began.elapsed() > Duration::from_secs(3) {
                        break;
                    }
                    // The threads that close the files may get less time than the two that open them.
                    if round % 64 == 0 {
                        wait_for("some of the files to be closed", || descriptors_of(&path) < 128);
                    }
                    let file = open_on_ring(&path);
                    let mut read = Box::pin(file.read_at(Vec::with_capacity(100), 0));
                    let mut batch = Batch::new();
                    for offset in 0..3 {
                        batch.add(file.read_at(Vec::with_capacity(100), offset));
                    }
                    let mut run = batch.into_future();
                    // Varies whether this happens before, after or while another thread takes it.
                    let wait = || (0..round % 97 * 10).for_each(|_| std::hint::spin_loop());
                    if round % 2 == 0 {
                        begin(&mut read);
                        wait();
                        drop(read);
                        drop((run, file));
                    } else {
                        begin(&mut run);
                        wait();
                        drop(read);
                        drop(file);
                        drop(run);
                    }
                }
            });
        }
    });
    wait_for("the descriptors to be closed", || descriptors_of(&path) == 0);
    // Threads that got that many messages still work.
    let file = open_on_ring(&path);
    assert_content(&futures::executor::block_on(file.read_exact_at(vec![0; PAGE], 0)).unwrap(), 0);
}

/// Returns a thread's state and its context switches, from `/proc`.
fn activity(thread: &Path) -> Option<(String, Vec<String>)> {
    let status = std::fs::read_to_string(thread.join("status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let counts =
        ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"].map(|name| field(name).unwrap().into());
    Some((field("State:")?.into(), counts.into()))
}

#[test]
fn an_io_thread_that_has_nothing_to_do_sleeps() {
    let name = "an_io_thread_that_has_nothing_to_do_sleeps";
    // In its own process: no other test uses its I/O threads.
    if !needs_ring(name) || !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, PAGE)));
    for _ in 0..100 {
        let read = file.read_exact_at(vec![0; 10], 0);
        assert_content(&futures::executor::block_on(read).unwrap(), 0);
    }
    let is_io_thread = |thread: &std::path::PathBuf| {
        std::fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.starts_with("ringfile-io"))
    };
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let threads: Vec<_> = threads.flatten().map(|entry| entry.path()).filter(is_io_thread).collect();
    assert_eq!(threads.len(), 1);
    // At first it may be on its way to sleep; a spinning thread is never seen asleep, or not for long.
    wait_for("a thread asleep", || {
        let before = activity(&threads[0]).unwrap();
        // Time in which a sleeping thread makes no system call; threads are not simulated.
        std::thread::sleep(Duration::from_millis(200));
        before.0.starts_with('S') && activity(&threads[0]).unwrap() == before
    });
    // It still wakes up.
    let read = file.clone();
    let got = must_end("a read by a thread that slept", move || {
        futures::executor::block_on(read.read_exact_at(vec![0; 10], 5)).unwrap()
    });
    assert_content(&got, 5);
}
