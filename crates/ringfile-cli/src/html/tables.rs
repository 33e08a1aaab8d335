//! The tables of a page: those of the terminal, and all figures that any run has.
//!
//! Invariants: in a window that is too narrow for its columns, each row becomes a list of titles and cells, so no
//! column is out of sight.

use maud::{Markup, html};

use super::cells::{self, Part};
use super::drawing::Look;
use super::figures::{COST, Figure, SPEED};
use super::page;
use crate::report::results::{Kind, Results, Role, Run};
use crate::report::statistics::Spread;
use crate::report::table::Table;
use crate::report::{batches, buffers, change, enters, pool, summary};

/// A cell of a table.
pub struct Column {
    /// Its title.
    pub title: String,
    /// Whether its cells are numbers, to the right.
    pub number: bool,
    /// Whether it names the row.
    pub key: bool,
}

/// A table of text.
pub fn table(columns: &[Column], rows: &[Vec<String>]) -> Markup {
    let class = |index: usize, column: &Column| {
        let mut class = String::new();
        for (is, name) in [(column.number, "n "), (column.key, "k "), (index == 0, "first ")] {
            class += if is { name } else { "" };
        }
        class
    };
    html! {
        table.wide {
            thead { tr { @for column in columns { th.n[column.number] scope="col" { (column.title) } } } }
            tbody {
                @for row in rows {
                    tr {
                        @for (index, (cell, column)) in row.iter().zip(columns).enumerate() {
                            td class=(class(index, column).trim_end()) data-t=(column.title) { (cell) }
                        }
                    }
                }
            }
        }
    }
}

/// A table of the terminal.
pub fn from_terminal(terminal: &Table) -> Markup {
    let columns: Vec<Column> =
        terminal.columns().map(|(title, number, key)| Column { title: title.into(), number, key }).collect();
    table(&columns, terminal.rows())
}

/// The tables that the command printed.
fn of_terminal(results: &Results) -> Vec<Table> {
    let runs = &results.runs;
    match results.kind {
        Some(Kind::Buffers) => buffers::tables(results),
        Some(Kind::Pool) => vec![pool::table(runs), pool::changes(runs), pool::actors(runs)],
        Some(Kind::Batch | Kind::Multiread) => {
            vec![batches::table(runs), change::table(runs), enters::table(runs)]
        }
        Some(Kind::File) | None => vec![summary::table(runs), change::table(runs)],
    }
}

/// All tables of a session.
pub fn section(results: &Results) -> Markup {
    let runs = &results.runs;
    if runs.is_empty() {
        return Markup::default();
    }
    let look = Look::of(results);
    let rounds = runs.iter().map(|run| run.round).max().unwrap_or(1);
    let median = if rounds > 1 { format!("medians of {rounds} rounds") } else { "one round".into() };
    let body = html! {
        details open { summary { "Speed and latency" small { (median) } } (figures(&look, &SPEED)) }
        details { summary { "Cost and counts" small { "for one operation, or in per cent of a core" } } (figures(&look, &COST)) }
        details {
            summary { "As on the terminal" small { "with what each choice changes, in per cent, compared within each round" } }
            @for table in of_terminal(results).iter().filter(|table| !table.is_empty()) { (from_terminal(table)) }
        }
        details { summary { "Every run" small { (runs.len()) " runs, as they were made" } } (every(runs)) }
    };
    let meaning = "IOPS: operations a second. Latencies in µs: half of the operations took p50 or \
                   less, 99 of 100 took p99 or less. CPU µs: processor time for one operation, user and kernel.";
    page::section("Tables", meaning, body)
}

/// A row for each cell and engine, with the medians of these figures, as far as any run has them.
fn figures(look: &Look<'_>, figures: &[Figure]) -> Markup {
    html! {
        (medians(look.grid(), figures))
        @if !look.beside.is_empty() {
            h3 { "Direct or buffered, and which route" }
            (medians(&look.beside, figures))
        }
    }
}

fn medians(groups: &[Vec<&Run>], figures: &[Figure]) -> Markup {
    let measured: Vec<&Run> = groups.iter().flatten().copied().collect();
    let parts = keys(&measured);
    let median = |group: &[&Run], figure: &Figure| {
        Spread::of(group.iter().filter_map(|run| (figure.of)(run))).map(|spread| spread.median)
    };
    let shown: Vec<&Figure> =
        figures.iter().filter(|figure| measured.iter().any(|run| (figure.of)(run).is_some())).collect();
    let rows: Vec<Vec<String>> = groups
        .iter()
        .map(|group| {
            let figures = shown.iter().map(|figure| median(group, figure).map(figure.text));
            named(&parts, group[0]).chain(figures.map(or_dash)).collect()
        })
        .collect();
    table(&columns(&parts, shown.iter().map(|figure| figure.title)), &rows)
}

/// A row for each run.
fn every(runs: &[Run]) -> Markup {
    let all: Vec<&Run> = runs.iter().collect();
    let parts = keys(&all);
    let shown = [SPEED[0], SPEED[1], SPEED[2], SPEED[4], SPEED[7], SPEED[8], SPEED[10], SPEED[11]];
    let mut columns = columns(&parts, shown.iter().map(|figure| figure.title));
    columns.insert(parts.len(), Column { title: "round".into(), number: true, key: true });
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|run| {
            let again = if run.role == Role::Aa { " A/A" } else { "" };
            let round = std::iter::once(format!("{}{again}", run.round));
            let figures = shown.iter().map(|figure| or_dash((figure.of)(run).map(figure.text)));
            named(&parts, run).chain(round).chain(figures).collect()
        })
        .collect();
    table(&columns, &rows)
}

/// The parts that name a row: those that differ, or the engine.
fn keys(runs: &[&Run]) -> Vec<Part> {
    let parts = cells::differing(runs);
    if parts.is_empty() { vec![Part::Engine] } else { parts }
}

fn columns<'a>(parts: &[Part], figures: impl Iterator<Item = &'a str>) -> Vec<Column> {
    let keys =
        parts.iter().map(|part| Column { title: part.title().into(), number: part.counts(), key: true });
    keys.chain(figures.map(|title| Column { title: title.into(), number: true, key: false })).collect()
}

fn named<'a>(parts: &'a [Part], run: &'a Run) -> impl Iterator<Item = String> + 'a {
    parts.iter().map(|part| or_dash(part.cell(run)))
}

fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".into())
}
