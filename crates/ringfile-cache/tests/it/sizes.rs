//! Files with pages of different sizes in one cache, of which some are in use (F69).

use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::support::{Random, patience};
use ringfile::{OpenOptions, block_on};
use ringfile_cache::{Cache, CachedFile, Page, WhenPinned};

const PAGE: usize = 4096;
const LARGE: usize = 2 << 20;

struct File {
    folder: tempfile::TempDir,
}

impl File {
    /// Makes a file in which each 4 KiB say where they are.
    fn new(len: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let content: Vec<u8> = (0..len / PAGE).map(content).collect::<Vec<_>>().concat();
        std::fs::write(folder.path().join("file"), content).expect("written");
        Self { folder }
    }

    fn open(&self, cache: &Cache, page_size: usize) -> CachedFile {
        let mut options = OpenOptions::new();
        options.read(true).direct(true).buffered_fallback(true);
        let file = options.open_blocking(self.folder.path().join("file")).expect("opened");
        cache.open(file, page_size).expect("opened in the cache")
    }
}

fn content(number: usize) -> Vec<u8> {
    (number as u64).to_le_bytes().repeat(PAGE / 8)
}

#[track_caller]
fn check(page: &Page, number: u64, page_size: usize) {
    assert_eq!(page.len(), page_size);
    let first = number as usize * (page_size / PAGE);
    let wrong = (first..).zip(page.chunks(PAGE)).find(|(number, chunk)| **chunk != *content(*number));
    assert!(wrong.is_none(), "page {number} of {page_size}: {:?}", wrong.map(|(number, _)| number));
}

#[test]
fn f69_two_larger_pages_fit_once_a_small_one_is_dropped() {
    let file = File::new(64 * PAGE);
    for number in 0..8 {
        let cache = Cache::new(4 * PAGE).expect("a cache");
        let (small, large) = (file.open(&cache, PAGE), file.open(&cache, 2 * PAGE));
        // It lies anywhere.
        let mut all: Vec<Page> = (0..4).map(|page| block_on(small.read(page)).expect("read")).collect();
        let kept = all.swap_remove(number % 4);
        drop(all);
        let (sender, read) = channel();
        std::thread::spawn(move || sender.send(block_on(large.read_many(&[5, 9])).expect("read")));
        let early = read.recv_timeout(Duration::from_millis(100));
        assert_eq!(early.err(), Some(RecvTimeoutError::Timeout), "there is room for one of the two");
        check(&kept, number as u64 % 4, PAGE);
        drop(kept);
        let pages = read.recv_timeout(patience()).expect("all memory is free");
        check(&pages[0], 5, 2 * PAGE);
        check(&pages[1], 9, 2 * PAGE);
    }
}

/// Fills a cache of 16 MiB with small pages.
fn full_of_small_pages(file: &File, when_pinned: WhenPinned) -> (Cache, CachedFile, CachedFile) {
    let cache = Cache::builder(8 * LARGE).when_pinned(when_pinned).build().expect("a cache");
    let (small, large) = (file.open(&cache, PAGE), file.open(&cache, LARGE));
    (0..4096).for_each(|page| drop(block_on(small.read(page)).expect("read")));
    assert_eq!((cache.metrics().bytes, cache.metrics().evictions), (8 * LARGE, 0));
    (cache, small, large)
}

#[test]
fn f69_a_large_page_evicts_as_many_small_ones_as_lie_in_its_place() -> io::Result<()> {
    let file = File::new(10 * LARGE);
    let (cache, small, large) = full_of_small_pages(&file, WhenPinned::Fail);
    let kept: Vec<Page> = (100..132).map(|page| small.get(page).expect("in memory")).collect();
    for number in 0..7 {
        check(&block_on(large.read(number))?, number, LARGE);
        assert_eq!(cache.metrics().evictions, 512 * (number + 1));
    }
    kept.iter().zip(100..).for_each(|(page, number)| check(page, number, PAGE));
    check(&block_on(small.read(4500))?, 4500, PAGE);
    Ok(())
}

