//! A comparison as text for the terminal: the figures that differ outside the spread, then the number of others.

use super::differences::{Difference, SessionComparison};
use crate::error::one_line;
use crate::model::columns;
use crate::numbers::{change, counted, per_cent};
use crate::report::table::Table;
use crate::terminal;

/// Returns the text, wrapped to a width in characters.
pub fn of(comparison: &SessionComparison<'_>, width: Option<usize>) -> String {
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
    let mut text = terminal::lines(lines, width);
    if !comparison.outside.is_empty() {
        text += &format!("\n{}", table(&comparison.outside).text_of_width(width));
    }
    let inside = columns::COMPARED.iter().filter_map(|metric| {
        let count = comparison.inside.iter().filter(|difference| difference.metric == *metric).count();
        (count > 0).then(|| format!("{} in {}", metric.title(), counted(count, "cell")))
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
    for (name, cells) in [&first, &other].into_iter().zip(comparison.alone) {
        lines.extend((cells > 0).then(|| format!("- only in {name}: {cells} cells, not compared")));
    }
    if !lines.is_empty() {
        text += &format!("\n{}", terminal::lines(lines, width));
    }
    text
}

fn table(differences: &[Difference]) -> Table {
    let table = Table::default().text("outside the spread").text("figure").end_keys();
    let table = table.number("first").number("other");
    let mut table = table.number("change %").number("least").number("most").number("noise");
    for difference in differences {
        let (metric, ratio) = (difference.metric, difference.ratio());
        let by = |ratio: f64| change((ratio - 1.0) * 100.0);
        let noise = difference.noise;
        table.row(vec![
            difference.cell.clone(),
            metric.title().into(),
            metric.text(difference.first.median),
            metric.text(difference.other.median),
            by(ratio.median),
            by(ratio.min),
            by(ratio.max),
            if noise.is_finite() { per_cent(noise) } else { "unknown".into() },
        ]);
    }
    table
}
