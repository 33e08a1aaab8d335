//! The tables of `perf file --cache mixed`: each way to open the file, and what adaptive reads change.

use super::change;
use super::medians;
use super::table::Table;
use crate::model::{Factor, Open, Role, Run, columns, groups};
use crate::values::name;

/// Returns the table of all runs, and one that compares adaptive reads with the other ways to open the file, and with
/// themselves (A/A).
pub fn tables(runs: &[Run]) -> Vec<Table> {
    let all = medians::of(&[Factor::Open, Factor::Depth], &groups(runs), &columns::MIXED);
    let Some(adaptive) = runs.iter().map(|run| run.setup).find(|setup| setup.adaptive) else {
        return vec![all];
    };
    let over = |open: Open| {
        let title = format!("adaptive/{}", name(&open));
        change::compare(runs, title, (adaptive, Role::Measure), adaptive.opened(open))
    };
    let compared = [Open::Buffered, Open::Direct].into_iter().filter_map(over);
    let compared: Vec<_> = compared.chain(change::noise(runs, |_| true)).collect();
    vec![all, change::of(&[Factor::Depth], &columns::MIXED_CHANGES, &compared)]
}
