//! What a run comes to in the results: a `Run` for each side.

use std::time::Duration;

use ringfile::PoolMetrics;

use super::ledger::Ledger;
use super::run::{Job, Outcome};
use crate::cli::{Buffers, Cache, Executor, Route, Rw};
use crate::engine::{Engine, RouteOps};
use crate::perf::notes::refused;
use crate::report::results::{Actor, Memory, PoolFigures, PoolRun, Role, Run, Side};
use crate::sys::Usage;

/// The producers' figures and the consumers', of those that there are.
pub fn runs(job: &Job, memory: Memory, (round, role): (u32, Role), outcome: &Outcome) -> Vec<Run> {
    let sides = [(Side::Producer, job.producers), (Side::Consumer, job.consumers)];
    let there = sides.into_iter().filter(|&(_, threads)| threads > 0);
    there.map(|(side, _)| Run { round, role, ..run(job, memory, side, outcome) }).collect()
}

/// What memory of these kinds is in fio's words.
pub fn buffers(kinds: &[Memory]) -> Vec<Buffers> {
    let mut all = Vec::new();
    for &memory in kinds {
        let buffers = of_memory(memory);
        if !all.contains(&buffers) {
            all.push(buffers);
        }
    }
    all
}

fn of_memory(memory: Memory) -> Buffers {
    if memory.is_pooled() { Buffers::Fixed } else { Buffers::Normal }
}

fn run(job: &Job, memory: Memory, side: Side, outcome: &Outcome) -> Run {
    let (ledger, rw, threads) = match side {
        Side::Producer => (&outcome.produced, Rw::Write, job.producers),
        Side::Consumer => (&outcome.consumed, Rw::Read, job.consumers),
    };
    let seconds = measured_time(job, outcome, ledger).as_secs_f64();
    let ops = ledger.latency.count();
    let iops = ops as f64 / seconds;
    let (counts, usage) = (ledger.counts, ledger.usage);
    // What workers did they have counted elsewhere.
    let workers = ops.saturating_sub(counts.ops);
    // A write takes many messages, and syncs are operations too: the library's counts are then not those of blocks.
    let each_is_one = !(job.messages || job.sync && side == Side::Producer);
    let per_io = |cpu: Duration| (ops > 0).then(|| cpu.as_secs_f64() * 1e6 / ops as f64);
    let per_cent = |cpu: Duration| cpu.as_secs_f64() * 100.0 / seconds;
    let mut run = Run {
        engine: Engine::Ringfile,
        round: 1,
        role: Role::Measure,
        numjobs: threads as usize,
        processes: None,
        iodepth: job.batch as usize,
        batch: Some(job.batch as usize),
        inflight: Some(1),
        rw,
        buffers: of_memory(memory),
        parts: None,
        side: Some(side),
        memory: Some(memory),
        pool: Some(of_pool(job, side, outcome, ledger, seconds)),
        direct: memory.is_direct(),
        cache: Cache::Keep,
        route: Some(Route::Auto),
        ring_flags: None,
        executor: Some(Executor::Ringfile),
        block_size_bytes: job.block,
        ops,
        errors: 0,
        duration_s: seconds,
        iops,
        bw_bytes: iops * job.block as f64,
        latency_ns: ledger.latency.summary(),
        cpu_us_per_io: usage.and_then(|usage| per_io(usage.cpu())),
        user_us_per_io: usage.and_then(|usage| per_io(usage.user)),
        system_us_per_io: usage.and_then(|usage| per_io(usage.system)),
        user_percent: usage.map(|usage| per_cent(usage.user)),
        system_percent: usage.map(|usage| per_cent(usage.system)),
        context_switches: usage.map(|usage| usage.context_switches),
        system_calls: each_is_one.then_some(counts.enters + counts.inline_ops + workers),
        whole_machine: None,
        cycles: None,
        instructions: None,
        enters: Some(counts.enters),
        fixed_ops: each_is_one.then_some(counts.fixed_ops),
        refused: None,
        route_ops: each_is_one.then_some(RouteOps {
            ring: counts.ops.saturating_sub(counts.inline_ops + counts.aio_ops),
            inline: counts.inline_ops,
            workers,
            aio: counts.aio_ops,
        }),
        cached_before: None,
        cached_after: None,
        enter_sizes: None,
        access: None,
        io_size_bytes: None,
        cache_hits: None,
    };
    run.refused = refused(&run, ringfile::refused_registration());
    run
}

/// From the first batch that counts to the last; at a rate to the end of the time, if that is later: the last batch may
/// be due long before.
fn measured_time(job: &Job, outcome: &Outcome, ledger: &Ledger) -> Duration {
    let timeline = &outcome.timeline;
    let end =
        if outcome.stopped || job.total.is_some() { ledger.last } else { ledger.last.max(timeline.end) };
    end.saturating_duration_since(timeline.measured).max(Duration::from_nanos(1))
}

fn actor(job: &Job, outcome: &Outcome, ledger: &Ledger) -> Actor {
    let duration_s = measured_time(job, outcome, ledger).as_secs_f64();
    let ops = ledger.latency.count();
    let bw_bytes = ops as f64 * job.block as f64 / duration_s;
    Actor { ops, duration_s, bw_bytes, latency_ns: ledger.latency.summary() }
}

fn of_pool(job: &Job, side: Side, outcome: &Outcome, ledger: &Ledger, seconds: f64) -> PoolRun {
    let cpu_of = |usage: Option<Usage>| usage.map_or(Duration::ZERO, |usage| usage.cpu());
    let actors = if side == Side::Producer { &outcome.producers } else { &outcome.consumers };
    let sides = cpu_of(outcome.produced.usage) + cpu_of(outcome.consumed.usage);
    PoolRun {
        late_ns: ledger.late.summary(),
        backlog_ops: if side == Side::Producer { outcome.backlog } else { None },
        written_blocks: outcome.written,
        checked_blocks: outcome.checked,
        room_waits: outcome.room_waits,
        other_cpu_percent: outcome
            .usage
            .map(|usage| usage.cpu().saturating_sub(sides).as_secs_f64() * 100.0 / seconds),
        metrics: outcome.pool.as_ref().map(figures),
        actors: actors.iter().map(|ledger| actor(job, outcome, ledger)).collect(),
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
