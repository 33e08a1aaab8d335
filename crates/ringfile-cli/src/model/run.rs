//! One run: what was chosen for it, and what was measured.

use serde::{Deserialize, Serialize};

use super::{Access, Engine, Setup};
use crate::latency::Latency;

/// Why a run was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// To be compared with others.
    #[default]
    Measure,
    /// The same once more, to see the noise.
    Aa,
}

/// One run of one engine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// Everything that was chosen for it.
    #[serde(flatten)]
    pub setup: Setup,
    /// Round, from 1.
    pub round: u32,
    /// Why.
    pub role: Role,
    /// Parts of each operation's memory, where it is vectored.
    #[serde(default)]
    pub parts: Option<usize>,
    /// Figures of `perf pool` alone.
    #[serde(default)]
    pub pool: Option<PoolRun>,
    /// Figures of `perf file --cache mixed` alone.
    #[serde(default)]
    pub mixed: Option<MixedRun>,
    /// Operations done.
    pub ops: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Time from the first submission to the last completion.
    pub duration_s: f64,
    /// Operations for each second.
    pub iops: f64,
    /// Bytes for each second.
    pub bw_bytes: f64,
    /// Latency, from submission to completion.
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

impl Run {
    /// A run of which nothing was measured yet.
    pub fn new(setup: Setup, round: u32, role: Role) -> Run {
        Run { setup, round, role, ..Run::default() }
    }

    /// Whether it submitted, and took the latency of, whole batches.
    pub fn is_of_batches(&self) -> bool {
        let engine = self.setup.engine;
        let one_by_one = engine.is_fio() || matches!(engine, Engine::Pread | Engine::RingfileQueue);
        self.setup.batch.is_some() && !one_by_one
    }

    /// Whether its work is fixed, rather than its length.
    pub fn is_of_fixed_work(&self) -> bool {
        self.io_size_bytes.is_some() || self.access == Some(Access::Once)
    }

    /// Operations on the ring that were not fixed though registered memory was asked for.
    pub fn not_fixed(&self) -> u64 {
        let on_ring = self.route_ops.map_or(0, |routes| routes.ring);
        let asked = self.setup.engine.is_ours() && self.setup.buffers.registered();
        if asked { on_ring.saturating_sub(self.fixed_ops.unwrap_or(on_ring)) } else { 0 }
    }
}

/// Figures that only runs of `perf pool` have.
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

/// Figures that only runs of `perf file --cache mixed` have.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MixedRun {
    /// Bytes of the scan a second.
    pub scan_bw_bytes: f64,
    /// Bytes read from the device a second; null where the kernel does not tell.
    pub device_bw_bytes: Option<f64>,
    /// Blocks of adaptive files that were found in the page cache.
    pub cache_hits: u64,
    /// Blocks that were not.
    pub cache_misses: u64,
    /// Blocks that were read through the page cache, to be found there.
    pub cache_admitted: u64,
    /// Pieces that were read ahead and used.
    pub ahead_used: u64,
    /// Pieces that were read ahead and not used.
    pub ahead_unused: u64,
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
    pub fn of(counted: &ringfile::Metrics) -> RouteOps {
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
    pub fn of(counted: &ringfile::Metrics) -> EnterSizes {
        EnterSizes {
            submitted: counted.submitted_per_enter.to_vec(),
            collected: counted.completed_per_enter.to_vec(),
        }
    }
}

/// What the whole machine did during a run. CPU time is in per cent of one core, so all of it together is 100 for each core.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WholeMachine {
    /// CPU time in user space.
    pub user_percent: f64,
    /// CPU time in the kernel, without interrupts.
    pub system_percent: f64,
    /// CPU time of interrupts, and of what they leave to do.
    pub interrupts_percent: f64,
    /// Time without work, waiting for I/O included.
    pub idle_percent: f64,
    /// Time that other guests of a virtual machine's host had.
    pub stolen_percent: f64,
    /// How many interrupts there were.
    pub interrupts: u64,
    /// Bytes that memory moved in a second; null where the machine does not count them.
    pub memory_bw_bytes: Option<f64>,
}
