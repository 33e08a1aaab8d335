//! One run: its setup, and what was measured.

use serde::{Deserialize, Serialize};

use super::{Access, Engine, Setup};
use crate::latency::Latency;

/// Why a run was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A run to be compared with others.
    #[default]
    Measure,
    /// A repetition of the first setup, which shows the noise.
    Aa,
}

/// One run of one engine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// The value of every factor.
    #[serde(flatten)]
    pub setup: Setup,
    /// Round, from 1.
    pub round: u32,
    /// Why.
    pub role: Role,
    /// Parts of each operation's memory, if it is vectored.
    pub parts: Option<usize>,
    /// Figures that only `perf pool` has.
    pub pool: Option<PoolRun>,
    /// Figures that only `perf file --cache mixed` has.
    pub mixed: Option<MixedRun>,
    /// Operations that succeeded.
    pub ops: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Time from the first submission to the last completion.
    pub duration_s: f64,
    /// Operations per second.
    pub iops: f64,
    /// Bytes per second.
    pub bw_bytes: f64,
    /// Latency, from submission to completion.
    pub latency_ns: Option<Latency>,
    /// CPU time per operation, user and system, kernel workers included.
    pub cpu_us_per_io: Option<f64>,
    /// User CPU time per operation (ringfile).
    pub user_us_per_io: Option<f64>,
    /// System CPU time per operation (ringfile).
    pub system_us_per_io: Option<f64>,
    /// User CPU time in per cent of a core (ringfile).
    pub user_percent: Option<f64>,
    /// System CPU time in per cent of a core (ringfile).
    pub system_percent: Option<f64>,
    /// Voluntary and involuntary context switches of all threads (ringfile).
    pub context_switches: Option<u64>,
    /// System calls that carried operations: `io_uring_enter`, and plain reads and writes (ringfile).
    pub system_calls: Option<u64>,
    /// What the whole machine did during the run, other programs included (not for fio and `perf pool`).
    pub whole_machine: Option<WholeMachine>,
    /// Calls of `io_uring_enter`; with AIO, calls of `io_submit` and `io_getevents` (ringfile).
    pub enters: Option<u64>,
    /// Operations of which every submission used registered memory (ringfile).
    pub fixed_ops: Option<u64>,
    /// Why memory was not registered although that was requested (ringfile); null if it was, or if the reason is
    /// unknown.
    pub refused: Option<String>,
    /// Operations by route (ringfile); the sum is `ops` plus `errors`.
    pub route_ops: Option<RouteOps>,
    /// Which blocks random operations visited.
    pub access: Option<Access>,
    /// Fraction of the file in the page cache before the run.
    pub cached_before: Option<f64>,
    /// Fraction of the file in the page cache after the run.
    pub cached_after: Option<f64>,
    /// Fraction of a cold run's reads that came from the page cache.
    pub cache_hits: Option<f64>,
}

impl Run {
    /// Returns a run without figures.
    pub fn new(setup: Setup, round: u32, role: Role) -> Run {
        Run { setup, round, role, ..Run::default() }
    }

    /// Returns whether it submitted whole batches, so that its latencies are those of batches.
    pub fn is_of_batches(&self) -> bool {
        let engine = self.setup.engine;
        let one_by_one = engine.is_fio() || matches!(engine, Engine::Pread | Engine::RingfileQueue);
        self.setup.batch.is_some() && !one_by_one
    }

    /// Returns how many latencies it has.
    pub fn timed(&self) -> u64 {
        let batch = self.setup.batch.filter(|_| self.is_of_batches()).unwrap_or(1);
        self.ops / batch.max(1) as u64
    }

    /// Returns whether its amount of work is fixed, rather than its length.
    pub fn is_of_fixed_work(&self) -> bool {
        self.access == Some(Access::Once)
    }

    /// Returns the number of operations on the ring that were not fixed although registered memory was requested.
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
    /// Time from when each batch was due until it began.
    pub late_ns: Option<Latency>,
    /// Operations that were due but had not begun at the end of the run; null without a rate, and if the run was
    /// interrupted.
    pub backlog_ops: Option<u64>,
    /// Blocks that the producers wrote, warm-up included.
    pub written_blocks: u64,
    /// Blocks that the consumers checked.
    pub checked_blocks: u64,
    /// Number of times that a producer waited for consumers to finish a segment (`--size`).
    pub room_waits: u64,
    /// CPU time that belongs to neither side, in per cent of a core: kernel workers, the program's main thread.
    pub other_cpu_percent: Option<f64>,
    /// Figures of the pool at the end of the run, if the memory came from a pool.
    pub metrics: Option<PoolFigures>,
}

/// Figures that only runs of `perf file --cache mixed` have.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MixedRun {
    /// Bytes per second that the scan read.
    pub scan_bw_bytes: f64,
    /// Bytes per second read from the device; null if the kernel does not report them.
    pub device_bw_bytes: Option<f64>,
    /// Blocks of adaptive files that were found in the page cache.
    pub cache_hits: u64,
    /// Blocks of adaptive files that were not found in the page cache.
    pub cache_misses: u64,
    /// Blocks that were read through the page cache, so that later reads find them there.
    pub cache_admitted: u64,
    /// Pieces that were read ahead and used.
    pub ahead_used: u64,
    /// Pieces that were read ahead and not used.
    pub ahead_unused: u64,
}

/// The state and the counters of a pool, warm-up included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolFigures {
    /// The limit of the pool's size.
    pub capacity_bytes: u64,
    /// The most that was mapped at once.
    pub high_water_bytes: u64,
    /// Bytes in use at the end.
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

/// Operations by route.
///
/// The library counts them from the end of the warm-up to the end of the last measured operation. Nothing is in flight
/// at either moment, so the four add up to the run's operations, failed ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteOps {
    /// Through io_uring, on any thread.
    pub ring: u64,
    /// By a plain call on the submitting thread.
    pub inline: u64,
    /// By a plain call on a worker.
    pub workers: u64,
    /// By Linux AIO, on any thread.
    #[serde(default)]
    pub aio: u64,
}

impl RouteOps {
    /// Takes the counts by route out of the library's metrics.
    pub fn of(counted: &ringfile::metrics::Metrics) -> RouteOps {
        let (inline, workers, aio) = (counted.inline_ops, counted.worker_ops, counted.aio_ops);
        RouteOps { ring: counted.ops.saturating_sub(inline + workers + aio), inline, workers, aio }
    }

    /// Returns the sum.
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

/// What the whole machine did during a run. CPU time is in per cent of one core, so the sum is 100 for each core.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WholeMachine {
    /// CPU time in user space.
    pub user_percent: f64,
    /// CPU time in the kernel, without interrupts.
    pub system_percent: f64,
    /// CPU time of hardware and software interrupts.
    pub interrupts_percent: f64,
    /// Idle time, including time waiting for I/O.
    pub idle_percent: f64,
    /// Time stolen by other guests of a virtual machine's host.
    pub stolen_percent: f64,
    /// Number of interrupts.
    pub interrupts: u64,
}
