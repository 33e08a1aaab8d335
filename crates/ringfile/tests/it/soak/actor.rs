//! An actor that awaits: it does at random what programs in an executor do, with its own pieces of the files, and
//! checks every byte.

use std::future::IntoFuture;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ringfile::fs::{Advice, AllocateMode};
use ringfile::{Batch, Buffer, IoBufMut, Pool};

use super::model::{OWNED, PAGE, Region, SCRATCH, assert_of_any_generation};
use crate::support::{Random, poll_once, yield_now};

/// The state that all actors share.
pub struct Shared {
    /// A pool that is large enough for all.
    pub pool: Pool,
    /// A pool that is too small for all, so it runs dry.
    pub dry: Pool,
    pub over: AtomicBool,
    pub steps: AtomicU64,
}

pub struct Actor {
    pub regions: Vec<Region>,
    pub random: Random,
    pub shared: Arc<Shared>,
}

/// Returns a run of pages that an actor owns.
pub fn run_of_pages(random: &mut Random, most: usize) -> std::ops::Range<usize> {
    let len = 1 + random.below(most as u64) as usize;
    let first = random.below((OWNED - len + 1) as u64) as usize;
    first..first + len
}

/// Returns any range of bytes in the pages that an actor owns.
fn any_bytes(region: &Region, random: &mut Random, most: usize) -> (u64, usize) {
    let bytes = region.bytes();
    let len = 1 + random.below(most as u64) as usize;
    (bytes.start + random.below(bytes.end - bytes.start - len as u64 + 1), len)
}

impl Actor {
    /// Acts until the round is over.
    pub async fn run(mut self) {
        while !self.shared.over.load(Ordering::Relaxed) {
            let mut region = {
                let number = self.random.below(self.regions.len() as u64) as usize;
                self.regions.swap_remove(number)
            };
            self.step(&mut region).await;
            self.regions.push(region);
            self.shared.steps.fetch_add(1, Ordering::Relaxed);
        }
        for region in &self.regions {
            let all = region.file.read_exact_at(vec![0; OWNED * PAGE], region.start).await.unwrap();
            region.assert(region.start, &all, "the last look");
        }
    }

    async fn step(&mut self, region: &mut Region) {
        match self.random.below(24) {
            0..5 => self.read(region).await,
            5..9 => self.write(region).await,
            9 | 10 => self.vectored(region).await,
            11..15 => self.batch(region).await,
            15 | 16 => self.drop_reads(region).await,
            17 => self.drop_writes(region).await,
            18 => self.drop_batch(region).await,
            19 => self.stream(region).await,
            20 => self.control(region).await,
            21 => self.run_dry(region).await,
            _ => self.many_reads(region).await,
        }
    }

    /// Takes a buffer from the pool that is too small, if it has one; sometimes waits for it, since this actor holds
    /// none meanwhile.
    async fn dry_buffer(&mut self, len: usize) -> Option<Buffer> {
        if self.random.below(2) == 0 {
            return self.shared.dry.get_async(len).await.ok();
        }
        self.shared.dry.get(len).ok()
    }

    /// Reads into all buffers that the small pool can provide.
    async fn run_dry(&mut self, region: &Region) {
        let buffers = std::iter::from_fn(|| self.shared.dry.get(PAGE).ok());
        let reads =
            buffers.take(OWNED).enumerate().map(|(i, buffer)| region.file.read_at(buffer, region.at(i)));
        let read = crate::support::all(reads.collect()).await;
        for (i, result) in read.into_iter().enumerate() {
            region.assert(region.at(i), &result.unwrap(), "a read into the small pool");
        }
    }

    async fn read(&mut self, region: &Region) {
        let (offset, len) = any_bytes(region, &mut self.random, 5 * PAGE);
        match self.random.below(3) {
            0 => {
                if let Some(buffer) = self.dry_buffer(len).await {
                    read_into(region, buffer, offset, len).await;
                }
            }
            1 => read_into(region, self.shared.pool.get(len).unwrap(), offset, len).await,
            _ => read_into(region, Vec::with_capacity(len), offset, len).await,
        }
    }

