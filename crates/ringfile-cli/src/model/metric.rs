//! The catalogue of metrics: the name and unit of each, and how it is computed from a run.
//!
//! Tables, plots, comparisons and advice refer to a [`Metric`]; none depends on the position of a table's column.

use super::{MixedRun, Run, WholeMachine};
use crate::latency::Latency;
use crate::numbers::{count, figure, rate};

/// A figure of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Metric {
    /// Operations per second.
    Iops,
    /// MiB per second.
    Bandwidth,
    /// Mean latency; all latencies are in microseconds.
    Mean,
    /// Standard deviation of latency.
    Stddev,
    /// Median latency.
    P50,
    /// 90th percentile of latency.
    P90,
    /// 95th percentile of latency.
    P95,
    /// 99th percentile of latency.
    P99,
    /// 99.9th percentile of latency.
    P999,
    /// 99.99th percentile of latency.
    P9999,
    /// Largest latency.
    Max,
    /// 99th percentile of the time from when a batch was due until it began (`perf pool`).
    LateP99,
    /// CPU time per operation in microseconds, user and system.
    Cpu,
    /// User CPU time per operation.
    UserCpu,
    /// System CPU time per operation.
    SystemCpu,
    /// User CPU time in per cent of a core.
    UserPercent,
    /// System CPU time in per cent of a core.
    SystemPercent,
    /// User and system CPU time in per cent of a core.
    OwnPercent,
    /// Cores kept busy: CPU time divided by elapsed time.
    Cores,
    /// Context switches per operation.
    Switches,
    /// System calls per operation.
    SystemCalls,
    /// Percentage of operations that used registered memory.
    FixedPercent,
    /// Percentage of operations that went through the ring.
    RingPercent,
    /// User CPU time of the whole machine in per cent of a core.
    MachineUser,
    /// System CPU time of the whole machine.
    MachineSystem,
    /// CPU time of interrupts of the whole machine.
    MachineInterrupts,
    /// Idle time of the whole machine.
    MachineIdle,
    /// Idle time in per cent of the whole machine's time.
    MachineIdleShare,
    /// Time stolen by other guests of a virtual machine's host.
    MachineStolen,
    /// Interrupts of the whole machine per operation.
    Interrupts,
    /// Bandwidth of the scan, in MiB per second (`--cache mixed`).
    Scan,
    /// Bandwidth of reads from the device, in MiB per second.
    Device,
    /// Blocks found in the page cache.
    CacheHits,
    /// Blocks not found in the page cache.
    CacheMisses,
    /// Blocks admitted to the page cache.
    CacheAdmitted,
    /// Percentage of the pieces read ahead that were used.
    AheadUsed,
    /// Operations.
    Ops,
    /// Failed operations, if there were any.
    Errors,
    /// Length of the run in seconds.
    Seconds,
    /// Time of one thread per operation, in microseconds.
    TimeForOne,
}

/// Everything that is known of a metric: title, unit, and how it is computed.
type Entry = (&'static str, &'static str, fn(&Run) -> Option<f64>);

impl Metric {
    fn entry(self) -> Entry {
        use Metric::*;
        match self {
            Iops => ("IOPS", "IOPS", |run| Some(run.iops)),
            Bandwidth => ("MiB/s", "MiB/s", |run| Some(mebibytes(run.bw_bytes))),
            Mean => ("mean", "µs", |run| latency(run, |latency| latency.mean)),
            Stddev => ("stddev", "µs", |run| newer(run, |latency| latency.stddev)),
            P50 => ("p50", "µs", |run| latency(run, |latency| latency.p50)),
            P90 => ("p90", "µs", |run| newer(run, |latency| latency.p90)),
            P95 => ("p95", "µs", |run| latency(run, |latency| latency.p95)),
            P99 => ("p99", "µs", |run| latency(run, |latency| latency.p99)),
            P999 => ("p99.9", "µs", |run| latency(run, |latency| latency.p999)),
            P9999 => ("p99.99", "µs", |run| newer(run, |latency| latency.p9999)),
            Max => ("max", "µs", |run| latency(run, |latency| latency.max)),
            LateP99 => ("late p99", "µs", |run| run.pool.as_ref()?.late_ns.map(|late| micros(late.p99))),
            Cpu => ("CPU µs", "µs", |run| run.cpu_us_per_io),
            UserCpu => ("user µs", "µs", |run| run.user_us_per_io),
            SystemCpu => ("sys µs", "µs", |run| run.system_us_per_io),
            UserPercent => ("user%", "%", |run| run.user_percent),
            SystemPercent => ("sys%", "%", |run| run.system_percent),
            OwnPercent => ("own%", "%", |run| Some(run.user_percent? + run.system_percent?)),
            Cores => ("cores", "", |run| Some(run.cpu_us_per_io? * run.iops / 1e6)),
            Switches => ("sw", "", |run| for_one(run, run.context_switches)),
            SystemCalls => ("calls", "", |run| for_one(run, run.system_calls)),
            FixedPercent => ("fixed%", "%", |run| per_cent(run, run.fixed_ops)),
            RingPercent => ("ring%", "%", |run| per_cent(run, run.route_ops.map(|ops| ops.ring))),
            MachineUser => ("all user%", "%", |run| whole(run, |all| all.user_percent)),
            MachineSystem => ("all sys%", "%", |run| whole(run, |all| all.system_percent)),
            MachineInterrupts => ("irq%", "%", |run| whole(run, |all| all.interrupts_percent)),
            MachineIdle => ("idle%", "%", |run| whole(run, |all| all.idle_percent)),
            MachineIdleShare => ("idle", "%", |run| whole(run, idle_share)),
            MachineStolen => ("stolen%", "%", |run| whole(run, |all| all.stolen_percent)),
            Interrupts => {
                ("irqs", "", |run| for_one(run, run.whole_machine.as_ref().map(|all| all.interrupts)))
            }
            Scan => ("scan MiB/s", "MiB/s", |run| mixed(run, |mixed| Some(mebibytes(mixed.scan_bw_bytes)))),
            Device => {
                ("device MiB/s", "MiB/s", |run| mixed(run, |mixed| mixed.device_bw_bytes.map(mebibytes)))
            }
            CacheHits => ("hits", "", |run| mixed(run, |mixed| Some(mixed.cache_hits as f64))),
            CacheMisses => ("misses", "", |run| mixed(run, |mixed| Some(mixed.cache_misses as f64))),
            CacheAdmitted => ("admitted", "", |run| mixed(run, |mixed| Some(mixed.cache_admitted as f64))),
            AheadUsed => ("ahead used%", "%", |run| {
                mixed(run, |mixed| {
                    let ahead = mixed.ahead_used + mixed.ahead_unused;
                    (ahead > 0).then(|| mixed.ahead_used as f64 * 100.0 / ahead as f64)
                })
            }),
            Ops => ("ops", "", |run| Some(run.ops as f64)),
            Errors => ("errors", "", |run| (run.errors > 0).then_some(run.errors as f64)),
            Seconds => ("s", "s", |run| Some(run.duration_s)),
            TimeForOne => {
                ("µs/read", "µs", |run| (run.iops > 0.0).then(|| run.setup.numjobs as f64 * 1e6 / run.iops))
            }
        }
    }

