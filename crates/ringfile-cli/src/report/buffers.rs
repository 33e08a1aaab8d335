//! The tables of `perf buffers`: every cell by kind of buffers, and the other choices in the cells of the smallest block.

use super::judge::{self, Noise};
use super::results::{Key, Results, Run};
use super::statistics::{Metric, Spread};
use super::summary::groups;
use super::table::{Table, figure, rate};
use super::whole_machine::WholeMachine;
use crate::cli::{Buffers, Cache, RingFlags, Route};
use crate::engine::Engine;
use crate::values::{self, short_size};

/// What a run's row says: a title, and the figure of one run.
type Column = (&'static str, fn(&Run) -> Option<f64>);

/// All tables that have rows.
pub fn tables(results: &Results) -> Vec<Table> {
    let (grid, choices): (Vec<Vec<&Run>>, Vec<Vec<&Run>>) =
        groups(&results.runs).into_iter().partition(|group| is_of_grid(results, group[0]));
    let mut tables = vec![grid_table(&grid), comparison_table(&results.runs, &grid), machine_table(&grid)];
    if !choices.is_empty() {
        tables.push(choice_table(&grid, &choices));
    }
    tables.retain(|table| !table.is_empty());
    tables
}

/// Whether a run compares buffers, and not other choices.
pub fn is_of_grid(results: &Results, run: &Run) -> bool {
    let params = &results.params;
    run.direct == params.direct
        && (!run.engine.is_ours() || params.route.first() == run.route.as_ref())
        && params.cache.first() == Some(&run.cache)
}

fn grid_table(groups: &[Vec<&Run>]) -> Table {
    let counted = groups.iter().flatten().any(|run| run.cycles.is_some());
    let mut columns: Vec<Column> = vec![
        ("MiB/s", |run| Metric::Bandwidth.of(run)),
        ("p50", |run| Metric::P50.of(run)),
        ("p99", |run| Metric::P99.of(run)),
        ("p99.9", |run| Metric::P999.of(run)),
        ("user%", |run| run.user_percent),
        ("sys%", |run| run.system_percent),
        ("CPU µs", |run| run.cpu_us_per_io),
        ("sw", |run| for_one(run, run.context_switches)),
        ("calls", |run| for_one(run, run.system_calls)),
    ];
    if counted {
        columns.push(("cycles", |run| for_one(run, run.cycles)));
        columns.push(("instr.", |run| for_one(run, run.instructions)));
    }
    let rings = has_rings(groups);
    let mut table = keys(rings).text("buffers").end_keys().number("IOPS");
    for (title, _) in &columns {
        table = table.number(title);
    }
    for group in groups {
        let run = group[0];
        let mut cells = labels(&run.key(), rings);
        cells.extend([buffers(run), median(group, |run| Some(run.iops), rate)]);
        cells.extend(columns.iter().map(|&(_, of)| median(group, of, figure)));
        table.row(cells);
    }
    table
}

/// The whole machine beside the processes, in per cent of a core.
fn machine_table(groups: &[Vec<&Run>]) -> Table {
    if !groups.iter().flatten().any(|run| run.whole_machine.is_some()) {
        return Table::default();
    }
    let mut columns: Vec<Column> = vec![
        ("own%", |run| Some(run.user_percent? + run.system_percent?)),
        ("user%", |run| whole(run, |whole| whole.user_percent)),
        ("sys%", |run| whole(run, |whole| whole.system_percent)),
        ("irq%", |run| whole(run, |whole| whole.interrupts_percent)),
        ("idle%", |run| whole(run, |whole| whole.idle_percent)),
        ("stolen%", |run| whole(run, |whole| whole.stolen_percent)),
        ("irqs", |run| for_one(run, Some(run.whole_machine.as_ref()?.interrupts))),
    ];
    if groups.iter().flatten().any(|run| memory_bytes(run).is_some()) {
        columns.push(("mem MiB/s", |run| memory_bytes(run).map(|bytes| bytes / f64::from(1 << 20))));
        columns.push(("mem/I/O", |run| memory_bytes(run).map(|bytes| bytes / run.bw_bytes)));
    }
    let rings = has_rings(groups);
    let mut table = keys(rings).text("whole machine").end_keys();
    for (title, _) in &columns {
        table = table.number(title);
    }
    for group in groups {
        let mut cells = labels(&group[0].key(), rings);
        cells.push(buffers(group[0]));
        cells.extend(columns.iter().map(|&(_, of)| median(group, of, figure)));
        table.row(cells);
    }
    table
}

fn whole(run: &Run, of: fn(&WholeMachine) -> f64) -> Option<f64> {
    run.whole_machine.as_ref().map(of)
}

fn memory_bytes(run: &Run) -> Option<f64> {
    run.whole_machine.as_ref()?.memory_bw_bytes
}

/// The columns that name a cell.
fn keys(rings: bool) -> Table {
    let table = Table::default().number("proc").text("mode").number("bs").number("depth");
    if rings { table.text("ring") } else { table }
}

/// What these columns say of a cell.
fn labels(cell: &Key, rings: bool) -> Vec<String> {
    let mut labels = vec![
        cell.processes.unwrap_or(1).to_string(),
        values::name(&cell.rw),
        short_size(cell.block_size_bytes),
        cell.iodepth.to_string(),
    ];
    let ring = || ring(cell.engine, cell.ring_flags).unwrap_or_else(|| "ringfile".into());
    labels.extend(rings.then(ring));
    labels
}

/// Whether rings are compared as well.
fn has_rings(groups: &[Vec<&Run>]) -> bool {
    groups.iter().any(|group| ring(group[0].engine, group[0].ring_flags).is_some())
}

/// What ring a run had, where one was asked for: `by hand`, `coop`, `by hand, coop`.
pub fn ring(engine: Engine, flags: Option<RingFlags>) -> Option<String> {
    let by_hand = (!engine.is_ours()).then(|| "by hand".to_string());
    let words: Vec<String> = by_hand.into_iter().chain(flags.as_ref().map(values::name)).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// The kind, with the number of parts: `vectored ×8`.
fn buffers(run: &Run) -> String {
    let name = values::name(&run.buffers);
    run.parts.map_or(name.clone(), |parts| format!("{name} ×{parts}"))
}

/// The rounds of two kinds.
type Pair<'a> = (&'a Vec<&'a Run>, &'a Vec<&'a Run>);

/// A comparison in a cell: how it is called, what, and over what.
type Comparison = (&'static str, Buffers, Buffers);

const COMPARISONS: [Comparison; 3] = [
    ("fixed/normal", Buffers::Fixed, Buffers::Normal),
    ("vectored/normal", Buffers::Vectored, Buffers::Normal),
    ("v.-fixed/vectored", Buffers::VectoredFixed, Buffers::Vectored),
];

/// What registering, and parts, change in each cell, as ratios paired within rounds; what is outside the noise has a star.
fn comparison_table(runs: &[Run], groups: &[Vec<&Run>]) -> Table {
    let noise = [Metric::Iops, Metric::Cpu].map(|metric| (metric, Noise::of(runs, metric)));
    let rings = has_rings(groups);
    let cell_of = |run: &Run| Key { buffers: Buffers::Normal, ..run.key() };
    // What a run of the library has beside one by hand.
    let ours = groups.iter().map(|group| group[0]).find(|run| run.engine.is_ours());
    let way = ours.map(|run| (run.route, run.executor)).unwrap_or_default();
    let mut cells: Vec<Key> = Vec::new();
    for cell in groups.iter().map(|group| cell_of(group[0])) {
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    let mut table = keys(rings).text("* outside noise").end_keys().number("IOPS").number("CPU µs");
    for cell in cells {
        let of = |key: Key| groups.iter().find(|group| group[0].key() == key);
        let of_kind = |kind: Buffers| of(Key { buffers: kind, ..cell });
        let ours = Key { engine: Engine::Ringfile, route: way.0, executor: way.1, ..cell };
        let mut compared: Vec<(String, Pair<'_>)> = COMPARISONS
            .iter()
            .filter_map(|&(name, subject, base)| Some((name.into(), of_kind(subject).zip(of_kind(base))?)))
            .collect();
        if !cell.engine.is_ours() {
            let kinds = [Buffers::Normal, Buffers::Fixed, Buffers::Vectored, Buffers::VectoredFixed];
            compared.extend(kinds.into_iter().filter_map(|kind| {
                let pair = of(Key { buffers: kind, ..ours }).zip(of_kind(kind))?;
                Some((format!("{}: ringfile/by hand", values::name(&kind)), pair))
            }));
        }
        let mut labels = labels(&cell, rings);
        let empty = vec![String::new(); labels.len()];
        for (name, (subject, base)) in compared {
            let ratio = |(metric, noise): &(Metric, Noise)| {
                let pairs = judge::pairs(subject, base, *metric);
                let verdict = judge::compare(&pairs, noise.in_cell(&cell, pairs.len()));
                verdict.map_or_else(|| "-".into(), |verdict| verdict.in_table())
            };
            let mut row = std::mem::replace(&mut labels, empty.clone());
            row.push(name);
            row.extend(noise.iter().map(ratio));
            table.row(row);
        }
    }
    table
}

fn choice_table(grid: &[Vec<&Run>], choices: &[Vec<&Run>]) -> Table {
    let mut table = Table::default().text("way").text("route").number("bs").number("depth").end_keys();
    table = table
        .number("IOPS")
        .number("p50")
        .number("p99")
        .number("p99.9")
        .number("CPU µs")
        .number("sw")
        .number("calls");
    let comparable = |run: &Run| {
        choices.iter().any(|choice| {
            (
                choice[0].iodepth,
                choice[0].block_size_bytes,
                choice[0].processes,
                choice[0].rw,
                choice[0].buffers,
            ) == (run.iodepth, run.block_size_bytes, run.processes, run.rw, run.buffers)
        })
    };
    let beside = grid.iter().filter(|group| {
        let (run, choice) = (group[0], choices[0][0]);
        (run.engine, run.ring_flags) == (choice.engine, choice.ring_flags) && comparable(run)
    });
    let mut rows: Vec<&Vec<&Run>> = beside.chain(choices).collect();
    rows.sort_by_key(|group| group[0].iodepth);
    for group in rows {
        let run = group[0];
        table.row(vec![
            way(run).into(),
            run.route.as_ref().map(values::name::<Route>).unwrap_or_default(),
            short_size(run.block_size_bytes),
            run.iodepth.to_string(),
            median(group, |run| Some(run.iops), rate),
            median(group, |run| Metric::P50.of(run), figure),
            median(group, |run| Metric::P99.of(run), figure),
            median(group, |run| Metric::P999.of(run), figure),
            median(group, |run| run.cpu_us_per_io, figure),
            median(group, |run| for_one(run, run.context_switches), figure),
            median(group, |run| for_one(run, run.system_calls), figure),
        ]);
    }
    table
}

/// How a run went about the page cache.
pub fn way(run: &Run) -> &'static str {
    match (run.direct, run.cache) {
        (true, _) => "direct",
        (false, Cache::Cold) => "page cache, cold",
        (false, _) => "page cache, warm",
    }
}

fn for_one(run: &Run, count: Option<u64>) -> Option<f64> {
    (run.ops > 0).then_some(count? as f64 / run.ops as f64)
}

fn median(group: &[&Run], of: fn(&Run) -> Option<f64>, format: fn(f64) -> String) -> String {
    let figures = group.iter().filter_map(|run| of(run));
    Spread::of(figures).map_or_else(|| "-".into(), |spread| format(spread.median))
}
