//! The tables of `perf pool`: one row for each side and kind of memory, and what the kind of memory changes.
//!
//! Figures are medians over rounds; changes are those within a round, with the least and the most.

use clap::ValueEnum;

use super::results::{Actor, Memory, Role, Run, Side};
use super::statistics::Spread;
use super::summary::groups;
use super::table::{Table, change, figure, rate};
use crate::latency::Latency;
use crate::values;

const SIDES: [Side; 2] = [Side::Producer, Side::Consumer];

/// A figure that has a column.
struct Column {
    title: &'static str,
    of: fn(&Run) -> Option<f64>,
    format: fn(f64) -> String,
    /// Whether a change of it says something.
    compared: bool,
}

const fn column(title: &'static str, of: fn(&Run) -> Option<f64>) -> Column {
    Column { title, of, format: figure, compared: true }
}

const COLUMNS: [Column; 12] = [
    Column { title: "IOPS", of: |run| Some(run.iops), format: rate, compared: true },
    column("MiB/s", |run| Some(run.bw_bytes / f64::from(1 << 20))),
    column("p50", |run| micros(run, |latency| latency.p50)),
    column("p90", |run| micros(run, |latency| latency.p90)),
    column("p95", |run| micros(run, |latency| latency.p95)),
    column("p99", |run| micros(run, |latency| latency.p99)),
    column("p99.9", |run| micros(run, |latency| latency.p999)),
    column("p99.99", |run| micros(run, |latency| latency.p9999)),
    column("max", |run| micros(run, |latency| latency.max)),
    column("stddev", |run| micros(run, |latency| latency.stddev)),
    Column { title: "late p99", of: late_p99, format: figure, compared: false },
    column("CPU µs", |run| run.cpu_us_per_io),
];

fn micros(run: &Run, of: fn(&Latency) -> u64) -> Option<f64> {
    run.latency_ns.as_ref().map(|latency| of(latency) as f64 / 1000.0)
}

fn late_p99(run: &Run) -> Option<f64> {
    run.pool.as_ref()?.late_ns.as_ref().map(|late| late.p99 as f64 / 1000.0)
}

/// The table of all runs that were made to be compared.
pub fn table(runs: &[Run]) -> Table {
    let mut table = Table::default().text("side").text("memory").end_keys();
    for column in &COLUMNS {
        table = table.number(column.title);
    }
    let groups = groups(runs);
    for side in SIDES {
        for group in groups.iter().filter(|group| group[0].side == Some(side)) {
            let memory = group[0].memory.as_ref().map(values::name).unwrap_or_default();
            let mut cells = vec![values::name(&side), memory];
            cells.extend(COLUMNS.iter().map(|column| {
                let figures = group.iter().filter_map(|run| (column.of)(run));
                Spread::of(figures).map_or_else(|| "-".into(), |spread| (column.format)(spread.median))
            }));
            table.row(cells);
        }
    }
    table
}

