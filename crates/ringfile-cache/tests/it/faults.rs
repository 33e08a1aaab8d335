//! What a cache survives: failed and interrupted reads, cancelled and leaked futures, forks, wakers that panic, huge pages
//! that the kernel refuses.

use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::support::hugetlb::HugePageLimit;
use crate::support::{PAGE, assert_passed, bytes, fork, patience, skip};
use ringfile::buf::HugePages;
use ringfile::{OpenOptions, block_on};
use ringfile_cache::{Cache, CachedFile, Page, WhenPinned};

const PAGES: u64 = 64;

fn cached(folder: &tempfile::TempDir, pages: usize, when_pinned: WhenPinned) -> CachedFile {
    let path = folder.path().join("file");
    std::fs::write(&path, (0..PAGES).flat_map(|page| bytes(page, 1)).collect::<Vec<u8>>()).unwrap();
    let cache = Cache::builder(pages * PAGE).when_pinned(when_pinned).build().unwrap();
    let mut options = OpenOptions::new();
    let file =
        options.read(true).write(true).direct(true).buffered_fallback(true).open_blocking(path).unwrap();
    cache.open(file, PAGE).unwrap()
}

struct Panics(AtomicU32);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("this waker always panics");
    }
}

#[test]
fn a_waker_that_panics_keeps_no_other_from_its_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = cached(&folder, 16, WhenPinned::Wait);
    let panics = Arc::new(Panics(AtomicU32::new(0)));
    let waker = Waker::from(Arc::clone(&panics));
    let mut begun = 0;
    for page in 0..10 {
        let mut first = Box::pin(pages.read(page));
        // The panic goes on through the loop that has called the waker, as that of any other waker.
        let ended = catch_unwind(AssertUnwindSafe(|| {
            block_on(async {
                begun += u32::from(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                pages.read(page).await
            })
        }));
        assert!(ended.is_err() || *ended.unwrap().unwrap() == bytes(page, 1));
        assert_eq!(*block_on(pages.read(page)).unwrap(), bytes(page, 1));
        assert_eq!(*block_on(first).unwrap(), bytes(page, 1), "its own task too");
    }
    assert_eq!(panics.0.load(Ordering::SeqCst), begun, "each was called once");
    assert_eq!(pages.metrics().pinned, 0);
}

#[test]
fn a_child_finds_the_pages_and_reads_others() {
    let folder = tempfile::tempdir().unwrap();
    let pages = cached(&folder, 16, WhenPinned::Fail);
    let kept = block_on(pages.read(3)).unwrap();
    drop(block_on(pages.read(4)).unwrap());
    // SAFETY: the child calls only what the documentation allows after a fork, and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let works = catch_unwind(AssertUnwindSafe(|| {
            assert_eq!(*kept, bytes(3, 1));
            assert_eq!(*pages.get(4).unwrap(), bytes(4, 1));
            // Workers belong to the parent; rings and plain calls are there for threads that the child has made.
            if std::env::var("RINGFILE_DISABLE").is_ok_and(|disabled| disabled == "io_uring,aio") {
                block_on(pages.read(10)).expect_err("a clear error");
                return;
            }
            let reads = || {
                for page in 10..40 {
                    assert_eq!(*block_on(pages.read(page)).unwrap(), bytes(page, 1));
                }
                block_on(pages.write(4, &bytes(4, 2))).unwrap();
            };
            std::thread::scope(|scope| scope.spawn(reads).join().unwrap());
            assert_eq!(*pages.get(4).unwrap(), bytes(4, 2));
        }));
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(i32::from(works.is_err())) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "what the child found is printed above");
    assert_eq!(*kept, bytes(3, 1));
    assert_eq!(*pages.get(4).unwrap(), bytes(4, 1), "the parent's pages are its own");
    assert_eq!(*block_on(pages.read(20)).unwrap(), bytes(20, 1));
}

