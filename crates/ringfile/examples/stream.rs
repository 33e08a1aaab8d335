//! Reads a file from front to back, with several reads in flight ahead: `cargo run --example stream [FILE]`.
//!
//! Counts lines. Each piece is a `bytes::Bytes` over pool memory, without a copy; it may be kept, cloned and sent to
//! other threads, and its memory goes back to the pool when the last clone is dropped.

use std::path::PathBuf;

use ringfile::{File, Pool};

fn main() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = match std::env::args_os().nth(1) {
        Some(path) => PathBuf::from(path),
        None => {
            let path = folder.path().join("lines.txt");
            std::fs::write(&path, "a line of text\n".repeat(100_000))?;
            path
        }
    };

    let pool = Pool::new(16 << 20);
    let file = File::open_blocking(&path)?;
    ringfile::block_on(async {
        let mut reader = file.reader(&pool).block(256 << 10).depth(8);
        let (mut bytes, mut lines) = (0, 0);
        while let Some(piece) = reader.next().await {
            let piece = piece?;
            bytes += piece.len();
            lines += piece.iter().filter(|&&byte| byte == b'\n').count();
        }
        println!("{bytes} bytes, {lines} lines");
        Ok(())
    })
}
