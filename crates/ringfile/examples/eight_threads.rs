//! A blocking program: eight plain threads share one file, without any executor: `cargo run --example eight_threads`.
//!
//! Each thread waits for its own reads with [`ringfile::block_on`], which gives the thread its own ring.

use std::thread;

use ringfile::{File, Pool};

const THREADS: u64 = 8;
const PAGE: u64 = 4096;
const PAGES: u64 = 4096;

fn main() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("pages.bin");
    let pages: Vec<u8> = (0..PAGES).flat_map(|page| vec![page as u8; PAGE as usize]).collect();
    std::fs::write(&path, pages)?;

    let (file, pool) = (File::open_blocking(&path)?, Pool::new(16 << 20));
    let sums = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (file, pool) = (&file, &pool);
                scope.spawn(move || sum(file, pool, thread))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect::<std::io::Result<Vec<u64>>>()
    })?;
    let right: u64 = (0..PAGES).map(|page| u64::from(page as u8)).sum();
    assert_eq!(sums.iter().sum::<u64>(), right);
    println!("{PAGES} pages read by {THREADS} threads: {} operations", ringfile::metrics().ops);
    Ok(())
}

/// Adds up the first bytes of every eighth page.
fn sum(file: &File, pool: &Pool, thread: u64) -> std::io::Result<u64> {
    let mut sum = 0;
    let mut page = pool.get(PAGE as usize)?;
    for number in (thread..PAGES).step_by(THREADS as usize) {
        page = ringfile::block_on(file.read_exact_at(page, number * PAGE))?;
        sum += u64::from(page[0]);
    }
    Ok(sum)
}
