//! The operations that an appender has in flight. Each lane is a future that carries out one operation after another.
//!
//! A lane is allocated once and lives as long as the appender, so that an operation allocates nothing. It knows the
//! file and its jobs, not their purpose. Invariant: nothing is polled or woken under a lock.

use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use super::plan::AppendStep;
use crate::error::{Error, Result};
use crate::file::File;
use crate::lock::Lock;
use crate::memory::{Buffer, Pool};
use ringfile_buffer::internal::panics;

/// How many zeros a truncation writes at once.
const ZEROS: usize = 256 << 10;
/// The smallest size of a drive's sectors.
const SECTOR: usize = 512;

/// The job of a lane: a step, and the memory of what it writes.
pub(super) type Job = (AppendStep, Buffer);

/// The first bytes of the block in which a truncated file ends. Other steps have none.
pub(super) type Carried = Vec<u8>;

/// Where a lane finds its job and leaves the result.
type Desk = Lock<(Option<Job>, Option<Result<Carried>>)>;

struct AppendLane {
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    desk: Arc<Desk>,
    /// Whether it must be polled.
    woken: Arc<AtomicBool>,
    waker: Waker,
    /// The step whose job it has, until the result is taken.
    step: Option<AppendStep>,
}

/// All lanes of an appender. A task takes them out of the shared state to poll them.
pub(super) struct AppendLanes(Vec<AppendLane>);

async fn carry_out(file: &File, (step, buffer): Job) -> Result<Carried> {
    match step {
        AppendStep::Write { piece, durable: false } => drop(file.write_at(buffer, piece.start).await?),
        AppendStep::Write { piece, durable: true } => drop(file.write_durable_at(buffer, piece.start).await?),
        AppendStep::Sync => file.sync_data().await?,
        AppendStep::SyncAll => file.sync_all().await?,
        AppendStep::Cut(len) => file.set_len(len).await?,
        AppendStep::Truncate { len, zeros_to } => return truncate(file, len, zeros_to).await,
    }
    Ok(Vec::new())
}

/// Cuts the file at `len`, or overwrites everything from there to `zeros_to` with zeros, and makes that durable:
/// otherwise old records could follow new ones after a crash.
async fn truncate(file: &File, len: u64, zeros_to: Option<u64>) -> Result<Carried> {
    let block = file.alignment().bytes;
    let carried = read_block_before(file, len).await?;
    if let Some(end) = zeros_to {
        let (mut start, end) = (len - carried.len() as u64, end.next_multiple_of(block as u64));
        // Not the appender's pool, which may be full.
        let memory = Pool::builder().registered(false).capacity(2 * ZEROS.next_multiple_of(block)).build()?;
        let mut zeros = memory.get(ZEROS.next_multiple_of(block))?;
        zeros.extend_from_slice(&carried);
        // From the front, so that a reader never finds later records behind earlier ones. A power cut may lose any of the
        // writes since the last sync, and parts of them, but no part of a sector: the log then has one end or the other.
        let mut until = (len + 1).next_multiple_of(block.max(SECTOR) as u64).min(end);
        while start < end {
            zeros.resize(zeros.capacity().min(usize::try_from(until - start).unwrap_or(usize::MAX)), 0);
            let written = zeros.len() as u64;
            zeros = file.write_at(zeros, start).await?;
            zeros.clear();
            start += written;
            if start == until && until < end {
                file.sync_data().await?;
                until = end;
            }
        }
    } else {
        file.set_len(len).await?;
    }
    file.sync_all().await?;
    Ok(carried)
}

/// Reads the beginning of the block in which a log of this length ends.
pub(super) async fn read_block_before(file: &File, len: u64) -> Result<Carried> {
    match (len % file.alignment().bytes as u64) as usize {
        0 => Ok(Vec::new()),
        past => Ok(file.read_exact_at(Vec::with_capacity(past), len - past as u64).await?),
    }
}

async fn work(file: File, desk: Arc<Desk>) {
    loop {
        // Polled only when there is a job, so no task needs to be woken.
        let job = poll_fn(|_| desk.lock().0.take().map_or(Poll::Pending, Poll::Ready)).await;
        let result = carry_out(&file, job).await;
        desk.lock().1 = Some(result);
    }
}

impl AppendLanes {
    /// Creates idle lanes. `waker` makes the waker of one, which sets its flag.
    pub fn new(count: usize, file: &File, waker: impl Fn(Arc<AtomicBool>) -> Waker) -> Self {
        let lane = |_| {
            let desk = Arc::<Desk>::default();
            let woken = Arc::<AtomicBool>::default();
            let future = Box::pin(work(file.clone(), Arc::clone(&desk)));
            let waker = waker(Arc::clone(&woken));
            AppendLane { future, desk, woken, waker, step: None }
        };
        Self((0..count).map(lane).collect())
    }

    /// Gives the next job, if there is one, to an idle lane, if there is one. Returns whether there were both.
    pub fn give(&mut self, next: impl FnOnce() -> Option<Job>) -> bool {
        let Some(lane) = self.0.iter_mut().find(|lane| lane.step.is_none()) else { return false };
        let Some(job) = next() else { return false };
        lane.step = Some(job.0);
        lane.desk.lock().0 = Some(job);
        lane.woken.store(true, Ordering::SeqCst);
        true
    }

    /// Polls the lanes that were woken, and those with a new job.
    pub fn poll(&mut self) {
        for lane in &mut self.0 {
            if lane.step.is_none() || !lane.woken.swap(false, Ordering::SeqCst) {
                continue;
            }
            let mut context = Context::from_waker(&lane.waker);
            // A lane never ends. Only a defect of the library panics here, since a lane runs no code of a program: its
            // wakers are the appender's, and panics of a subscriber and of tasks that wait for memory end before. Then
            // the step has failed, other lanes end as usual, and what the step had in flight may still reach the file,
            // as when a process is killed.
            if panics::catch(|| lane.future.as_mut().poll(&mut context).is_ready()).is_err() {
                let spent = std::mem::replace(&mut lane.future, Box::pin(std::future::pending()));
                let _ = panics::catch(|| drop(spent));
                let error = Error::new(ErrorKind::Other, "writing").because("the write panicked");
                lane.desk.lock().1 = Some(Err(error));
            }
        }
    }

    /// Returns the steps that have ended since the last call.
    pub fn ended(&mut self) -> impl Iterator<Item = (AppendStep, Result<Carried>)> + '_ {
        self.0.iter_mut().filter_map(|lane| {
            let result = lane.desk.lock().1.take()?;
            Some((lane.step.take()?, result))
        })
    }

    /// Returns whether a lane must be polled again.
    pub fn is_woken(&self) -> bool {
        self.0.iter().any(|lane| lane.step.is_some() && lane.woken.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
impl AppendLanes {
    /// Makes an idle lane busy with a future of a test.
    pub fn occupy(&mut self, future: impl Future<Output = ()> + Send + 'static) {
        let lane = self.0.iter_mut().find(|lane| lane.step.is_none()).unwrap();
        let desk = Arc::clone(&lane.desk);
        lane.future = Box::pin(async move {
            future.await;
            desk.lock().1 = Some(Ok(Vec::new()));
            std::future::pending().await
        });
        lane.step = Some(AppendStep::Cut(0));
        self.stir();
    }

    pub fn stir(&mut self) {
        self.0.iter().for_each(|lane| lane.woken.store(true, Ordering::SeqCst));
    }
}
