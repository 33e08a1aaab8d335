//! The main table of reads in batches: one row for each cell and engine, with its ratio to fio and pread and its time
//! for one read.

use super::cold;
use super::medians::{amount, keyed, keys_of_batches, labels, median};
use super::table::Table;
use crate::model::{Engine, Factor, Metric, Role, Run, Spread, columns, groups};
use crate::numbers::figure;

/// Returns the table of all runs to compare.
pub fn table(runs: &[Run]) -> Table {
    let mut keys = keys_of_batches(runs);
    // Shown even if all runs share it: no other column has the number of batches in flight.
    if runs.iter().any(|run| run.setup.inflight != Some(1)) && !keys.contains(&Factor::InFlight) {
        keys.insert(3, Factor::InFlight);
    }
    let before = [amount(runs), vec![Metric::Iops]].concat();
    let mut bases = vec![("% of fio", Engine::Fio), ("% of pread", Engine::Pread)];
    bases.retain(|&(_, base)| runs.iter().any(|run| run.setup.engine == base));
    let after = columns::BATCHES;
    let titles = before.iter().map(|metric| metric.title()).chain(bases.iter().map(|(title, _)| *title));
    let titles = titles.chain(after.iter().map(|metric| metric.title()));
    let mut table = titles.fold(keyed(&keys), Table::number);
    for group in groups(runs) {
        let mut row = labels(&keys, group[0]);
        row.extend(before.iter().map(|&metric| median(&group, metric)));
        row.extend(bases.iter().map(|&(_, base)| {
            let spread = Spread::of(group.iter().filter_map(|run| per_cent_of(base, runs, run)));
            spread.map_or_else(|| "-".into(), |spread| figure(spread.median))
        }));
        row.extend(after.iter().map(|&metric| median(&group, metric)));
        table.row(row);
    }
    table
}

/// Returns a run's reads per second in per cent of another engine's in the same cell and round.
fn per_cent_of(base: Engine, runs: &[Run], run: &Run) -> Option<f64> {
    let key = |run: &Run| {
        let setup = run.setup;
        (run.round, setup.numjobs, setup.batch, setup.inflight, setup.cache)
    };
    let there =
        |other: &&Run| other.setup.engine == base && other.role == Role::Measure && key(other) == key(run);
    let base = runs.iter().find(there).filter(|base| cold::are_comparable(run, base))?;
    (base.iops > 0.0).then(|| run.iops / base.iops * 100.0)
}
