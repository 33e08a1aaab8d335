//! The styles of series: a colour, a shape and a dash each, the same on the whole page.
//!
//! Colours are in `plot.css`; a style's number names its class there. Shapes and dashes distinguish series without
//! colours.

use maud::{Markup, html};

/// Width of every plot, in its own units.
pub const WIDTH: f64 = 340.0;

/// The number of distinct styles; further series reuse them from the start.
pub const STYLES: usize = 8;

/// The style of A/A runs.
pub const NOISE: usize = STYLES;

/// Returns the class of a style.
pub fn class(style: usize) -> String {
    if style == NOISE { "noise".into() } else { format!("s{}", style % STYLES) }
}

/// Returns the outline of a style's shape around a place.
pub fn shape(style: usize, x: f64, y: f64) -> String {
    let corners: &[(f64, f64)] = match style % STYLES {
        0 => return format!("M{:.1} {y:.1}a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z", x - 3.6),
        1 => &[(-3.3, -3.3), (3.3, -3.3), (3.3, 3.3), (-3.3, 3.3)],
        2 => &[(0.0, -4.4), (4.2, 3.2), (-4.2, 3.2)],
        3 => &[(0.0, -4.7), (4.7, 0.0), (0.0, 4.7), (-4.7, 0.0)],
        4 => &[(0.0, 4.4), (-4.2, -3.2), (4.2, -3.2)],
        5 => &[
            (-1.4, -4.2),
            (1.4, -4.2),
            (1.4, -1.4),
            (4.2, -1.4),
            (4.2, 1.4),
            (1.4, 1.4),
            (1.4, 4.2),
            (-1.4, 4.2),
            (-1.4, 1.4),
            (-4.2, 1.4),
            (-4.2, -1.4),
            (-1.4, -1.4),
        ],
        6 => &[(-4.4, -1.6), (4.4, -1.6), (4.4, 1.6), (-4.4, 1.6)],
        _ => &[(0.0, -4.4), (4.2, -1.4), (2.6, 3.6), (-2.6, 3.6), (-4.2, -1.4)],
    };
    let corners: Vec<String> =
        corners.iter().map(|(right, down)| format!("{:.1} {:.1}", x + right, y + down)).collect();
    format!("M{}z", corners.join("L"))
}

/// Returns a plot as an element of a page.
pub fn svg(height: f64, label: &str, drawing: &Markup) -> Markup {
    html! {
        svg.plot viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(label) { (drawing) }
    }
}

/// What a style stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegendEntry {
    /// The name of the series.
    pub name: String,
    /// The style.
    pub style: usize,
}

/// Returns the legend of a group of plots, as text that flows.
pub fn legend(entries: &[LegendEntry]) -> Markup {
    html! {
        ul.legend {
            @for entry in entries {
                li {
                    svg.key width="30" height="14" viewBox="0 0 30 14" aria-hidden="true" { (sample(entry.style, 15.0, 7.0)) }
                    (entry.name)
                }
            }
        }
    }
}

fn sample(style: usize, x: f64, y: f64) -> Markup {
    html! {
        g class=(class(style)) {
            @if style != NOISE { path.l d=(format!("M{:.1} {y:.1}h28", x - 14.0)) {} }
            path.m d=(shape(style, x, y)) {}
        }
    }
}
