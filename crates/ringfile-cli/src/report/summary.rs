//! The main table: one row for each cell and engine, the median of its rounds in each figure.

use super::columns::{Columns, Extra};
use super::results::{Role, Run};
use super::statistics::{Metric, Spread};
use super::table::{Table, figure, rate};
use crate::machine;
use crate::values;

/// The table of all runs that were made to be compared.
pub fn table(runs: &[Run]) -> Table {
    let columns = Columns::of(runs);
    let mut table = Table::default().text("engine").number("jobs").number("depth").text("mode");
    table = columns.titles(table);
    table = table.text("buffers").end_keys();
    let fixed_work = runs.iter().any(Run::is_of_fixed_work);
    if fixed_work {
        table = table.number("ops").number("s");
    }
    table = table.number("IOPS").number("MiB/s").number("mean").number("p50");
    table = table.number("p95").number("p99").number("p99.9");
    // Where threads wait for a core, that is where it shows; elsewhere the table stays within 100 columns.
    let crowded = runs.iter().any(|run| run.numjobs > machine::cpus());
    if crowded {
        table = table.number("p99.99");
    }
    table = table.number("max").number("CPU µs");
    for group in groups(runs) {
        let run = group[0];
        let mut cells = vec![
            values::name(&run.engine),
            run.numjobs.to_string(),
            run.iodepth.to_string(),
            values::name(&run.rw),
        ];
        cells.extend(columns.cells(Extra::of(run)));
        cells.push(values::name(&run.buffers));
        if fixed_work {
            let median = |figures: Vec<f64>| {
                Spread::of(figures).map_or_else(|| "-".into(), |spread| figure(spread.median))
            };
            cells.push(median(group.iter().map(|run| run.ops as f64).collect()));
            cells.push(median(group.iter().map(|run| run.duration_s).collect()));
        }
        let shown = Metric::ALL.iter().filter(|&&metric| crowded || metric != Metric::P9999);
        cells.extend(shown.map(|&metric| {
            let format = if metric == Metric::Iops { rate } else { short_figure };
            let figures = group.iter().filter_map(|run| metric.of(run));
            Spread::of(figures).map_or_else(|| "-".into(), |spread| format(spread.median))
        }));
        table.row(cells);
    }
    table
}

/// In five characters up to 100,000, so that the usual table fits into 100 columns: `17.9k`.
fn short_figure(value: f64) -> String {
    if value < 9_999.5 { figure(value) } else { rate(value) }
}

/// Runs of the same cell and engine over all rounds, in the order they were made.
pub fn groups(runs: &[Run]) -> Vec<Vec<&Run>> {
    let mut groups: Vec<Vec<&Run>> = Vec::new();
    for run in runs.iter().filter(|run| run.role == Role::Measure) {
        match groups.iter_mut().find(|group| group[0].key() == run.key()) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups
}
