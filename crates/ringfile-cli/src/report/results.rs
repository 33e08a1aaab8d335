//! The JSON that `--json` writes and `--resume` and `ringfile report` read, as Rust types.
//!
//! Within a schema number fields are added, never changed or removed: a file without a newer field is read as if that were
//! null. What was not measured is null, never absent. Counts, sizes and latencies are integers, all else numbers with a fraction; units are in the names:
//! `_s` seconds, `_ns` nanoseconds, `_us` microseconds, `_bytes` bytes.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::behind::Behind;
use super::profile::Profile;
use super::whole_machine::WholeMachine;
use crate::advice::Advice;
use crate::cli::{Access, Buffers, Cache, Executor, RingFlags, Route, Rw};
use crate::engine::{Engine, EnterSizes, Outcome, RouteOps};
use crate::latency::Latency;
use crate::machine;

/// The schema these types describe.
pub const SCHEMA: u32 = 1;

/// All that one command measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Which command measured; null in files that are older than this field.
    #[serde(default)]
    pub kind: Option<Kind>,
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
    /// What to know about the figures, one line each.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What to set for this file on this machine (`perf buffers`).
    #[serde(default)]
    pub advice: Vec<Advice>,
    /// Cells in which route `auto` is behind the best single route.
    #[serde(default)]
    pub behind: Vec<Behind>,
    /// Where CPU time went (`perf buffers --profile`).
    #[serde(default)]
    pub profile: Vec<Profile>,
}

/// A command that measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// `perf file`.
    File,
    /// `perf batch`.
    Batch,
    /// `perf multiread`.
    Multiread,
    /// `perf buffers`.
    Buffers,
    /// `perf pool`.
    Pool,
}

/// Facts about the machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Params {
    /// The file or device.
    pub file: String,
    /// Whether it was made for this command, and removed.
    pub file_created: bool,
    /// Bytes of it that were used.
    pub size_bytes: u64,
    /// Bytes of an operation, the first asked for where there are several.
    pub block_size_bytes: u64,
    /// Bytes of an operation, all that were asked for.
    #[serde(default)]
    pub block_sizes_bytes: Vec<u64>,
    /// Processes, where they are counted.
    #[serde(default)]
    pub processes: Vec<usize>,
    /// Bytes a second that were asked for, of each side; null without a limit.
    #[serde(default)]
    pub rate_limit_bytes: Option<u64>,
    /// Parts of vectored buffers that were asked for.
    #[serde(default)]
    pub parts: Option<usize>,
    /// Length asked for each run; 0 if `io_size_bytes` fixes the amount instead.
    pub duration_s: f64,
    /// Bytes that all threads of a run move together (`--io-size`).
    #[serde(default)]
    pub io_size_bytes: Option<u64>,
    /// `--iodepth-batch-submit`.
    #[serde(default)]
    pub iodepth_batch_submit: Option<usize>,
    /// `--iodepth-batch-complete`.
    #[serde(default)]
    pub iodepth_batch_complete: Option<usize>,
    /// `--iodepth-low`.
    #[serde(default)]
    pub iodepth_low: Option<usize>,
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
    /// Flags of the rings that were asked for; empty where each has its engine's own.
    #[serde(default)]
    pub ring_flags: Vec<RingFlags>,
    /// Who ran ringfile's tasks.
    pub executor: Vec<Executor>,
    /// Comparisons that took part.
    pub against: Vec<Engine>,
    /// Rounds.
    pub rounds: u32,
    /// Whether contents were checked.
    pub verify: bool,
}

/// Which side of a pool a run's operations are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Fills buffers and writes them.
    Producer,
    /// Reads them back and checks them.
    Consumer,
}

/// Where the memory of operations comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// The library's pool, with direct I/O.
    Pool,
    /// The library's pool, through the page cache.
    PoolBuffered,
    /// Aligned memory of the allocator, anew for each operation, with direct I/O.
    Malloc,
    /// A `Vec` for each operation, through the page cache.
    Vec,
    /// A `Vec` for each operation, with direct I/O: copied to and from aligned memory.
    VecDirect,
}

impl Memory {
    /// Whether I/O passes the page cache by.
    pub fn is_direct(self) -> bool {
        match self {
            Memory::Pool | Memory::Malloc | Memory::VecDirect => true,
            Memory::PoolBuffered | Memory::Vec => false,
        }
    }

    /// Whether the memory is the library's pool.
    pub fn is_pooled(self) -> bool {
        match self {
            Memory::Pool | Memory::PoolBuffered => true,
            Memory::Malloc | Memory::Vec | Memory::VecDirect => false,
        }
    }
}

/// Why a run was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// To be compared with others.
    Measure,
    /// The same once more, to see the noise.
    Aa,
}

