//! Pages that a thread holds, which it found in memory: others wait for them, replace them, close their file, and drop
//! them elsewhere.

use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ringfile::{OpenOptions, block_on};
use ringfile_cache::{Cache, CachedFile, Page};

const PAGE: usize = 4096;

/// A file of 64 pages, each full of its number.
fn open(cache: &Cache) -> (tempfile::TempDir, CachedFile) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    std::fs::write(&path, (0..64).flat_map(|page| [page; PAGE]).collect::<Vec<u8>>()).expect("written");
    let mut options = OpenOptions::new();
    options.read(true).write(true).direct(true).buffered_fallback(true);
    let pages = cache.open(options.open_blocking(path).expect("opened"), PAGE).expect("opened in the cache");
    (folder, pages)
}

/// Reads pages, and finds them in memory once they are.
fn find(pages: &CachedFile, numbers: std::ops::Range<u64>) -> Vec<Page> {
    numbers
        .map(|number| {
            drop(block_on(pages.read(number)).expect("read"));
            pages.get(number).expect("in memory")
        })
        .collect()
}

/// Reads a page on another thread.
fn read_elsewhere(pages: &CachedFile, number: u64) -> Receiver<u8> {
    let (sender, read) = channel();
    let pages = pages.clone();
    std::thread::spawn(move || {
        let page = block_on(pages.read(number)).expect("read");
        let first = page[0];
        assert!(page.iter().all(|&byte| byte == first));
        // Before the other goes on, which may count the pages in use.
        drop(page);
        sender.send(first)
    });
    read
}

#[test]
fn a_read_waits_until_a_held_page_is_dropped() -> io::Result<()> {
    // As many as a thread can hold, and more.
    for count in [4, 20] {
        let cache = Cache::new(count as usize * PAGE)?;
        let (_folder, pages) = open(&cache);
        let mut held = find(&pages, 0..count);
        assert_eq!(cache.metrics().pinned as u64, count);
        let read = read_elsewhere(&pages, 40);
        assert!(read.recv_timeout(Duration::from_millis(200)).is_err(), "all memory is in use");
        for (number, page) in held.iter().enumerate() {
            assert!(page.iter().all(|&byte| byte == number as u8), "page {number} was overwritten");
        }
        drop(held.remove(1));
        assert_eq!(read.recv_timeout(Duration::from_secs(10)), Ok(40), "{count} pages");
        drop(held);
        assert_eq!(cache.metrics().pinned, 0);
    }
    Ok(())
}

#[test]
fn a_held_page_may_be_dropped_by_a_thread_that_never_used_the_cache() -> io::Result<()> {
    for round in 0..50 {
        let cache = Cache::new(4 * PAGE)?;
        let (_folder, pages) = open(&cache);
        let mut held = find(&pages, 0..4);
        let read = read_elsewhere(&pages, 40);
        let page = held.remove(2);
        std::thread::spawn(move || drop(page)).join().expect("no panic");
        assert_eq!(read.recv_timeout(Duration::from_secs(10)), Ok(40), "round {round}");
    }
    Ok(())
}

#[test]
fn f61_a_held_page_outlives_a_write_the_file_and_the_cache() -> io::Result<()> {
    let cache = Cache::new(8 * PAGE)?;
    let (folder, pages) = open(&cache);
    let path = folder.path().join("file");
    let is_open = || {
        let links = std::fs::read_dir("/proc/self/fd").expect("listed");
        links.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()).any(|link| link == path)
    };
    let held = find(&pages, 3..5);
    block_on(pages.write(3, &[9; PAGE]))?;
    assert_eq!((held[0][0], pages.get(3).expect("written")[0]), (3, 9));
    pages.invalidate(4..5);
    let again = (held[0].clone(), bytes::Bytes::from(find(&pages, 3..4).remove(0)));
    for number in 5..30 {
        assert_eq!(block_on(pages.read(number))?[7], number as u8);
    }
    drop((pages, cache));
    assert!(!is_open(), "pages in use keep the file open");
    assert!(held[0].iter().all(|&byte| byte == 3) && held[1].iter().all(|&byte| byte == 4));
    assert!(again.0.iter().all(|&byte| byte == 3) && again.1.iter().all(|&byte| byte == 9));
    Ok(())
}

#[test]
fn memory_above_a_lower_budget_is_given_back_when_held_pages_are_dropped() -> io::Result<()> {
    let cache = Cache::new(16 * PAGE)?;
    let (_folder, pages) = open(&cache);
    let held = find(&pages, 0..6);
    cache.set_budget(4 * PAGE)?;
    assert!(cache.metrics().bytes >= 6 * PAGE, "{:?}", cache.metrics());
    drop(held);
    assert!(cache.metrics().bytes <= 4 * PAGE, "{:?}", cache.metrics());
    Ok(())
}

#[test]
fn what_is_left_of_a_page_whose_hold_is_free_has_no_bytes() -> io::Result<()> {
    let cache = Cache::new(PAGE)?;
    let (_folder, pages) = open(&cache);
    let page = find(&pages, 0..1).remove(0);
    let read = read_elsewhere(&pages, 40);
    assert!(read.recv_timeout(Duration::from_millis(200)).is_err(), "all memory is in use");
    let left = page.try_drop().expect_err("a read waits for it");
    assert_eq!(left.len(), 0);
    drop(left);
    assert_eq!(read.recv_timeout(Duration::from_secs(10)), Ok(40));
    Ok(())
}