#[test]
fn signals_do_not_change_what_is_read() {
    extern "C" fn nothing(_: libc::c_int) {}
    let folder = tempfile::tempdir().unwrap();
    let pages = cached(&folder, 8, WhenPinned::Fail);
    // SAFETY: the handler does nothing, and the thread exists for as long as signals are sent to it.
    let me = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        libc::pthread_self()
    };
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // SAFETY: as above.
                unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
        });
        let read = catch_unwind(AssertUnwindSafe(|| {
            for page in (0..PAGES).cycle().take(2000) {
                assert_eq!(*block_on(pages.read(page)).unwrap(), bytes(page, 1));
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        read.unwrap();
    });
}

/// Pages that are never dropped. Not `mem::forget`, which a search for leaks would report.
static LEAKED: Mutex<Vec<Page>> = Mutex::new(Vec::new());

#[test]
fn a_leaked_page_keeps_its_memory_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let pages = cached(&folder, 4, WhenPinned::Fail);
    for page in 0..3 {
        LEAKED.lock().unwrap().push(block_on(pages.read(page)).unwrap());
    }
    for page in 3..PAGES {
        assert_eq!(*block_on(pages.read(page)).unwrap(), bytes(page, 1));
    }
    LEAKED.lock().unwrap().push(block_on(pages.read(3)).unwrap());
    assert_eq!(block_on(pages.read(4)).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    assert_eq!(block_on(pages.write(4, &bytes(4, 2))).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    assert_eq!(*pages.get(1).unwrap(), bytes(1, 1));
    assert!(block_on(pages.write(1, &bytes(1, 2))).is_err(), "a write needs memory of its own");
    assert_eq!(pages.metrics().pinned, 4);
}

#[test]
fn a_read_that_has_begun_ends_without_the_file_and_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        for _ in 0..20 {
            let pages = cached(&folder, 16, WhenPinned::Fail);
            pages.prefetch(&[1, 2, 3]);
            let kept = pages.read(9).await.unwrap();
            pages.prefetch(&[4, 5, 6]);
            drop(pages);
            assert_eq!(*kept, bytes(9, 1));
        }
    });
}

/// A waker that stops the thread which calls it, until it is told to go on, or a moment: what is to happen meanwhile
/// may need that thread.
struct Stops(Mutex<std::sync::mpsc::Receiver<()>>);

impl Wake for Stops {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().unwrap().recv_timeout(std::time::Duration::from_millis(300));
    }
}

/// Begins a read of a page on a thread of the library, has `meanwhile` done after the kernel has carried it out and
/// before the cache hears of it, and returns what a read gets that begins then.
fn read_late(pages: &CachedFile, page: u64, meanwhile: impl FnOnce()) -> Vec<u8> {
    let (go_on, stop) = std::sync::mpsc::channel();
    let waker = Waker::from(Arc::new(Stops(Mutex::new(stop))));
    let mut first = std::pin::pin!(pages.file().read_at(ringfile::Pool::new(1 << 20).get(PAGE).unwrap(), 0));
    let stops = first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
    let mut late = pages.read(page);
    let _ = std::pin::Pin::new(&mut late).poll(&mut Context::from_waker(Waker::noop()));
    // Time for the reads to be in flight; threads are not simulated.
    std::thread::sleep(std::time::Duration::from_millis(if stops { 10 } else { 0 }));
    meanwhile();
    std::thread::scope(|scope| {
        let after = scope.spawn(|| block_on(pages.read(page)).unwrap().to_vec());
        std::thread::sleep(std::time::Duration::from_millis(10));
        let _ = go_on.send(());
        block_on(late).unwrap();
        after.join().unwrap()
    })
}

#[test]
fn f56_a_read_that_began_before_the_file_grew_shortens_no_page() {
    let folder = tempfile::tempdir().unwrap();
    // The last page, and the one behind the end.
    for page in [2, 3].repeat(10) {
        let pages = cached(&folder, 16, WhenPinned::Fail);
        block_on(pages.truncate(2 * PAGE as u64 + 512)).unwrap();
        let after = read_late(&pages, page, || block_on(pages.write(4, &bytes(4, 2))).unwrap());
        assert_eq!(after.len(), PAGE);
        assert_eq!(pages.get(page).unwrap().len(), PAGE);
    }
}

#[test]
fn a_read_in_flight_brings_back_nothing_that_was_invalidated() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..20 {
        let pages = cached(&folder, 16, WhenPinned::Fail);
        let after = read_late(&pages, 2, || {
            let mut data = ringfile::Pool::new(1 << 20).get(PAGE).unwrap();
            data.extend_from_slice(&bytes(2, 2));
            block_on(pages.file().write_at(data, 2 * PAGE as u64)).unwrap();
            pages.invalidate(2..3);
        });
        assert_eq!(after, bytes(2, 2));
        assert_eq!(*pages.get(2).unwrap(), bytes(2, 2));
    }
}

