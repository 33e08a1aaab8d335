//! Pages that are found, read, shared, evicted and written.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use ringfile::{File, OpenOptions, block_on};
use ringfile_cache::{Cache, CachedFile, Page, WhenPinned};

const PAGE: usize = 4096;

struct Fixture {
    folder: tempfile::TempDir,
    len: usize,
}

impl Fixture {
    /// Makes a file whose bytes say where they are.
    fn new(len: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("file"), content(0, len)).expect("written");
        Self { folder, len }
    }

    fn open(&self) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).direct(true).buffered_fallback(true);
        options.open_blocking(self.folder.path().join("file")).expect("opened")
    }

    fn content(&self, page: u64) -> Vec<u8> {
        let start = (page as usize * PAGE).min(self.len);
        content(start, (start + PAGE).min(self.len))
    }
}

fn content(start: usize, end: usize) -> Vec<u8> {
    (start..end).map(|at| (at / 7 + at / PAGE) as u8).collect()
}

fn cached(fixture: &Fixture, pages: usize) -> (Cache, CachedFile) {
    let cache = Cache::builder(pages * PAGE).when_pinned(WhenPinned::Fail).build().expect("a cache");
    let file = cache.open(fixture.open(), PAGE).expect("opened");
    (cache, file)
}

#[test]
fn a_page_is_read_once_and_then_found() -> io::Result<()> {
    let fixture = Fixture::new(100 * PAGE);
    let (cache, pages) = cached(&fixture, 50);
    assert!(pages.get(7).is_none());
    let page = block_on(pages.read(7))?;
    assert_eq!(*page, fixture.content(7));
    let again = pages.get(7).expect("it is in memory");
    assert_eq!(again.as_ptr(), page.as_ptr());
    let metrics = pages.metrics();
    assert_eq!((metrics.hits, metrics.misses, metrics.pinned, metrics.bytes), (1, 1, 1, PAGE));
    drop((page, again));
    assert_eq!((pages.metrics().pinned, cache.metrics().misses), (0, 1));
    Ok(())
}

#[test]
fn the_end_of_the_file_is_a_shorter_page_and_then_an_empty_one() -> io::Result<()> {
    for rest in [1, 2, 100, PAGE - 300, PAGE - 255, PAGE - 254, PAGE - 5, PAGE - 1] {
        let fixture = Fixture::new(3 * PAGE + rest);
        let (_cache, pages) = cached(&fixture, 50);
        for _ in 0..2 {
            let last = block_on(pages.read(3))?;
            assert_eq!(*last, fixture.content(3), "{rest} bytes");
            assert_eq!(block_on(pages.read(4))?.len(), 0);
        }
        assert_eq!(pages.metrics().bytes, PAGE, "an empty page is not kept");
    }
    Ok(())
}

#[test]
fn a_full_cache_evicts_and_never_exceeds_its_budget() -> io::Result<()> {
    let fixture = Fixture::new(300 * PAGE);
    let (cache, pages) = cached(&fixture, 20);
    for page in (0..300).chain((0..300).rev()) {
        assert_eq!(*block_on(pages.read(page))?, fixture.content(page), "page {page}");
        assert!(cache.metrics().bytes <= 20 * PAGE);
    }
    assert!(cache.metrics().evictions >= 560, "{:?}", cache.metrics());
    Ok(())
}

#[test]
fn f55_a_frame_is_not_reused_while_its_page_is_in_use() -> io::Result<()> {
    let fixture = Fixture::new(300 * PAGE);
    let (_cache, pages) = cached(&fixture, 20);
    let kept: Vec<(u64, Page)> =
        (0..15).map(|page| Ok((page, block_on(pages.read(page))?))).collect::<io::Result<_>>()?;
    for page in 15..300 {
        block_on(pages.read(page))?;
    }
    for (page, kept) in &kept {
        assert_eq!(**kept, fixture.content(*page));
        assert!(pages.get(*page).is_some(), "a pinned page stays in the cache");
    }
    Ok(())
}

