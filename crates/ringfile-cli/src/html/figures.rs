//! The figures of a run that a page can show: what each is called, how it is rounded, and what it means.
//!
//! Rounded as in the terminal's tables.

use crate::report::results::Run;
use crate::report::table::{figure, rate};
use crate::report::whole_machine::WholeMachine;

/// A figure of a run.
#[derive(Clone, Copy)]
pub struct Figure {
    /// Title of its column.
    pub title: &'static str,
    /// The figure, where the run has it.
    pub of: fn(&Run) -> Option<f64>,
    /// Rounded.
    pub text: fn(f64) -> String,
}

/// Speed and latency.
pub const SPEED: [Figure; 12] = [
    Figure { title: "IOPS", of: |run| Some(run.iops), text: rate },
    Figure { title: "MiB/s", of: |run| Some(mebibytes(run)), text: figure },
    Figure { title: "mean", of: |run| run.latency_ns.map(|latency| micros(latency.mean)), text: figure },
    Figure {
        title: "stddev",
        of: |run| run.latency_ns.and_then(|latency| known(latency.stddev)),
        text: figure,
    },
    Figure { title: "p50", of: |run| run.latency_ns.map(|latency| micros(latency.p50)), text: figure },
    Figure { title: "p90", of: |run| run.latency_ns.and_then(|latency| known(latency.p90)), text: figure },
    Figure { title: "p95", of: |run| run.latency_ns.map(|latency| micros(latency.p95)), text: figure },
    Figure { title: "p99", of: |run| run.latency_ns.map(|latency| micros(latency.p99)), text: figure },
    Figure { title: "p99.9", of: |run| run.latency_ns.map(|latency| micros(latency.p999)), text: figure },
    Figure {
        title: "p99.99",
        of: |run| run.latency_ns.and_then(|latency| known(latency.p9999)),
        text: figure,
    },
    Figure { title: "max", of: |run| run.latency_ns.map(|latency| micros(latency.max)), text: figure },
    Figure { title: "CPU µs", of: |run| run.cpu_us_per_io, text: figure },
];

/// What an operation costs, and what was counted.
pub const COST: [Figure; 20] = [
    Figure { title: "CPU µs", of: |run| run.cpu_us_per_io, text: figure },
    Figure { title: "user µs", of: |run| run.user_us_per_io, text: figure },
    Figure { title: "system µs", of: |run| run.system_us_per_io, text: figure },
    Figure { title: "user %", of: |run| run.user_percent, text: figure },
    Figure { title: "system %", of: |run| run.system_percent, text: figure },
    Figure { title: "switches/IO", of: |run| each(run, run.context_switches), text: figure },
    Figure { title: "syscalls/IO", of: |run| each(run, run.system_calls), text: figure },
    Figure { title: "machine: user %", of: |run| whole(run, |whole| whole.user_percent), text: figure },
    Figure { title: "system %", of: |run| whole(run, |whole| whole.system_percent), text: figure },
    Figure { title: "interrupts %", of: |run| whole(run, |whole| whole.interrupts_percent), text: figure },
    Figure { title: "idle %", of: |run| whole(run, |whole| whole.idle_percent), text: figure },
    Figure { title: "stolen %", of: |run| whole(run, |whole| whole.stolen_percent), text: figure },
    Figure { title: "interrupts/IO", of: interrupts, text: figure },
    Figure { title: "memory MiB/s", of: memory_mebibytes, text: figure },
    Figure { title: "cycles/IO", of: |run| each(run, run.cycles), text: figure },
    Figure { title: "instr./IO", of: |run| each(run, run.instructions), text: figure },
    Figure { title: "fixed %", of: |run| each(run, run.fixed_ops).map(|part| part * 100.0), text: figure },
    Figure {
        title: "ring %",
        of: |run| each(run, run.route_ops.map(|ops| ops.ring)).map(|part| part * 100.0),
        text: figure,
    },
    Figure { title: "ops", of: |run| Some(run.ops as f64), text: rate },
    Figure { title: "errors", of: |run| (run.errors > 0).then_some(run.errors as f64), text: rate },
];

/// Operations a second.
pub const IOPS: Figure = SPEED[0];

/// The 99th percentile of latency in microseconds.
pub const P99: Figure = SPEED[7];

/// Percentiles of latency in microseconds, from the median up.
pub const PERCENTILES: [Figure; 7] = [SPEED[4], SPEED[5], SPEED[6], SPEED[7], SPEED[8], SPEED[9], SPEED[10]];

/// Bytes a second in MiB.
pub fn mebibytes(run: &Run) -> f64 {
    run.bw_bytes / f64::from(1 << 20)
}

/// Bytes a second that the machine's memory moved, in MiB.
fn memory_mebibytes(run: &Run) -> Option<f64> {
    Some(run.whole_machine.as_ref()?.memory_bw_bytes? / f64::from(1 << 20))
}

/// Interrupts of the whole machine for one operation.
fn interrupts(run: &Run) -> Option<f64> {
    each(run, Some(run.whole_machine.as_ref()?.interrupts))
}

fn whole(run: &Run, of: fn(&WholeMachine) -> f64) -> Option<f64> {
    run.whole_machine.as_ref().map(of)
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

/// Files from before these figures have 0 there.
fn known(nanos: u64) -> Option<f64> {
    (nanos > 0).then(|| micros(nanos))
}

/// For one operation.
fn each(run: &Run, count: Option<u64>) -> Option<f64> {
    (run.ops > 0).then_some(count? as f64 / run.ops as f64)
}