#[test]
fn f69_a_page_that_fits_nowhere_evicts_none_and_the_error_says_why() -> io::Result<()> {
    let file = File::new(10 * LARGE);
    let (cache, small, large) = full_of_small_pages(&file, WhenPinned::Fail);
    // One in each place of a large page.
    let mut kept: Vec<Page> = (0..8).map(|at| small.get(at * 512 + at).expect("in memory")).collect();
    let error = block_on(large.read(9)).expect_err("it fits nowhere");
    assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("fits nowhere between the pages"), "{error}");
    assert_eq!((cache.metrics().evictions, cache.metrics().bytes), (0, 8 * LARGE));
    check(&block_on(small.read(4500))?, 4500, PAGE);
    kept.pop();
    check(&block_on(large.read(9))?, 9, LARGE);
    Ok(())
}

#[test]
fn f69_a_page_that_fits_nowhere_is_read_when_one_in_its_way_is_dropped() {
    let file = File::new(10 * LARGE);
    for dropped in [0, 3, 7] {
        let (_cache, small, large) = full_of_small_pages(&file, WhenPinned::Wait);
        let mut kept: Vec<Page> = (0..8).map(|at| small.get(at * 512 + at).expect("in memory")).collect();
        let (sender, read) = channel();
        std::thread::spawn(move || sender.send(block_on(large.read(9)).expect("read")));
        let early = read.recv_timeout(Duration::from_millis(100));
        assert_eq!(early.err(), Some(RecvTimeoutError::Timeout), "it fits nowhere");
        kept.remove(dropped);
        check(&read.recv_timeout(patience()).expect("there is room now"), 9, LARGE);
    }
}

#[test]
fn f69_random_pages_of_all_sizes_share_the_memory() {
    let mut random = Random::new();
    for budget in [5 * PAGE, 37 * PAGE, 3 << 20, (9 << 20) + PAGE] {
        let file = File::new(budget.next_multiple_of(LARGE) * 2);
        let cache = Cache::builder(budget).when_pinned(WhenPinned::Fail).build().expect("a cache");
        let sizes: Vec<usize> = (0..10).map(|order| PAGE << order).filter(|&size| size <= budget).collect();
        let files: Vec<_> = sizes.iter().map(|&size| file.open(&cache, size)).collect();
        let mut kept: Vec<(Page, u64, usize)> = Vec::new();
        for _ in 0..1000 {
            let which = random.index(files.len());
            let (pages, size) = (&files[which], sizes[which]);
            let number = random.below((2 * budget / size) as u64);
            match block_on(pages.read(number)) {
                Ok(page) => {
                    check(&page, number, size);
                    kept.push((page, number, size));
                }
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::OutOfMemory),
            }
            while kept.len() > random.index(20) {
                let (page, number, size) = kept.swap_remove(random.index(kept.len()));
                check(&page, number, size);
            }
            assert!(cache.metrics().bytes <= budget);
            if random.chance(100) {
                kept.clear();
                let number = random.below((2 * budget / size) as u64);
                check(&block_on(pages.read(number)).expect("no page is in use"), number, size);
            }
        }
    }
}

#[test]
fn f69_readers_of_different_sizes_do_not_wait_for_ever() {
    let file = File::new(32 << 20);
    let cache = Cache::new(4 << 20).expect("a cache");
    let (sender, ended) = channel();
    for (thread, size) in [PAGE, PAGE, 16 * PAGE, LARGE, LARGE].into_iter().enumerate() {
        let (pages, sender) = (file.open(&cache, size), sender.clone());
        // Not of a scope: it may wait for ever.
        std::thread::spawn(move || {
            for round in 0..200 {
                let number = (thread * 31 + round * 7) as u64 % ((32 << 20) / size) as u64;
                check(&block_on(pages.read(number)).expect("read"), number, size);
            }
            sender.send(()).expect("the test waits");
        });
    }
    for thread in 0..5 {
        ended.recv_timeout(patience()).unwrap_or_else(|_| panic!("only {thread} of 5 threads have ended"));
    }
}

