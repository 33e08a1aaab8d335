//! Tables with a row for each setup: the factors that name it, and medians of metrics over the rounds.

use super::table::Table;
use crate::machine;
use crate::model::{Buffers, Factor, Metric, Route, Run, Spread, columns, groups};

/// Returns the main table of `perf file`.
pub fn table(runs: &[Run]) -> Table {
    let keys = [
        vec![Factor::Engine, Factor::Jobs, Factor::Depth, Factor::Rw],
        optional(runs),
        vec![Factor::Buffers],
    ];
    let mut metrics = amount(runs);
    metrics.extend(columns::FILE);
    // Shows threads that wait for a core. Left out otherwise, so that the table stays within 100 columns.
    if runs.iter().any(|run| run.setup.numjobs > machine::cpus()) {
        metrics.push(Metric::P9999);
    }
    metrics.extend(columns::FILE_END);
    of(&keys.concat(), &groups(runs), &metrics)
}

/// Returns a table of these groups.
pub fn of(keys: &[Factor], groups: &[Vec<&Run>], metrics: &[Metric]) -> Table {
    let mut table = metrics.iter().fold(keyed(keys), |table, metric| table.number(metric.title()));
    for group in groups {
        let mut row = labels(keys, group[0]);
        row.extend(metrics.iter().map(|&metric| median(group, metric)));
        table.row(row);
    }
    table
}

/// Returns those of the metrics that some run has.
pub fn known(metrics: &[Metric], groups: &[Vec<&Run>]) -> Vec<Metric> {
    let is_known = |metric: &Metric| groups.iter().flatten().any(|run| metric.of(run).is_some());
    metrics.iter().copied().filter(is_known).collect()
}

/// Returns an empty table with a column for each of these factors, which name its rows.
pub fn keyed(keys: &[Factor]) -> Table {
    let add = |table: Table, key: &Factor| match key.counts() {
        true => table.number(key.title()),
        false => table.text(key.title()),
    };
    keys.iter().fold(Table::default(), add).end_keys()
}

/// Returns the cells of these factors.
pub fn labels(keys: &[Factor], run: &Run) -> Vec<String> {
    let label = |&key: &Factor| {
        let cell = key.cell(&run.setup).unwrap_or_else(|| "-".into());
        let parts = run.parts.filter(|_| key == Factor::Buffers);
        parts.map_or(cell.clone(), |parts| format!("{cell} ×{parts}"))
    };
    keys.iter().map(label).collect()
}

/// Returns the median of a group as a cell.
pub fn median(group: &[&Run], metric: Metric) -> String {
    let spread = Spread::of(group.iter().filter_map(|run| metric.of(run)));
    spread.map_or_else(|| "-".into(), |spread| metric.short(spread.median))
}

/// Returns the columns for the amount of work and its time, which only runs of fixed work have.
pub fn amount(runs: &[Run]) -> Vec<Metric> {
    let fixed = runs.iter().any(Run::is_of_fixed_work);
    if fixed { vec![Metric::Ops, Metric::Seconds] } else { Vec::new() }
}

/// Returns the factors that name a row in batches.
pub fn keys_of_batches(runs: &[Run]) -> Vec<Factor> {
    let mut keys = vec![Factor::Engine, Factor::Jobs, Factor::Batch];
    keys.extend(differs(runs, Factor::InFlight).then_some(Factor::InFlight));
    keys.extend(optional(runs));
    if runs.iter().any(|run| run.setup.buffers == Buffers::Fixed) {
        keys.push(Factor::Buffers);
    }
    keys
}

/// Returns the factors that a table shows only if runs differ in them or they are unusual.
pub fn optional(runs: &[Run]) -> Vec<Factor> {
    let setups = || runs.iter().map(|run| &run.setup);
    let unusual_route = setups().any(|setup| {
        let usual = if setup.direct && setup.batch.is_none() { Route::Ring } else { Route::Auto };
        setup.route.is_some_and(|route| route != usual)
    });
    let shown = [
        (Factor::Open, differs(runs, Factor::Open)),
        (Factor::Cache, differs(runs, Factor::Cache)),
        (Factor::Route, unusual_route || differs(runs, Factor::Route)),
    ];
    shown.into_iter().filter_map(|(factor, shown)| shown.then_some(factor)).collect()
}

/// Returns whether the runs that have a factor differ in it.
pub fn differs(runs: &[Run], factor: Factor) -> bool {
    let mut known = runs.iter().filter_map(|run| factor.cell(&run.setup));
    known.next().is_some_and(|first| known.any(|other| other != first))
}