#[test]
fn if_all_pages_are_in_use_a_read_fails_or_waits() -> io::Result<()> {
    let fixture = Fixture::new(300 * PAGE);
    let (_cache, pages) = cached(&fixture, 4);
    let kept: Vec<Page> = (0..4).map(|page| block_on(pages.read(page))).collect::<io::Result<_>>()?;
    let error = block_on(pages.read(4)).expect_err("all are in use");
    assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    drop(kept);
    assert_eq!(*block_on(pages.read(4))?, fixture.content(4));

    let waits = Cache::new(4 * PAGE)?;
    let pages = waits.open(fixture.open(), PAGE)?;
    let mut kept: Vec<Page> = (0..4).map(|page| block_on(pages.read(page))).collect::<io::Result<_>>()?;
    let waits = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut read = Box::pin(pages.read(4));
            block_on(std::future::poll_fn(|context| {
                let polled = read.as_mut().poll(context);
                waits.store(polled.is_pending(), Ordering::SeqCst);
                polled
            }))
        });
        while !waits.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        // So that it is the wish of the waiter that is noticed. One free page is enough.
        kept.pop();
        assert_eq!(*waiter.join().expect("no panic")?, fixture.content(4));
        Ok(())
    })
}

#[test]
fn bytes_keep_the_page_without_a_copy() -> io::Result<()> {
    let fixture = Fixture::new(300 * PAGE);
    let (cache, pages) = cached(&fixture, 8);
    let page = block_on(pages.read(3))?;
    let address = page.as_ptr();
    let bytes = Bytes::from(page);
    assert_eq!(bytes.as_ptr(), address);
    for page in 10..100 {
        block_on(pages.read(page))?;
    }
    drop((pages, cache));
    assert_eq!(bytes, fixture.content(3), "also when the cache is gone");
    Ok(())
}

#[test]
fn many_pages_and_ranges_are_those_of_the_file() -> io::Result<()> {
    let fixture = Fixture::new(99 * PAGE + 1000);
    let (_cache, pages) = cached(&fixture, 30);
    let numbers = [5, 98, 5, 0, 99, 200, 17];
    for (page, number) in block_on(pages.read_many(&numbers))?.iter().zip(numbers) {
        assert_eq!(**page, fixture.content(number));
    }
    let error = block_on(pages.read_many(&Vec::from_iter(0..31))).expect_err("too many at once");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let all = content(0, fixture.len);
    for (offset, len) in [
        (0, 10),
        (PAGE - 1, 2),
        (5000, 3 * PAGE),
        (0, 99 * PAGE + 5000),
        (98 * PAGE, 2 * PAGE),
        (200 * PAGE, 10),
        (7, 0),
    ] {
        let bytes = block_on(pages.read_range(offset as u64, len))?;
        let expected = &all[offset.min(all.len())..(offset + len).min(all.len())];
        assert_eq!(bytes, expected, "{len} bytes at {offset}");
    }
    assert!(block_on(pages.read_range(u64::MAX, 2)).is_err());
    assert!(block_on(pages.read(u64::MAX)).is_err());
    Ok(())
}

#[test]
fn what_was_prefetched_is_found() -> io::Result<()> {
    let fixture = Fixture::new(100 * PAGE);
    let (_cache, pages) = cached(&fixture, 30);
    block_on(async {
        pages.prefetch(&[1, 2, 3, 3, u64::MAX]);
        // Nobody waits for these reads; the loop carries them out.
        pages.read(50).await
    })?;
    for page in 1..4 {
        assert_eq!(*pages.get(page).expect("it is there"), fixture.content(page));
    }
    assert_eq!(pages.metrics().misses, 4);
    Ok(())
}

#[test]
fn f55_a_reader_that_is_dropped_or_leaked_in_a_miss_hurts_no_other() -> io::Result<()> {
    let fixture = Fixture::new(100 * PAGE);
    let (_cache, pages) = cached(&fixture, 30);
    let begin = |page| {
        let mut read = Box::pin(pages.read(page));
        let first = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(first, Poll::Pending | Poll::Ready(Ok(_))));
        read
    };
    block_on(async {
        drop(begin(1));
        // Not polled again, as if it were leaked.
        let leaked = begin(2);
        let begun = begin(3);
        for page in 1..4 {
            assert_eq!(*pages.read(page).await?, fixture.content(page));
        }
        assert_eq!(*begun.await?, fixture.content(3));
        assert_eq!(pages.metrics().misses, 3);
        drop(leaked);
        Ok(())
    })
}

