//! A run's job, and what its threads share.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringfile::BufResult;
use ringfile::runtime::JoinError;

use super::segments::Store;
use crate::content::{Content, Label};
use crate::engine::raise;
use crate::model::Memory;

/// What a run does.
#[derive(Debug, Clone)]
pub struct PoolJob {
    /// The folder of the segments.
    pub folder: PathBuf,
    /// The most bytes of the disk that segments use at once.
    pub size: u64,
    /// Bytes of a segment: whole batches.
    pub segment: u64,
    /// Bytes of a block, or of a message.
    pub block: u64,
    /// Whether blocks are messages of a log.
    pub messages: bool,
    /// Whether a batch counts as written when it is durable.
    pub sync: bool,
    /// Blocks in a batch.
    pub batch: u32,
    /// Threads that write.
    pub producers: u32,
    /// Threads that read.
    pub consumers: u32,
    /// Bytes a second of each side: of all producers together, and of all consumers together.
    pub rate: Option<u64>,
    /// The warm-up before.
    pub warmup: Duration,
    /// The measured time.
    pub duration: Duration,
}

impl PoolJob {
    /// Returns the bytes of a batch.
    pub fn batch_bytes(&self) -> u64 {
        self.block * u64::from(self.batch)
    }

    /// Returns the labels of a batch's blocks.
    pub fn labels(&self, first: Label) -> impl Iterator<Item = Label> + use<> {
        let block = self.block;
        (0..u64::from(self.batch)).map(move |index| Label {
            number: first.number + index,
            offset: first.offset + index * block,
            ..first
        })
    }
}

/// What all threads of a run share.
#[derive(Debug)]
pub struct Shared {
    /// The job.
    pub job: PoolJob,
    /// The source of segments.
    pub store: Arc<Store>,
    /// The content of blocks.
    pub content: Content,
    written: AtomicU64,
    checked: AtomicU64,
}

impl Shared {
    /// Returns what threads share that use segments of a folder.
    pub fn new(job: &PoolJob, memory: Memory) -> Arc<Shared> {
        Arc::new(Shared {
            store: Store::new(&job.folder, memory, job.segment, job.size),
            content: Content::new(job.block as usize),
            job: job.clone(),
            written: AtomicU64::new(0),
            checked: AtomicU64::new(0),
        })
    }

    /// Counts written blocks.
    pub fn count_written(&self, blocks: u64) {
        self.written.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Counts blocks that were read and were right.
    pub fn count_checked(&self, blocks: u64) {
        self.checked.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Returns how many blocks were written.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Returns how many blocks were read and were right.
    pub fn checked(&self) -> u64 {
        self.checked.load(Ordering::Relaxed)
    }
}

/// Returns the outcome of an operation's task; continues its panic.
pub fn outcome_of<B>(joined: Result<BufResult<B>, JoinError>) -> BufResult<B> {
    joined.unwrap_or_else(|error| raise(error))
}
