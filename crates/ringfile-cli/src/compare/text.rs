//! A comparison as text for the terminal: what differs outside the spread first, the rest counted.

use super::differences::{COMPARED, Comparison, Difference};
use crate::error::one_line;
use crate::numbers::{change, per_cent};
use crate::report::table::Table;
use crate::terminal;

/// The text, for that many columns.
pub fn of(comparison: &Comparison<'_>, width: Option<usize>) -> String {
    let (first, other) = (one_line(&comparison.first.name), one_line(&comparison.other.name));
    let count = comparison.outside.len() + comparison.inside.len();
    let mut lines = vec![format!(
        "{other} beside {first}: {} of {count} figures differ outside the spread",
        comparison.outside.len()
    )];
    lines.extend(comparison.blind().map(|why| format!("- nothing can be claimed: {why}")));
    lines.extend(
        comparison.facts.iter().map(|fact| format!("- {}: {} / {}", fact.name, fact.first, fact.other)),
    );
    let mut text = paragraph(&lines, width);
    if !comparison.outside.is_empty() {
        let mut table = Table::default()
            .text("outside the spread")
            .text("figure")
            .end_keys()
            .number("first")
            .number("other");
        table = table.number("change %").number("least").number("most").number("noise");
        comparison.outside.iter().for_each(|difference| table.row(row(difference)));
        text += &format!("\n{}", table.text_of_width(width));
    }
    let inside = COMPARED.iter().filter_map(|metric| {
        let count = comparison.inside.iter().filter(|difference| difference.metric == *metric).count();
        (count > 0)
            .then(|| format!("{} in {count} cell{}", metric.title(), if count == 1 { "" } else { "s" }))
    });
    let inside: Vec<String> = inside.collect();
    let mut lines = Vec::new();
    if !inside.is_empty() {
        let largest = comparison
            .inside
            .iter()
            .map(|difference| (difference.ratio().median - 1.0).abs())
            .fold(0.0, f64::max);
        lines.push(format!(
            "- inside the spread: {}; the largest of these changes is {}",
            inside.join(", "),
            per_cent(largest)
        ));
    }
    for (name, cells) in [(&first, &comparison.alone.0), (&other, &comparison.alone.1)] {
        if !cells.is_empty() {
            lines.push(format!("- only in {name}: {} cells, not compared", cells.len()));
        }
    }
    if !lines.is_empty() {
        text += &format!("\n{}", paragraph(&lines, width));
    }
    text
}

fn row(difference: &Difference) -> Vec<String> {
    let mut row = figures(difference).to_vec();
    row.push(per_cent(difference.noise));
    row
}

/// The cell, the figure, both medians, and the change with its least and most.
pub fn figures(difference: &Difference) -> [String; 7] {
    let metric = difference.metric;
    let ratio = difference.ratio();
    let change = |ratio: f64| change((ratio - 1.0) * 100.0);
    [
        difference.cell.clone(),
        metric.title().into(),
        metric.text(difference.first.median),
        metric.text(difference.other.median),
        change(ratio.median),
        change(ratio.min),
        change(ratio.max),
    ]
}

fn paragraph(lines: &[String], width: Option<usize>) -> String {
    let wrap = |line: &String| width.map_or_else(|| line.clone(), |width| terminal::wrap(line, width, "  "));
    lines.iter().map(|line| wrap(line) + "\n").collect()
}
