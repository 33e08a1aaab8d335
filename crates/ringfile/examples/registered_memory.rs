//! A database's own page cache as registered memory: `cargo run --example registered_memory [FILE]`.
//!
//! The cache allocates its pages as before. One call registers them, and then every read or write of a page works in
//! place, as a fixed operation.

use std::path::PathBuf;

use ringfile::{Buffer, File, RegisteredMemory};

const PAGE: usize = 8192;

/// Frames of one page each, in memory that the cache has allocated.
struct PageCache {
    frames: RegisteredMemory,
}

impl PageCache {
    fn new(pages: usize) -> Self {
        Self { frames: RegisteredMemory::new(vec![0_u8; pages * PAGE]) }
    }

    /// Reads page `number` of the file into a frame. The frame is lent until the buffer is dropped.
    async fn load(&self, file: &File, number: u64, frame: usize) -> std::io::Result<Buffer> {
        let memory = self.frames.lend(frame * PAGE..(frame + 1) * PAGE)?;
        Ok(file.read_at(memory, number * PAGE as u64).await?)
    }
}

fn main() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = match std::env::args_os().nth(1) {
        Some(path) => PathBuf::from(path),
        None => {
            let path = folder.path().join("data.bin");
            let pages: Vec<u8> = (0..4_u8).flat_map(|number| [number; PAGE]).collect();
            std::fs::write(&path, pages)?;
            path
        }
    };

    let cache = PageCache::new(64);
    let file = File::open_blocking(&path)?;
    ringfile::block_on(async {
        let page = cache.load(&file, 2, 0).await?;
        println!("page 2: {} bytes, first {:?}", page.len(), page.first());
        match cache.frames.lend(..1) {
            Err(error) => println!("while it is lent: {error}"),
            Ok(_) => println!("frame 0 was lent twice"),
        }
        drop(page);
        println!("lent after the drop: {} bytes", cache.frames.lent());
        let counts = ringfile::thread_metrics();
        println!("{} operation(s), {} on registered memory", counts.ops, counts.fixed_ops);
        Ok(())
    })
}
