//! The tables of a page: those of the terminal, and all figures that any run has.
//!
//! Invariants: in a window too narrow for a table, each row becomes a list of titles and cells, so every column is
//! visible.

use maud::{Markup, html};

use super::drawing::Look;
use super::page;
use crate::model::{Factor, Metric, Results, Run, columns, differing};
use crate::report::medians::{self, known};
use crate::report::table::Table;

/// Returns a table as an element of a page.
pub fn table(table: &Table) -> Markup {
    let columns: Vec<(&str, bool, bool)> = table.columns().collect();
    let class = |index: usize, (_, number, key): (&str, bool, bool)| {
        let mut class = String::new();
        for (is, name) in [(number, "n "), (key, "k "), (index == 0, "first ")] {
            class += if is { name } else { "" };
        }
        class
    };
    html! {
        table.wide {
            thead { tr { @for (title, number, _) in &columns { th.n[*number] scope="col" { (title) } } } }
            tbody {
                @for row in table.rows() {
                    tr {
                        @for (index, (cell, column)) in row.iter().zip(&columns).enumerate() {
                            td class=(class(index, *column).trim_end()) data-t=(column.0) { (cell) }
                        }
                    }
                }
            }
        }
    }
}

/// Returns all tables of a session.
pub fn section(results: &Results) -> Markup {
    let runs = &results.runs;
    if runs.is_empty() {
        return Markup::default();
    }
    let look = Look::of(results);
    let rounds = runs.iter().map(|run| run.round).max().unwrap_or(1);
    let median = if rounds > 1 { format!("medians of {rounds} rounds") } else { "one round".into() };
    let body = html! {
        details open { summary { "Speed and latency" small { (median) } } (figures(&look, &columns::PAGE_SPEED)) }
        details { summary { "Cost and counts" small { "for one operation, or in per cent of a core" } } (figures(&look, &columns::PAGE_COST)) }
        details {
            summary { "As on the terminal" small { "with the change that each choice makes, compared within each round" } }
            @for of_terminal in crate::report::tables(results) { (table(&of_terminal)) }
        }
    };
    let meaning = "IOPS: operations a second. Latencies in µs: half of the operations took p50 or \
                   less, 99 of 100 took p99 or less. CPU µs: processor time for one operation, user and kernel.";
    page::section("Tables", meaning, body)
}

/// Returns a row for each setup, with the medians of those metrics that some run has.
fn figures(look: &Look<'_>, metrics: &[Metric]) -> Markup {
    html! {
        (medians_of(&look.groups, metrics))
        @if !look.beside.is_empty() {
            h3 { "Direct or buffered, and which route" }
            (medians_of(&look.beside, metrics))
        }
    }
}

fn medians_of(groups: &[Vec<&Run>], metrics: &[Metric]) -> Markup {
    let measured: Vec<&Run> = groups.iter().flatten().copied().collect();
    table(&medians::of(&keys(&measured), groups, &known(metrics, groups)))
}

/// Returns the factors that name a row: those that differ, or the engine.
fn keys(runs: &[&Run]) -> Vec<Factor> {
    let keys = differing(runs);
    if keys.is_empty() { vec![Factor::Engine] } else { keys }
}
