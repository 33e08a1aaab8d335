//! Page caches: what `examples/c/btree.c` and `examples/cpp/cached_pages.cpp` cannot show: misuse, failures, forks, and
//! files that other threads have used.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use super::forks::in_a_child;
use super::hugetlb::HugePageLimit;
use super::*;
use crate::cache::*;
use crate::file::*;
use crate::info::ringfile_thread_release;
use crate::pool::{
    RINGFILE_HUGE_PAGES_REQUIRE, ringfile_buffer_get, ringfile_buffer_release, ringfile_pool_free,
};

/// Handles that may be passed to other threads, and the folder of the file.
struct Fixture {
    folder: tempfile::TempDir,
    cache: usize,
    cached: usize,
}

impl Fixture {
    /// Caches a file of `pages` pages, in which each byte is the page's number, in memory for half of them.
    fn new(pages: usize, when_pinned: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("data"), content(pages)).unwrap();
        let cache = cache(pages / 2 * PAGE, when_pinned).addr();
        let file = open(&folder.path().join("data"), RINGFILE_READ | RINGFILE_WRITE, 0);
        let mut fixture = Self { folder, cache, cached: 0 };
        fixture.cached = fixture.open(file);
        well(ringfile_close(file));
        fixture
    }

    fn open(&self, file: *const ringfile_file) -> usize {
        let mut cached = ptr::null_mut();
        // SAFETY: the pointer is to a local value.
        well(unsafe { ringfile_cache_open(self.cache(), file, PAGE, &mut cached) });
        cached.addr()
    }

    fn cache(&self) -> *mut ringfile_cache {
        ptr::without_provenance_mut(self.cache)
    }

    fn counts(&self) -> ringfile_cache_counts {
        let mut counts = counts();
        // SAFETY: the pointer is to a local value.
        well(unsafe { ringfile_cache_metrics(self.cache(), ptr::null(), &mut counts) });
        counts
    }

    fn get(&self, number: u64, page: &mut ringfile_cached_page) -> i32 {
        get(self.cached, number, page)
    }

    fn read_many(&self, numbers: &[u64], pages: &mut [ringfile_cached_page]) -> i32 {
        read_many(self.cached, numbers, pages)
    }

    fn is_held_open(&self) -> bool {
        let path = self.folder.path().join("data");
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()).any(|link| link == path)
    }
}

fn cache(bytes: usize, when_pinned: u32) -> *mut ringfile_cache {
    let options = ringfile_cache_options { bytes, when_pinned, ..cache_options() };
    let mut cache = ptr::null_mut();
    // SAFETY: the pointers are to local values.
    well(unsafe { ringfile_cache_create(&options, &mut cache) });
    cache
}

fn cache_options() -> ringfile_cache_options {
    let size = size_of::<ringfile_cache_options>();
    ringfile_cache_options { size, bytes: 1 << 20, when_pinned: 0, huge_pages: 0, pressure: 0, reserved: 0 }
}

fn counts() -> ringfile_cache_counts {
    // SAFETY: it consists of integers.
    ringfile_cache_counts { size: size_of::<ringfile_cache_counts>(), ..unsafe { std::mem::zeroed() } }
}

fn no_page() -> ringfile_cached_page {
    // SAFETY: zeros are no page.
    unsafe { std::mem::zeroed() }
}

fn get(cached: usize, number: u64, page: &mut ringfile_cached_page) -> i32 {
    // SAFETY: the pointer is to a struct.
    unsafe { ringfile_cache_get(ptr::without_provenance(cached), number, page) }
}

fn read_many(cached: usize, numbers: &[u64], pages: &mut [ringfile_cached_page]) -> i32 {
    assert_eq!(numbers.len(), pages.len());
    let (cached, count) = (ptr::without_provenance(cached), numbers.len());
    // SAFETY: the pointers are to that many values.
    unsafe { ringfile_cache_read_many(cached, numbers.as_ptr(), count, pages.as_mut_ptr()) }
}

fn write(cached: usize, number: u64, data: &[u8]) -> i32 {
    // SAFETY: the pointer is to that many bytes.
    unsafe { ringfile_cache_write(ptr::without_provenance(cached), number, data.as_ptr().cast(), data.len()) }
}

fn release(page: &mut ringfile_cached_page) -> i32 {
    // SAFETY: the library has filled the struct.
    unsafe { ringfile_cache_release(page) }
}

fn holds(page: &ringfile_cached_page, number: usize) -> bool {
    // SAFETY: it is a page in use.
    is_page(unsafe { std::slice::from_raw_parts(page.data.cast(), page.length) }, number)
}

fn is_empty(page: &ringfile_cached_page) -> bool {
    page.data.is_null() && page.length == 0 && page.opaque.iter().all(|word| word.is_null())
}