#[test]
fn tasks_that_miss_one_page_share_one_read() -> io::Result<()> {
    let fixture = Fixture::new(100 * PAGE);
    let (_cache, pages) = cached(&fixture, 30);
    block_on(async {
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let pages = pages.clone();
                ringfile::spawn(async move { pages.read(9).await })
            })
            .collect();
        for task in tasks {
            assert_eq!(*task.await??, fixture.content(9));
        }
        assert_eq!(pages.metrics().misses, 1);
        Ok(())
    })
}

#[test]
fn f56_a_write_replaces_the_page_and_leaves_those_in_use() -> io::Result<()> {
    let fixture = Fixture::new(10 * PAGE);
    let (cache, pages) = cached(&fixture, 8);
    let old = block_on(pages.read(2))?;
    block_on(pages.write(2, &[9; PAGE]))?;
    assert_eq!(*old, fixture.content(2));
    assert_eq!(*pages.get(2).expect("it is there"), [9; PAGE]);
    assert_eq!(cache.metrics().bytes, 2 * PAGE);
    drop(old);
    assert_eq!(cache.metrics().bytes, PAGE);
    let on_disk = std::fs::read(fixture.folder.path().join("file"))?;
    assert_eq!(on_disk[2 * PAGE..3 * PAGE], [9; PAGE]);
    assert!(block_on(pages.write(2, &[9; 100])).is_err(), "a part of a page");
    Ok(())
}

#[test]
fn a_write_behind_the_end_makes_the_last_page_longer() -> io::Result<()> {
    let fixture = Fixture::new(2 * PAGE + 100);
    let (_cache, pages) = cached(&fixture, 8);
    assert_eq!(block_on(pages.read(2))?.len(), 100);
    block_on(pages.write(4, &[9; PAGE]))?;
    let mut expected = fixture.content(2);
    expected.resize(PAGE, 0);
    assert_eq!(*block_on(pages.read(2))?, expected);
    block_on(pages.truncate(3 * PAGE as u64 + 5))?;
    assert_eq!(block_on(pages.read(3))?.len(), 5);
    assert_eq!(block_on(pages.read(4))?.len(), 0);
    block_on(pages.truncate(10 * PAGE as u64))?;
    assert_eq!(block_on(pages.read(3))?.len(), PAGE);
    Ok(())
}

#[test]
fn what_others_write_is_seen_after_invalidate_or_revalidate() -> io::Result<()> {
    let fixture = Fixture::new(10 * PAGE);
    let (_cache, pages) = cached(&fixture, 8);
    let path = fixture.folder.path().join("file");
    block_on(pages.read(2))?;
    assert!(block_on(pages.revalidate())?, "the first time");
    block_on(pages.read(2))?;
    assert!(!block_on(pages.revalidate())?);
    assert!(pages.get(2).is_some());
    std::thread::sleep(std::time::Duration::from_millis(30));
    std::fs::write(&path, vec![1; 10 * PAGE])?;
    assert!(block_on(pages.revalidate())?);
    assert_eq!(*block_on(pages.read(2))?, [1; PAGE]);
    std::fs::write(&path, vec![2; 10 * PAGE])?;
    pages.invalidate(2..3);
    assert_eq!(*block_on(pages.read(2))?, [2; PAGE]);
    Ok(())
}

#[test]
fn a_failed_read_is_not_kept() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("file");
    std::fs::write(&path, [7; PAGE])?;
    let cache = Cache::new(4 * PAGE)?;
    // Open for writing alone.
    let pages = cache.open(OpenOptions::new().write(true).open_blocking(&path)?, PAGE)?;
    for _ in 0..10 {
        let error = block_on(pages.read(0)).expect_err("it cannot be read");
        let source = std::error::Error::source(error.get_ref().expect("an error of ours"));
        let source =
            source.and_then(|source| source.downcast_ref::<ringfile::Error>()).expect("the file's error");
        assert_eq!(source.errno(), Some(libc::EBADF));
    }
    let metrics = cache.metrics();
    assert_eq!((metrics.bytes, metrics.misses), (0, 10));
    Ok(())
}

