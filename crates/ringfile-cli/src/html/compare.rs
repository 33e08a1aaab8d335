//! The page of a comparison of sessions: the differences outside the spread first.

use maud::{Markup, html};

use super::page;
use super::scale::Scale;
use super::sections;
use super::strip::{Dot, Row, Strip};
use super::tables;
use crate::compare::differences::{Difference, SessionComparison};
use crate::compare::load::Saved;
use crate::compare::text;
use crate::error::one_line;
use crate::model::{Better, Metric, columns};
use crate::numbers::{change, counted};
use crate::report::table::Table;

/// The number of the largest differences of each figure that are drawn, and of all figures that are in the first table.
const DRAWN: usize = 16;

/// Returns the page of all sessions compared with the first.
pub fn write(comparisons: &[SessionComparison<'_>]) -> String {
    let Some(first) = comparisons.first().map(|comparison| comparison.first) else { return String::new() };
    let others: Vec<String> = comparisons.iter().map(|comparison| one_line(&comparison.other.name)).collect();
    let title = format!("{} beside {}", others.join(", "), one_line(&first.name));
    let command = sections::command(&first.results);
    let body = html! {
        header {
            h1 { bdi { (title) } }
            p.lead {
                "Results of " (command) ", cell by cell. A difference is claimed if the rounds of both lie apart by more than the \
                 A/A noise of both. Sessions are not measured in turn, so changes of the machine in between count too."
            }
            @for saved in std::iter::once(first).chain(comparisons.iter().map(|comparison| comparison.other)) { (session(saved)) }
        }
        @for comparison in comparisons { (beside(comparison, comparisons.len() > 1)) }
    };
    page::page(&title, &body)
}

fn session(saved: &Saved) -> Markup {
    let results = &saved.results;
    let mut facts = sections::machine(&results.machine);
    let (file, filesystem) = (one_line(&results.params.file), one_line(&results.machine.filesystem));
    let (count, rounds) = (results.runs.len(), counted(results.params.rounds as usize, "round"));
    let interrupted = if results.interrupted { ", interrupted" } else { "" };
    facts.push(("file", format!("{file} on {filesystem}")));
    facts.push(("runs", format!("{count} in {rounds}{interrupted}")));
    html! {
        h3.name { bdi { (one_line(&saved.name)) } }
        (page::facts(&facts))
        pre { "$ " (one_line(&results.command)) }
    }
}

fn beside(comparison: &SessionComparison<'_>, several: bool) -> Markup {
    let other = one_line(&comparison.other.name);
    let of = if several { format!("{other}: ") } else { String::new() };
    let all = comparison.outside.len() + comparison.inside.len();
    let outside = html! {
        @if let Some(why) = comparison.blind() { p.warn { "Nothing can be claimed: " (why) "." } }
        @if comparison.outside.is_empty() {
            p { "No difference is outside the spread." }
        } @else {
            (page::plots(plots(&comparison.outside)))
            @let (largest, rest) = comparison.outside.split_at(comparison.outside.len().min(DRAWN));
            h3 { "The largest" }
            (table(comparison, largest))
            @if !rest.is_empty() {
                details { summary { "Further " (counted(rest.len(), "figure")) " outside the spread" } (table(comparison, rest)) }
            }
        }
    };
    let inside = html! {
        @if !comparison.inside.is_empty() {
            details {
                summary { (counted(comparison.inside.len(), "figure")) small { "inside the spread, the largest change first" } }
                (table(comparison, &comparison.inside))
            }
        }
        (alone(&comparison.first.name, &comparison.alone.0))
        (alone(&comparison.other.name, &comparison.alone.1))
    };
    let counted = format!(
        "{} of {}. Shown is the change of the medians; bars and ranges go from the least to the most change between the \
         rounds of both.",
        comparison.outside.len(),
        counted(all, "figure")
    );
    html! {
        (page::section(&format!("{of}What differs outside the spread"), &counted, outside))
        (page::section(&format!("{of}What does not differ"), "The rounds overlap, or lie apart by no more than A/A runs.", inside))
        @if !comparison.facts.is_empty() { (page::section(&format!("{of}What else differs"), "", facts(comparison))) }
    }
}

fn alone(name: &str, cells: &[String]) -> Markup {
    html! {
        @if !cells.is_empty() {
            details {
                summary { "Only in " bdi { (one_line(name)) } small { (counted(cells.len(), "cell")) ", not compared" } }
                ul.notes { @for cell in cells { li { (cell) } } }
            }
        }
    }
}

fn facts(comparison: &SessionComparison<'_>) -> Markup {
    let (first, other) = (one_line(&comparison.first.name), one_line(&comparison.other.name));
    let mut table = Table::default().text("what").end_keys().text(first).text(other);
    for fact in &comparison.facts {
        table.row(vec![fact.name.clone(), fact.first.clone(), fact.other.clone()]);
    }
    tables::table(&table)
}

fn table(comparison: &SessionComparison<'_>, differences: &[Difference]) -> Markup {
    let (first, other) = (one_line(&comparison.first.name), one_line(&comparison.other.name));
    tables::table(&text::table(["cell".into(), first, other], differences))
}

/// Returns a plot for each figure, with a row for each cell.
fn plots(differences: &[Difference]) -> Vec<Markup> {
    let of = |metric: Metric| -> Vec<&Difference> {
        differences.iter().filter(|difference| difference.metric == metric).collect()
    };
    let compared = columns::COMPARED.into_iter().map(|metric| (metric, of(metric)));
    let compared = compared.filter(|(_, differences)| !differences.is_empty());
    compared.map(|(metric, differences)| plot(metric, &differences)).collect()
}

fn plot(metric: Metric, differences: &[&Difference]) -> Markup {
    let per_cent = |ratio: f64| (ratio - 1.0) * 100.0;
    let rows: Vec<Row> = differences
        .iter()
        .take(DRAWN)
        .map(|difference| {
            let ratio = difference.ratio();
            let [median, min, max] =
                [ratio.median, ratio.min, ratio.max].map(|ratio| format!("{} %", change(per_cent(ratio))));
            let tip = format!("{}: {median} ({min} to {max})", difference.cell);
            // Blue is better, orange worse; shapes distinguish them without colours.
            Row {
                label: difference.cell.clone(),
                style: usize::from(!difference.better()),
                dots: vec![Dot { x: per_cent(ratio.median), tip }],
                reach: Some((per_cent(ratio.min), per_cent(ratio.max))),
                median: None,
            }
        })
        .collect();
    let x = Scale::changes(rows.iter().filter_map(|row| row.reach).flat_map(|(low, high)| [low, high]));
    let better = if metric.better() == Better::More { "more" } else { "less" };
    let title = metric.title();
    let x_title = format!("{better} is better; ● better, ■ worse");
    let title = match differences.len() {
        all if all > DRAWN => format!("{title}: the largest {DRAWN} of {all} changes"),
        _ => format!("{title}: changes"),
    };
    Strip { title, x_title, x, noise: None, rows }.svg()
}