/// A page that is passed to another thread.
struct Moved(ringfile_cached_page);

// SAFETY: a page may be used and released by any thread.
unsafe impl Send for Moved {}

#[test]
fn pages_are_got_in_order_and_a_struct_of_zeros_is_no_page() {
    let fixture = Fixture::new(16, RINGFILE_WHEN_PINNED_FAIL);
    let mut pages = [(); 4].map(|()| no_page());
    assert_eq!(fixture.get(3, &mut pages[0]), 0);
    assert!(is_empty(&pages[0]));
    well(fixture.read_many(&[3, 9, 3, 16], &mut pages));
    assert!(holds(&pages[0], 3) && holds(&pages[1], 9) && holds(&pages[2], 3));
    assert_eq!(pages[3].length, 0, "behind the end");
    assert_eq!(fixture.counts().pinned, 2);
    // Some are in memory, and one is not.
    let mut more = [(); 3].map(|()| no_page());
    well(fixture.read_many(&[9, 4, 3], &mut more));
    assert!(holds(&more[0], 9) && holds(&more[1], 4) && holds(&more[2], 3));
    let counted = fixture.counts();
    assert!(counted.hits >= 2, "{} hits", counted.hits);
    assert_eq!((counted.misses, counted.bytes), (4, 3 * PAGE as u64));
    for page in pages.iter_mut().chain(&mut more) {
        well(release(page));
        assert!(is_empty(page));
        well(release(page));
    }
    assert_eq!(fixture.counts().pinned, 0);
    let prefetch = |numbers: &[u64]| {
        let cached = ptr::without_provenance(fixture.cached);
        // SAFETY: the pointer is to that many numbers.
        unsafe { ringfile_cache_read_many(cached, numbers.as_ptr(), numbers.len(), ptr::null_mut()) }
    };
    well(prefetch(&[5, 3]));
    well(fixture.read_many(&[5], &mut more[..1]));
    assert_eq!(fixture.counts().misses, 5, "the prefetch was the only read");
    well(release(&mut more[0]));
}

#[test]
fn after_a_failure_no_page_is_in_use_and_the_errno_is_that_of_the_file() {
    let fixture = Fixture::new(16, RINGFILE_WHEN_PINNED_FAIL);
    let mut pages = [(); 9].map(|()| no_page());
    well(fixture.read_many(&[1], &mut pages[..1]));
    well(release(&mut pages[0]));
    let too_many: Vec<u64> = (0..9).collect();
    fails(fixture.read_many(&too_many, &mut pages), libc::EINVAL, "do not fit");
    assert!(pages.iter().all(is_empty) && fixture.counts().pinned == 0);
    fails(fixture.read_many(&[1, u64::MAX], &mut pages[..2]), libc::EINVAL, "beyond");
    assert!(pages.iter().all(is_empty) && fixture.counts().pinned == 0);

    well(fixture.read_many(&too_many[..8], &mut pages[..8]));
    fails(fixture.read_many(&[8], &mut pages[8..]), libc::ENOMEM, "in use");
    fails(write(fixture.cached, 8, &[1; PAGE]), libc::ENOMEM, "in use");
    pages.iter_mut().for_each(|page| assert_eq!(release(page), 0));

    let file = open(&fixture.folder.path().join("data"), RINGFILE_WRITE, 0);
    let unreadable = fixture.open(file);
    fails(read_many(unreadable, &[0], &mut pages[..1]), libc::EBADF, "data");
    well(ringfile_cache_close(ptr::without_provenance_mut(unreadable)));
    let file = open(&fixture.folder.path().join("data"), RINGFILE_READ, 0);
    let read_only = fixture.open(file);
    fails(write(read_only, 0, &[1; PAGE]), libc::EBADF, "data");
    fails(write(read_only, 0, &[1; 100]), libc::EINVAL, "whole pages");
}

