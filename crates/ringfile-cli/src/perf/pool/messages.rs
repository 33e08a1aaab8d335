//! A producer's log of messages: an appender with the pool's memory, otherwise one buffered write for each batch.

use std::sync::Arc;

use ringfile::Appender;

use super::content::Label;
use super::memory::Source;
use super::run::{Job, Shared};
use super::segments::Segment;
use crate::error::{Failure, library};

/// Operations that an appender has in flight.
const DEPTH: usize = 4;

/// The log that one producer appends to.
#[derive(Debug, Default)]
pub struct Messages {
    /// The appender of the current segment.
    log: Option<(Arc<Segment>, Appender)>,
    /// The memory in which batches are made for a buffered write.
    scratch: Vec<u8>,
}

/// Returns the bytes of one write of the appender: a batch, with the block in which the one before it ended, since a group
/// that is one write needs no separate sync. A large batch is several writes.
fn write_bytes(job: &Job) -> u64 {
    (job.batch_bytes().next_multiple_of(4096) + 4096).clamp(256 << 10, 4 << 20)
}

/// Returns the most memory of a pool that one producer's appender uses.
pub fn memory(job: &Job) -> u64 {
    write_bytes(job) * (DEPTH as u64 + 2)
}

impl Messages {
    /// Writes a batch, and waits until it can be read, or is durable.
    pub async fn write<S: Source>(
        &mut self,
        shared: &Shared,
        source: &S,
        segment: &Arc<Segment>,
        first: Label,
    ) -> Result<(), Failure> {
        let job = &shared.job;
        let written = match source.pool() {
            Some(pool) => self.append(shared, pool, segment, first).await,
            None => self.write_whole(shared, segment, first).await,
        };
        written.map_err(|error| library(&error))?;
        // The next segment has its own appender, and this one's file is used again.
        if first.offset + 2 * job.batch_bytes() > job.segment
            && let Some((_, log)) = self.log.take()
        {
            log.close().await.map_err(|error| library(&error))?;
        }
        Ok(())
    }

    async fn append(
        &mut self,
        shared: &Shared,
        pool: &ringfile::Pool,
        segment: &Arc<Segment>,
        first: Label,
    ) -> ringfile::Result<()> {
        if self.log.as_ref().is_none_or(|(current, _)| !Arc::ptr_eq(current, segment)) {
            let open = Appender::open(segment.file(), pool, 0).recycle(true);
            let open = open.block(write_bytes(&shared.job) as usize).depth(DEPTH);
            self.log = Some((segment.clone(), open.await?));
        }
        let Some((_, log)) = &self.log else { return Ok(()) };
        for label in shared.job.labels(first) {
            log.append_with(shared.job.block as usize, |record| shared.content.fill(record, label)).await?;
        }
        if shared.job.sync { log.sync().await } else { log.flush().await }
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
pub fn around(job: &Job, first: Label) -> (u64, usize, usize) {
    const BLOCK: u64 = 4096;
    let start = first.offset / BLOCK * BLOCK;
    let end = (first.offset + job.batch_bytes()).next_multiple_of(BLOCK);
    (start, (end - start) as usize, (first.offset - start) as usize)
}
