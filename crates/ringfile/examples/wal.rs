//! A tiny write-ahead log: `cargo run --example wal [FILE]` appends two batches, then replays the log.
//!
//! A batch is one block: the length of its data (0: the end of the log), then the data. Once `append` has returned, the
//! batch survives a crash, because `write_durable_at` ends when the data is on stable storage. A new log is
//! filled with zeros first: a durable write to space that was only allocated waits for the file system's journal. A real
//! log adds a checksum, since a torn block must not be replayed.

use std::path::{Path, PathBuf};

use ringfile::fs::AllocateMode;
use ringfile::{Buffer, File, OpenOptions, Pool};

const BLOCK: usize = 4096;
const SPACE: u64 = 1 << 20;

struct Log {
    file: File,
    pool: Pool,
    end: u64,
}

impl Log {
    /// Opens or creates a log; [`next`](Self::next) returns what is in it.
    async fn open(path: &Path, pool: Pool) -> std::io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).direct(true).buffered_fallback(true);
        let file = options.open(path).await?;
        if file.size()? < SPACE {
            file.allocate(AllocateMode::Written, 0, SPACE).await?;
        }
        file.sync_all().await?;
        // The file's entry in its folder is as important as its content.
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            ringfile::fs::sync_dir(folder).await?;
        }
        Ok(Self { file, pool, end: 0 })
    }

    /// Returns the data of the next batch; `None` at the end of the log, where `append` continues.
    async fn next(&mut self) -> std::io::Result<Option<Buffer>> {
        if self.end == SPACE {
            return Ok(None);
        }
        let mut block = self.file.read_exact_at(self.pool.get(BLOCK)?, self.end).await?;
        let data = block.split_off(4);
        let len = u32::from_le_bytes([block[0], block[1], block[2], block[3]]) as usize;
        if len == 0 {
            return Ok(None);
        }
        if len > data.len() {
            let what = format!("the block at {} is damaged: {len} bytes of data", self.end);
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what));
        }
        self.end += BLOCK as u64;
        let mut data = data;
        data.truncate(len);
        Ok(Some(data))
    }

    /// Appends a batch; it is durable when this returns.
    async fn append(&mut self, data: &[u8]) -> std::io::Result<()> {
        if self.end == SPACE || data.is_empty() || data.len() > BLOCK - 4 {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "the log is full, or the batch",
            ));
        }
        let mut block = self.pool.get(BLOCK)?;
        block.extend_from_slice(&(data.len() as u32).to_le_bytes());
        block.extend_from_slice(data);
        block.resize(BLOCK, 0);
        self.file.write_durable_at(block, self.end).await?;
        self.end += BLOCK as u64;
        Ok(())
    }
}

fn main() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map_or_else(|| folder.path().join("example.wal"), PathBuf::from);
    ringfile::block_on(async {
        let pool = Pool::new(1 << 20);
        let mut log = Log::open(&path, pool.clone()).await?;
        while log.next().await?.is_some() {}
        log.append(b"set a = 1").await?;
        log.append(b"set b = 2").await?;
        drop(log);

        let mut log = Log::open(&path, pool).await?;
        while let Some(batch) = log.next().await? {
            println!("{}", String::from_utf8_lossy(&batch));
        }
        Ok(())
    })
}