/// One run of one engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// What did it.
    pub engine: Engine,
    /// Round, from 1.
    pub round: u32,
    /// Why.
    pub role: Role,
    /// Threads.
    pub numjobs: usize,
    /// Processes, each on a core of its own with `numjobs` threads, where they are counted.
    #[serde(default)]
    pub processes: Option<usize>,
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
    /// Parts of each operation's memory, where it is vectored.
    #[serde(default)]
    pub parts: Option<usize>,
    /// Side of the pool (`perf pool`).
    #[serde(default)]
    pub side: Option<Side>,
    /// Where memory comes from (`perf pool`).
    #[serde(default)]
    pub memory: Option<Memory>,
    /// What only `perf pool` tells.
    #[serde(default)]
    pub pool: Option<PoolRun>,
    /// O_DIRECT, as it was in effect.
    pub direct: bool,
    /// Page cache, as asked for.
    pub cache: Cache,
    /// Way of the operations, as asked for (ringfile).
    pub route: Option<Route>,
    /// Flags of the rings, as asked for (`perf buffers`).
    #[serde(default)]
    pub ring_flags: Option<RingFlags>,
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
    /// The part of it in user space (ringfile).
    #[serde(default)]
    pub user_us_per_io: Option<f64>,
    /// The part of it in the kernel (ringfile).
    #[serde(default)]
    pub system_us_per_io: Option<f64>,
    /// User CPU time in per cent of a core (ringfile).
    #[serde(default)]
    pub user_percent: Option<f64>,
    /// System CPU time in per cent of a core (ringfile).
    #[serde(default)]
    pub system_percent: Option<f64>,
    /// Context switches, voluntary and not, of all threads (ringfile).
    #[serde(default)]
    pub context_switches: Option<u64>,
    /// System calls that carried operations: `io_uring_enter`, and plain reads and writes (ringfile).
    #[serde(default)]
    pub system_calls: Option<u64>,
    /// What the whole machine did meanwhile: this and everything else (not for fio and `perf pool`).
    #[serde(default)]
    pub whole_machine: Option<WholeMachine>,
    /// CPU cycles, user and kernel (`--counters`).
    #[serde(default)]
    pub cycles: Option<u64>,
    /// Instructions, user and kernel (`--counters`).
    #[serde(default)]
    pub instructions: Option<u64>,
    /// Calls of `io_uring_enter`, and with AIO of `io_submit` and `io_getevents` (ringfile).
    pub enters: Option<u64>,
    /// Operations whose every submission was fixed (ringfile).
    pub fixed_ops: Option<u64>,
    /// Why memory that was to be registered was not (ringfile); null where it was, or nothing tells.
    #[serde(default)]
    pub refused: Option<String>,
    /// Which way the operations went (ringfile); they add up to `ops` and `errors`.
    pub route_ops: Option<RouteOps>,
    /// Histograms of `io_uring_enter` (ringfile in batches).
    #[serde(default)]
    pub enter_sizes: Option<EnterSizes>,
    /// Which blocks random operations visited.
    #[serde(default)]
    pub access: Option<Access>,
    /// Bytes that all threads of the run move together (`--io-size`).
    #[serde(default)]
    pub io_size_bytes: Option<u64>,
    /// Fraction of the file in the page cache before the run.
    pub cached_before: Option<f64>,
    /// The same after it.
    pub cached_after: Option<f64>,
    /// Fraction of a cold run's reads that came from the page cache.
    #[serde(default)]
    pub cache_hits: Option<f64>,
}

/// What only `perf pool` tells of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolRun {
    /// How long after it was due each batch was begun.
    pub late_ns: Option<Latency>,
    /// Operations that were due and not begun when the run was over; null without a rate, and where it was cut short.
    pub backlog_ops: Option<u64>,
    /// Blocks that the producers wrote, warm-up included.
    pub written_blocks: u64,
    /// Blocks that the consumers checked.
    pub checked_blocks: u64,
    /// Times that a producer waited for consumers to be done with a segment (`--size`).
    pub room_waits: u64,
    /// CPU time of neither side in per cent of a core: kernel workers, the program itself.
    pub other_cpu_percent: Option<f64>,
    /// The pool when all was over, where memory came from one.
    pub metrics: Option<PoolFigures>,
    /// Each thread of the side by itself.
    pub actors: Vec<Actor>,
}

/// What one thread of a side of `perf pool` did in the measured time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Actor {
    /// Operations.
    pub ops: u64,
    /// From the begin of the measured time to its last operation, in seconds.
    pub duration_s: f64,
    /// Bytes a second over that time.
    pub bw_bytes: f64,
    /// As that of the run.
    pub latency_ns: Option<Latency>,
}

/// What a pool has and has done, warm-up included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolFigures {
    /// The hard limit.
    pub capacity_bytes: u64,
    /// The most that was mapped at once.
    pub high_water_bytes: u64,
    /// In use when all was over.
    pub in_use_bytes: u64,
    /// Buffers handed out.
    pub gets: u64,
    /// Gets that found nothing cached.
    pub misses: u64,
    /// Buffers allocated outside the pool.
    pub outside_allocations: u64,
    /// Gets that had to wait.
    pub waits: u64,
    /// Regions of memory.
    pub regions: u64,
    /// Those that were registered with the kernel.
    pub registered_regions: u64,
    /// Registrations that were refused.
    pub refused_registrations: u64,
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
    /// See [`Run`].
    pub cache_hits: Option<f64>,
}