    async fn write(&mut self, region: &mut Region) {
        let pages = run_of_pages(&mut self.random, 8);
        let (offset, content) = (region.at(pages.start), region.renew(pages.clone()));
        let durable = self.random.below(30) == 0;
        let mut buffer = self.shared.pool.get(content.len()).unwrap();
        buffer.extend_from_slice(&content);
        if durable {
            region.file.write_durable_at(buffer, offset).await.unwrap();
        } else if region.file.is_direct() || self.random.below(2) == 0 {
            region.file.write_at(buffer, offset).await.unwrap();
        } else {
            region.file.write_at(content, offset).await.unwrap();
        }
        if self.random.below(2) == 0 {
            read_into(region, Vec::with_capacity(pages.len() * PAGE), offset, pages.len() * PAGE).await;
        }
    }

    async fn vectored(&mut self, region: &mut Region) {
        let pages = run_of_pages(&mut self.random, 8);
        let offset = region.at(pages.start);
        let content = region.renew(pages.clone());
        let parts = |content: &[u8]| -> Vec<Buffer> {
            let part = |page: &[u8]| {
                let mut buffer = self.shared.pool.get(PAGE).unwrap();
                buffer.extend_from_slice(page);
                buffer
            };
            content.chunks(PAGE).map(part).collect()
        };
        region.file.write_vectored_at(parts(&content), offset).await.unwrap();
        let rooms = pages.clone().map(|_| self.shared.pool.get(PAGE).unwrap()).collect();
        let read = region.file.read_exact_vectored_at(rooms, offset).await.unwrap();
        for (buffer, page) in read.iter().zip(pages) {
            assert_eq!(buffer.len(), PAGE);
            region.assert(region.at(page), buffer, "a vectored read");
        }
    }

    /// Writes, then syncs or allocates, with reads in between.
    async fn batch(&mut self, region: &mut Region) {
        let most = [1, 4, 128, 1000][self.random.below(4) as usize];
        let mut batch = Batch::new().depth(most);
        if self.random.below(3) == 0 {
            batch = batch.merge_reads(self.random.below(3 * PAGE as u64) as usize);
        }
        let half = OWNED / 2;
        let mut checks = Vec::new();
        for page in 0..half {
            if self.random.below(3) == 0 {
                let mut buffer = self.shared.pool.get(PAGE).unwrap();
                buffer.extend_from_slice(&region.renew(page..page + 1));
                batch.add(region.file.write_at(buffer, region.at(page)));
            }
            if self.random.below(3) == 0 {
                let offset = region.at(half + page);
                let index = batch.add(region.file.read_at(self.shared.pool.get(PAGE).unwrap(), offset));
                checks.push((index, offset));
            }
        }
        batch.barrier();
        if self.random.below(10) == 0 {
            batch.add(region.file.sync_data());
        }
        for page in 0..half {
            let offset = region.at(page);
            checks.push((batch.add(region.file.read_at(Vec::with_capacity(PAGE), offset)), offset));
        }
        let results = batch.await;
        for done in &results {
            assert!(done.result.is_ok(), "{}: {:?}", region.name, done.result);
        }
        for (index, offset) in checks {
            let bytes = results[index].buffer.as_ref().unwrap();
            assert_eq!(bytes.len(), PAGE);
            region.assert(offset, bytes, "a read of a batch");
        }
    }

    async fn many_reads(&mut self, region: &Region) {
        let places: Vec<_> = (0..40).map(|_| any_bytes(region, &mut self.random, 2 * PAGE)).collect();
        let reads = places
            .iter()
            .map(|&(offset, len)| region.file.read_at(self.shared.pool.get(len).unwrap(), offset));
        let read = crate::support::all(reads.collect()).await;
        for (result, (offset, len)) in read.into_iter().zip(places) {
            let buffer = result.unwrap();
            assert_eq!(buffer.len(), len, "{}", region.name);
            region.assert(offset, &buffer, "one read of many");
        }
    }

