//! Calls that overlap: several ranges that want more memory than there is, a file whose end moves while it is read, a
//! budget that changes while pages are in use.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::support::patience;
use ringfile::{OpenOptions, block_on};
use ringfile_cache::{Cache, CachedFile, Page};

const PAGE: usize = 4096;

fn open(cache: &Cache, len: usize) -> (tempfile::TempDir, CachedFile) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    std::fs::write(&path, vec![7; len]).expect("written");
    let mut options = OpenOptions::new();
    options.read(true).write(true).direct(true).buffered_fallback(true);
    let file = options.open_blocking(&path).expect("opened");
    let pages = cache.open(file, PAGE).expect("opened in the cache");
    (folder, pages)
}

/// Polls once, so that the operation is in flight.
fn begin<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn ranges_that_together_exceed_the_budget_do_not_wait_for_each_other() {
    let cache = Cache::new(16 * PAGE).expect("a cache");
    let (_folder, pages) = open(&cache, 400 * PAGE);
    let (sender, ended) = std::sync::mpsc::channel();
    for thread in 0..8 {
        let (sender, pages) = (sender.clone(), pages.clone());
        std::thread::spawn(move || {
            for round in 0..50 {
                let start = (thread * 50 + round) % 390;
                let bytes = block_on(pages.read_range((start * PAGE) as u64, 9 * PAGE)).expect("read");
                assert_eq!(bytes.len(), 9 * PAGE);
            }
            sender.send(()).expect("the test waits");
        });
    }
    let end = Instant::now() + patience();
    for thread in 0..8 {
        let left = end.saturating_duration_since(Instant::now());
        ended.recv_timeout(left).unwrap_or_else(|_| panic!("only {thread} of 8 threads have ended"));
    }
}

#[test]
fn a_range_ends_at_a_page_that_was_the_last_when_it_was_read() -> io::Result<()> {
    let cache = Cache::new(64 * PAGE)?;
    let (_folder, pages) = open(&cache, 3 * PAGE + 5);
    block_on(async {
        assert_eq!(pages.read(3).await?.len(), 5);
        let mut write = Box::pin(pages.write(4, &[9; PAGE]));
        let begun = begin(&mut write);
        let range = pages.read_range(3 * PAGE as u64, 2 * PAGE).await?;
        let mut longer = vec![7; 5];
        longer.resize(PAGE, 0);
        longer.resize(2 * PAGE, 9);
        assert!(range == [7; 5].as_slice() || range == longer, "{} bytes", range.len());
        if begun.is_pending() {
            write.await?;
        }
        Ok(())
    })
}

#[test]
fn a_short_page_that_is_read_while_the_file_is_extended_does_not_stay() -> io::Result<()> {
    let cache = Cache::new(64 * PAGE)?;
    let (_folder, pages) = open(&cache, 3 * PAGE + 5);
    block_on(async {
        let mut read = Box::pin(pages.read(3));
        let begun = begin(&mut read);
        pages.truncate(10 * PAGE as u64).await?;
        assert_eq!(pages.read(3).await?.len(), PAGE, "begun: {begun:?}");
        Ok(())
    })
}

#[test]
fn pages_that_were_in_use_leave_when_their_use_ends_after_the_budget_was_lowered() -> io::Result<()> {
    let cache = Cache::new(16 * PAGE)?;
    let (_folder, pages) = open(&cache, 40 * PAGE);
    let kept: Vec<Page> = (0..16).map(|page| block_on(pages.read(page))).collect::<io::Result<_>>()?;
    cache.set_budget(4 * PAGE)?;
    drop(kept);
    assert!(cache.metrics().bytes <= 4 * PAGE, "{:?}", cache.metrics());
    Ok(())
}

#[test]
fn a_page_as_large_as_a_raised_budget_can_be_read() -> io::Result<()> {
    let cache = Cache::builder(1 << 20).when_pinned(ringfile_cache::WhenPinned::Fail).build()?;
    cache.set_budget(2 << 20)?;
    let (folder, _) = open(&cache, 2 << 20);
    let file = OpenOptions::new().read(true).open_blocking(folder.path().join("file"))?;
    let pages = cache.open(file, 2 << 20)?;
    assert_eq!(block_on(pages.read(0))?.len(), 2 << 20);
    Ok(())
}

#[test]
fn a_read_whose_thread_has_left_its_loop_ends_for_others() -> io::Result<()> {
    let cache = Cache::new(64 * PAGE)?;
    let (folder, _) = open(&cache, 40 * PAGE);
    let file = OpenOptions::new()
        .read(true)
        .direct(true)
        .buffered_fallback(true)
        .open_blocking(folder.path().join("file"))?;
    let pages = cache.open(file, PAGE)?;
    // The first page cannot exist: the call returns its error while the others are being read.
    let error = block_on(pages.read_many(&[u64::MAX, 1, 2, 3])).expect_err("no such page");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(block_on(pages.read(3)).map(|page| page.len())));
    assert_eq!(ended.recv_timeout(Duration::from_secs(20)).expect("it ends")?, PAGE);
    Ok(())
}

/// A waker whose clones look at the cache, as one may that counts what it does.
fn looking(cache: &Cache) -> Waker {
    use std::task::{RawWaker, RawWakerVTable};
    const fn counted(data: *const ()) -> *const Cache {
        data.cast()
    }
    // SAFETY: all pointers come from `Arc::into_raw` below, and each waker owns one count.
    static TABLE: RawWakerVTable = RawWakerVTable::new(
        |data| unsafe {
            let _ = (*counted(data)).metrics();
            Arc::increment_strong_count(counted(data));
            RawWaker::new(data, &TABLE)
        },
        |data| unsafe { Arc::decrement_strong_count(counted(data)) },
        |_| {},
        |data| unsafe { Arc::decrement_strong_count(counted(data)) },
    );
    let data = Arc::into_raw(Arc::new(cache.clone()));
    // SAFETY: the table's functions count as those of an `Arc` do.
    unsafe { Waker::from_raw(RawWaker::new(data.cast(), &TABLE)) }
}

#[test]
fn a_waker_may_use_the_cache_when_it_is_cloned() -> io::Result<()> {
    let cache = Cache::new(2 * PAGE)?;
    let (_folder, pages) = open(&cache, 40 * PAGE);
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || -> io::Result<()> {
        let kept = (block_on(pages.read(0))?, block_on(pages.read(1))?);
        let waker = looking(&cache);
        let mut read = Box::pin(pages.read(2));
        assert!(read.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(kept);
        let _ = read.as_mut().poll(&mut Context::from_waker(&waker));
        drop(sender);
        Ok(())
    });
    let ended: Result<(), _> = ended.recv_timeout(Duration::from_secs(10));
    assert_eq!(ended, Err(std::sync::mpsc::RecvTimeoutError::Disconnected), "it is locked out of the cache");
    Ok(())
}
