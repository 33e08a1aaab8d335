//! What a cache survives: failed and interrupted reads, cancelled and leaked futures, forks, wakers that panic.

use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use crate::support::{PAGE, bytes};
use ringfile::{OpenOptions, block_on};
use ringfile_cache::{Cache, CachedFile, Page, WhenPinned};

const PAGES: u64 = 64;

fn cached(folder: &tempfile::TempDir, pages: usize, when_pinned: WhenPinned) -> CachedFile {
    let path = folder.path().join("file");
    std::fs::write(&path, (0..PAGES).flat_map(|page| bytes(page, 1)).collect::<Vec<u8>>()).unwrap();
    let cache = Cache::builder(pages * PAGE).when_pinned(when_pinned).build().unwrap();
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).direct(true).buffered_fallback(true).open(path).unwrap();
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
            if std::env::var("RINGFILE_BACKEND").is_ok_and(|backend| backend == "workers") {
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
