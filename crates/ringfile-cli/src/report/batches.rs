//! The main table of reads in batches: one row for each cell and engine, beside fio and pread and in time for one read.

use super::cold;
use super::columns::{Columns, Extra};
use super::results::{Role, Run};
use super::statistics::{Metric, Spread};
use super::summary::groups;
use super::table::{Table, figure, rate};
use crate::cli::Buffers;
use crate::engine::Engine;
use crate::values;

/// Figures that every run has a column for, behind those that set it beside others.
const METRICS: [(&str, Metric); 5] = [
    ("mean µs", Metric::Mean),
    ("p50", Metric::P50),
    ("p99", Metric::P99),
    ("max", Metric::Max),
    ("CPU µs", Metric::Cpu),
];

/// The table of all runs that were made to be compared.
pub fn table(runs: &[Run]) -> Table {
    let columns = Columns::of(runs);
    let several_buffers = runs.iter().any(|run| run.buffers == Buffers::Fixed);
    let several_in_flight = runs.iter().any(|run| run.inflight != Some(1));
    let bases: Vec<(&'static str, Engine)> = [("% of fio", Engine::Fio), ("% of pread", Engine::Pread)]
        .into_iter()
        .filter(|&(_, base)| runs.iter().any(|run| run.engine == base))
        .collect();
    let mut table = Table::default().text("engine").number("jobs").number("batch");
    if several_in_flight {
        table = table.number("inflight");
    }
    table = columns.titles(table);
    if several_buffers {
        table = table.text("buffers");
    }
    table = table.end_keys();
    let fixed_work = runs.iter().any(Run::is_of_fixed_work);
    if fixed_work {
        table = table.number("ops").number("s");
    }
    table = table.number("IOPS");
    for (title, _) in &bases {
        table = table.number(title);
    }
    table = table.number("µs/read").number("cores");
    for (title, _) in METRICS {
        table = table.number(title);
    }
    for group in groups(runs) {
        let run = group[0];
        let count = |count: Option<usize>| count.map_or_else(|| "-".into(), |count| count.to_string());
        let mut cells = vec![values::name(&run.engine), run.numjobs.to_string(), count(run.batch)];
        if several_in_flight {
            cells.push(count(run.inflight));
        }
        cells.extend(columns.cells(Extra::of(run)));
        if several_buffers {
            cells.push(values::name(&run.buffers));
        }
        let median = |figures: &mut dyn Iterator<Item = f64>, format: fn(f64) -> String| {
            Spread::of(figures).map_or_else(|| "-".into(), |spread| format(spread.median))
        };
        if fixed_work {
            cells.push(median(&mut group.iter().map(|run| run.ops as f64), figure));
            cells.push(median(&mut group.iter().map(|run| run.duration_s), figure));
        }
        cells.push(median(&mut group.iter().map(|run| run.iops), rate));
        for &(_, base) in &bases {
            cells.push(median(&mut group.iter().filter_map(|run| per_cent_of(base, runs, run)), figure));
        }
        cells.push(median(&mut group.iter().filter_map(|run| time_for_one(run)), figure));
        cells.push(median(&mut group.iter().filter_map(|run| cores(run)), figure));
        cells.extend(
            METRICS
                .iter()
                .map(|&(_, metric)| median(&mut group.iter().filter_map(|run| metric.of(run)), figure)),
        );
        table.row(cells);
    }
    table
}

/// Per cent of the reads a second that another engine did in the same cell and round.
fn per_cent_of(base: Engine, runs: &[Run], run: &Run) -> Option<f64> {
    let key = |run: &Run| (run.round, run.numjobs, run.batch, run.inflight, run.cache);
    let there = |other: &&Run| other.engine == base && other.role == Role::Measure && key(other) == key(run);
    let base = runs.iter().find(there).filter(|base| cold::are_comparable(run, base))?;
    (base.iops > 0.0).then(|| run.iops / base.iops * 100.0)
}

/// Microseconds of one thread's time for one read.
fn time_for_one(run: &Run) -> Option<f64> {
    (run.iops > 0.0).then(|| run.numjobs as f64 * 1e6 / run.iops)
}

/// How many cores were kept busy: CPU time over time.
fn cores(run: &Run) -> Option<f64> {
    run.cpu_us_per_io.map(|micros| micros * run.iops / 1e6)
}
