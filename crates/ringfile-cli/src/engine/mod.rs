//! What carries out a job: ringfile itself, and what it is compared with.
//!
//! Every engine takes the same [`Job`] on the same file and gives the same [`Outcome`]; nothing outside this
//! folder knows how one works.

mod batches;
pub mod by_hand;
pub mod fio;
pub mod hand_loop;
mod memory;
mod pread;
mod queue;
pub mod ringfile;
pub mod window;

use std::path::Path;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::cli::Buffers;
use crate::error::Failure;
use crate::interrupt::Interrupt;
use crate::job::Job;
use crate::latency::{Latency, Recorder};
use crate::sys;
use crate::whole::Whole;

use by_hand::Way;

/// What carries out a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// This library: a task for each operation, or in `perf multiread` blocking batches.
    Ringfile,
    /// This library: blocking batches on plain threads.
    RingfileBlocking,
    /// This library: batches awaited in tokio.
    RingfileTokio,
    /// This library: a `Queue` for each thread, driven by a loop like fio's.
    RingfileQueue,
    /// fio's io_uring engine.
    Fio,
    /// The same, submitting and reaping in batches.
    FioBatch,
    /// fio's psync engine.
    FioPsync,
    /// A loop of pread and pwrite.
    Pread,
    /// A ring by hand: submits a batch without waiting, then waits for one completion after the other.
    SubmitOnly,
    /// A loop over a ring by hand, with any buffers.
    ByHand,
    /// Two rings by hand for each thread: one for blocking reads of many blocks, one for asynchronous ones.
    TwoRings,
}

impl Engine {
    /// Whether it is this library.
    pub fn is_ours(self) -> bool {
        match self {
            Engine::Ringfile | Engine::RingfileBlocking | Engine::RingfileTokio | Engine::RingfileQueue => {
                true
            }
            Engine::Fio | Engine::FioBatch | Engine::FioPsync => false,
            Engine::Pread | Engine::SubmitOnly | Engine::TwoRings | Engine::ByHand => false,
        }
    }

    /// Whether it measures something else than this library, so that the rest goes on where it can't run.
    pub fn may_be_left_out(self) -> bool {
        self.is_fio() || matches!(self, Engine::SubmitOnly | Engine::TwoRings)
    }

    /// Whether the engine does one operation at a time for each thread, whatever the depth asked.
    pub fn one_at_a_time(self) -> bool {
        matches!(self, Engine::FioPsync | Engine::Pread)
    }

    /// Whether the engine can send NVMe commands.
    pub fn takes_namespaces(self) -> bool {
        self.is_ours() || matches!(self, Engine::Fio | Engine::FioBatch)
    }

    /// Whether another program carries the job out.
    pub fn is_fio(self) -> bool {
        matches!(self, Engine::Fio | Engine::FioBatch | Engine::FioPsync)
    }

    /// The buffers that the engine can be asked for.
    pub fn buffers(self) -> &'static [Buffers] {
        match self {
            Engine::FioPsync | Engine::Pread | Engine::SubmitOnly | Engine::TwoRings => &[Buffers::Normal],
            _ => &Buffers::WHOLE,
        }
    }
}

/// Operations by the way they went.
///
/// Counted by the library between the same two moments as the run's own operations: after the warm-up's last one
/// has ended and before the first that counts, and after the last that counts. At both nothing is in flight, so the
/// four add up to the run's operations, failed ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteOps {
    /// Through io_uring, on whatever thread.
    pub ring: u64,
    /// By a plain call on the thread that asked.
    pub inline: u64,
    /// By a plain call on a worker.
    pub workers: u64,
    /// By Linux AIO, on whatever thread.
    #[serde(default)]
    pub aio: u64,
}

impl RouteOps {
    /// What the library counted on the threads it was counted on.
    pub fn of(counted: &::ringfile::Metrics) -> RouteOps {
        let (inline, workers, aio) = (counted.inline_ops, counted.worker_ops, counted.aio_ops);
        RouteOps { ring: counted.ops.saturating_sub(inline + workers + aio), inline, workers, aio }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.ring + self.inline + self.workers + self.aio
    }
}

impl std::ops::AddAssign for RouteOps {
    fn add_assign(&mut self, more: RouteOps) {
        self.ring += more.ring;
        self.inline += more.inline;
        self.workers += more.workers;
        self.aio += more.aio;
    }
}

