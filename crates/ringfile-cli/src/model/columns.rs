//! Which metrics each table, plot and comparison shows, in the order of its columns.

use super::Metric::{self, *};

/// `perf file`: speed and latency. The p99.99 follows if threads wait for a core, then [`FILE_END`].
pub const FILE: [Metric; 7] = [Iops, Bandwidth, Mean, P50, P95, P99, P999];
/// The last columns of the same table.
pub const FILE_END: [Metric; 2] = [Max, Cpu];

/// `perf batch` and `perf multiread`: the columns after the comparison with other engines.
pub const BATCHES: [Metric; 7] = [TimeForOne, Cores, Mean, P50, P99, Max, Cpu];

/// `perf buffers`: the grid.
pub const GRID: [Metric; 10] =
    [Iops, Bandwidth, P50, P99, P999, UserPercent, SystemPercent, Cpu, Switches, SystemCalls];
/// `perf buffers`: the whole machine beside this process, in per cent of a core.
pub const MACHINE: [Metric; 7] =
    [OwnPercent, MachineUser, MachineSystem, MachineInterrupts, MachineIdle, MachineStolen, Interrupts];
/// `perf buffers`: the other choices.
pub const CHOICES: [Metric; 7] = [Iops, P50, P99, P999, Cpu, Switches, SystemCalls];

/// `perf pool`: each side with each kind of memory.
pub const POOL: [Metric; 14] =
    [Iops, Bandwidth, P50, P90, P95, P99, P999, P9999, Max, Stddev, LateP99, Cpu, UserCpu, SystemCpu];
/// `perf pool`: what the kind of memory changes.
pub const POOL_CHANGES: [Metric; 7] = [Iops, Bandwidth, P50, P99, P999, P9999, Cpu];

/// `perf file --cache mixed`.
pub const MIXED: [Metric; 10] =
    [Iops, Scan, Cpu, UserCpu, SystemCpu, Device, CacheHits, CacheMisses, CacheAdmitted, AheadUsed];
/// `perf file --cache mixed`: what reading adaptively changes.
pub const MIXED_CHANGES: [Metric; 3] = [Iops, Scan, Cpu];

/// The metrics in which choices are compared. Not the slowest operation, which says nothing.
pub const CHANGES: [Metric; 8] = [Iops, Bandwidth, Mean, P50, P95, P99, P999, Cpu];

/// The metrics in which two sessions are compared.
pub const COMPARED: [Metric; 4] = [Iops, Cpu, P50, P99];

/// The percentiles of latency in a plot, from the median up.
pub const PERCENTILES: [Metric; 7] = [P50, P90, P95, P99, P999, P9999, Max];

/// A page: speed and latency.
pub const PAGE_SPEED: [Metric; 12] =
    [Iops, Bandwidth, Mean, Stddev, P50, P90, P95, P99, P999, P9999, Max, Cpu];
/// A page: what an operation costs, and what was counted.
pub const PAGE_COST: [Metric; 17] = [
    Cpu,
    UserCpu,
    SystemCpu,
    UserPercent,
    SystemPercent,
    Switches,
    SystemCalls,
    MachineUser,
    MachineSystem,
    MachineInterrupts,
    MachineIdle,
    MachineStolen,
    Interrupts,
    FixedPercent,
    RingPercent,
    Ops,
    Errors,
];
