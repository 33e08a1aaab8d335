//! Table of how many entries each `io_uring_enter` submitted and how many completions it collected, in powers of two.

use super::columns::{Columns, Extra};
use super::results::Run;
use super::summary::groups;
use super::table::{Table, figure, rate};
use crate::cli::Buffers;
use crate::engine::EnterSizes;
use crate::values;

/// Titles of the buckets.
const SIZES: [&str; 12] =
    ["0", "1", "2-3", "4-7", "8-15", "16-31", "32-63", "64-127", "128-255", "256-511", "512-1023", "1024+"];

/// Builds the table; it is empty if no run counted such calls.
pub fn table(runs: &[Run]) -> Table {
    let groups: Vec<(Vec<&Run>, EnterSizes)> = groups(runs)
        .into_iter()
        .map(|group| (group.clone(), sum(&group)))
        .filter(|(_, sizes)| sizes.submitted.iter().sum::<u64>() > 0)
        .collect();
    let used = |index: usize| {
        let at = |counts: &[u64]| counts.get(index).is_some_and(|&count| count > 0);
        groups.iter().any(|(_, sizes)| at(&sizes.submitted) || at(&sizes.collected))
    };
    let shown: Vec<usize> = (0..SIZES.len()).filter(|&index| used(index)).collect();
    let columns = Columns::of(runs);
    let several_buffers = runs.iter().any(|run| run.buffers == Buffers::Fixed);
    let mut table = Table::default().text("io_uring_enter").number("jobs").text("batches");
    table = columns.titles(table);
    if several_buffers {
        table = table.text("buffers");
    }
    table = table.text("% that").end_keys().number("calls").number("each");
    for &index in &shown {
        table = table.number(SIZES[index]);
    }
    for (group, sizes) in &groups {
        let run = group[0];
        let batches = run.inflight.zip(run.batch).map(|(inflight, batch)| format!("{inflight}×{batch}"));
        let mut labels =
            vec![values::name(&run.engine), run.numjobs.to_string(), batches.unwrap_or_default()];
        labels.extend(columns.cells(Extra::of(run)));
        if several_buffers {
            labels.push(values::name(&run.buffers));
        }
        let calls: u64 = sizes.submitted.iter().sum();
        let ring_ops: u64 = group.iter().filter_map(|run| run.route_ops).map(|routes| routes.ring).sum();
        for (what, counts) in [("submitted", &sizes.submitted), ("collected", &sizes.collected)] {
            let mut cells = labels.clone();
            cells.extend([what.into(), rate(calls as f64), figure(ring_ops as f64 / calls as f64)]);
            cells.extend(shown.iter().map(|&index| per_cent(counts.get(index).copied().unwrap_or(0), calls)));
            table.row(cells);
        }
    }
    table
}

fn per_cent(count: u64, all: u64) -> String {
    if count == 0 { "-".into() } else { figure(count as f64 * 100.0 / all as f64) }
}

/// Adds up the calls of all rounds.
fn sum(group: &[&Run]) -> EnterSizes {
    let mut sum = EnterSizes { submitted: vec![0; SIZES.len()], collected: vec![0; SIZES.len()] };
    for sizes in group.iter().filter_map(|run| run.enter_sizes.as_ref()) {
        for (sum, part) in [(&mut sum.submitted, &sizes.submitted), (&mut sum.collected, &sizes.collected)] {
            sum.iter_mut().zip(part).for_each(|(sum, part)| *sum = sum.saturating_add(*part));
        }
    }
    sum
}
