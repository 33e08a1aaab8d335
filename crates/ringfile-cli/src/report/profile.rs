//! The tables of `--profile`: the functions that took CPU time.

use super::table::Table;
use crate::model::{Buffers, Hot, Profile, by};
use crate::numbers::figure;
use crate::values::{self, short_size};

/// A function, and a figure for each kind of buffers: usually its share of the time in per cent.
type FunctionRow<'a> = (&'a str, Vec<Option<f64>>);

/// Returns the most expensive functions, with a column for each kind of buffers.
pub fn table(profiles: &[Profile]) -> Table {
    let table = Table::default().text("profile, %").text("space").end_keys();
    let mut table = columns(profiles, table).text("function");
    for cell in cells(profiles) {
        let mut name = named(&cell);
        for (space, side) in [("kernel", KERNEL), ("user", USER)] {
            let mut space = space.to_string();
            let hottest: Vec<&Hot> = cell.iter().flat_map(|profile| side(profile).1).collect();
            let is_hot =
                |(function, _): &FunctionRow<'_>| hottest.iter().any(|hot| hot.function == *function);
            for row in rows(&cell, side).into_iter().filter(is_hot) {
                let keys = [std::mem::take(&mut name), std::mem::take(&mut space)];
                table.row(keys.into_iter().chain(texts(profiles, &cell, row)).collect());
            }
        }
    }
    table
}

/// All functions of the kernel or of user space, and the hottest of them.
type HotFunctions = fn(&Profile) -> (&[Hot], &[Hot]);

const KERNEL: HotFunctions = |profile| (&profile.kernel_all, &profile.kernel);
const USER: HotFunctions = |profile| (&profile.user_all, &profile.user);

/// Groups the profiles of the same work, one for each kind of buffers.
fn cells(profiles: &[Profile]) -> Vec<Vec<&Profile>> {
    let work = |profile: &Profile| (profile.rw, profile.block_size_bytes, profile.iodepth);
    let all: Vec<&Profile> = profiles.iter().collect();
    by(&all, work).into_iter().map(|(_, cell)| cell).collect()
}

/// Returns all functions of a cell, the most expensive first.
fn rows<'a>(cell: &[&'a Profile], side: HotFunctions) -> Vec<FunctionRow<'a>> {
    let mut found: std::collections::BTreeMap<&str, Vec<Option<f64>>> = std::collections::BTreeMap::new();
    for (index, profile) in cell.iter().enumerate() {
        let (all, hottest) = side(profile);
        // Older files have only the hottest.
        for hot in if all.is_empty() { hottest } else { all } {
            found.entry(&hot.function).or_insert_with(|| vec![None; cell.len()])[index] = Some(hot.percent);
        }
    }
    let most = |percents: &[Option<f64>]| percents.iter().flatten().copied().fold(0.0, f64::max);
    let mut rows: Vec<FunctionRow<'a>> = found.into_iter().collect();
    rows.sort_by(|one, other| most(&other.1).total_cmp(&most(&one.1)));
    rows
}

fn named(cell: &[&Profile]) -> String {
    let samples: u64 = cell.iter().map(|profile| profile.samples).sum();
    let Profile { rw, block_size_bytes, iodepth, .. } = cell[0];
    format!("{} {} depth {iodepth}, {samples} samples", values::name(rw), short_size(*block_size_bytes))
}

/// Returns the kinds that were profiled, with the titles of their columns.
fn kinds(profiles: &[Profile]) -> Vec<(Buffers, &'static str)> {
    let all = [
        (Buffers::Normal, "normal"),
        (Buffers::Fixed, "fixed"),
        (Buffers::Vectored, "vectored"),
        (Buffers::VectoredFixed, "v.-fixed"),
    ];
    all.into_iter().filter(|(kind, _)| profiles.iter().any(|profile| profile.buffers == *kind)).collect()
}

fn columns(profiles: &[Profile], table: Table) -> Table {
    kinds(profiles).into_iter().fold(table, |table, (_, title)| table.number(title))
}

/// Returns the cells of a row: the figure of each kind, and the function.
fn texts<'a>(
    profiles: &[Profile],
    cell: &'a [&'a Profile],
    (function, figures): FunctionRow<'a>,
) -> Vec<String> {
    let of_kind = |kind: Buffers| {
        cell.iter().position(|profile| profile.buffers == kind).and_then(|index| figures[index])
    };
    let texts = kinds(profiles).into_iter().map(|(kind, _)| of_kind(kind).map_or_else(|| "-".into(), figure));
    texts.chain([shortened(function)]).collect()
}

/// Shortens a function's name so that a table stays readable.
fn shortened(name: &str) -> String {
    const LONGEST: usize = 60;
    if name.chars().count() <= LONGEST {
        return name.to_string();
    }
    format!("{}…", name.chars().take(LONGEST - 1).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Rw;

    fn profile(buffers: Buffers, (samples, ops): (u64, u64), kernel: &[(&str, f64)]) -> Profile {
        let hot = |&(function, percent): &(&str, f64)| Hot { function: function.into(), percent };
        let kernel_all: Vec<Hot> = kernel.iter().map(hot).collect();
        Profile {
            buffers,
            rw: Rw::RandRead,
            block_size_bytes: 4096,
            iodepth: 16,
            event: "cycles".into(),
            samples,
            ops,
            kernel_percent: 100.0,
            kernel: kernel_all.iter().take(2).cloned().collect(),
            user: Vec::new(),
            kernel_all,
            user_all: Vec::new(),
            flame_graph: String::new(),
        }
    }

    #[test]
    fn the_hottest_functions_of_each_kind_have_a_row() {
        let normal = [("copy", 60.0), ("gup_fast", 3.0), ("rare", 0.6), ("get_pages", 1.3)];
        let fixed = [("copy", 70.0), ("import_fixed", 3.0)];
        let profiles = [
            profile(Buffers::Normal, (1000, 100_000), &normal),
            profile(Buffers::Fixed, (1000, 100_000), &fixed),
        ];
        let table = table(&profiles);
        let functions: Vec<&str> = table.rows().iter().map(|row| row[4].as_str()).collect();
        assert_eq!(functions, ["copy", "gup_fast", "import_fixed"], "the hottest of each");
        assert_eq!(table.rows()[0][2..4], ["60.0", "70.0"]);
    }
}
