//! A run's job, and what its threads share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringfile::BufResult;
use ringfile::runtime::JoinError;

use super::content::{Content, Label};
use super::schedule::Timeline;
use super::segments::Store;
use crate::engine::raise;
use crate::error::Failure;
use crate::model::Memory;

/// The time for all threads to start before the first batch is due.
const LEAD: Duration = Duration::from_millis(20);

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
    /// Whether the page cache is dropped before each run.
    pub drop_caches: bool,
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
    /// The times of the run.
    pub timeline: Timeline,
    /// The source of segments.
    pub store: Arc<Store>,
    /// The content of blocks.
    pub content: Content,
    stop: AtomicBool,
    failure: Mutex<Option<Failure>>,
    written: AtomicU64,
    checked: AtomicU64,
}

impl Shared {
    /// Returns what threads share that use segments of a folder.
    pub fn new(job: &PoolJob, memory: Memory) -> Arc<Shared> {
        Shared::with(job, Store::new(&job.folder, memory, job.segment, job.size))
    }

    /// Returns what threads share that use these segments.
    pub fn with(job: &PoolJob, store: Arc<Store>) -> Arc<Shared> {
        Arc::new(Shared {
            timeline: Timeline::new(Instant::now() + LEAD, job.warmup, job.duration),
            store,
            content: Content::new(job.block as usize),
            job: job.clone(),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
            written: AtomicU64::new(0),
            checked: AtomicU64::new(0),
        })
    }

    /// Returns whether all threads are to end as soon as possible.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
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

    /// Ends all threads as soon as possible.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Takes the first failure.
    pub fn take_failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps the first failure, and ends all threads.
    pub fn fail(&self, failure: Failure) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        self.stop();
    }
}

/// Returns the outcome of an operation's task; continues its panic.
pub fn outcome_of<B>(joined: Result<BufResult<B>, JoinError>) -> BufResult<B> {
    joined.unwrap_or_else(|error| raise(error))
}
