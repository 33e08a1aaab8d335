//! Jobs: what a program awaits, and the result it must get. A job is a separate future, so one thread after another may
//! poll it, even without a wake-up, and another one may drop it.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::BytesMut;
use ringfile::fs::{Advice, AllocateMode};
use ringfile::{Buffer, IoBuf, IoBufMut, RegisteredMemory};

use super::World;
use super::model::{PAGE, Place, Reading, Writing};
use super::plan::Plan;
use super::tracked::{Lendable, Tracked};
use super::wakers;
use crate::support::{Random, all};

type Future = Pin<Box<dyn std::future::Future<Output = ()> + Send>>;

/// A future and what it must return; see the module.
pub struct Job {
    future: Future,
    /// Operations of a dropped job give its pages back when they have ended, so no page is lost for longer.
    pub may_be_dropped: bool,
}

impl std::future::Future for Job {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.future.as_mut().poll(context)
    }
}

impl Job {
    fn new(may_be_dropped: bool, future: impl std::future::Future<Output = ()> + Send + 'static) -> Self {
        Self { future: Box::pin(future), may_be_dropped }
    }

    /// Polls it with a waker that nobody else has. Returns whether it has ended.
    pub fn poll_alone(&mut self, world: &Arc<World>, random: &mut Random) -> bool {
        let waker = wakers::any(world, random);
        world.counts.polls.fetch_add(1, Ordering::Relaxed);
        Pin::new(self).poll(&mut Context::from_waker(&waker)).is_ready()
    }
}

/// Makes a job for one of the files; none if the pages that it would use are in use.
pub fn any(world: &Arc<World>, random: &mut Random) -> Option<Job> {
    let place = world.place(random);
    match random.below(16) {
        0..5 => read(world, place, random),
        5..8 => write(world, place, random),
        8 => read_vectored(world, place, random),
        9 => write_vectored(world, place, random),
        10..13 => batch(world, place, random),
        13 => stream(world, place, random),
        14 => control(place, random),
        _ => both(world, random),
    }
}

fn read(world: &Arc<World>, place: &Arc<Place>, random: &mut Random) -> Option<Job> {
    let claim = place.read(random, 5)?;
    let (offset, len) = claim.some(random);
    let exact = random.below(2) == 0;
    let kind = random.below(8);
    let (pool, small) = (world.pool.clone(), world.small.clone());
    let graves = Arc::clone(&world.graves);
    Some(Job::new(true, async move {
        match kind {
            0 => read_into(claim, small.get_async(len).await.unwrap(), offset, exact).await,
            1 => read_into(claim, Vec::with_capacity(len), offset, exact).await,
            2 => read_into(claim, Tracked::new(Vec::with_capacity(len), None, &graves), offset, exact).await,
            3 => read_into(claim, vec![0; len].into_boxed_slice(), offset, exact).await,
            4 => read_into(claim, BytesMut::with_capacity(len), offset, exact).await,
            5 => {
                // The read's buffer is the only reference to this memory.
                let memory = RegisteredMemory::new(Lendable::new(len + 100, &graves));
                let lent = memory.lend(100..).unwrap();
                drop(memory);
                read_into(claim, lent, offset, exact).await;
            }
            _ => read_into(claim, pool.get(len).unwrap(), offset, exact).await,
        }
    }))
}

async fn read_into<B: IoBufMut + AsRef<[u8]>>(claim: Reading, buffer: B, offset: u64, exact: bool) {
    let wanted = buffer.capacity();
    let file = &claim.place.file;
    let read = match exact {
        true => file.read_exact_at(buffer, offset).await,
        false => file.read_at(buffer, offset).await,
    };
    let read = read.unwrap_or_else(|error| panic!("{}: {error}", claim.place.name));
    assert_eq!(read.as_ref().len(), wanted);
    claim.assert(offset, read.as_ref(), "a read");
}

fn in_pool(world: &World, content: &[u8]) -> Buffer {
    let mut buffer = world.pool.get(content.len()).unwrap();
    buffer.extend_from_slice(content);
    buffer
}

fn write(world: &Arc<World>, place: &Arc<Place>, random: &mut Random) -> Option<Job> {
    let mut claim = place.write(random, 4)?;
    let content = claim.content();
    let durable = random.below(200) == 0;
    // Other memory is not aligned, and does not report its drop.
    let kind = if place.file.is_direct() { random.below(2) } else { random.below(5) };
    Some(match kind {
        0 => Job::new(false, write_from(claim, in_pool(world, &content), durable)),
        1 => {
            // Others may still read it while it is being written.
            let bytes = in_pool(world, &content).freeze();
            let other = bytes.clone();
            Job::new(false, async move {
                write_from(claim, bytes, durable).await;
                assert!(other == content, "what was written has changed");
            })
        }
        2 => Job::new(false, write_from(claim, content, durable)),
        _ => {
            let memory = Tracked::new(content, Some(claim.track()), &world.graves);
            Job::new(true, write_from(claim, memory, durable))
        }
    })
}

async fn write_from<B: IoBuf>(claim: Writing, buffer: B, durable: bool) {
    let place = Arc::clone(claim.place());
    let wanted = buffer.len();
    let written = match durable {
        true => place.file.write_durable_at(buffer, claim.offset()).await,
        false => place.file.write_at(buffer, claim.offset()).await,
    };
    let written = written.unwrap_or_else(|error| panic!("{}: {error}", place.name));
    assert_eq!(IoBuf::len(&written), wanted);
    read_back(claim.into_reading()).await;
}

