//! Reads that wait for memory while other threads take and drop the pages that have it.

use std::hint::spin_loop;
use std::io;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ringfile::{OpenOptions, block_on};
use ringfile_cache::Cache;

const PAGE: usize = 4096;

#[test]
fn a_read_gets_memory_although_a_page_is_taken_while_it_looks() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("file");
    std::fs::write(&path, (0..8).flat_map(|page| [page; PAGE]).collect::<Vec<u8>>())?;
    let mut options = OpenOptions::new();
    options.read(true).direct(true).buffered_fallback(true);
    let cache = Cache::new(PAGE)?;
    let pages = cache.open(options.open_blocking(path)?, PAGE)?;
    for round in 0..200 {
        drop(block_on(pages.read(0))?);
        let begin = Barrier::new(2);
        let (sender, read) = channel();
        let other = pages.clone();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                let end = Instant::now() + Duration::from_millis(20);
                while Instant::now() < end {
                    let Some(page) = pages.get(0) else { break };
                    // The page is in use most of the time.
                    (0..round * 10).for_each(|_| spin_loop());
                    assert_eq!(page[7], 0);
                }
            });
            begin.wait();
            // Not of the scope: it may wait for ever.
            std::thread::spawn(move || sender.send(block_on(other.read(1)).map(|page| page[7])));
        });
        // Nobody uses a page any more.
        let read = read.recv_timeout(Duration::from_secs(5));
        assert_eq!(read.ok().and_then(Result::ok), Some(1), "round {round}");
    }
    Ok(())
}
