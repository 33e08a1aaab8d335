//! Buffered I/O that leaves nothing in the page cache, if the file system supports it.

use crate::support::cache::{cached_pages, drop_cache};
use crate::support::{Folder, assert_content, content, is_without_ring, skip, wait_for};
use ringfile::{Batch, File, OpenOptions, Pool, Route, block_on};

const LEN: usize = 4 << 20;

fn uncached(path: &std::path::Path, route: Route) -> File {
    OpenOptions::new().read(true).write(true).dont_cache(true).route(route).open_blocking(path).unwrap()
}

fn routes() -> Vec<Route> {
    let rings: &[Route] = if is_without_ring() { &[] } else { &[Route::Ring] };
    [&[Route::Auto, Route::Inline, Route::Workers], rings].concat()
}

#[test]
fn a_stream_leaves_no_pages_where_a_usual_one_does() {
    let folder = Folder::inside(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")));
    let path = folder.file("data", &content(0, LEN));
    for route in routes() {
        drop_cache(&path);
        assert_eq!(cached_pages(&path), 0, "the cache could not be dropped");
        let file = uncached(&path, route);
        let buffer = block_on(file.read_exact_at(Pool::new(8 << 20).get(LEN).unwrap(), 0)).unwrap();
        assert_content(&buffer, 0);
        if !file.is_uncached() {
            return skip("a_stream_leaves_no_pages", "this kernel or file system has no RWF_DONTCACHE");
        }
        let left = cached_pages(&path);
        assert!(left < LEN / 4096 / 4, "{left} pages were left by {route:?}");
    }
    let usual = File::open_blocking(&path).unwrap();
    // Otherwise the test cannot fail. The kernel may evict pages at any time.
    wait_for("the whole file in the cache", || {
        block_on(usual.read_exact_at(Vec::with_capacity(LEN), 0)).unwrap();
        cached_pages(&path) == LEN / 4096
    });
}

#[test]
fn a_file_system_without_uncached_io_caches_and_reports_it() {
    let folder = Folder::inside(std::path::Path::new("/dev/shm"));
    let path = folder.file("data", &content(0, LEN));
    for route in routes() {
        let file = uncached(&path, route);
        assert!(file.is_uncached(), "nothing was found out yet");
        // Many at once: each carries the flag, and each is retried.
        let mut batch = Batch::new();
        for i in 0..64 {
            batch.add(file.read_at(Vec::with_capacity(4096), i * 4096));
        }
        batch.add(file.write_at(content(0, 4096), 0));
        for (i, done) in batch.run().into_iter().enumerate() {
            assert_eq!(done.result.unwrap(), 4096, "{route:?}");
            assert_content(&done.buffer.unwrap(), (i as u64 % 64) * 4096);
        }
        assert!(!file.is_uncached(), "tmpfs has none");
    }
}

#[test]
fn direct_files_and_pipes_ignore_dont_cache() {
    let folder = Folder::inside(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")));
    let path = folder.file("data", &content(0, LEN));
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .direct(true)
        .buffered_fallback(true)
        .dont_cache(true)
        .open_blocking(&path)
        .unwrap();
    assert!(file.is_direct() && !file.is_uncached());
    assert_content(&block_on(file.read_at(Pool::new(1 << 20).get(4096).unwrap(), 0)).unwrap(), 0);
}