    async fn drop_reads(&mut self, region: &Region) {
        let count = 1 + self.random.below(20);
        let mut reads = Vec::new();
        for _ in 0..count {
            let (offset, len) = any_bytes(region, &mut self.random, 3 * PAGE);
            let mut read = Box::pin(region.file.read_at(self.shared.pool.get(len).unwrap(), offset));
            if poll_once(&mut read).await.is_pending() {
                reads.push((read, offset));
            }
        }
        for _ in 0..self.random.below(4) {
            yield_now().await;
        }
        for (read, offset) in reads {
            if self.random.below(2) == 0 {
                region.assert(offset, &read.await.unwrap(), "a read beside dropped ones");
            }
        }
    }

    async fn drop_writes(&mut self, region: &mut Region) {
        let page = self.random.below(SCRATCH as u64) as usize;
        for _ in 0..3 {
            let mut buffer = self.shared.pool.get(PAGE).unwrap();
            buffer.extend_from_slice(&region.scratch(page));
            let mut write = Box::pin(region.file.write_at(buffer, region.at(OWNED + page)));
            let _ = poll_once(&mut write).await;
        }
        let offset = region.at(OWNED);
        let bytes = region.file.read_exact_at(vec![0; SCRATCH * PAGE], offset).await.unwrap();
        assert_of_any_generation(region.seed, offset, &bytes, &region.name);
    }

    async fn drop_batch(&mut self, region: &Region) {
        let mut batch = Batch::new().depth(1 + self.random.below(20) as usize);
        for page in 0..OWNED {
            batch.add(region.file.read_at(self.shared.pool.get(PAGE).unwrap(), region.at(page)));
        }
        let mut run = batch.into_future();
        for _ in 0..1 + self.random.below(3) {
            if poll_once(&mut run).await.is_ready() {
                return;
            }
            yield_now().await;
        }
    }

    async fn stream(&mut self, region: &Region) {
        let block = PAGE * (1 + self.random.below(16) as usize);
        let depth = 1 + self.random.below(4) as usize;
        let mut reader =
            region.file.reader(&self.shared.pool).block(block).depth(depth).range(region.bytes());
        let (mut at, pieces) = (region.start, self.random.below(60));
        for _ in 0..pieces {
            let Some(piece) = reader.next().await else {
                return assert_eq!(at, region.bytes().end, "{}: the end of a stream", region.name);
            };
            let piece = piece.unwrap();
            region.assert(at, &piece, "a piece of a stream");
            at += piece.len() as u64;
        }
    }

    async fn control(&mut self, region: &mut Region) {
        let pages = run_of_pages(&mut self.random, 8);
        let (offset, len) = (region.at(pages.start), (pages.len() * PAGE) as u64);
        match self.random.below(5) {
            0 => region.file.sync_data().await.unwrap(),
            1 => region.file.sync_all().await.unwrap(),
            2 => region.file.advise(offset, len, Advice::DontNeed).await.unwrap(),
            3 => match region.file.allocate(AllocateMode::KeepSize, offset, len).await {
                Ok(()) => {}
                Err(error) => assert_eq!(error.errno(), Some(libc::EOPNOTSUPP), "{error}"),
            },
            _ => match region.file.allocate(AllocateMode::PunchHole, offset, len).await {
                Ok(()) => region.clear(pages),
                Err(error) => assert_eq!(error.errno(), Some(libc::EOPNOTSUPP), "{error}"),
            },
        }
    }
}

async fn read_into<B: IoBufMut + Deref<Target = [u8]>>(region: &Region, buffer: B, offset: u64, len: usize) {
    let read = region.file.read_at(buffer, offset).await.unwrap();
    assert_eq!(read.deref().len(), len, "{} at {offset}", region.name);
    region.assert(offset, &read, "a read");
}