    /// Title of its column.
    pub fn title(self) -> &'static str {
        self.entry().0
    }

    /// Returns its unit; empty for counts and ratios.
    pub fn unit(self) -> &'static str {
        self.entry().1
    }

    /// Returns the figure of a run in this unit; `None` if it was not measured.
    pub fn of(self, run: &Run) -> Option<f64> {
        if run.ops > 0 && run.timed() < self.least_samples() {
            return None;
        }
        self.entry().2(run)
    }

    /// Returns how many operations a percentile needs: with fewer, it would be that of the slowest one.
    fn least_samples(self) -> u64 {
        match self {
            Metric::P90 => 10,
            Metric::P95 => 20,
            Metric::P99 | Metric::LateP99 => 100,
            Metric::P999 => 1_000,
            Metric::P9999 => 10_000,
            _ => 0,
        }
    }

    /// Formats a figure with about three digits, but all digits before the point; counts are whole.
    pub fn text(self, value: f64) -> String {
        if self.is_count() {
            count(value)
        } else if self == Metric::Iops {
            rate(value)
        } else {
            figure(value)
        }
    }

    fn is_count(self) -> bool {
        use Metric::{CacheAdmitted, CacheHits, CacheMisses, Errors, Ops};
        matches!(self, Ops | Errors | CacheHits | CacheMisses | CacheAdmitted)
    }

    /// Formats a figure in at most five characters up to 100,000, so that the usual table fits 100 columns; counts are
    /// whole.
    pub fn short(self, value: f64) -> String {
        match value {
            _ if self.is_count() => self.text(value),
            ..9_999.5 => self.text(value),
            _ if self.is_latency() => format!("{}ms", figure(value / 1000.0)),
            _ => rate(value),
        }
    }

    /// Returns whether it is a latency of operations.
    pub fn is_latency(self) -> bool {
        use Metric::{Max, Mean, P50, P90, P95, P99, P999, P9999, Stddev};
        matches!(self, Mean | Stddev | P50 | P90 | P95 | P99 | P999 | P9999 | Max | Metric::LateP99)
    }
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

fn mebibytes(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

fn latency(run: &Run, of: fn(&Latency) -> u64) -> Option<f64> {
    run.latency_ns.as_ref().map(|latency| micros(of(latency)))
}

/// Returns a latency for which older files have 0.
fn newer(run: &Run, of: fn(&Latency) -> u64) -> Option<f64> {
    latency(run, of).filter(|&micros| micros > 0.0)
}

fn for_one(run: &Run, count: Option<u64>) -> Option<f64> {
    (run.ops > 0).then_some(count? as f64 / run.ops as f64)
}

fn per_cent(run: &Run, count: Option<u64>) -> Option<f64> {
    for_one(run, count).map(|part| part * 100.0)
}

fn whole(run: &Run, of: fn(&WholeMachine) -> f64) -> Option<f64> {
    run.whole_machine.as_ref().map(of)
}

fn idle_share(all: &WholeMachine) -> f64 {
    let busy = all.user_percent + all.system_percent + all.interrupts_percent + all.stolen_percent;
    all.idle_percent * 100.0 / (all.idle_percent + busy)
}

fn mixed(run: &Run, of: fn(&MixedRun) -> Option<f64>) -> Option<f64> {
    run.mixed.as_ref().and_then(of)
}
