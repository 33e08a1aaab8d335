//! The notes below the tables: whether the rate was reached, what the pool did, and the meaning of the figures.

use super::shared::PoolJob;
use clap::ValueEnum;

use crate::cli::PoolArgs;
use crate::model::{Memory, PoolFigures, Results, Role, Run, Side};
use crate::perf::notes::{machine, timing};
use crate::perf::plan::Timing;
use crate::report::routes::{registered, shares};
use crate::values::{self, Bytes};

/// The part of the requested rate that counts as reached: the last batches end after the measured time.
const CARRIED: f64 = 0.95;

/// Returns the notes, one line each.
pub fn of(args: &PoolArgs, job: &PoolJob, results: &Results) -> Vec<String> {
    let (runs, filesystem) = (&results.runs[..], &results.machine.filesystem);
    let mut notes = Vec::new();
    notes.extend(job.rate.and_then(|rate| carried(job, rate, runs)));
    notes.extend(pool(runs));
    notes.extend(registered(runs));
    notes.push(checked(runs));
    notes.push(place(job, filesystem));
    notes.extend(written(job));
    notes.push(timing(Timing::of(&args.timing), results));
    notes.push(machine());
    notes.push(units(job, runs));
    notes.extend(room(runs));
    notes.extend(routes(runs));
    let has = |which: fn(Memory) -> bool| runs.iter().any(|run| run.setup.memory.is_some_and(which));
    if has(Memory::is_uncached) {
        notes.push(
            "with vec-uncached the kernel writes at once, and drops pages when they are written: reads find those that are \
             not, and read the others from the drive"
                .into(),
        );
    }
    if has(|memory| !memory.is_direct() && !memory.is_uncached()) {
        notes.push(
            "vec and pool-buffered use the page cache: reads find all data there, and a segment may be used again before it was \
             written to the disk"
                .into(),
        );
    }
    notes
}

/// Returns whether the slowest run reached the rate of its side.
fn carried(job: &PoolJob, rate: u64, runs: &[Run]) -> Option<String> {
    let backlog = |run: &Run| run.pool.as_ref().and_then(|pool| pool.backlog_ops).unwrap_or(0);
    let worst = runs.iter().min_by(|a, b| a.bw_bytes.total_cmp(&b.bw_bytes))?;
    let (memory, side) =
        (worst.setup.memory.as_ref().map(values::name)?, worst.setup.side.as_ref().map(values::name)?);
    let had = Bytes(worst.bw_bytes as u64);
    let left = runs.iter().map(backlog).max().unwrap_or(0);
    let asked = if job.consumers > 0 {
        let both = Bytes(rate.saturating_mul(2));
        format!("{both} a second requested of both sides together, {} of each", Bytes(rate))
    } else {
        format!("{} a second requested", Bytes(rate))
    };
    if left == 0 && worst.bw_bytes >= rate as f64 * CARRIED {
        return Some(format!("the rate was carried: {asked}, at least {had} reached"));
    }
    let mut note = format!("the rate was NOT carried: {asked}, {had} reached by the {side}s with {memory}");
    if left > 0 {
        let bytes = Bytes(left.saturating_mul(worst.setup.block));
        note += &format!(
            "; up to {left} operations ({bytes}) were due but not begun at the end, and are in no percentile"
        );
    }
    Some(note)
}

/// Returns the figures of the pool in the last run that used it.
fn pool(runs: &[Run]) -> Option<String> {
    let figures = runs.iter().rev().find_map(|run| run.pool.as_ref()?.metrics.as_ref())?;
    let PoolFigures { gets, misses, waits, regions, registered_regions, outside_allocations, .. } = figures;
    Some(format!(
        "pool: {} of {} mapped at most, in use at the end {}, {gets} buffers handed out, {misses} of them not from its \
         caches, {outside_allocations} from outside, {waits} after waiting; {registered_regions} of {regions} regions \
         registered",
        Bytes(figures.high_water_bytes),
        Bytes(figures.capacity_bytes),
        Bytes(figures.in_use_bytes)
    ))
}

fn checked(runs: &[Run]) -> String {
    let of_producers = runs.iter().filter(|run| run.setup.side == Some(Side::Producer));
    if runs.iter().all(|run| run.setup.side == Some(Side::Producer)) {
        return "there were no consumers: written blocks were not read back".into();
    }
    let (written, checked) = of_producers
        .filter_map(|run| run.pool.as_ref())
        .fold((0, 0), |sum, pool| (sum.0 + pool.written_blocks, sum.1 + pool.checked_blocks));
    match written.saturating_sub(checked) {
        0 => format!("all {written} written blocks were read back and are right, warm-up included"),
        left => format!("{checked} of {written} blocks were read back and are right; {left} were not read"),
    }
}

fn place(job: &PoolJob, filesystem: &str) -> String {
    format!(
        "{} on {filesystem}: unnamed segments of {}, at most {} of the disk; batches of {} × {}",
        job.folder.display(),
        Bytes(job.segment),
        Bytes(job.size),
        job.batch,
        Bytes(job.block)
    )
}

/// Returns a note on when a batch counted as written.
fn written(job: &PoolJob) -> Option<String> {
    let until = if job.sync { "it was durable" } else { "it could be read" };
    if !job.messages {
        return job
            .sync
            .then(|| "each batch was synced (fdatasync), which is part of the producers' latency".into());
    }
    Some(format!(
        "messages of {} bytes: with the pool, through an Appender in each producer's log, from whose memory consumers read, and \
         which writes behind; with vec, one buffered write for each batch; a batch was written when {until}; logs recycle \
         their files",
        job.block
    ))
}

fn units(job: &PoolJob, runs: &[Run]) -> String {
    let from = if job.rate.is_some() { "from when it was due by the rate" } else { "from when it began" };
    let mut text = format!(
        "latencies in µs, of whole batches: a producer's {from} until it was written, a consumer's from when it was \
         written until it was read and checked; late p99: the part before it began; CPU µs for one buffer, of the side's \
         own threads"
    );
    let others = runs.iter().filter_map(|run| run.pool.as_ref()?.other_cpu_percent).reduce(f64::max);
    if let Some(others) = others {
        text += &format!(
            "; up to {others:.0} % of a core belongs to neither side (kernel workers, this program)"
        );
    }
    if runs.iter().any(|run| run.role == Role::Aa) {
        text += "; A/A compares the first kind with itself: smaller changes are noise";
    }
    text
}

fn room(runs: &[Run]) -> Option<String> {
    let waits = runs.iter().filter_map(|run| run.pool.as_ref()).map(|pool| pool.room_waits).max()?;
    (waits > 0).then(|| {
        format!(
            "producers waited up to {waits} times in a run for consumers to free room, which is part of their latency; a \
             larger --size lets them run further ahead"
        )
    })
}

/// Returns the routes of each kind of memory.
fn routes(runs: &[Run]) -> Option<String> {
    let of = |memory: &Memory| {
        let shares = shares(runs.iter().filter(|run| run.setup.memory == Some(*memory)))?;
        Some(format!("{} {shares}", values::name(memory)))
    };
    let parts: Vec<String> = Memory::value_variants().iter().filter_map(of).collect();
    (!parts.is_empty()).then(|| format!("routes: {}", parts.join("; ")))
}