/// What tells runs apart that are not repetitions of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// See [`Run`].
    pub engine: Engine,
    /// See [`Run`].
    pub numjobs: usize,
    /// See [`Run`].
    pub processes: Option<usize>,
    /// See [`Run`].
    pub iodepth: usize,
    /// See [`Run`].
    pub batch: Option<usize>,
    /// See [`Run`].
    pub inflight: Option<usize>,
    /// See [`Run`].
    pub rw: Rw,
    /// See [`Run`].
    pub buffers: Buffers,
    /// See [`Run`].
    pub side: Option<Side>,
    /// See [`Run`].
    pub memory: Option<Memory>,
    /// See [`Run`].
    pub direct: bool,
    /// See [`Run`].
    pub cache: Cache,
    /// See [`Run`].
    pub route: Option<Route>,
    /// See [`Run`].
    pub ring_flags: Option<RingFlags>,
    /// See [`Run`].
    pub executor: Option<Executor>,
    /// See [`Run`].
    pub block_size_bytes: u64,
}

impl Run {
    /// What it has in common with its repetitions, in other rounds and as A/A.
    pub fn key(&self) -> Key {
        Key {
            engine: self.engine,
            numjobs: self.numjobs,
            processes: self.processes,
            iodepth: self.iodepth,
            batch: self.batch,
            inflight: self.inflight,
            rw: self.rw,
            buffers: self.buffers,
            side: self.side,
            memory: self.memory,
            direct: self.direct,
            cache: self.cache,
            route: self.route,
            ring_flags: self.ring_flags,
            executor: self.executor,
            block_size_bytes: self.block_size_bytes,
        }
    }

    /// Whether what it handed in, and took the latency of, were whole batches.
    pub fn is_of_batches(&self) -> bool {
        let one_by_one = self.engine.is_fio() || matches!(self.engine, Engine::Pread | Engine::RingfileQueue);
        self.batch.is_some() && !one_by_one
    }

    /// Whether its work is fixed, rather than its length.
    pub fn is_of_fixed_work(&self) -> bool {
        self.io_size_bytes.is_some() || self.access == Some(Access::Once)
    }

    /// Operations on the ring that were not fixed though registered memory was asked for.
    pub fn not_fixed(&self) -> u64 {
        let on_ring = self.route_ops.map_or(0, |routes| routes.ring);
        let asked = self.engine.is_ours() && self.buffers.registered();
        if asked { on_ring.saturating_sub(self.fixed_ops.unwrap_or(on_ring)) } else { 0 }
    }

    /// The figures of one outcome.
    pub fn new(label: RunLabel, job: &crate::job::Job, outcome: &Outcome) -> Run {
        let seconds = outcome.duration.as_secs_f64();
        let iops = outcome.ops as f64 / seconds;
        let per_io = |cpu: Duration| (outcome.ops > 0).then(|| cpu.as_secs_f64() * 1e6 / outcome.ops as f64);
        let per_cent = |cpu: Duration| cpu.as_secs_f64() * 100.0 / seconds;
        let usage = outcome.usage;
        Run {
            engine: label.engine,
            round: label.round,
            role: label.role,
            numjobs: job.numjobs,
            processes: None,
            iodepth: job.iodepth,
            batch: job.batching.map(|batch| batch.size),
            inflight: job.batching.map(|batch| batch.inflight),
            rw: job.rw,
            buffers: job.buffers,
            parts: job.buffers.vectored().then_some(job.parts),
            side: None,
            memory: None,
            pool: None,
            direct: job.direct,
            cache: label.cache,
            route: label.engine.is_ours().then_some(job.route),
            ring_flags: job.ring_flags,
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
            user_us_per_io: usage.and_then(|usage| per_io(usage.user)),
            system_us_per_io: usage.and_then(|usage| per_io(usage.system)),
            user_percent: usage.map(|usage| per_cent(usage.user)),
            system_percent: usage.map(|usage| per_cent(usage.system)),
            context_switches: usage.map(|usage| usage.context_switches),
            system_calls: outcome.system_calls(),
            whole_machine: outcome.whole.as_ref().map(|whole| WholeMachine::of(whole, seconds)),
            cycles: usage.and_then(|usage| usage.cycles),
            instructions: usage.and_then(|usage| usage.instructions),
            enters: outcome.enters,
            fixed_ops: outcome.fixed_ops,
            refused: None,
            route_ops: outcome.route_ops,
            enter_sizes: outcome.enter_sizes.clone(),
            access: Some(job.access),
            io_size_bytes: job.amount.map(|amount| amount * job.block),
            cached_before: label.cached_before,
            cached_after: label.cached_after,
            cache_hits: label.cache_hits,
        }
    }
}
