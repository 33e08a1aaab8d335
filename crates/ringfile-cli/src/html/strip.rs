//! A plot of rows of dots, as SVG, with a dot for each round.
//!
//! Knows figures and words, no runs. Invariants: it is as wide as every plot and as high as its rows need; every dot
//! that the scale can show is drawn.

use maud::{Markup, html};

use super::marks;
use super::marks::WIDTH;
use super::scale::Scale;
use super::text_width;
use crate::model::Spread;
use crate::terminal;

/// The right end of the axis; half of the last tick's label lies beyond it.
const RIGHT: f64 = WIDTH - 26.0;
const TOP: f64 = 50.0;
const ROW: f64 = 18.0;
const HEADING: f64 = 22.0;

/// One plot.
#[derive(Debug)]
pub struct Strip {
    /// What distinguishes it from its neighbours.
    pub title: String,
    /// What the axis shows, with its unit.
    pub x_title: String,
    /// The horizontal axis.
    pub x: Scale,
    /// The range of values that is within the noise.
    pub noise: Option<(f64, f64)>,
    /// The rows, from top to bottom.
    pub rows: Vec<Row>,
}

/// One row, or a heading if it has no dots.
#[derive(Debug)]
pub struct Row {
    /// Its name.
    pub label: String,
    /// Its style.
    pub style: usize,
    /// Its dots.
    pub dots: Vec<Dot>,
    /// The median of the dots.
    pub median: Option<f64>,
}

/// One round.
#[derive(Debug, Clone)]
pub struct Dot {
    /// Its value.
    pub x: f64,
    /// Its tooltip.
    pub tip: String,
}

/// Returns a label in lines that fit the width.
fn lines(label: &str) -> Vec<String> {
    terminal::wrap(label, 50, "").lines().map(str::to_string).collect()
}

impl Row {
    /// Creates a row of dots with their median.
    pub fn of_dots(label: String, style: usize, dots: Vec<Dot>) -> Row {
        let median = Spread::of(dots.iter().map(|dot| dot.x)).map(|spread| spread.median);
        Row { label, style, dots, median }
    }

    /// Creates a heading for the rows that follow.
    pub fn heading(label: String) -> Row {
        Row::of_dots(label, 0, Vec::new())
    }
}

impl Strip {
    /// Returns it as an element of a page.
    pub fn svg(&self) -> Markup {
        let drawing = html! {
            text.h x="0" y="15" { (self.title) }
            text.t x="0" y="32" { (self.x_title) }
            (self.frame())
            (self.rows())
        };
        marks::svg(self.bottom() + 30.0, &format!("{}: {}", self.title, self.x_title), &drawing)
    }

    /// Returns the left end of the axis: right of the labels, or, if these are long and stand above their dots, far
    /// left.
    fn left(&self) -> f64 {
        if self.labels_above() { 26.0 } else { self.longest().max(14.0) + 20.0 }
    }

    fn labels_above(&self) -> bool {
        self.longest() > 130.0
    }

    fn longest(&self) -> f64 {
        let labels = self.rows.iter().filter(|row| !row.dots.is_empty());
        labels.map(|row| text_width(&row.label)).fold(0.0, f64::max)
    }

    fn height_of(&self, row: &Row) -> f64 {
        match (row.dots.is_empty(), self.labels_above()) {
            (true, _) => HEADING,
            (false, false) => ROW,
            (false, true) => ROW + ROW * lines(&row.label).len() as f64,
        }
    }

    fn bottom(&self) -> f64 {
        TOP + self.rows.iter().map(|row| self.height_of(row)).sum::<f64>()
    }

    fn across(&self, value: f64) -> f64 {
        self.left() + self.x.place(value) * (RIGHT - self.left())
    }

    fn frame(&self) -> Markup {
        let bottom = self.bottom();
        let mut free = f64::NEG_INFINITY;
        let ticks: Vec<(f64, &str, bool)> = self
            .x
            .ticks
            .iter()
            .map(|(value, label)| {
                let (x, half) = (self.across(*value), text_width(label) / 2.0);
                let fits = x - half > free;
                free = if fits { x + half + 12.0 } else { free };
                (x, label.as_str(), fits)
            })
            .collect();
        html! {
            @if let Some((low, high)) = self.noise {
                @let (low, high) = (self.across(low).max(self.left()), self.across(high).min(RIGHT));
                rect.band x=(format!("{low:.1}")) y=(TOP - 8.0) width=(format!("{:.1}", high - low)) height=(bottom - TOP + 8.0) {}
            }
            @for (x, label, fits) in ticks {
                path.grid d=(format!("M{x:.1} {}V{bottom}", TOP - 8.0)) {}
                @if fits { text.t text-anchor="middle" x=(format!("{x:.1}")) y=(bottom + 17.0) { (label) } }
            }
            path.axis d=(format!("M{:.1} {bottom}H{RIGHT}", self.left())) {}
        }
    }

    fn rows(&self) -> Markup {
        let mut bottom = TOP;
        let tops = self.rows.iter().map(|row| {
            let top = bottom;
            bottom += self.height_of(row);
            top
        });
        html! { @for (row, top) in self.rows.iter().zip(tops) { (self.row(row, top)) } }
    }

    fn row(&self, row: &Row, top: f64) -> Markup {
        if row.dots.is_empty() {
            return html! { text.t.b.o x="0" y=(top + 16.0) { (row.label) } };
        }
        let label = lines(&row.label);
        let above = if self.labels_above() { label.len() as f64 } else { 0.0 };
        let middle = top + ROW * (above + 0.5);
        html! {
            @for (index, line) in label.iter().enumerate() {
                text.t.o x="0" y=(top + 13.0 + ROW * index as f64) { (line) }
            }
            g class=(marks::class(row.style)) {
                @for dot in row.dots.iter().filter(|dot| self.x.shows(dot.x)) {
                    g.p {
                        title { (dot.tip) }
                        path.d d=(marks::shape(row.style, self.across(dot.x), middle)) {}
                    }
                }
                @if let Some(median) = row.median.filter(|median| self.x.shows(*median)) {
                    path.q d=(format!("M{:.1} {:.1}v13", self.across(median), middle - 6.5)) {}
                }
            }
        }
    }
}