/// A figure of one thread of a side, or of all.
type OfActor = (&'static str, fn(&Actor) -> Option<f64>);

const ACTOR_COLUMNS: [OfActor; 11] = [
    ("MiB/s", |actor| Some(actor.bw_bytes / f64::from(1 << 20))),
    ("mean", |actor| actor_micros(actor, |latency| latency.mean)),
    ("min", |actor| actor_micros(actor, |latency| latency.min)),
    ("p50", |actor| actor_micros(actor, |latency| latency.p50)),
    ("p90", |actor| actor_micros(actor, |latency| latency.p90)),
    ("p95", |actor| actor_micros(actor, |latency| latency.p95)),
    ("p99", |actor| actor_micros(actor, |latency| latency.p99)),
    ("p99.9", |actor| actor_micros(actor, |latency| latency.p999)),
    ("p99.99", |actor| actor_micros(actor, |latency| latency.p9999)),
    ("max", |actor| actor_micros(actor, |latency| latency.max)),
    ("time s", |actor| Some(actor.duration_s)),
];

fn actor_micros(actor: &Actor, of: fn(&Latency) -> u64) -> Option<f64> {
    actor.latency_ns.as_ref().map(|latency| of(latency) as f64 / 1000.0)
}

/// The threads of a run by themselves, and all together as the last one.
fn actors_of(run: &Run) -> Vec<Actor> {
    let each = run.pool.as_ref().map(|pool| pool.actors.clone()).unwrap_or_default();
    let all = Actor {
        ops: run.ops,
        duration_s: run.duration_s,
        bw_bytes: run.bw_bytes,
        latency_ns: run.latency_ns,
    };
    if each.is_empty() { Vec::new() } else { each.into_iter().chain([all]).collect() }
}

/// The table of each producer and consumer; empty for results of a version that did not tell them apart.
pub fn actors(runs: &[Run]) -> Table {
    let mut table = Table::default().text("side").text("memory").text("thread").end_keys();
    for (title, _) in ACTOR_COLUMNS {
        table = table.number(title);
    }
    let groups = groups(runs);
    for side in SIDES {
        for group in groups.iter().filter(|group| group[0].side == Some(side)) {
            let memory = group[0].memory.as_ref().map(values::name).unwrap_or_default();
            let rounds: Vec<Vec<Actor>> = group.iter().map(|run| actors_of(run)).collect();
            let threads = rounds.iter().map(Vec::len).min().unwrap_or(0);
            for thread in 0..threads {
                let name = if thread + 1 == threads { "all".into() } else { thread.to_string() };
                let mut cells = vec![values::name(&side), memory.clone(), name];
                cells.extend(ACTOR_COLUMNS.iter().map(|(_, of)| {
                    let figures = rounds.iter().filter_map(|actors| of(&actors[thread]));
                    Spread::of(figures).map_or_else(|| "-".into(), |spread| figure(spread.median))
                }));
                table.row(cells);
            }
        }
    }
    table
}

/// The table of changes in per cent; empty where there is nothing to compare.
pub fn changes(runs: &[Run]) -> Table {
    let several_rounds = runs.iter().any(|run| run.round > 1);
    let mut table = Table::default().text("change in %").text("side");
    if several_rounds {
        table = table.text("rounds");
    }
    table = table.end_keys();
    for column in COLUMNS.iter().filter(|column| column.compared) {
        table = table.number(column.title);
    }
    for side in SIDES {
        for (name, pairs) in comparisons(runs, side) {
            let spreads: Vec<Option<Spread>> = COLUMNS
                .iter()
                .filter(|column| column.compared)
                .map(|column| spread(&pairs, column.of))
                .collect();
            let mut keys = vec![name, values::name(&side)];
            for (part, figure) in PARTS.iter().take(if several_rounds { PARTS.len() } else { 1 }) {
                let mut cells = keys.clone();
                cells.extend(several_rounds.then(|| (*part).to_string()));
                cells.extend(
                    spreads
                        .iter()
                        .map(|spread| spread.map_or_else(|| "-".into(), |spread| change(figure(spread)))),
                );
                table.row(cells);
                // Said once; below it only what differs.
                keys.iter_mut().for_each(String::clear);
            }
        }
    }
    table
}

type Part = fn(Spread) -> f64;

const PARTS: [(&str, Part); 3] =
    [("median", |spread| spread.median), ("min", |spread| spread.min), ("max", |spread| spread.max)];

/// A run and what it is compared with, in the same round.
type Pair<'a> = (&'a Run, &'a Run);

fn spread(pairs: &[Pair<'_>], of: fn(&Run) -> Option<f64>) -> Option<Spread> {
    Spread::of(pairs.iter().filter_map(|(subject, base)| {
        let (subject, base) = (of(subject)?, of(base)?);
        (base > 0.0).then(|| (subject / base - 1.0) * 100.0)
    }))
}

/// The first kind over each of the others, and over itself.
fn comparisons(runs: &[Run], side: Side) -> Vec<(String, Vec<Pair<'_>>)> {
    let of_side = || runs.iter().filter(move |run| run.side == Some(side));
    let measured = |run: &&Run| run.role == Role::Measure;
    let Some(first) = of_side().find(measured).and_then(|run| run.memory) else { return Vec::new() };
    let subjects = || of_side().filter(measured).filter(|run| run.memory == Some(first));
    let mut found = Vec::new();
    for &other in Memory::value_variants().iter().filter(|&&memory| memory != first) {
        let base =
            |round| of_side().filter(measured).find(|run| run.memory == Some(other) && run.round == round);
        let pairs: Vec<Pair<'_>> = subjects().filter_map(|run| Some((run, base(run.round)?))).collect();
        found.push((format!("{}/{}", values::name(&first), values::name(&other)), pairs));
    }
    let again = of_side().filter(|run| run.role == Role::Aa);
    let pairs = again.filter_map(|run| Some((run, subjects().find(|base| base.round == run.round)?)));
    found.push(("A/A".into(), pairs.collect()));
    found.retain(|(_, pairs)| !pairs.is_empty());
    found
}
