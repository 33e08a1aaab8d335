//! Table of how many entries each `io_uring_enter` submitted and how many completions it collected, in powers of two.

use super::medians::{keyed, keys_of_batches, labels};
use super::table::Table;
use crate::model::{EnterSizes, Run, groups};
use crate::numbers::{figure, rate};

/// Titles of the buckets.
const SIZES: [&str; 12] =
    ["0", "1", "2-3", "4-7", "8-15", "16-31", "32-63", "64-127", "128-255", "256-511", "512-1023", "1024+"];

/// Builds the table; it is empty if no run counted such calls.
pub fn table(runs: &[Run]) -> Table {
    let groups = groups(runs).into_iter().map(|group| (sum(&group), group));
    let groups: Vec<(EnterSizes, Vec<&Run>)> =
        groups.filter(|(sizes, _)| sizes.submitted.iter().sum::<u64>() > 0).collect();
    let used = |index: usize| {
        let at = |counts: &[u64]| counts.get(index).is_some_and(|&count| count > 0);
        groups.iter().any(|(sizes, _)| at(&sizes.submitted) || at(&sizes.collected))
    };
    let shown: Vec<usize> = (0..SIZES.len()).filter(|&index| used(index)).collect();
    let keys = keys_of_batches(runs);
    let mut table = keyed(&keys).text("io_uring_enter, %").end_keys().number("calls").number("each");
    for &index in &shown {
        table = table.number(SIZES[index]);
    }
    for (sizes, group) in &groups {
        let calls: u64 = sizes.submitted.iter().sum();
        let ring_ops: u64 = group.iter().filter_map(|run| run.route_ops).map(|routes| routes.ring).sum();
        for (what, counts) in [("submitted", &sizes.submitted), ("collected", &sizes.collected)] {
            let mut row = labels(&keys, group[0]);
            row.extend([what.into(), rate(calls as f64), figure(ring_ops as f64 / calls as f64)]);
            row.extend(shown.iter().map(|&index| match counts.get(index) {
                None | Some(0) => "-".into(),
                Some(&count) => figure(count as f64 * 100.0 / calls as f64),
            }));
            table.row(row);
        }
    }
    table
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
