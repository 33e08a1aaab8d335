//! The tables of `perf buffers`: every cell by kind of buffers, and the other choices at the smallest block size.

use super::judge::{self, Noise};
use super::medians::{self, keyed, known, labels};
use super::table::Table;
use crate::model::{Buffers, Engine, Factor, Group, Metric, Results, Run, Setup, columns, distinct, groups};
use crate::values;

/// Returns all tables that have rows.
pub fn tables(results: &Results) -> Vec<Table> {
    let (grid, choices): (Vec<Group<'_>>, Vec<Group<'_>>) =
        groups(&results.runs).into_iter().partition(|group| results.is_of_grid(group[0]));
    let keys = [&cell_keys(&grid)[..], &[Factor::Buffers]].concat();
    let of = |metrics: &[Metric]| medians::of(&keys, &grid, metrics);
    let mut tables = vec![of(&columns::GRID), comparison_table(&results.runs, &grid)];
    // The CPU time of the whole machine beside that of this process, in per cent of a core.
    if !known(&[Metric::MachineIdle], &grid).is_empty() {
        tables.push(of(&columns::MACHINE).titled("whole machine"));
    }
    if !choices.is_empty() {
        tables.push(choice_table(&grid, &choices));
    }
    tables.retain(|table| !table.is_empty());
    tables
}

/// Returns the factors that name a cell, with the ring's flags where rings are compared too.
fn cell_keys(groups: &[Group<'_>]) -> Vec<Factor> {
    let setups = || groups.iter().map(|group| group[0].setup);
    let mut keys = vec![Factor::Jobs, Factor::Rw, Factor::Block, Factor::Depth];
    keys.extend(setups().any(|setup| !setup.engine.is_ours()).then_some(Factor::Engine));
    keys.extend(setups().any(|setup| setup.ring_flags.is_some()).then_some(Factor::RingFlags));
    keys
}

/// A comparison in a cell: its name, the subject, and the base.
type BufferPair = (&'static str, Buffers, Buffers);

const COMPARISONS: [BufferPair; 3] = [
    ("fixed/normal", Buffers::Fixed, Buffers::Normal),
    ("vectored/normal", Buffers::Vectored, Buffers::Normal),
    ("v.-fixed/vectored", Buffers::VectoredFixed, Buffers::Vectored),
];

/// Returns what registering and vectored buffers change in each cell, as ratios paired within rounds. A star marks
/// ratios outside the noise.
fn comparison_table(runs: &[Run], groups: &[Group<'_>]) -> Table {
    let noise = [Metric::Iops, Metric::Cpu].map(|metric| (metric, Noise::of(runs, metric)));
    let keys = cell_keys(groups);
    // The route of the library's runs, which runs by hand lack.
    let ours = groups.iter().map(|group| group[0].setup).find(|setup| setup.engine.is_ours());
    let route = ours.and_then(|setup| setup.route);
    let cells = distinct(groups.iter().map(|group| Setup { buffers: Buffers::Normal, ..group[0].setup }));
    let mut table = keyed(&keys).text("* outside noise").end_keys().number("IOPS").number("CPU µs");
    for cell in cells {
        let of = |setup: Setup| groups.iter().find(|group| group[0].setup == setup);
        let of_kind = |buffers: Buffers| of(Setup { buffers, ..cell });
        let ours = Setup { engine: Engine::Ringfile, route, ..cell };
        let with = |&(name, subject, base): &BufferPair| {
            Some((name.to_string(), of_kind(subject).zip(of_kind(base))?))
        };
        let mut compared: Vec<(String, (&Group<'_>, &Group<'_>))> =
            COMPARISONS.iter().filter_map(with).collect();
        if !cell.engine.is_ours() {
            compared.extend(Buffers::ALL.into_iter().filter_map(|buffers| {
                let pair = of(Setup { buffers, ..ours }).zip(of_kind(buffers))?;
                Some((format!("{}: ringfile/by hand", values::name(&buffers)), pair))
            }));
        }
        for (index, (name, (subject, base))) in compared.into_iter().enumerate() {
            let ratio = |(metric, noise): &(Metric, Noise)| {
                let pairs = judge::pairs(subject, base, *metric);
                let verdict = judge::compare(&pairs, noise.in_cell(&cell, pairs.len()));
                verdict.map_or_else(|| "-".into(), |verdict| verdict.in_table())
            };
            let mut row = labels(&keys, base[0]);
            if index > 0 {
                row.iter_mut().for_each(String::clear);
            }
            row.push(name);
            row.extend(noise.iter().map(ratio));
            table.row(row);
        }
    }
    table
}

/// Returns the table of the other choices, with the runs of the grid to compare them with.
fn choice_table(grid: &[Group<'_>], choices: &[Group<'_>]) -> Table {
    let first = choices[0][0].setup;
    let beside = |group: &&Group<'_>| {
        let setup = group[0].setup;
        let same = |choice: &Group<'_>| Setup {
            direct: setup.direct,
            adaptive: setup.adaptive,
            cache: setup.cache,
            route: setup.route,
            ..choice[0].setup
        };
        setup.ring_flags == first.ring_flags && choices.iter().any(|choice| same(choice) == setup)
    };
    let mut rows: Vec<Group<'_>> = grid.iter().filter(beside).chain(choices).cloned().collect();
    rows.sort_by_key(|group| group[0].setup.iodepth);
    let by_others = rows.iter().any(|group| !group[0].setup.engine.is_ours());
    let mut keys = vec![Factor::Open, Factor::Cache, Factor::Route, Factor::Block, Factor::Depth];
    keys.extend(by_others.then_some(Factor::Engine));
    keys.sort_by_key(|key| *key != Factor::Engine);
    medians::of(&keys, &rows, &columns::CHOICES)
}
