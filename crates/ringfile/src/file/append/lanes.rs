//! The operations that an appender has in flight. Each lane is a future that carries out one operation after another.
//!
//! A lane is allocated once and lives as long as the appender, so that an operation allocates nothing. It knows the
//! file and its jobs, not their purpose. Invariant: nothing is polled or woken under a lock.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use super::pause::Pause;
use super::plan::Step;
use super::shared::Shared;
use crate::error::{BufError, Result};
use crate::file::File;
use crate::memory::Buffer;

/// The job of a lane: a step, and the memory of what it writes.
pub(super) type Job = (Step, Buffer);

/// Where a lane finds its job and leaves the result.
#[derive(Default)]
struct Desk(Mutex<(Option<Job>, Option<Result<()>>)>);

impl Desk {
    fn lock(&self) -> MutexGuard<'_, (Option<Job>, Option<Result<()>>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the tasks that wait for the appender, and records which lane to poll.
struct LaneWaker {
    shared: Weak<Shared>,
    woken: AtomicBool,
}

impl Wake for LaneWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Stored before `stirred` takes its lock: the task that has the lanes reads it after taking that lock.
        self.woken.store(true, Ordering::SeqCst);
        if let Some(shared) = self.shared.upgrade() {
            shared.stirred();
        }
    }
}

struct Lane {
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    desk: Arc<Desk>,
    wake: Arc<LaneWaker>,
    waker: Waker,
    /// The step whose job it has, until the result is taken.
    step: Option<Step>,
}

/// All lanes of an appender. A task takes them out of the shared state to poll them.
pub(super) struct Lanes {
    /// One for each operation that may be in flight.
    operations: Vec<Lane>,
    /// For pauses between syncs.
    pause: Option<(Pause, Lane)>,
}

impl Lane {
    fn new<F>(shared: &Weak<Shared>, work: impl FnOnce(Arc<Desk>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let desk = Arc::<Desk>::default();
        let wake = Arc::new(LaneWaker { shared: shared.clone(), woken: AtomicBool::new(false) });
        let future = Box::pin(work(Arc::clone(&desk)));
        let waker = Waker::from(Arc::clone(&wake));
        Self { future, desk, wake, waker, step: None }
    }

    fn give(&mut self, job: Job) {
        self.step = Some(job.0);
        self.desk.lock().0 = Some(job);
        self.wake.woken.store(true, Ordering::SeqCst);
    }
}

async fn carry_out(file: &File, (step, buffer): Job) -> Result<()> {
    match step {
        Step::Full(piece) | Step::Rest { piece, durable: false } => {
            drop(file.write_at(buffer, piece.start).await?);
        }
        Step::Rest { piece, durable: true } => drop(file.write_durable_at(buffer, piece.start).await?),
        Step::Sync => file.sync_data().await?,
        Step::SyncAll => file.sync_all().await?,
        Step::Cut(len) => file.set_len(len).await?,
        Step::Pause => {}
    }
    Ok(())
}

/// Waits for a job. Polled only when there is one, so no task needs to be woken.
async fn next_job(desk: &Desk) -> Job {
    poll_fn(|_| desk.lock().0.take().map_or(Poll::Pending, Poll::Ready)).await
}

async fn work(file: File, desk: Arc<Desk>) {
    loop {
        let result = carry_out(&file, next_job(&desk).await).await;
        desk.lock().1 = Some(result);
    }
}

/// Waits for the timer in each pause. A pause also ends when the loop that reads the timer is left, which cancels the
/// read: a sync that comes early does no harm.
async fn pause(timer: File, desk: Arc<Desk>) {
    let mut buffer = vec![0; 8];
    loop {
        next_job(&desk).await;
        buffer = timer.read_at(buffer, 0).await.unwrap_or_else(BufError::into_buffer);
        desk.lock().1 = Some(Ok(()));
    }
}

impl Lanes {
    pub fn new(count: usize, file: &File, pause_of: Option<Pause>, shared: &Weak<Shared>) -> Self {
        let operations = (0..count).map(|_| Lane::new(shared, |desk| work(file.clone(), desk))).collect();
        let pause = pause_of.map(|times| {
            let timer = times.timer().clone();
            (times, Lane::new(shared, |desk| pause(timer, desk)))
        });
        Self { operations, pause }
    }

    pub fn has_idle(&self) -> bool {
        self.operations.iter().any(|lane| lane.step.is_none())
    }

    /// Gives a job to an idle lane. There must be one.
    pub fn give(&mut self, job: Job) {
        if let Some((pause, _)) = &mut self.pause
            && job.0.is_sync()
        {
            pause.sync_starts();
        }
        let idle = self.operations.iter_mut().find(|lane| lane.step.is_none());
        debug_assert!(idle.is_some(), "the caller has checked");
        if let Some(lane) = idle {
            lane.give(job);
        }
    }

    /// Begins a pause. Returns false if it is over already.
    pub fn pause(&mut self) -> bool {
        let Some((_, lane)) = self.pause.as_mut().filter(|(pause, _)| pause.begin()) else { return false };
        lane.give((Step::Pause, Buffer::nothing()));
        true
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.operations.iter_mut().chain(self.pause.as_mut().map(|(_, lane)| lane))
    }

    /// Polls the lanes that were woken, and those with a new job.
    pub fn poll(&mut self) {
        for lane in self.all() {
            if lane.step.is_none() || !lane.wake.woken.swap(false, Ordering::SeqCst) {
                continue;
            }
            // A lane never ends.
            let _ = lane.future.as_mut().poll(&mut Context::from_waker(&lane.waker));
        }
    }

    /// Returns the steps that have ended since the last call.
    pub fn ended(&mut self) -> impl Iterator<Item = (Step, Result<()>)> + '_ {
        self.all().filter_map(|lane| {
            let result = lane.desk.lock().1.take()?;
            Some((lane.step.take()?, result))
        })
    }

    /// Returns whether a lane must be polled again.
    pub fn is_woken(&mut self) -> bool {
        self.all().any(|lane| lane.step.is_some() && lane.wake.woken.load(Ordering::SeqCst))
    }
}