#[test]
fn f70_a_truncate_that_is_dropped_leaves_no_page_behind_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let pages = cached(&folder, 64, WhenPinned::Fail);
    block_on(async {
        for round in 0..100 {
            pages.truncate(PAGES * PAGE as u64).await.unwrap();
            let mut truncate = Box::pin(pages.truncate(8 * PAGE as u64));
            let _ = poll_fn(|context| Poll::Ready(truncate.as_mut().poll(context))).await;
            // These are read before the file is cut, or after.
            for page in 8..16 {
                drop(pages.read(page).await.unwrap());
            }
            drop(truncate);
            let began = Instant::now();
            let is_cut =
                async || ringfile::fs::metadata_of(pages.file()).await.unwrap().size == 8 * PAGE as u64;
            while !is_cut().await || (8..16).any(|page| pages.get(page).is_some()) {
                assert!(began.elapsed() < patience(), "round {round}: a page lies behind the end");
            }
        }
    });
}

/// Begins a call for two pages while there is memory for one, which it keeps while it waits.
fn begin_and_wait(pages: &CachedFile) -> impl Future<Output = io::Result<Vec<Page>>> + use<> {
    let (kept, pages) = (pages, pages.clone());
    let mut call = Box::pin(async move { pages.read_many(&[20, 21]).await });
    let mut is_pending = || call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
    assert!(is_pending());
    assert!(block_on(kept.read(20)).is_ok());
    assert!(is_pending(), "it has the first page, and waits for memory");
    call
}

#[test]
fn f55_a_call_for_pages_that_is_never_polled_again_blocks_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let pages = cached(&folder, 16, WhenPinned::Wait);
    let kept: Vec<Page> = (0..15).map(|page| block_on(pages.read(page)).unwrap()).collect();
    let leaked = begin_and_wait(&pages);
    let (sender, ended) = std::sync::mpsc::channel();
    for first in [30, 40] {
        let (pages, sender) = (pages.clone(), sender.clone());
        // Not of a scope: it may wait for ever.
        std::thread::spawn(move || {
            for count in [2, 15, 8] {
                let numbers: Vec<u64> = (first..first + count).collect();
                let found = block_on(pages.read_many(&numbers)).unwrap();
                assert!(found.iter().zip(numbers).all(|(found, page)| **found == bytes(page, 1)));
            }
            sender.send(()).unwrap();
        });
    }
    assert!(ended.recv_timeout(Duration::from_millis(200)).is_err(), "there is memory for one page");
    drop(kept);
    for _ in 0..2 {
        ended.recv_timeout(patience()).expect("15 of 16 pages are free");
    }
    drop(leaked);
    assert_eq!(block_on(pages.read_many(&(0..16).collect::<Vec<_>>())).unwrap().len(), 16);
}

/// Begins a call for all 16 pages of a cache while another is in use, and polls it until it has 15 of them.
fn begin_and_keep(pages: &CachedFile) -> impl Future<Output = io::Result<Vec<Page>>> + use<> {
    let (kept, pages) = (pages, pages.clone());
    let mut call = Box::pin(async move { pages.read_many(&(0..16).collect::<Vec<_>>()).await });
    let began = Instant::now();
    while kept.metrics().pinned < 16 {
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(began.elapsed() < patience(), "{:?}", kept.metrics());
        block_on(async { std::thread::sleep(Duration::from_millis(1)) });
    }
    call
}

#[test]
fn f55_what_a_call_for_pages_keeps_is_free_for_others_if_it_is_not_polled_again() {
    for is_kept in [true, false] {
        let (sender, ended) = std::sync::mpsc::channel();
        // Not of a scope: it may wait for ever.
        std::thread::spawn(move || {
            let folder = tempfile::tempdir().unwrap();
            let pages = cached(&folder, 16, WhenPinned::Wait);
            let mut not_polled_again = Vec::new();
            for round in 0..4 {
                let used = block_on(pages.read(40)).unwrap();
                let call = begin_and_keep(&pages);
                let numbers = [20, 21, 22];
                match round {
                    0 => assert_eq!(*block_on(pages.read(20)).unwrap(), bytes(20, 1)),
                    1 => assert_eq!(block_on(pages.read_many(&numbers)).unwrap().len(), 3),
                    2 => block_on(pages.write(20, &bytes(20, 1))).unwrap(),
                    _ => assert_eq!(block_on(pages.read_range(20 * PAGE as u64, 9000)).unwrap().len(), 9000),
                }
                drop(used);
                if is_kept {
                    not_polled_again.push(call);
                } else {
                    let found = block_on(call).unwrap();
                    assert!((0..).zip(&found).all(|(number, page)| **page == bytes(number, 1)));
                }
                assert_eq!(pages.metrics().pinned, 0);
            }
            sender.send(()).unwrap();
        });
        ended.recv_timeout(patience()).expect("nobody else gets memory");
    }
}

