//! The caches over direct files: each holds blocks of one file, as many as fit its bytes, and reads those that it
//! misses.
//!
//! All but ringfile's hold `Bytes` that were read into registered memory of a pool, so that no side copies.

use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use foyer_memory::{CacheBuilder, LfuConfig};
use quick_cache::{DefaultHashBuilder, Weighter, sync};
use ringfile::{File, OpenOptions, Pool};
use ringfile_cache::{CachedFile, Page};

use crate::job::{Job, Stream, Tally};

/// What the caches may use beyond their bytes for reads in flight, and until they have evicted enough (moka evicts
/// later). All of a pool's memory is resident, since it is registered.
const SLACK: usize = 8 << 20;

/// A cache of the blocks of one file.
pub trait Cache: Clone + 'static {
    type Block: Deref<Target = [u8]>;

    /// Returns a block that is in the cache.
    fn get(&self, block: u64) -> Option<Self::Block>;

    /// Returns a block, and reads it if it is not in the cache.
    async fn read(&self, block: u64) -> io::Result<Self::Block>;

    /// Forgets all blocks.
    fn empty(&self);
}

/// Where blocks come from that are not in a cache.
#[derive(Clone)]
struct Source {
    file: File,
    pool: Pool,
    block: usize,
}

impl Source {
    fn open(path: &Path, block: usize, bytes: usize) -> io::Result<Source> {
        let file = OpenOptions::new().read(true).direct(true).open_blocking(path)?;
        Ok(Source { file, pool: Pool::new(bytes + SLACK), block })
    }

    async fn read(&self, block: u64) -> io::Result<Bytes> {
        let buffer = self.pool.get(self.block)?;
        Ok(self.file.read_exact_at(buffer, block * self.block as u64).await?.freeze())
    }
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<u64, Bytes> for ByBytes {
    fn weight(&self, _block: &u64, bytes: &Bytes) -> u64 {
        bytes.len() as u64
    }
}

/// quick_cache: misses are shared.
#[derive(Clone)]
pub struct Quick {
    cache: Arc<sync::Cache<u64, Bytes, ByBytes>>,
    source: Source,
}

impl Quick {
    pub fn open(path: &Path, block: usize, bytes: usize) -> io::Result<Quick> {
        let cache = sync::Cache::with_weighter(bytes / block, bytes as u64, ByBytes);
        Ok(Quick { cache: Arc::new(cache), source: Source::open(path, block, bytes)? })
    }
}

impl Cache for Quick {
    type Block = Bytes;

    #[inline]
    fn get(&self, block: u64) -> Option<Bytes> {
        self.cache.get(&block)
    }

    async fn read(&self, block: u64) -> io::Result<Bytes> {
        self.cache.get_or_insert_async(&block, self.source.read(block)).await
    }

    fn empty(&self) {
        self.cache.clear();
    }
}

/// moka: misses are shared. It hashes as quick_cache does, which is quicker than its default.
#[derive(Clone)]
pub struct Moka {
    cache: moka::future::Cache<u64, Bytes, DefaultHashBuilder>,
    source: Source,
}

impl Moka {
    pub fn open(path: &Path, block: usize, bytes: usize) -> io::Result<Moka> {
        let cache = moka::future::Cache::builder().max_capacity(bytes as u64);
        let cache = cache.weigher(|_: &u64, bytes: &Bytes| bytes.len() as u32);
        let cache = cache.build_with_hasher(DefaultHashBuilder::default());
        Ok(Moka { cache, source: Source::open(path, block, bytes)? })
    }
}

impl Cache for Moka {
    type Block = Bytes;

    fn get(&self, _block: u64) -> Option<Bytes> {
        // Only an awaited call looks it up.
        None
    }

    async fn read(&self, block: u64) -> io::Result<Bytes> {
        let read = self.cache.try_get_with(block, self.source.read(block)).await;
        read.map_err(|error| io::Error::new(error.kind(), error.to_string()))
    }

    fn empty(&self) {
        self.cache.invalidate_all();
    }
}

/// foyer-memory with LFU. It would share misses only by spawning each read in tokio; so they are not shared.
#[derive(Clone)]
pub struct Foyer {
    cache: foyer_memory::Cache<u64, Bytes>,
    source: Source,
}

impl Foyer {
    pub fn open(path: &Path, block: usize, bytes: usize) -> io::Result<Foyer> {
        let cache = CacheBuilder::new(bytes).with_eviction_config(LfuConfig::default());
        let cache = cache.with_weighter(|_: &u64, bytes: &Bytes| bytes.len()).build();
        Ok(Foyer { cache, source: Source::open(path, block, bytes)? })
    }
}

impl Cache for Foyer {
    type Block = Bytes;

    fn get(&self, block: u64) -> Option<Bytes> {
        self.cache.get(&block).map(|entry| entry.value().clone())
    }

    async fn read(&self, block: u64) -> io::Result<Bytes> {
        if let Some(bytes) = self.get(block) {
            return Ok(bytes);
        }
        let bytes = self.source.read(block).await?;
        self.cache.insert(block, bytes.clone());
        Ok(bytes)
    }

    fn empty(&self) {
        self.cache.clear();
    }
}

/// ringfile's page cache: misses are shared.
#[derive(Clone)]
pub struct Own(CachedFile);

impl Own {
    pub fn open(path: &Path, block: usize, bytes: usize) -> io::Result<Own> {
        let cache = ringfile_cache::Cache::new(bytes)?;
        let file = OpenOptions::new().read(true).direct(true).open_blocking(path)?;
        Ok(Own(cache.open(file, block)?))
    }
}

impl Cache for Own {
    type Block = Page;

    #[inline]
    fn get(&self, block: u64) -> Option<Page> {
        self.0.get(block)
    }

    async fn read(&self, block: u64) -> io::Result<Page> {
        self.0.read(block).await
    }

    fn empty(&self) {
        self.0.invalidate(0..u64::MAX);
    }
}

/// Reads a job's blocks with as many tasks as it has reads in flight.
pub async fn read_all(cache: &impl Cache, job: &Job) -> io::Result<Tally> {
    let window = job.start();
    let task = |task| ringfile::spawn(read_task(cache.clone(), job.block, window.stream(task)));
    let mut tallies = Vec::with_capacity(job.depth);
    for task in (0..job.depth).map(task).collect::<Vec<_>>() {
        tallies.push(task.await.map_err(|error| io::Error::other(error.to_string()))?);
    }
    Tally::sum(tallies)
}

async fn read_task(cache: impl Cache, block: usize, mut stream: Stream) -> io::Result<Tally> {
    while let Some(offset) = stream.next() {
        let bytes = cache.read(offset / block as u64).await?;
        stream.done(&bytes)?;
    }
    Ok(stream.into_tally())
}
