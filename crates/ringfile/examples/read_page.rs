//! Reads 16 KiB with direct I/O into registered memory: `cargo run --example read_page [FILE]`.
//!
//! Without an argument it makes a file. If the file system has no direct I/O (tmpfs), the read is buffered.

use std::path::PathBuf;

use ringfile::{OpenOptions, Pool};

fn main() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = match std::env::args_os().nth(1) {
        Some(path) => PathBuf::from(path),
        None => {
            let path = folder.path().join("data.bin");
            std::fs::write(&path, vec![7; 2 << 20])?;
            path
        }
    };

    let pool = Pool::new(64 << 20);
    ringfile::block_on(async {
        let mut options = OpenOptions::new();
        let file = options.read(true).direct(true).buffered_fallback(true).open(&path).await?;
        let page = file.read_at(pool.get(16 << 10)?, 1 << 20).await?;
        println!("{} bytes, first {:?}", page.len(), &page[..page.len().min(8)]);
        let counts = ringfile::thread_metrics();
        println!("direct: {}, registered: {}", file.is_direct(), counts.fixed_ops == counts.ops);
        Ok(())
    })
}