#[test]
fn a_call_that_waits_for_all_its_pages_does_not_wait_for_ever_beside_smaller_ones() {
    let folder = tempfile::tempdir().unwrap();
    let pages = cached(&folder, 16, WhenPinned::Wait);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (pages, is_over) = (&pages, &is_over);
            scope.spawn(move || {
                for round in (0..).step_by(4) {
                    let first = 20 + (thread * 11 + round) % 40;
                    let found = block_on(pages.read_many(&[first, first + 1, first + 2, first + 3])).unwrap();
                    std::thread::yield_now();
                    assert_eq!(*found[3], bytes(first + 3, 1));
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        // All that the others leave, if each has the turn in time.
        let large: Vec<u64> = (0..14).collect();
        for _ in 0..20 {
            assert_eq!(block_on(pages.read_many(&large)).unwrap().len(), 14);
            pages.invalidate(0..14);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn f72_events_are_emitted_without_the_lock_of_the_cache() {
    let (sender, ended) = std::sync::mpsc::channel();
    // Not of a scope: it may wait for ever.
    std::thread::spawn(move || {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(8 * PAGE).unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, (0..PAGES).flat_map(|page| bytes(page, 1)).collect::<Vec<u8>>()).unwrap();
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).direct(true).buffered_fallback(true).open_blocking(path).unwrap();
        let pages = cache.open(file, PAGE).unwrap();
        let emitted = Arc::new(AtomicU32::new(0));
        // As if the library had an event to tell in the next call. A subscriber may use the cache.
        let defer = || {
            let (cache, emitted) = (cache.clone(), Arc::clone(&emitted));
            ringfile_buffer::internal::event::defer(move || {
                let _ = (cache.metrics(), cache.budget());
                emitted.fetch_add(1, Ordering::Relaxed);
            });
        };
        let mut calls = 0;
        for page in (0..PAGES).chain(0..PAGES) {
            defer();
            let found = block_on(pages.read(page)).unwrap();
            defer();
            block_on(pages.write(page, &bytes(page, 2))).unwrap();
            defer();
            drop(found);
            defer();
            pages.prefetch(&[page + 1]);
            defer();
            cache.set_budget((8 + 8 * (page as usize % 2)) * PAGE).unwrap();
            defer();
            pages.invalidate(page..page + 1);
            calls += 6;
        }
        defer();
        block_on(pages.truncate(0)).unwrap();
        defer();
        drop(pages);
        ringfile_buffer::internal::event::emit_deferred();
        assert_eq!(emitted.load(Ordering::Relaxed), calls + 2);
        sender.send(()).unwrap();
    });
    ended.recv_timeout(patience()).expect("an event waits for the lock");
}

#[test]
fn f67_a_cache_whose_huge_pages_are_refused_is_not_made() {
    let name = "f67_a_cache_whose_huge_pages_are_refused_is_not_made";
    let limit = match HugePageLimit::new(8, 3) {
        Ok(limit) => limit,
        Err(why) => return skip(name, why),
    };
    assert_passed(fork(|| {
        limit.enter();
        let build = |pages| Cache::builder(pages * limit.page).huge_pages(HugePages::Require).build();
        let names_the_limit = |error: io::Error| {
            assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
            assert!(error.to_string().contains("control group"), "{error}");
        };
        names_the_limit(build(4).unwrap_err());
        let cache = build(2).unwrap();
        for _ in 0..2 {
            names_the_limit(cache.set_budget(8 * limit.page).unwrap_err());
            assert_eq!(cache.budget(), 2 * limit.page);
        }
        cache.set_budget(3 * limit.page).unwrap();
    }));
}
