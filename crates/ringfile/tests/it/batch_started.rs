//! Batches that report their end to a function: exactly once, on a thread of the library.

use std::collections::HashMap;
use std::future::{Future, IntoFuture};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Context;
use std::thread::ThreadId;

use crate::support::{Folder, Random, assert_content, content, page_size, ring_options};
use ringfile::buf::PoolError;
use ringfile::{Batch, Completion, File, OpenOptions, Pool, Route, WhenFull};

const PAGE: usize = 4096;
const PAGES: usize = 64;

fn data() -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for page in 0..PAGES {
        file.write_all(&[page as u8; PAGE]).unwrap();
    }
    file
}

fn is_page(done: &Completion, page: usize) -> bool {
    let buffer = done.buffer.as_ref().unwrap();
    matches!(done.result, Ok(PAGE)) && buffer.iter().all(|&byte| byte == page as u8)
}

/// Returns a batch of reads of these pages.
fn reads(file: &File, pages: impl Iterator<Item = usize>) -> Batch {
    let mut batch = Batch::new();
    for page in pages {
        batch.add(file.read_at(Vec::with_capacity(PAGE), (page * PAGE) as u64));
    }
    batch
}

/// Starts a batch and waits for its end; returns the results and the thread that reported them.
fn start_and_wait(batch: Batch) -> (Vec<Completion>, ThreadId) {
    let (tell, told) = mpsc::channel();
    batch.start(move |done| tell.send((done, std::thread::current().id())).unwrap()).unwrap();
    told.recv().unwrap()
}

#[test]
fn results_come_in_order_on_another_thread_on_every_route() {
    let named = data();
    for route in [Route::Auto, Route::Inline, Route::Workers] {
        let file =
            OpenOptions::new().read(true).write(true).route(route).open_blocking(named.path()).unwrap();
        let (done, thread) = start_and_wait(reads(&file, (0..PAGES).rev()));
        assert_eq!(done.len(), PAGES);
        assert!(done.iter().zip((0..PAGES).rev()).all(|(done, page)| is_page(done, page)), "{route:?}");
        assert_ne!(thread, std::thread::current().id());
        // The file is cached, so that plain calls do everything in the first poll; then an empty batch.
        let (done, thread) = start_and_wait(reads(&file, 0..1));
        assert!(is_page(&done[0], 0) && thread != std::thread::current().id());
        let (done, thread) = start_and_wait(Batch::new());
        assert!(done.is_empty() && thread != std::thread::current().id());
    }
}

#[test]
fn errors_are_those_of_their_operations_and_barriers_hold() {
    let named = data();
    let file = OpenOptions::new().read(true).write(true).open_blocking(named.path()).unwrap();
    let read_only = File::open_blocking(named.path()).unwrap();
    let pool = Pool::new(1 << 20);
    let mut batch = Batch::new().depth(2);
    batch.add(file.write_at(vec![200; PAGE], 0));
    batch.barrier();
    batch.add(file.read_at(pool.get(PAGE).unwrap(), 0));
    batch.add(read_only.write_at(vec![9; PAGE], 0));
    batch.barrier();
    batch.add(file.sync_data());
    let (done, _) = start_and_wait(batch);
    assert!(is_page(&done[1], 200));
    assert_eq!(done[2].result.as_ref().unwrap_err().errno(), Some(libc::EBADF));
    assert_eq!(done[3].result.as_ref().unwrap_err().errno(), Some(libc::ECANCELED), "behind the barrier");
}

#[test]
fn a_thousand_batches_of_eight_threads_end_once_each() {
    let named = data();
    let file = Arc::new(File::open_blocking(named.path()).unwrap());
    let ends: Arc<Mutex<HashMap<usize, usize>>> = Arc::default();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (file, ends, tell) = (Arc::clone(&file), Arc::clone(&ends), tell.clone());
            scope.spawn(move || {
                for number in 0..125 {
                    let number = thread * 125 + number;
                    let pages: Vec<usize> = (0..number % 9).map(|at| (number + at * 7) % PAGES).collect();
                    let batch = reads(&file, pages.iter().copied());
                    let (ends, tell) = (Arc::clone(&ends), tell.clone());
                    let end = move |done: Vec<Completion>| {
                        assert!(done.iter().zip(pages).all(|(done, page)| is_page(done, page)));
                        *ends.lock().unwrap().entry(number).or_default() += 1;
                        tell.send(()).unwrap();
                    };
                    batch.start(end).unwrap();
                }
            });
        }
    });
    drop(tell);
    // All senders are gone, because each function was called once and dropped.
    assert_eq!(told.iter().count(), 1000);
    let ends = ends.lock().unwrap();
    assert!(ends.len() == 1000 && ends.values().all(|&times| times == 1));
}

