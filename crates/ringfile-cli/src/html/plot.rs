//! A plot of series over an axis, as SVG: medians joined by lines, with bars from the least to the most of the rounds.
//!
//! Knows numbers and words, no runs. Invariants: it is 340 units wide, so that text of 12 units is shown with 12 pixels
//! or more; every point that the scales can show is drawn, with its figures as a tooltip.

use maud::{Markup, html};

use super::marks::{self, WIDTH};
use super::scale::Scale;

const HEIGHT: f64 = 248.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = WIDTH - 10.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = HEIGHT - 44.0;

/// One plot.
#[derive(Debug)]
pub struct Plot {
    /// What distinguishes it from its neighbours.
    pub title: String,
    /// What the vertical axis shows, with its unit.
    pub y_title: String,
    /// What the horizontal axis shows, with its unit.
    pub x_title: String,
    /// The horizontal axis.
    pub x: Scale,
    /// The vertical axis.
    pub y: Scale,
    /// The lines.
    pub series: Vec<Series>,
}

/// One line.
#[derive(Debug)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its style.
    pub style: usize,
    /// Its points, in the order of `x`.
    pub points: Vec<Point>,
}

/// One point with its spread.
#[derive(Debug, Clone)]
pub struct Point {
    /// The value on the horizontal axis.
    pub x: f64,
    /// The median.
    pub y: f64,
    /// The least of the rounds.
    pub low: f64,
    /// The most of the rounds.
    pub high: f64,
    /// Its tooltip.
    pub tip: String,
}

impl Plot {
    /// Returns it as an element of a page.
    pub fn svg(&self) -> Markup {
        let names: Vec<&str> = self.series.iter().map(|series| series.name.as_str()).collect();
        let label = format!("{}: {} over {}; {}", self.title, self.y_title, self.x_title, names.join(", "));
        let drawing = html! {
            text.h x="0" y="15" { (self.title) }
            text.t x="0" y="32" { (self.y_title) }
            (self.frame())
            @for (index, series) in self.series.iter().enumerate() { (self.series(series, index)) }
        };
        marks::svg(HEIGHT, &label, &drawing)
    }

    fn frame(&self) -> Markup {
        html! {
            @for (value, label) in &self.y.ticks {
                @let y = self.up(*value);
                path.grid d=(format!("M{LEFT} {y:.1}H{RIGHT}")) {}
                text.t text-anchor="end" x=(LEFT - 6.0) y=(format!("{:.1}", y + 4.0)) { (label) }
            }
            path.axis d=(format!("M{LEFT} {BOTTOM}H{RIGHT}")) {}
            @for (value, label) in &self.x.ticks {
                @let x = self.right(*value);
                path.axis d=(format!("M{x:.1} {BOTTOM}v4")) {}
                text.t text-anchor="middle" x=(format!("{x:.1}")) y=(BOTTOM + 17.0) { (label) }
            }
            text.t text-anchor="middle" x=((LEFT + RIGHT) / 2.0) y=(BOTTOM + 35.0) { (self.x_title) }
        }
    }

    fn series(&self, series: &Series, index: usize) -> Markup {
        let points: Vec<&Point> =
            series.points.iter().filter(|point| self.x.shows(point.x) && self.y.shows(point.y)).collect();
        // Bars are drawn side by side, so that none hides another.
        let aside = (index as f64 - (self.series.len() as f64 - 1.0) / 2.0) * 3.0;
        let places: Vec<(f64, f64)> =
            points.iter().map(|point| (self.right(point.x) + aside, self.up(point.y))).collect();
        let line: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        html! {
            g class=(marks::class(series.style)) {
                @if line.len() > 1 { path.l d=(format!("M{}", line.join("L"))) {} }
                @for (point, (x, y)) in points.iter().zip(places) {
                    g.p {
                        title { (point.tip) }
                        @if point.high > point.low {
                            @let (top, bottom) = (self.up(point.high), self.up(point.low));
                            path.e d=(format!("M{:.1} {top:.1}h5m-2.5 0V{bottom:.1}m-2.5 0h5", x - 2.5)) {}
                        }
                        path.m d=(marks::shape(series.style, x, y)) {}
                    }
                }
            }
        }
    }

    fn right(&self, value: f64) -> f64 {
        LEFT + self.x.place(value) * (RIGHT - LEFT)
    }

    fn up(&self, value: f64) -> f64 {
        BOTTOM - self.y.place(value) * (BOTTOM - TOP)
    }
}
