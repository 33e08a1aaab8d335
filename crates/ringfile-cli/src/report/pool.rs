//! The tables of `perf pool`: one row for each side with each kind of memory, and what the kind of memory changes.

use clap::ValueEnum;

use super::change::{self, Comparison};
use super::medians;
use super::table::Table;
use crate::model::{Factor, Memory, Role, Run, Setup, Side, columns, groups};
use crate::values;

const SIDES: [Side; 2] = [Side::Producer, Side::Consumer];

/// Returns the table of all runs to compare, the producers first.
pub fn table(runs: &[Run]) -> Table {
    let of = |side| groups(runs).into_iter().filter(move |group| group[0].setup.side == Some(side));
    let groups: Vec<Vec<&Run>> = SIDES.into_iter().flat_map(of).collect();
    medians::of(&[Factor::Side, Factor::Memory], &groups, &columns::POOL)
}

/// Returns the table of changes in per cent; empty if there is nothing to compare.
pub fn changes(runs: &[Run]) -> Table {
    change::of(&[Factor::Side], &columns::POOL_CHANGES, &comparisons(runs))
}

/// Compares on each side the first kind of memory with each of the others, and with itself (A/A).
pub fn comparisons(runs: &[Run]) -> Vec<Comparison<'_>> {
    SIDES.into_iter().flat_map(|side| on_side(runs, side)).collect()
}

fn on_side(runs: &[Run], side: Side) -> Vec<Comparison<'_>> {
    let of_side = |run: &&Run| run.setup.side == Some(side) && run.role == Role::Measure;
    let Some((first, memory)) =
        runs.iter().find(of_side).and_then(|run| Some((run.setup, run.setup.memory?)))
    else {
        return Vec::new();
    };
    let others = Memory::value_variants().iter().copied().filter(|&other| other != memory);
    let with = |other: Memory| {
        let name = format!("{}/{}", values::name(&memory), values::name(&other));
        let (memory, buffers, direct) = (Some(other), other.buffers(), other.is_direct());
        change::compare(runs, name, (first, Role::Measure), Setup { memory, buffers, direct, ..first })
    };
    others.filter_map(with).chain(change::noise(runs, |setup| setup.side == Some(side))).collect()
}