/// Starts `left` batches, each when the one before has ended.
fn chain(file: Arc<File>, left: usize, tell: mpsc::Sender<usize>) {
    let batch = reads(&file, left % PAGES..left % PAGES + 1);
    batch
        .start(move |done| {
            assert!(is_page(&done[0], left % PAGES));
            match left {
                0 => tell.send(0).unwrap(),
                left => chain(file, left - 1, tell),
            }
        })
        .unwrap();
}

#[test]
fn the_function_starts_the_next_batch() {
    let named = data();
    let (tell, told) = mpsc::channel();
    chain(Arc::new(File::open_blocking(named.path()).unwrap()), 2000, tell);
    assert_eq!(told.recv(), Ok(0));
}

#[test]
fn the_function_must_not_block_and_may_panic() {
    let named = data();
    let file = Arc::new(File::open_blocking(named.path()).unwrap());
    let (tell, told) = mpsc::channel();
    let inner = Arc::clone(&file);
    let end = move |_| {
        let done = reads(&inner, 0..3).run();
        let kinds = done.iter().map(|done| done.result.as_ref().unwrap_err().kind()).collect::<Vec<_>>();
        let pool = Pool::builder().capacity(page_size()).when_full(WhenFull::Wait).build().unwrap();
        let _all = pool.get(page_size()).unwrap();
        assert!(matches!(pool.get(page_size()), Err(PoolError::WouldDeadlock { .. })));
        tell.send(kinds).unwrap();
        ringfile::block_on(async {});
    };
    Batch::new().start(end).unwrap();
    assert_eq!(told.recv().unwrap(), [std::io::ErrorKind::WouldBlock; 3]);
    // The thread survives the panic.
    for _ in 0..3 {
        assert!(is_page(&start_and_wait(reads(&file, 5..6)).0[0], 5));
    }
}

#[test]
fn a_batch_that_is_cancelled_reports_its_end() {
    let (ours, mut theirs) = std::io::pipe().unwrap();
    let pipe = File::from(std::fs::File::from(OwnedFd::from(ours)));
    let named = data();
    let file = File::open_blocking(named.path()).unwrap();
    let mut batch = Batch::new().depth(2);
    for _ in 0..4 {
        batch.add(pipe.read_at(Vec::with_capacity(16), 0));
    }
    batch.barrier();
    batch.add(file.read_at(Vec::with_capacity(PAGE), 0));
    let (tell, told) = mpsc::channel();
    let started = batch.start(move |done| tell.send(done).unwrap()).unwrap();
    assert!(told.try_recv().is_err(), "the pipe is empty");
    started.cancel();
    started.cancel();
    let done = told.recv().unwrap();
    assert_eq!(done.len(), 5);
    for done in done {
        assert_eq!(done.result.unwrap_err().errno(), Some(libc::ECANCELED));
        assert!(done.buffer.unwrap().is_empty());
    }
    // Data that arrives now is left for other reads.
    theirs.write_all(b"content").unwrap();
    let mut batch = Batch::new();
    batch.add(pipe.read_at(Vec::with_capacity(7), 0));
    let (done, _) = start_and_wait(batch);
    assert_eq!(&done[0].buffer.as_ref().unwrap()[..], b"content");
    started.cancel();
}

#[test]
fn a_started_batch_without_a_handle_still_ends() {
    let (ours, mut theirs) = std::io::pipe().unwrap();
    let pipe = File::from(std::fs::File::from(OwnedFd::from(ours)));
    let ends = Arc::new(AtomicUsize::new(0));
    let (tell, told) = mpsc::channel();
    let counts = Arc::clone(&ends);
    std::thread::spawn(move || {
        let mut batch = Batch::new();
        batch.add(pipe.read_at(Vec::with_capacity(7), 0));
        let end = move |done: Vec<Completion>| {
            counts.fetch_add(1, Ordering::SeqCst);
            tell.send(done).unwrap();
        };
        drop(batch.start(end).unwrap());
    })
    .join()
    .unwrap();
    theirs.write_all(b"content").unwrap();
    assert_eq!(&told.recv().unwrap()[0].buffer.as_ref().unwrap()[..], b"content");
    assert!(told.recv().is_err(), "the function is gone");
    assert_eq!(ends.load(Ordering::SeqCst), 1);
}

