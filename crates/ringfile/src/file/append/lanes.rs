//! The operations that an appender has in flight. Each lane is a future that carries out one operation after another.
//!
//! A lane is allocated once and lives as long as the appender, so that an operation allocates nothing. It knows the
//! file and its jobs, not their purpose. Invariant: nothing is polled or woken under a lock.

use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use super::plan::Step;
use super::shared::Shared;
use crate::error::{Error, Result};
use crate::file::File;
use crate::memory::Buffer;
use crate::panics;

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
pub(super) struct Lanes(Vec<Lane>);

async fn carry_out(file: &File, (step, buffer): Job) -> Result<()> {
    match step {
        Step::Full(piece) | Step::Rest { piece, durable: false } => {
            drop(file.write_at(buffer, piece.start).await?);
        }
        Step::Rest { piece, durable: true } => drop(file.write_durable_at(buffer, piece.start).await?),
        Step::Sync => file.sync_data().await?,
        Step::SyncAll => file.sync_all().await?,
        Step::Cut(len) => file.set_len(len).await?,
    }
    Ok(())
}

async fn work(file: File, desk: Arc<Desk>) {
    loop {
        // Polled only when there is a job, so no task needs to be woken.
        let job = poll_fn(|_| desk.lock().0.take().map_or(Poll::Pending, Poll::Ready)).await;
        let result = carry_out(&file, job).await;
        desk.lock().1 = Some(result);
    }
}

impl Lanes {
    pub fn new(count: usize, file: &File, shared: &Weak<Shared>) -> Self {
        let lane = |_| {
            let desk = Arc::<Desk>::default();
            let wake = Arc::new(LaneWaker { shared: shared.clone(), woken: AtomicBool::new(false) });
            let future = Box::pin(work(file.clone(), Arc::clone(&desk)));
            let waker = Waker::from(Arc::clone(&wake));
            Lane { future, desk, wake, waker, step: None }
        };
        Self((0..count).map(lane).collect())
    }

    pub fn has_idle(&self) -> bool {
        self.0.iter().any(|lane| lane.step.is_none())
    }

    /// Gives a job to an idle lane. There must be one.
    pub fn give(&mut self, job: Job) {
        let idle = self.0.iter_mut().find(|lane| lane.step.is_none());
        debug_assert!(idle.is_some(), "the caller has checked");
        if let Some(lane) = idle {
            lane.step = Some(job.0);
            lane.desk.lock().0 = Some(job);
            lane.wake.woken.store(true, Ordering::SeqCst);
        }
    }

    /// Polls the lanes that were woken, and those with a new job.
    pub fn poll(&mut self) {
        for lane in &mut self.0 {
            if lane.step.is_none() || !lane.wake.woken.swap(false, Ordering::SeqCst) {
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
    pub fn ended(&mut self) -> impl Iterator<Item = (Step, Result<()>)> + '_ {
        self.0.iter_mut().filter_map(|lane| {
            let result = lane.desk.lock().1.take()?;
            Some((lane.step.take()?, result))
        })
    }

    /// Returns whether a lane must be polled again.
    pub fn is_woken(&self) -> bool {
        self.0.iter().any(|lane| lane.step.is_some() && lane.wake.woken.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
impl Lanes {
    /// Makes an idle lane busy with a future of a test.
    pub fn occupy(&mut self, future: impl Future<Output = ()> + Send + 'static) {
        let lane = self.0.iter_mut().find(|lane| lane.step.is_none()).unwrap();
        let desk = Arc::clone(&lane.desk);
        lane.future = Box::pin(async move {
            future.await;
            desk.lock().1 = Some(Ok(()));
            std::future::pending().await
        });
        lane.step = Some(Step::Cut(0));
        self.stir();
    }

    pub fn stir(&mut self) {
        self.0.iter().for_each(|lane| lane.wake.woken.store(true, Ordering::SeqCst));
    }
}
