//! The result of one job, whichever engine carried it out.

use std::path::Path;
use std::time::{Duration, Instant};

use super::window::MeasuredWindow;
use crate::error::{Failure, short};
use crate::job::{Job, Operation};
use crate::latency::{Latency, Recorder};
use crate::model::{MixedRun, Role, RouteOps, Run, Setup};
use crate::sys;
use crate::whole::Whole;

/// The result of one job.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Operations within the window.
    pub ops: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Length of the window, from the first submission to the last completion.
    pub duration: Duration,
    /// Latency of the operations; `None` if there were none.
    pub latency: Option<Latency>,
    /// CPU time within the window, kernel workers included.
    pub cpu: Option<Duration>,
    /// What the process used within the window, if the engine runs in it.
    pub usage: Option<sys::Usage>,
    /// What the whole machine did within the window, if the engine runs in this process.
    pub whole: Option<Whole>,
    /// What this library counted, or a ring by hand.
    pub counted: Option<Counted>,
    /// Figures that only repeated reads during a scan have.
    pub mixed: Option<MixedRun>,
    /// The first failure.
    pub failure: Option<Failure>,
}

/// What the library counted on some threads, or on all.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    /// Calls of `io_uring_enter`, or of Linux AIO instead.
    pub enters: u64,
    /// Operations whose every submission was fixed.
    pub fixed_ops: u64,
    /// The routes of the operations. Workers count theirs on their own threads.
    pub routes: RouteOps,
}

impl Counted {
    /// Takes these figures from the library's counts.
    pub fn of(counted: &::ringfile::metrics::Metrics) -> Counted {
        let enters = counted.enters + counted.aio_calls;
        Counted { enters, fixed_ops: counted.fixed_ops, routes: RouteOps::of(counted) }
    }

    /// Returns the number of system calls that carried operations.
    pub fn system_calls(self) -> u64 {
        self.enters + self.routes.inline + self.routes.workers
    }
}

impl std::ops::AddAssign for Counted {
    fn add_assign(&mut self, more: Counted) {
        self.enters += more.enters;
        self.fixed_ops += more.fixed_ops;
        self.routes += more.routes;
    }
}

/// What one thread counted within the window, or several.
pub struct Counts {
    /// How long operations took.
    pub recorder: Recorder,
    /// When the last one completed.
    pub last: Instant,
    /// What the library counted.
    pub counted: Counted,
}

impl Counts {
    /// Adds up threads whose window began at `start`.
    pub fn of_all(threads: impl IntoIterator<Item = Counts>, start: Instant) -> Counts {
        let mut all = Counts { recorder: Recorder::new(), last: start, counted: Counted::default() };
        for thread in threads {
            all.recorder.merge(&thread.recorder);
            all.last = all.last.max(thread.last);
            all.counted += thread.counted;
        }
        all
    }

    /// Returns the job's result.
    pub fn outcome(self, measured: MeasuredWindow) -> Outcome {
        Outcome {
            ops: self.recorder.count(),
            errors: measured.errors,
            duration: self.last.saturating_duration_since(measured.start).max(Duration::from_nanos(1)),
            latency: self.recorder.summary(),
            cpu: measured.usage.map(|usage| usage.cpu()),
            usage: measured.usage,
            whole: measured.whole,
            counted: Some(self.counted),
            mixed: None,
            failure: measured.failure,
        }
    }
}

/// Returns an error unless an operation moved the whole block; `moved` is the number of bytes.
pub fn whole(
    operation: Operation,
    moved: Result<usize, Failure>,
    block: usize,
    path: &Path,
) -> Result<(), Failure> {
    match moved? {
        count if count == block => Ok(()),
        count => Err(short(operation.verb(), path, operation.offset, count, block)),
    }
}

/// Returns a run with its rates, and with what the process used meanwhile.
pub fn rated(run: Run, ops: u64, duration: Duration, usage: Option<&sys::Usage>) -> Run {
    let duration_s = duration.as_secs_f64();
    let iops = ops as f64 / duration_s;
    let per_cent = |cpu: Duration| cpu.as_secs_f64() * 100.0 / duration_s;
    Run {
        ops,
        duration_s,
        iops,
        bw_bytes: iops * run.setup.block as f64,
        cpu_us_per_io: usage.and_then(|usage| for_one(usage.cpu(), ops)),
        user_us_per_io: usage.and_then(|usage| for_one(usage.user, ops)),
        system_us_per_io: usage.and_then(|usage| for_one(usage.system, ops)),
        user_percent: usage.map(|usage| per_cent(usage.user)),
        system_percent: usage.map(|usage| per_cent(usage.system)),
        context_switches: usage.map(|usage| usage.context_switches),
        ..run
    }
}

/// Returns the CPU time for one operation in microseconds.
fn for_one(cpu: Duration, ops: u64) -> Option<f64> {
    (ops > 0).then(|| cpu.as_secs_f64() * 1e6 / ops as f64)
}

impl Outcome {
    /// Returns the run that a job resulted in.
    pub fn run(&self, setup: Setup, round: u32, role: Role, job: &Job) -> Run {
        let run = rated(Run::new(setup, round, role), self.ops, self.duration, self.usage.as_ref());
        Run {
            errors: self.errors,
            latency_ns: self.latency,
            cpu_us_per_io: self.cpu.and_then(|cpu| for_one(cpu, self.ops)),
            system_calls: self.counted.map(Counted::system_calls),
            whole_machine: self.whole.as_ref().map(|whole| whole.in_time(run.duration_s)),
            enters: self.counted.map(|counted| counted.enters),
            fixed_ops: self.counted.map(|counted| counted.fixed_ops),
            route_ops: self.counted.map(|counted| counted.routes),
            mixed: self.mixed.clone(),
            access: Some(job.access),
            ..run
        }
    }

    /// Adds up threads, each with its latencies and the time of its last completion. Figures that only this library
    /// counts stay `None`.
    pub fn of_threads(measured: MeasuredWindow, threads: Vec<(Recorder, Instant)>) -> Outcome {
        let counted = Counted::default();
        let threads = threads.into_iter().map(|(recorder, last)| Counts { recorder, last, counted });
        Outcome { counted: None, ..Counts::of_all(threads, measured.start).outcome(measured) }
    }
}
