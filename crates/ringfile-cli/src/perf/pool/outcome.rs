//! Converts the outcome of a run to results: a `Run` for each side.

use std::time::Duration;

use ringfile::buf::PoolMetrics;

use super::ledger::Ledger;
use super::run::PoolOutcome;
use super::shared::PoolJob;
use crate::engine::rated;
use crate::model::{Cache, Memory, PoolFigures, PoolRun, Role, Run, Rw, Setup, Side};
use crate::sys::Usage;

/// Returns the figures of the producers and of the consumers, if there are any.
pub fn runs(job: &PoolJob, memory: Memory, turn: (u32, Role), outcome: &PoolOutcome) -> Vec<Run> {
    let sides = [(Side::Producer, Rw::Write, job.producers), (Side::Consumer, Rw::Read, job.consumers)];
    let there = sides.into_iter().filter(|&(.., threads)| threads > 0);
    there.map(|side| run(job, setup(job, memory, side), turn, outcome)).collect()
}

/// Returns the setup of one side.
fn setup(job: &PoolJob, memory: Memory, (side, rw, threads): (Side, Rw, u32)) -> Setup {
    Setup {
        numjobs: threads as usize,
        iodepth: job.batch as usize,
        batch: Some(job.batch as usize),
        inflight: Some(1),
        rw,
        buffers: memory.buffers(),
        side: Some(side),
        memory: Some(memory),
        direct: memory.is_direct(),
        cache: Cache::Keep,
        block: job.block,
        ..Setup::default()
    }
}

fn run(job: &PoolJob, setup: Setup, (round, role): (u32, Role), outcome: &PoolOutcome) -> Run {
    let is_producer = setup.side == Some(Side::Producer);
    let ledger = if is_producer { &outcome.producers } else { &outcome.consumers };
    let (ops, mut counted) = (ledger.latency.count(), ledger.counted);
    // Workers count their operations on their own threads.
    counted.routes.workers = ops.saturating_sub(counted.routes.total());
    // A write carries many messages, and syncs are operations too: the library does not count blocks then.
    let each_is_one = !(job.messages || job.sync && is_producer);
    let run =
        rated(Run::new(setup, round, role), ops, measured_time(job, outcome, ledger), ledger.usage.as_ref());
    let mut run = Run {
        pool: Some(of_pool(outcome, ledger, run.duration_s)),
        latency_ns: ledger.latency.summary(),
        system_calls: each_is_one.then_some(counted.system_calls()),
        enters: Some(counted.enters),
        fixed_ops: each_is_one.then_some(counted.fixed_ops),
        route_ops: each_is_one.then_some(counted.routes),
        ..run
    };
    let refused = ringfile::buf::refused_registration().map(|refused| refused.to_string());
    run.refused = refused.filter(|_| run.not_fixed() > 0);
    run
}

/// Returns the time from the first measured batch to the last; at a rate at least to the end, because the last batch
/// may be due long before.
fn measured_time(job: &PoolJob, outcome: &PoolOutcome, ledger: &Ledger) -> Duration {
    let start = outcome.measured.start;
    let end = if outcome.measured.stopped { ledger.last } else { ledger.last.max(start + job.duration) };
    end.saturating_duration_since(start).max(Duration::from_nanos(1))
}

fn of_pool(outcome: &PoolOutcome, ledger: &Ledger, seconds: f64) -> PoolRun {
    let sides = [&outcome.producers, &outcome.consumers].into_iter();
    let sides: Duration = sides.filter_map(|ledger| Some(ledger.usage?.cpu())).sum();
    let others = |usage: Usage| usage.cpu().saturating_sub(sides).as_secs_f64() * 100.0 / seconds;
    PoolRun {
        late_ns: ledger.late.summary(),
        backlog_ops: ledger.backlog,
        written_blocks: outcome.shared.written(),
        checked_blocks: outcome.shared.checked(),
        room_waits: outcome.shared.store.waits(),
        other_cpu_percent: outcome.measured.usage.map(others),
        metrics: outcome.pool.as_ref().map(figures),
    }
}

fn figures(pool: &PoolMetrics) -> PoolFigures {
    PoolFigures {
        capacity_bytes: pool.capacity as u64,
        high_water_bytes: pool.reserved_high_water as u64,
        in_use_bytes: pool.in_use as u64,
        gets: pool.classes.iter().map(|class| class.gets).sum(),
        misses: pool.misses,
        outside_allocations: pool.outside_allocations,
        waits: pool.waits,
        regions: pool.regions as u64,
        registered_regions: pool.registered_regions as u64,
        refused_registrations: pool.refused_registrations as u64,
    }
}