#[test]
fn a_lower_budget_evicts_and_a_higher_one_is_used() -> io::Result<()> {
    let mib = 1 << 20;
    let fixture = Fixture::new(16 * mib);
    let cache = Cache::new(12 * mib)?;
    let pages = cache.open(fixture.open(), PAGE)?;
    let fill = || (0..4096).try_for_each(|page| block_on(pages.read(page)).map(drop));
    // Some pages are evicted at once.
    let is_full = |bytes: usize, budget| bytes <= budget && bytes + 32 * PAGE > budget;
    fill()?;
    assert!(is_full(cache.metrics().bytes, 12 * mib), "{:?}", cache.metrics());
    let kept = block_on(pages.read(4095))?;
    cache.set_budget(4 * mib)?;
    assert!(cache.metrics().bytes <= 4 * mib + PAGE, "{:?}", cache.metrics());
    assert_eq!(*kept, fixture.content(4095));
    drop(kept);
    fill()?;
    assert!(is_full(cache.metrics().bytes, 4 * mib), "{:?}", cache.metrics());
    cache.set_budget(32 * mib)?;
    fill()?;
    assert_eq!(cache.metrics().bytes, 16 * mib);
    assert!(cache.set_budget(0).is_err());
    Ok(())
}

#[test]
fn files_with_pages_of_different_sizes_share_the_budget() -> io::Result<()> {
    let fixture = Fixture::new(8 << 20);
    let cache = Cache::new(4 << 20)?;
    let small = cache.open(fixture.open(), PAGE)?;
    let large = cache.open(fixture.open(), 1 << 20)?;
    for round in 0..3 {
        for page in 0..1500 {
            assert_eq!(*block_on(small.read(page))?, fixture.content(page), "round {round}");
        }
        for page in 0..8 {
            let start = (page as usize) << 20;
            assert_eq!(*block_on(large.read(page))?, content(start, start + (1 << 20)), "round {round}");
        }
        assert!(cache.metrics().bytes <= 4 << 20);
    }
    for bad in [0, 1, 512, 4097, 4 << 20] {
        assert!(cache.open(fixture.open(), bad).is_err(), "{bad}");
    }
    Ok(())
}

#[test]
fn calls_for_many_pages_do_not_wait_for_each_other() {
    const CALLS: u64 = 300;
    let fixture = Fixture::new(100 * PAGE);
    let cache = Cache::new(8 * PAGE).expect("a cache");
    let pages = cache.open(fixture.open(), PAGE).expect("opened");
    let (tell, told) = std::sync::mpsc::channel();
    for me in 0..4 {
        let (pages, tell) = (pages.clone(), tell.clone());
        // Not scoped: if they wait for ever, this test still ends.
        std::thread::spawn(move || {
            for call in 0..CALLS {
                let numbers: Vec<u64> = (0..6).map(|page| (me * 31 + call * 7 + page * 13) % 100).collect();
                let found = block_on(pages.read_many(&numbers)).expect("read");
                tell.send((numbers, found.iter().map(|page| page.to_vec()).collect::<Vec<_>>()))
                    .expect("heard");
            }
        });
    }
    for _ in 0..4 * CALLS {
        let (numbers, found) =
            told.recv_timeout(std::time::Duration::from_secs(60)).expect("nobody waits for ever");
        for (page, found) in numbers.into_iter().zip(found) {
            assert_eq!(found, fixture.content(page));
        }
    }
}

#[test]
fn a_read_of_a_page_that_is_larger_than_a_lowered_budget_fails() -> io::Result<()> {
    let fixture = Fixture::new(100 * PAGE);
    let cache = Cache::new(1 << 20)?;
    let pages = cache.open(fixture.open(), 16 * PAGE)?;
    block_on(pages.read(0))?;
    cache.set_budget(PAGE)?;
    for error in [block_on(pages.read(1)).err(), block_on(pages.write(1, &[0; 16 * PAGE])).err()] {
        assert_eq!(error.map(|error| error.kind()), Some(io::ErrorKind::OutOfMemory));
    }
    cache.set_budget(1 << 20)?;
    assert_eq!(block_on(pages.read(1))?.len(), 16 * PAGE);
    Ok(())
}