#[test]
fn misuse_of_caches_is_an_error() {
    let fixture = Fixture::new(16, RINGFILE_WHEN_PINNED_WAIT);
    let create = |options: &ringfile_cache_options| {
        let mut cache = ptr::null_mut();
        // SAFETY: the pointers are to local values.
        unsafe { ringfile_cache_create(options, &mut cache) }
    };
    let of = cache_options();
    fails(create(&ringfile_cache_options { bytes: 4095, ..of }), libc::EINVAL, "holds no page");
    fails(create(&ringfile_cache_options { when_pinned: 2, ..of }), libc::EINVAL, "when_pinned is 2");
    fails(create(&ringfile_cache_options { huge_pages: 3, ..of }), libc::EINVAL, "huge_pages is 3");
    fails(create(&ringfile_cache_options { reserved: 1, ..of }), libc::E2BIG, "reserved");
    let file = open(&fixture.folder.path().join("data"), RINGFILE_READ, 0);
    let mut other = ptr::null_mut();
    // SAFETY: the pointer is to a local value.
    let opened = unsafe { ringfile_cache_open(fixture.cache(), file, 5000, &mut other) };
    fails(opened, libc::EINVAL, "a power of two");
    well(ringfile_close(file));
    fails(ringfile_cache_set_budget(fixture.cache(), 1), libc::EINVAL, "holds no page");

    let pool = pool(1 << 20);
    let mut page = no_page();
    for (handle, why) in [
        (0, "ringfile_cached_file: it is NULL"),
        (pool.addr(), "of another kind"),
        (fixture.cache, "of another kind"),
        (usize::MAX, "of another kind"),
    ] {
        fails(get(handle, 0, &mut page), libc::EBADF, why);
        fails(read_many(handle, &[0], std::slice::from_mut(&mut page)), libc::EBADF, why);
        fails(write(handle, 0, &[0; PAGE]), libc::EBADF, why);
        fails(ringfile_cache_invalidate(ptr::without_provenance(handle), 0, 1), libc::EBADF, why);
        fails(ringfile_cache_close(ptr::without_provenance_mut(handle)), libc::EBADF, why);
        assert!(is_empty(&page));
    }
    well(ringfile_pool_free(pool));
    let cached = ptr::without_provenance(fixture.cached);
    // SAFETY: null pointers are an error, and nothing is accessed.
    unsafe {
        fails(ringfile_cache_get(cached, 0, ptr::null_mut()), libc::EFAULT, "the page is NULL");
        fails(ringfile_cache_release(ptr::null_mut()), libc::EFAULT, "the page is NULL");
        fails(ringfile_cache_free(ptr::null_mut()), libc::EBADF, "ringfile_cache: it is NULL");
    }
    let other = cache(1 << 20, 0);
    // SAFETY: the pointer is to a local value.
    let counted = unsafe { ringfile_cache_metrics(other, cached, &mut counts()) };
    fails(counted, libc::EINVAL, "another cache");
}

#[test]
fn a_page_stays_when_its_file_and_cache_are_closed_or_it_is_written() {
    let fixture = Fixture::new(16, RINGFILE_WHEN_PINNED_WAIT);
    let mut pages = [(); 3].map(|()| no_page());
    well(fixture.read_many(&[1, 2, 3], &mut pages));
    well(write(fixture.cached, 2, &[100; PAGE]));
    let mut new = no_page();
    assert_eq!(fixture.get(2, &mut new), 1);
    assert!(holds(&new, 100) && holds(&pages[1], 2));
    well(release(&mut new));
    well(ringfile_cache_close(ptr::without_provenance_mut(fixture.cached)));
    well(ringfile_cache_free(fixture.cache()));
    fails(fixture.get(1, &mut new), libc::EBADF, "was closed");
    let pages = pages.map(Moved);
    std::thread::spawn(move || {
        for (number, mut page) in (1..).zip(pages) {
            assert!(holds(&page.0, number));
            well(release(&mut page.0));
        }
    })
    .join()
    .unwrap();
}

#[test]
fn f61_a_thread_that_has_used_a_file_keeps_it_neither_open_nor_in_memory() {
    if !apart("tests::caches::f61_a_thread_that_has_used_a_file_keeps_it_neither_open_nor_in_memory", &[]) {
        return;
    }
    let fixture = Fixture::new(16, RINGFILE_WHEN_PINNED_WAIT);
    let both = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut page = no_page();
            well(fixture.read_many(&[1], std::slice::from_mut(&mut page)));
            well(release(&mut page));
            assert_eq!(fixture.get(1, &mut page), 1);
            well(release(&mut page));
            both.wait();
            both.wait();
            fails(fixture.get(1, &mut page), libc::EBADF, "was closed");
        });
        both.wait();
        assert!(fixture.is_held_open());
        well(ringfile_cache_close(ptr::without_provenance_mut(fixture.cached)));
        assert_eq!(fixture.counts().bytes, 0, "its pages have left");
        assert!(!fixture.is_held_open());
        both.wait();
    });
}

#[test]
fn a_release_on_another_thread_lets_a_read_continue() {
    let fixture = Fixture::new(4, RINGFILE_WHEN_PINNED_WAIT);
    // With more and more time for the other thread to get to where it waits.
    for round in 0..100 {
        let mut pages = [(); 2].map(|()| no_page());
        well(fixture.read_many(&[0, 1], &mut pages));
        let mut pages = pages.map(Moved);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut page = no_page();
                well(fixture.read_many(&[2], std::slice::from_mut(&mut page)));
                assert!(holds(&page, 2));
                well(release(&mut page));
            });
            (0..10 * round).for_each(|_| std::thread::yield_now());
            pages.iter_mut().for_each(|page| assert_eq!(release(&mut page.0), 0));
        });
        assert_eq!(fixture.counts().pinned, 0);
    }
}

