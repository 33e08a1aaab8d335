//! The main table of reads in batches: one row for each cell and engine, beside fio and in time for one read.

use super::columns::{Columns, Extra};
use super::results::{Role, Run};
use super::statistics::{Metric, Spread};
use super::summary::groups;
use super::table::{Table, figure, rate};
use crate::cli::Buffers;
use crate::engine::Engine;
use crate::values;

/// The figures that have a column.
const METRICS: [Metric; 5] = [Metric::Mean, Metric::P50, Metric::P99, Metric::Max, Metric::Cpu];

/// The table of all runs that were made to be compared.
pub fn table(runs: &[Run]) -> Table {
    let columns = Columns::of(runs);
    let several_buffers = runs.iter().any(|run| run.buffers == Buffers::Fixed);
    let mut table = Table::default().text("engine").number("jobs").number("batch").number("inflight");
    table = columns.titles(table);
    if several_buffers {
        table = table.text("buffers");
    }
    table =
        table.end_keys().number("IOPS").number("% of fio").number("µs/read").number("mean µs").number("p50");
    table = table.number("p99").number("max").number("CPU µs");
    for group in groups(runs) {
        let run = group[0];
        let count = |count: Option<usize>| count.map_or_else(|| "-".into(), |count| count.to_string());
        let mut cells =
            vec![values::name(&run.engine), run.numjobs.to_string(), count(run.batch), count(run.inflight)];
        cells.extend(columns.cells(Extra::of(run)));
        if several_buffers {
            cells.push(values::name(&run.buffers));
        }
        let median = |figures: &mut dyn Iterator<Item = f64>, format: fn(f64) -> String| {
            Spread::of(figures).map_or_else(|| "-".into(), |spread| format(spread.median))
        };
        cells.push(median(&mut group.iter().map(|run| run.iops), rate));
        cells.push(median(&mut group.iter().filter_map(|run| of_fio(runs, run)), figure));
        cells.push(median(&mut group.iter().filter_map(|run| time_for_one(run)), figure));
        cells.extend(
            METRICS.iter().map(|&metric| median(&mut group.iter().filter_map(|run| metric.of(run)), figure)),
        );
        table.row(cells);
    }
    table
}

/// Per cent of what fio did in the same cell and round.
fn of_fio(runs: &[Run], run: &Run) -> Option<f64> {
    let key = |run: &Run| (run.round, run.numjobs, run.batch, run.inflight, run.cache);
    let there = |fio: &&Run| fio.engine == Engine::Fio && fio.role == Role::Measure && key(fio) == key(run);
    let fio = runs.iter().find(there)?;
    (fio.iops > 0.0).then(|| run.iops / fio.iops * 100.0)
}

/// Microseconds of one thread's time for one read.
fn time_for_one(run: &Run) -> Option<f64> {
    (run.iops > 0.0).then(|| run.numjobs as f64 * 1e6 / run.iops)
}
