//! All plots of a kind as one SVG file, for pages that are not ours (`--svg`).
//!
//! What always holds: it is well-formed XML with its own style, and brings its own paper, light or dark as the reader
//! prefers.

use maud::{Markup, PreEscaped, html};

use super::cells;
use super::drawing::{self, Look, Picture, What};
use super::marks;
use super::plot;
use super::sections;
use crate::report::results::Results;

const GAP: f64 = 20.0;
const MARGIN: f64 = 16.0;
const HEADING: f64 = 30.0;
const COLUMNS: usize = 3;

/// The drawing; `None` where there is nothing to plot.
pub fn svg(results: &Results, what: What) -> Option<String> {
    let plots = drawing::plots(&Look::of(results), what);
    let columns = plots.len().min(COLUMNS);
    if columns == 0 {
        return None;
    }
    let inner = columns as f64 * (plot::WIDTH + GAP) - GAP;
    let (legend, legend_height) = marks::drawn_legend(&drawing::entries(&plots), inner);
    let all: Vec<&Picture> = plots.iter().collect();
    let mut bottom = MARGIN + legend_height;
    let mut placed: Vec<Markup> = Vec::new();
    for (heading, plots) in cells::by(&all, |plot| plot.heading.clone()) {
        if !heading.is_empty() {
            placed.push(html! { text.h x=(MARGIN + 4.0) y=(bottom + 22.0) { (heading) } });
            bottom += HEADING;
        }
        bottom += 8.0;
        for row in plots.chunks(columns) {
            for (column, plot) in row.iter().enumerate() {
                let left = MARGIN + column as f64 * (plot::WIDTH + GAP);
                placed
                    .push(html! { g transform=(format!("translate({left} {bottom})")) { (plot.drawing()) } });
            }
            bottom += row.iter().map(|plot| plot.height()).fold(0.0, f64::max) + GAP;
        }
    }
    let (width, height) = (inner + 2.0 * MARGIN, bottom - GAP + MARGIN);
    let name = format!("{}: {}", sections::command_name(results), what.title());
    let drawing: Markup = html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(width) height=(height) viewBox=(format!("0 0 {width} {height}"))
            role="img" aria-label=(name) {
            style { (PreEscaped(include_str!("plot.css"))) }
            rect width=(width) height=(height) rx="8" fill="var(--paper)" {}
            g transform=(format!("translate({MARGIN} {MARGIN})")) { (legend) }
            @for part in placed { (part) }
        }
    };
    Some(drawing.into_string() + "\n")
}