/// Histograms of `io_uring_enter` calls. The first figure counts calls with 0 entries, the next ones calls with 1, 2 to 3,
/// 4 to 7, and so on, the last one calls with 1024 and more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnterSizes {
    /// By entries submitted.
    pub submitted: Vec<u64>,
    /// By completions collected; a call's own are counted with the thread's next one.
    pub collected: Vec<u64>,
}

impl EnterSizes {
    /// Takes the histograms out of the library's counts.
    pub fn of(counted: &::ringfile::Metrics) -> EnterSizes {
        EnterSizes {
            submitted: counted.submitted_per_enter.to_vec(),
            collected: counted.completed_per_enter.to_vec(),
        }
    }
}

/// What came out of one job.
#[derive(Debug)]
pub struct Outcome {
    /// Operations within the window.
    pub ops: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Length of the window, from the first hand-in to the last completion.
    pub duration: Duration,
    /// Latency of the operations; `None` where there were none.
    pub latency: Option<Latency>,
    /// CPU time within the window, kernel workers included.
    pub cpu: Option<Duration>,
    /// What the process used within the window, where the engine runs in it.
    pub usage: Option<sys::Usage>,
    /// What the whole machine did within the window, where the engine runs in the process.
    pub whole: Option<Whole>,
    /// Calls of `io_uring_enter`, and of what AIO takes in its place, for ringfile.
    pub enters: Option<u64>,
    /// Operations whose every submission was fixed, for ringfile.
    pub fixed_ops: Option<u64>,
    /// Which way the operations went, for ringfile.
    pub route_ops: Option<RouteOps>,
    /// Histograms of `io_uring_enter`, for ringfile in batches.
    pub enter_sizes: Option<EnterSizes>,
    /// The first failure.
    pub failure: Option<Failure>,
}

impl Outcome {
    /// System calls that carried operations, where that is counted.
    pub fn system_calls(&self) -> Option<u64> {
        let routes = self.route_ops?;
        Some(self.enters? + routes.inline + routes.workers)
    }

    /// Of threads that each have their latencies and the time of their last completion. What only this library
    /// counts is left open.
    fn of_threads(measured: window::Measured, threads: Vec<(Recorder, Instant)>) -> Outcome {
        let mut total = Recorder::new();
        let mut end = measured.start;
        for (recorder, last) in threads {
            total.merge(&recorder);
            end = end.max(last);
        }
        Outcome {
            ops: total.count(),
            errors: measured.errors,
            duration: end.saturating_duration_since(measured.start).max(Duration::from_nanos(1)),
            latency: total.summary(),
            cpu: measured.usage.map(|usage| usage.cpu()),
            usage: measured.usage,
            whole: measured.whole,
            enters: None,
            fixed_ops: None,
            route_ops: None,
            enter_sizes: None,
            failure: measured.failure,
        }
    }
}

/// What an engine needs beside the job.
pub struct Bench<'a> {
    /// The file.
    pub path: &'a Path,
    /// It is an NVMe namespace by its character device.
    pub namespace: bool,
    /// Ctrl-C.
    pub interrupt: &'a Interrupt,
    /// fio, if it is asked for and there.
    pub fio: Option<&'a fio::Fio>,
}

impl Bench<'_> {
    /// Carries out one job; `tick` is called now and then meanwhile. An error means that the job could not be
    /// carried out at all; operations that failed are in the outcome.
    pub fn run(&self, engine: Engine, job: &Job, tick: &mut dyn FnMut()) -> Result<Outcome, Failure> {
        match engine {
            Engine::Ringfile if job.batching.is_none() => {
                ringfile::run(job, self, tick).map(|(outcome, _)| outcome)
            }
            Engine::Ringfile | Engine::RingfileBlocking => batches::run_blocking(job, self, tick),
            Engine::RingfileTokio => batches::run_in_tokio(job, self, tick),
            Engine::RingfileQueue => queue::run(job, self, tick),
            Engine::Pread => pread::run(job, self, tick),
            Engine::ByHand => hand_loop::run(job, self, tick).map(|(outcome, _)| outcome),
            Engine::SubmitOnly => by_hand::run(Way::SubmitOnly, job, self, tick),
            Engine::TwoRings => by_hand::run(Way::TwoRings, job, self, tick),
            Engine::Fio | Engine::FioBatch | Engine::FioPsync => match self.fio {
                Some(fio) => fio.run(engine, job, self, tick),
                None => Err(Failure::Io("fio is not there".into())),
            },
        }
    }
}
