//! Reads 12,000 random ranges of a file, 128 at a time, in tokio: `cargo run --release --features tokio --example
//! ranges_in_tokio -- FILE [BYTES]`. BYTES of a range are 128 KiB if it does not say.
//!
//! Run it twice: the first time the file is on the disk only (`echo 1 > /proc/sys/vm/drop_caches`), then much of it is in
//! the page cache. `adaptive(true)` is the only setting: what is cached is copied, what is not is read past the cache, and
//! what is read again goes into it. Without FILE it makes one of 64 MiB.

use std::path::PathBuf;
use std::time::Instant;

use ringfile::{File, OpenOptions, Pool};

#[tokio::main(worker_threads = 2)]
async fn main() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().map_or_else(|| folder.path().join("ranges"), PathBuf::from);
    let bytes: usize =
        arguments.next().map_or(Ok(128 << 10), |bytes| bytes.parse()).map_err(std::io::Error::other)?;
    if path.starts_with(&folder) {
        std::fs::write(&path, vec![7; 64 << 20])?;
    }

    let (file, pool) = (OpenOptions::new().read(true).adaptive(true).open(&path).await?, Pool::new(64 << 20));
    let (blocks, began) = (file.size()? / bytes as u64, Instant::now());
    let tasks = (0..128).map(|task| tokio::spawn(read_some(file.clone(), pool.clone(), task, blocks, bytes)));
    let mut total = 0;
    for task in tasks.collect::<Vec<_>>() {
        total += task.await??;
    }
    println!("{total} bytes in {:.3} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// Reads 94 ranges, one after the other; returns how many bytes that were.
async fn read_some(file: File, pool: Pool, task: u64, blocks: u64, bytes: usize) -> std::io::Result<usize> {
    let mut total = 0;
    for number in task * 94..(task + 1) * 94 {
        let block = (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % blocks.max(1);
        total += file.read_exact_at(pool.get(bytes)?, block * bytes as u64).await?.len();
    }
    Ok(total)
}
