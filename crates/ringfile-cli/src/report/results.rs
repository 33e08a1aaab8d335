//! The JSON that `--json` writes, as Rust types.
//!
//! Within a schema number fields are added, never changed or removed. What was not measured is null, never
//! absent. Counts, sizes and latencies are integers, all else numbers with a fraction; units are in the names:
//! `_s` seconds, `_ns` nanoseconds, `_us` microseconds, `_bytes` bytes.

use std::time::Duration;

use serde::Serialize;

use crate::cli::{Buffers, Cache, Executor, Route, Rw};
use crate::engine::{Engine, Outcome, RouteOps};
use crate::latency::Latency;
use crate::machine;

/// The schema these types describe.
pub const SCHEMA: u32 = 1;

/// All that one command measured.
#[derive(Debug, Serialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The command line.
    pub command: String,
    /// Whether Ctrl-C or SIGTERM ended it early.
    pub interrupted: bool,
    /// Where it was measured.
    pub machine: Machine,
    /// What was asked for, as it was in effect.
    pub params: Params,
    /// What was measured, in that order.
    pub runs: Vec<Run>,
}

/// Facts about the machine.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// What the processor calls itself.
    pub cpu_model: Option<String>,
    /// Cores the process may use.
    pub cpus: usize,
    /// File system of the file, or `block device`.
    pub filesystem: String,
    /// What io_uring offers here.
    pub ring_features: Option<Vec<String>>,
    /// Version of fio, where it took part.
    pub fio: Option<String>,
}

impl Machine {
    /// This machine, with a file on `filesystem`.
    pub fn here(filesystem: String, ring_features: Option<Vec<String>>) -> Machine {
        Machine {
            kernel: machine::kernel(),
            cpu_model: machine::cpu_model(),
            cpus: machine::cpus(),
            filesystem,
            ring_features,
            fio: None,
        }
    }
}

/// Parameters of a measurement.
#[derive(Debug, Serialize)]
pub struct Params {
    /// The file or device.
    pub file: String,
    /// Whether it was made for this command, and removed.
    pub file_created: bool,
    /// Bytes of it that were used.
    pub size_bytes: u64,
    /// Bytes of an operation.
    pub block_size_bytes: u64,
    /// Length asked for each run.
    pub duration_s: f64,
    /// Time before each run that is not counted.
    pub warmup_s: f64,
    /// Threads.
    pub numjobs: Vec<usize>,
    /// Operations in flight for each thread.
    pub iodepth: Vec<usize>,
    /// Reads in a batch; empty where there are none.
    pub batch: Vec<usize>,
    /// Batches in flight for each thread; empty where there are none.
    pub inflight: Vec<usize>,
    /// Access.
    pub rw: Vec<Rw>,
    /// Buffers.
    pub buffers: Vec<Buffers>,
    /// O_DIRECT.
    pub direct: bool,
    /// Page cache.
    pub cache: Vec<Cache>,
    /// Ways of ringfile's operations.
    pub route: Vec<Route>,
    /// Who ran ringfile's tasks.
    pub executor: Vec<Executor>,
    /// Comparisons that took part.
    pub against: Vec<Engine>,
    /// Rounds.
    pub rounds: u32,
    /// Whether contents were checked.
    pub verify: bool,
}

/// Why a run was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// To be compared with others.
    Measure,
    /// The same once more, to see the noise.
    Aa,
}

/// One run of one engine.
#[derive(Debug, Serialize)]
pub struct Run {
    /// What did it.
    pub engine: Engine,
    /// Round, from 1.
    pub round: u32,
    /// Why.
    pub role: Role,
    /// Threads.
    pub numjobs: usize,
    /// Operations in flight for each thread.
    pub iodepth: usize,
    /// Reads in a batch, where it is about batches; also for engines that know none, to be found beside the others.
    pub batch: Option<usize>,
    /// Batches in flight for each thread, likewise.
    pub inflight: Option<usize>,
    /// Access.
    pub rw: Rw,
    /// Buffers, as asked for.
    pub buffers: Buffers,
    /// O_DIRECT, as it was in effect.
    pub direct: bool,
    /// Page cache, as asked for.
    pub cache: Cache,
    /// Way of the operations, as asked for (ringfile).
    pub route: Option<Route>,
    /// Who ran the tasks (ringfile).
    pub executor: Option<Executor>,
    /// Bytes of an operation.
    pub block_size_bytes: u64,
    /// Operations done.
    pub ops: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Time from the first hand-in to the last completion.
    pub duration_s: f64,
    /// Operations for each second.
    pub iops: f64,
    /// Bytes for each second.
    pub bw_bytes: f64,
    /// Latency, from hand-in to completion.
    pub latency_ns: Option<Latency>,
    /// CPU time for one operation, user and system, kernel workers included.
    pub cpu_us_per_io: Option<f64>,
    /// `io_uring_enter` calls (ringfile).
    pub enters: Option<u64>,
    /// Operations whose every submission was fixed (ringfile).
    pub fixed_ops: Option<u64>,
    /// Which way the operations went (ringfile); they add up to `ops` and `errors`.
    pub route_ops: Option<RouteOps>,
    /// Fraction of the file in the page cache before the run.
    pub cached_before: Option<f64>,
    /// The same after it.
    pub cached_after: Option<f64>,
}

/// What a run was, beside what it measured.
#[derive(Debug, Clone, Copy)]
pub struct RunLabel {
    /// See [`Run`].
    pub engine: Engine,
    /// See [`Run`].
    pub round: u32,
    /// See [`Run`].
    pub role: Role,
    /// See [`Run`].
    pub cache: Cache,
    /// See [`Run`].
    pub cached_before: Option<f64>,
    /// See [`Run`].
    pub cached_after: Option<f64>,
}

impl Run {
    /// Whether what it handed in, and took the latency of, were whole batches.
    pub fn is_of_batches(&self) -> bool {
        self.batch.is_some() && !self.engine.is_fio() && self.engine != Engine::Pread
    }

    /// The figures of one outcome.
    pub fn new(label: RunLabel, job: &crate::job::Job, outcome: &Outcome) -> Run {
        let seconds = outcome.duration.as_secs_f64();
        let iops = outcome.ops as f64 / seconds;
        let per_io = |cpu: Duration| (outcome.ops > 0).then(|| cpu.as_secs_f64() * 1e6 / outcome.ops as f64);
        Run {
            engine: label.engine,
            round: label.round,
            role: label.role,
            numjobs: job.numjobs,
            iodepth: job.iodepth,
            batch: job.batching.map(|batch| batch.size),
            inflight: job.batching.map(|batch| batch.inflight),
            rw: job.rw,
            buffers: job.buffers,
            direct: job.direct,
            cache: label.cache,
            route: label.engine.is_ours().then_some(job.route),
            executor: match label.engine {
                Engine::Ringfile if job.batching.is_none() => Some(job.executor),
                Engine::RingfileTokio => Some(Executor::Tokio),
                _ => None,
            },
            block_size_bytes: job.block,
            ops: outcome.ops,
            errors: outcome.errors,
            duration_s: seconds,
            iops,
            bw_bytes: iops * job.block as f64,
            latency_ns: outcome.latency,
            cpu_us_per_io: outcome.cpu.and_then(per_io),
            enters: outcome.enters,
            fixed_ops: outcome.fixed_ops,
            route_ops: outcome.route_ops,
            cached_before: label.cached_before,
            cached_after: label.cached_after,
        }
    }
}
