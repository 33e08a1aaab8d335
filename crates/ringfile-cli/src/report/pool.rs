//! The tables of `perf pool`: one row for each side and both together with each kind of memory, and what the kind of
//! memory changes.

use clap::ValueEnum;

use super::change::{self, Comparison};
use super::medians::{self, keyed, labels, median};
use super::table::Table;
use crate::model::{Actor, Factor, Memory, Role, Run, Setup, Side, columns, groups};
use crate::values;

const SIDES: [Side; 3] = [Side::Producer, Side::Consumer, Side::Both];

const KEYS: [Factor; 2] = [Factor::Side, Factor::Memory];

/// Returns the runs, and with each producers' run one of both sides together.
pub fn with_both(runs: &[Run]) -> Vec<Run> {
    let both = |run: &Run| {
        let is_other = |other: &&Run| {
            let setup = &other.setup;
            (setup.side, setup.memory) == (Some(Side::Consumer), run.setup.memory)
                && (other.round, other.role) == (run.round, run.role)
        };
        let producers = run.setup.side == Some(Side::Producer);
        let other = runs.iter().filter(|_| producers).find(is_other)?;
        Some(together(run, other, run.pool.as_ref()?.both.as_ref()?))
    };
    runs.iter().cloned().chain(runs.iter().filter_map(both)).collect()
}

/// Returns what two sides did together, of which the last argument has what cannot be added up.
fn together(producers: &Run, consumers: &Run, both: &Actor) -> Run {
    let for_one = |of: fn(&Run) -> Option<f64>| {
        let sum = of(producers)? * producers.ops as f64 + of(consumers)? * consumers.ops as f64;
        Some(sum / both.ops as f64)
    };
    let setup = Setup { side: Some(Side::Both), ..producers.setup };
    Run {
        ops: both.ops,
        duration_s: both.duration_s,
        iops: both.ops as f64 / both.duration_s,
        bw_bytes: both.bw_bytes,
        latency_ns: both.latency_ns,
        cpu_us_per_io: for_one(|run| run.cpu_us_per_io),
        user_us_per_io: for_one(|run| run.user_us_per_io),
        system_us_per_io: for_one(|run| run.system_us_per_io),
        ..Run::new(setup, producers.round, producers.role)
    }
}

/// Groups runs by side and kind of memory, the producers first.
fn by_side(runs: &[Run]) -> Vec<Vec<&Run>> {
    let of = |side| groups(runs).into_iter().filter(move |group| group[0].setup.side == Some(side));
    SIDES.into_iter().flat_map(of).collect()
}

/// Returns the table of all runs to compare.
pub fn table(runs: &[Run]) -> Table {
    medians::of(&KEYS, &by_side(&with_both(runs)), &columns::POOL)
}

/// Returns the table of each producer and consumer; empty for results of a version that did not record them.
pub fn actors(runs: &[Run]) -> Table {
    let metrics = columns::POOL_THREADS.iter();
    let mut table =
        metrics.fold(keyed(&KEYS).text("thread").end_keys(), |table, of| table.number(of.title()));
    for group in by_side(runs) {
        let rounds: Vec<Vec<Run>> = group.iter().map(|run| threads_of(run)).collect();
        let threads = rounds.iter().map(Vec::len).min().unwrap_or(0);
        for thread in 0..threads {
            let name = if thread + 1 == threads { "all".into() } else { thread.to_string() };
            let of_thread: Vec<&Run> = rounds.iter().map(|threads| &threads[thread]).collect();
            let mut row = labels(&KEYS, group[0]);
            row.push(name);
            row.extend(columns::POOL_THREADS.iter().map(|&metric| median(&of_thread, metric)));
            table.row(row);
        }
    }
    table
}

/// Returns each thread of a run, and all of them together as the last.
fn threads_of(run: &Run) -> Vec<Run> {
    let threads = run.pool.iter().flat_map(|pool| &pool.actors);
    let mut each: Vec<Run> = threads
        .map(|actor| Run {
            ops: actor.ops,
            duration_s: actor.duration_s,
            bw_bytes: actor.bw_bytes,
            latency_ns: actor.latency_ns,
            ..run.clone()
        })
        .collect();
    if !each.is_empty() {
        each.push(run.clone());
    }
    each
}

/// Returns the table of changes in per cent; empty if there is nothing to compare.
pub fn changes(runs: &[Run]) -> Table {
    let runs = &with_both(runs);
    let all: Vec<Comparison<'_>> = SIDES.into_iter().flat_map(|side| comparisons(runs, side)).collect();
    change::of(&[Factor::Side], &columns::POOL_CHANGES, &all)
}

/// Compares the first kind of memory with each of the others, and with itself (A/A).
pub fn comparisons(runs: &[Run], side: Side) -> Vec<Comparison<'_>> {
    let of_side = |run: &&Run| run.setup.side == Some(side) && run.role == Role::Measure;
    let Some((first, memory)) =
        runs.iter().find(of_side).and_then(|run| Some((run.setup, run.setup.memory?)))
    else {
        return Vec::new();
    };
    let others = Memory::value_variants().iter().copied().filter(|&other| other != memory);
    let with = |other: Memory| {
        let name = format!("{}/{}", values::name(&memory), values::name(&other));
        let (memory, buffers, direct) = (Some(other), other.buffers(), other.is_direct());
        change::compare(runs, name, (first, Role::Measure), Setup { memory, buffers, direct, ..first })
    };
    others.filter_map(with).chain(change::noise(runs, |setup| setup.side == Some(side))).collect()
}
