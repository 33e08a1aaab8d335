//! A producer's log of messages: an appender with the pool's memory, which writes behind; otherwise one buffered write for
//! each batch.

use std::sync::{Arc, Weak};

use ringfile::{Appender, JoinHandle};

use super::memory::MemorySource;
use super::segments::Segment;
use super::shared::{PoolJob, Shared};
use crate::content::Label;
use crate::engine::raise;
use crate::error::{Failure, library};

/// Operations that an appender has in flight.
const DEPTH: usize = 4;

/// The log that one producer appends to.
#[derive(Debug, Default)]
pub struct Messages {
    /// The appender of the current segment.
    log: Option<(Arc<Segment>, Arc<Appender>)>,
    /// The end of the appender before, which is written while the current one is appended to. Its result is dropped with the
    /// current one's end: if the appenders of all segments that were not read kept memory, the pool would be used up, and
    /// producers and consumers would wait for it forever.
    last: Option<JoinHandle<ringfile::Result<Arc<Appender>>>>,
    /// The memory in which batches are made for a buffered write.
    scratch: Vec<u8>,
}

/// Returns the bytes of one write of the appender: a batch, with the block in which the one before it ended, since a group
/// that is one write needs no separate sync. A large batch is several writes.
fn write_bytes(job: &PoolJob) -> u64 {
    (job.batch_bytes().next_multiple_of(4096) + 4096).clamp(256 << 10, 4 << 20)
}

/// Returns the most memory of a pool that one producer's appender uses, with what it keeps for consumers and what those of
/// earlier segments had kept.
pub fn memory(job: &PoolJob) -> u64 {
    write_bytes(job) * (DEPTH as u64 + 2) + 3 * job.segment
}

impl Messages {
    /// Writes a batch, and waits until it can be read, or is durable. Returns the appender, if there is one, in whose memory
    /// consumers find it; once that is dropped, the batch is in the file.
    pub async fn write<S: MemorySource>(
        &mut self,
        shared: &Shared,
        source: &S,
        segment: &Arc<Segment>,
        first: Label,
    ) -> Result<Weak<Appender>, Failure> {
        let written = match source.pool() {
            Some(pool) => self.append(shared, pool, segment, first).await,
            None => self.write_whole(shared, segment, first).await.map(|()| Weak::new()),
        };
        let log = written.map_err(|error| library(&error))?;
        // The next segment has its own appender.
        if first.offset + 2 * shared.job.batch_bytes() > shared.job.segment {
            self.end_segment().await?;
        }
        Ok(log)
    }

    /// Lets the rest of the current segment be written, which is used again afterwards.
    async fn end_segment(&mut self) -> Result<(), Failure> {
        let last = self.log.take().map(|(segment, log)| {
            ringfile::spawn(async move {
                log.flush().await?;
                drop(segment);
                Ok(log)
            })
        });
        match std::mem::replace(&mut self.last, last) {
            None => Ok(()),
            Some(before) => {
                let written = before.await.unwrap_or_else(|error| raise(error));
                written.map(drop).map_err(|error| library(&error))
            }
        }
    }

    /// Waits until everything is written.
    pub async fn finish(&mut self) -> Result<(), Failure> {
        self.end_segment().await?;
        self.end_segment().await
    }

    async fn append(
        &mut self,
        shared: &Shared,
        pool: &ringfile::Pool,
        segment: &Arc<Segment>,
        first: Label,
    ) -> ringfile::Result<Weak<Appender>> {
        if self.log.as_ref().is_none_or(|(current, _)| !Arc::ptr_eq(current, segment)) {
            let open = Appender::open(segment.file(), pool, 0).recycle(true);
            let open = open.block(write_bytes(&shared.job) as usize).depth(DEPTH);
            let log = open.keep_tail(shared.job.segment as usize).await?;
            self.log = Some((segment.clone(), Arc::new(log)));
        }
        let (_, log) = self.log.as_ref().expect("it was opened above");
        for label in shared.job.labels(first) {
            log.append_with(shared.job.block as usize, |record| shared.content.fill(record, label)).await?;
        }
        if shared.job.sync {
            log.sync().await?;
        }
        Ok(Arc::downgrade(log))
    }

    async fn write_whole(
        &mut self,
        shared: &Shared,
        segment: &Segment,
        first: Label,
    ) -> ringfile::Result<()> {
        self.scratch.clear();
        for label in shared.job.labels(first) {
            shared.content.fill(&mut self.scratch, label);
        }
        let batch = std::mem::take(&mut self.scratch);
        self.scratch = segment.file().write_at(batch, first.offset).await?;
        if shared.job.sync { segment.file().sync_data().await } else { Ok(()) }
    }
}

/// Returns the range to read for a batch, whole blocks of direct I/O, as offset and length; and where the batch begins
/// in it.
pub fn around(job: &PoolJob, first: Label) -> (u64, usize, usize) {
    const BLOCK: u64 = 4096;
    let start = first.offset / BLOCK * BLOCK;
    let end = (first.offset + job.batch_bytes()).next_multiple_of(BLOCK);
    (start, (end - start) as usize, (first.offset - start) as usize)
}