#[test]
fn a_batch_is_started_inside_a_loop() {
    let named = data();
    let file = File::open_blocking(named.path()).unwrap();
    let (tell, told) = mpsc::channel();
    ringfile::block_on(async {
        reads(&file, 0..8).start(move |done| tell.send(done).unwrap()).unwrap();
    });
    assert!(told.recv().unwrap().iter().enumerate().all(|(page, done)| is_page(done, page)));
}

#[test]
fn an_awaited_batch_is_cancelled_before_and_after_it_began() {
    let (ours, _theirs) = std::io::pipe().unwrap();
    let pipe = File::from(std::fs::File::from(OwnedFd::from(ours)));
    let of_pipe = || {
        let mut batch = Batch::new().depth(2);
        for _ in 0..3 {
            batch.add(pipe.read_at(Vec::with_capacity(16), 0));
        }
        batch.into_future()
    };
    let all_cancelled = |done: Vec<Completion>| {
        let is_cancelled =
            |done: &Completion| done.result.as_ref().unwrap_err().errno() == Some(libc::ECANCELED);
        assert!(done.len() == 3 && done.iter().all(is_cancelled));
    };
    let waker = std::task::Waker::noop();
    let cancelled_after = |polls: usize| {
        let mut run = of_pipe();
        for _ in 0..polls {
            let polled = Pin::new(&mut run).poll(&mut Context::from_waker(waker));
            assert!(polled.is_pending(), "the pipe is empty");
        }
        run.cancel();
        run
    };
    for polls in 0..3 {
        all_cancelled(futures::executor::block_on(cancelled_after(polls)));
        all_cancelled(ringfile::block_on(async { cancelled_after(polls).await }));
    }
}

/// Cancels batches at any time, with merged reads, direct reads in several pieces, and reads that wait.
#[test]
fn cancelled_reads_show_the_bytes_that_were_read() {
    let mut random = Random::new();
    let mut below = |bound: usize| random.below(bound as u64) as usize;
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGES * PAGE));
    let (buffered, pool) = (File::open_blocking(&path).unwrap(), Pool::new(8 << 20));
    let direct =
        OpenOptions::new().read(true).direct(true).buffered_fallback(true).open_blocking(&path).unwrap();
    let on_ring =
        ring_options().read(true).direct(true).buffered_fallback(true).open_blocking(&path).unwrap();
    let (mut whole, mut cancelled) = (0, 0);
    for _ in 0..400 {
        let (tell, told) = mpsc::channel();
        let mut batch = Batch::new().depth(1 + below(6));
        if below(2) == 0 {
            batch = batch.merge_reads(below(2 * PAGE));
        }
        let mut wanted = Vec::new();
        for _ in 0..below(24) {
            let file = [&buffered, &direct, &on_ring][below(3)];
            let (offset, len) = (below(PAGES * PAGE), 1 + below(4 * PAGE));
            if below(2) == 0 {
                batch.add(file.read_at(pool.get(len).unwrap(), offset as u64));
            } else {
                batch.add(file.read_at(Vec::with_capacity(len), offset as u64));
            }
            wanted.push(offset);
            if below(8) == 0 {
                batch.barrier();
            }
        }
        let started = batch.start(move |done| tell.send(done).unwrap()).unwrap();
        for _ in 0..1 << below(17) {
            std::hint::spin_loop();
        }
        started.cancel();
        let done = told.recv().unwrap();
        assert_eq!(done.len(), wanted.len());
        for (done, offset) in done.into_iter().zip(wanted) {
            let buffer = done.buffer.unwrap();
            match done.result {
                Ok(bytes) => {
                    assert_eq!(bytes, buffer.len());
                    assert_content(&buffer, offset as u64);
                    whole += 1;
                }
                Err(error) => {
                    assert_eq!(error.errno(), Some(libc::ECANCELED), "{error}");
                    // As with any error, the buffer has the bytes that were read before.
                    assert_content(&buffer, offset as u64);
                    cancelled += 1;
                }
            }
        }
    }
    println!("{whole} whole, {cancelled} cancelled");
}