#[test]
fn a_forked_child_finds_pages_in_memory_and_waits_for_no_lock_of_its_parent() {
    let name = "tests::caches::a_forked_child_finds_pages_in_memory_and_waits_for_no_lock_of_its_parent";
    if !apart(name, &[]) {
        return;
    }
    let fixture = Fixture::new(64, RINGFILE_WHEN_PINNED_WAIT);
    let mut pages = [(); 2].map(|()| no_page());
    well(fixture.read_many(&[62, 63], &mut pages));
    // A file that no other thread uses: closing it drops the last of it.
    let unused = fixture.open(open(&fixture.folder.path().join("data"), RINGFILE_READ, 0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A thread that takes the cache's lock all the time, and replaces a page that is in use.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let mut one = no_page();
                for number in 0..48 {
                    well(fixture.read_many(&[number], std::slice::from_mut(&mut one)));
                    well(release(&mut one));
                }
                well(write(fixture.cached, 63, &[63; PAGE]));
            }
        });
        let forks = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..100 {
                in_a_child(|| {
                    let mut again = no_page();
                    assert_eq!(fixture.get(62, &mut again), 1);
                    assert!(holds(&again, 62) && holds(&pages[1], 63));
                    well(release(&mut again));
                    let refused = |result: i32| fails(result, libc::EOPNOTSUPP, "forked child");
                    let mut both = [(); 2].map(|()| no_page());
                    refused(fixture.read_many(&[62, 61], &mut both));
                    assert!(both.iter().all(is_empty));
                    refused(write(fixture.cached, 63, &[0; PAGE]));
                    refused(ringfile_cache_invalidate(ptr::without_provenance(fixture.cached), 0, 1));
                    refused(ringfile_cache_set_budget(fixture.cache(), 1 << 20));
                    // SAFETY: the pointer is to a local value.
                    refused(unsafe { ringfile_cache_metrics(fixture.cache(), ptr::null(), &mut counts()) });
                    // The child has its own copy of each.
                    for page in &pages {
                        well(release(&mut ringfile_cached_page { ..*page }));
                    }
                    for closed in [fixture.cached, unused] {
                        well(ringfile_cache_close(ptr::without_provenance_mut(closed)));
                    }
                    well(ringfile_cache_free(fixture.cache()));
                    well(ringfile_thread_release());
                    if std::env::var_os("RINGFILE_DISABLE").is_some() {
                        return; // plain calls would need a worker, see the header
                    }
                    // A cache of its own works.
                    let own = cache(1 << 20, RINGFILE_WHEN_PINNED_WAIT);
                    let path = fixture.folder.path().join("data");
                    let file = open(&path, RINGFILE_READ, RINGFILE_ROUTE_INLINE);
                    let mut cached = ptr::null_mut();
                    // SAFETY: the pointer is to a local value.
                    well(unsafe { ringfile_cache_open(own, file, PAGE, &mut cached) });
                    well(read_many(cached.addr(), &[5], std::slice::from_mut(&mut again)));
                    assert!(holds(&again, 5));
                    well(release(&mut again));
                });
            }
        }));
        over.store(true, Ordering::Relaxed);
        forks.unwrap();
    });
    pages.iter_mut().for_each(|page| assert_eq!(release(page), 0));
}

#[test]
fn f67_huge_pages_beyond_a_limit_are_an_error_of_pools_and_caches() {
    let limit = match HugePageLimit::new(8, 3) {
        Ok(limit) => limit,
        Err(why) => {
            return crate::skip::skip("f67_huge_pages_beyond_a_limit_are_an_error_of_pools_and_caches", why);
        }
    };
    in_a_child(|| {
        limit.enter();
        let (page, huge_pages) = (limit.page, RINGFILE_HUGE_PAGES_REQUIRE);
        let options = ringfile_cache_options { bytes: 8 * page, huge_pages, ..cache_options() };
        let mut cache = ptr::null_mut();
        // SAFETY: the pointers are to local values.
        fails(unsafe { ringfile_cache_create(&options, &mut cache) }, libc::ENOMEM, "control group");
        let options = ringfile_pool_options { capacity: 8 * page, huge_pages, ..pool_options() };
        let (mut pool, mut buffer) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: as above.
        unsafe {
            well(ringfile_pool_create(&options, &mut pool));
            fails(ringfile_buffer_get(pool, 4 * page, &mut buffer), libc::ENOMEM, "control group");
            well(ringfile_buffer_get(pool, page, &mut buffer));
        }
        well(ringfile_buffer_release(buffer));
        well(ringfile_pool_free(pool));
    });
}