#[test]
fn f69_a_call_that_waits_fails_once_its_pages_do_not_fit_any_more() {
    let file = File::new(64 * PAGE);
    let cache = Cache::new(8 * PAGE).expect("a cache");
    let pages = file.open(&cache, PAGE);
    let kept: Vec<Page> = (0..6).map(|page| block_on(pages.read(page)).expect("read")).collect();
    let (sender, ended) = channel();
    // The first has the turn.
    for first in [10, 20] {
        let (pages, sender) = (pages.clone(), sender.clone());
        let numbers: Vec<u64> = (first..first + 5).collect();
        std::thread::spawn(move || sender.send(block_on(pages.read_many(&numbers)).map(|pages| pages.len())));
    }
    let early = ended.recv_timeout(Duration::from_millis(100));
    assert_eq!(early.err(), Some(RecvTimeoutError::Timeout), "there is room for two pages");
    cache.set_budget(4 * PAGE).expect("set");
    for _ in 0..2 {
        let error = ended.recv_timeout(patience()).expect("it ends").expect_err("four pages fit");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("do not fit in the cache of 16384 bytes at once"), "{error}");
    }
    drop(kept);
}

#[test]
fn many_large_pages_that_fit_nowhere_evict_none() -> io::Result<()> {
    let file = File::new(10 * LARGE);
    let (cache, small, large) = full_of_small_pages(&file, WhenPinned::Fail);
    // In two places of large pages, of eight.
    let mut kept: Vec<Page> = [0, 600].map(|page| small.get(page).expect("in memory")).into();
    let seven: Vec<u64> = (0..7).collect();
    let error = block_on(large.read_many(&seven)).expect_err("there are six places");
    assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    assert_eq!((cache.metrics().evictions, cache.metrics().bytes), (0, 8 * LARGE));
    kept.pop();
    let pages = block_on(large.read_many(&seven))?;
    pages.iter().zip(seven).for_each(|(page, number)| check(page, number, LARGE));
    assert_eq!(cache.metrics().evictions, 7 * 512);
    check(&kept[0], 0, PAGE);
    Ok(())
}

#[test]
fn many_pages_find_all_places_of_a_cache_with_pages_of_all_sizes() -> io::Result<()> {
    let file = File::new(10 * LARGE);
    for budget in [8 * PAGE, 37 * PAGE, 2 * LARGE, 2 * LARGE + 5 * PAGE] {
        let cache = Cache::builder(budget).when_pinned(WhenPinned::Fail).build()?;
        let sizes: Vec<usize> = (0..10).map(|order| PAGE << order).filter(|&size| size <= budget).collect();
        let files: Vec<_> = sizes.iter().map(|&size| file.open(&cache, size)).collect();
        for (pages, &size) in files.iter().zip(&sizes).chain(files.iter().zip(&sizes).rev()) {
            // A mix of what was there and a few pages of each size.
            for (number, some) in files.iter().enumerate() {
                drop(block_on(some.read(number as u64))?);
            }
            let numbers: Vec<u64> = (0..(budget / size) as u64).collect();
            let found = block_on(pages.read_many(&numbers))?;
            found.iter().zip(numbers).for_each(|(page, number)| check(page, number, size));
        }
    }
    Ok(())
}

#[test]
fn a_page_that_is_asked_for_twice_takes_memory_once() -> io::Result<()> {
    let file = File::new(16 * PAGE);
    let cache = Cache::new(4 * PAGE)?;
    let pages = file.open(&cache, PAGE);
    for numbers in [[0, 0, 1, 1, 0], [4, 3, 2, 1, 4]] {
        let found = block_on(pages.read_many(&numbers))?;
        found.iter().zip(numbers).for_each(|(page, number)| check(page, number, PAGE));
    }
    let error = block_on(pages.read_many(&[0, 1, 2, 3, 4, 0])).expect_err("five pages");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("5 pages of 4096 bytes do not fit"), "{error}");
    Ok(())
}
