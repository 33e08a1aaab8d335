//! All plots of a kind as one SVG file, for other pages (`--svg`).
//!
//! Invariants: it is well-formed XML with its own style and background, light or dark as the reader prefers.

use maud::{Markup, PreEscaped, html};

use super::drawing::{self, Look, Picture, What};
use super::marks;
use super::sections;
use crate::error::one_line;
use crate::model::{Results, by};
use crate::terminal;

const GAP: f64 = 20.0;
const MARGIN: f64 = 16.0;
const HEADING: f64 = 30.0;
const LINE: f64 = 18.0;
const COLUMNS: usize = 3;

/// Returns the drawing, or `None` if there is nothing to plot.
pub fn svg(results: &Results, what: What) -> Option<String> {
    let plots = drawing::plots(&Look::of(results), what);
    let groups = plots.chunk_by(|one, other| one.heading == other.heading).map(<[Picture]>::len);
    // Four look better in two rows of two.
    let columns = match groups.max()? {
        4 => 2,
        count => count.min(COLUMNS),
    };
    let inner = (columns as f64 * (marks::WIDTH + GAP) - GAP).max(2.0 * marks::WIDTH);
    let (legend, legend_height) = marks::drawn_legend(&drawing::entries(&plots), inner);
    let title = terminal::wrap(&title(results, what), (inner / 7.5) as usize, "");
    let lines: Vec<&str> = title.lines().collect();
    let legend_top = MARGIN + lines.len() as f64 * LINE + 6.0;
    let all: Vec<&Picture> = plots.iter().collect();
    let mut bottom = legend_top + legend_height;
    let mut placed: Vec<Markup> = Vec::new();
    for (heading, plots) in by(&all, |plot| plot.heading.clone()) {
        if !heading.is_empty() {
            placed.push(html! { text.h x=(MARGIN) y=(bottom + 22.0) { (heading) } });
            bottom += HEADING;
        }
        bottom += 8.0;
        for row in plots.chunks(columns) {
            for (column, plot) in row.iter().enumerate() {
                let left = MARGIN + column as f64 * (marks::WIDTH + GAP);
                placed.push(html! { g transform=(format!("translate({left} {bottom})")) { (plot.drawing) } });
            }
            bottom += row.iter().map(|plot| plot.height).fold(0.0, f64::max) + GAP;
        }
    }
    let (width, height) = (inner + 2.0 * MARGIN, bottom - GAP + MARGIN);
    let drawing: Markup = html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(width) height=(height) viewBox=(format!("0 0 {width} {height}"))
            role="img" aria-label=(title) {
            style { (PreEscaped(include_str!("plot.css"))) }
            rect width=(width) height=(height) rx="8" fill="var(--paper)" {}
            @for (index, line) in lines.iter().enumerate() {
                text.h x=(MARGIN) y=(MARGIN + 12.0 + index as f64 * LINE) { (line) }
            }
            g transform=(format!("translate({MARGIN} {legend_top})")) { (legend) }
            @for part in placed { (part) }
        }
    };
    Some(drawing.into_string() + "\n")
}

/// Returns the title: command, kind of plot, file system, kind of I/O and kernel.
fn title(results: &Results, what: What) -> String {
    let kernel = results.machine.kernel.as_deref().map_or_else(|| "(unknown)".into(), one_line);
    format!(
        "{}: {} on {}, {}, Linux {kernel}",
        sections::command(results),
        what.title().to_lowercase().replace("cpu", "CPU"),
        one_line(&results.machine.filesystem),
        if results.params.direct { "direct" } else { "through the page cache" }
    )
}