async fn read_back(claim: Reading) {
    let bytes = claim.bytes();
    let all = Vec::with_capacity((bytes.end - bytes.start) as usize);
    let read = claim.place.file.read_exact_at(all, bytes.start).await.unwrap();
    claim.assert(bytes.start, &read, "what was just written");
}

fn read_vectored(world: &Arc<World>, place: &Arc<Place>, random: &mut Random) -> Option<Job> {
    let claim = place.read(random, 6)?;
    let bytes = claim.bytes();
    let mut parts = Vec::new();
    let (mut left, mut at) = ((bytes.end - bytes.start) as usize, bytes.start);
    while left > 0 {
        let most = if random.below(2) == 0 { PAGE } else { 1 + random.below(left as u64) as usize };
        let len = if random.below(10) == 0 { 0 } else { most.min(left) };
        parts.push(world.pool.get(len).unwrap());
        left -= len;
    }
    Some(Job::new(true, async move {
        let read = claim.place.file.read_exact_vectored_at(parts, at).await.unwrap();
        for part in read {
            assert_eq!(part.len(), part.capacity());
            claim.assert(at, &part, "a vectored read");
            at += part.len() as u64;
        }
    }))
}

fn write_vectored(world: &Arc<World>, place: &Arc<Place>, random: &mut Random) -> Option<Job> {
    let claim = place.write(random, 6)?;
    let parts: Vec<Buffer> = claim.content().chunks(PAGE).map(|part| in_pool(world, part)).collect();
    Some(Job::new(false, async move {
        let place = Arc::clone(claim.place());
        place.file.write_vectored_at(parts, claim.offset()).await.unwrap();
        read_back(claim.into_reading()).await;
    }))
}

fn batch(world: &Arc<World>, place: &Arc<Place>, random: &mut Random) -> Option<Job> {
    let (plan, batch) = Plan::new(world, place, random);
    let may_be_dropped = !plan.writes();
    Some(Job::new(may_be_dropped, async move { plan.assert(batch.into_future().await) }))
}

/// Reads the pages in order, with a reader whose pool may be full.
fn stream(world: &Arc<World>, place: &Arc<Place>, random: &mut Random) -> Option<Job> {
    let claim = place.read(random, 24)?;
    let (start, len) = claim.some(random);
    let pool = if random.below(4) == 0 { &world.small } else { &world.pool };
    let block = PAGE * (1 + random.below(4) as usize) - random.below(2) as usize;
    let depth = 1 + random.below(4) as usize;
    let mut reader = place.file.reader(pool).block(block).depth(depth).range(start..start + len as u64);
    let most = if random.below(3) == 0 { random.below(6) } else { u64::MAX };
    Some(Job::new(true, async move {
        let (mut at, mut pieces) = (start, 0);
        while pieces < most {
            let Some(piece) = reader.next().await else {
                return assert_eq!(at, start + len as u64, "{}: the end of a stream", claim.place.name);
            };
            let piece = piece.unwrap();
            claim.assert(at, &piece, "a piece of a stream");
            (at, pieces) = (at + piece.len() as u64, pieces + 1);
        }
    }))
}

fn control(place: &Arc<Place>, random: &mut Random) -> Option<Job> {
    match random.below(30) {
        0 => {
            let (place, all) = (Arc::clone(place), random.below(2) == 0);
            let sync = async move {
                match all {
                    true => place.file.sync_all().await.unwrap(),
                    false => place.file.sync_data().await.unwrap(),
                }
            };
            Some(Job::new(true, sync))
        }
        1..10 => {
            let claim = place.read(random, 8)?;
            let advise = async move {
                let bytes = claim.bytes();
                let len = bytes.end - bytes.start;
                claim.place.file.advise(bytes.start, len, Advice::DontNeed).await.unwrap();
            };
            Some(Job::new(true, advise))
        }
        _ => {
            let claim = place.clear(random, 4)?;
            let punch = async move {
                let place = Arc::clone(claim.place());
                let len = claim.len() as u64;
                match place.file.allocate(AllocateMode::PunchHole, claim.offset(), len).await {
                    Ok(()) => drop(claim.into_reading()),
                    Err(error) => {
                        assert_eq!(error.errno(), Some(libc::EOPNOTSUPP), "{error}");
                        claim.undo();
                    }
                }
            };
            Some(Job::new(false, punch))
        }
    }
}

/// Several jobs, each polled whenever one is woken, until all have ended or the first one has.
fn both(world: &Arc<World>, random: &mut Random) -> Option<Job> {
    let mut jobs: Vec<Job> = (0..2 + random.below(3)).filter_map(|_| any(world, random)).collect();
    if jobs.is_empty() {
        return None;
    }
    let may_be_dropped = jobs.iter().all(|job| job.may_be_dropped);
    if may_be_dropped && random.below(3) == 0 {
        return Some(Job::new(true, async move {
            std::future::poll_fn(|context| {
                let over = jobs.iter_mut().any(|job| Pin::new(job).poll(context).is_ready());
                if over { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }));
    }
    Some(Job::new(may_be_dropped, async move {
        all(jobs).await;
    }))
}
