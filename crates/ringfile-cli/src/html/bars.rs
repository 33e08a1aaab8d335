//! A plot of bars, as SVG: medians, with a thin line from the least to the most of the rounds.
//!
//! Knows figures and words, no runs. Invariants: the scale is linear and begins at zero; each bar has its figure beside it.

use maud::{Markup, html};

use super::{marks, text_width};
use crate::model::Spread;
use crate::terminal;

const TOP: f64 = 46.0;
const ROW: f64 = 26.0;
const BAR: f64 = 16.0;
const LINE: f64 = 18.0;

/// Labels that are wider stand above their bars.
const WIDEST: f64 = 130.0;

/// One bar.
pub struct Bar {
    /// What it stands for.
    pub label: String,
    /// The style.
    pub style: usize,
    /// Its figures.
    pub spread: Spread,
}

/// Returns the plot of some bars, whose figures `text` formats; `unit` says what they are.
pub fn svg(title: &str, unit: &str, bars: &[Bar], text: impl Fn(f64) -> String) -> Markup {
    let widest =
        |texts: &mut dyn Iterator<Item = String>| texts.map(|text| text_width(&text)).fold(0.0, f64::max);
    let labels = widest(&mut bars.iter().map(|bar| bar.label.clone()));
    let is_above = labels > WIDEST;
    let left = if is_above { 2.0 } else { labels + 12.0 };
    let most = bars.iter().map(|bar| bar.spread.max).fold(f64::MIN_POSITIVE, f64::max);
    // The figures are bold.
    let right = marks::WIDTH - 1.25 * widest(&mut bars.iter().map(|bar| text(bar.spread.median))) - 12.0;
    let across = |value: f64| left + (value / most).clamp(0.0, 1.0) * (right - left);
    let mut bottom = TOP;
    let drawing = html! {
        text.h x="0" y="15" { (title) }
        text.t x="0" y="32" { (unit) }
        @for bar in bars {
            @let label = terminal::wrap(&bar.label, 48, "");
            @let top = bottom + if is_above { LINE * label.lines().count() as f64 } else { 0.0 };
            @let middle = top + BAR / 2.0;
            @let [end, low, high] = [bar.spread.median, bar.spread.min, bar.spread.max].map(across);
            @for (index, line) in label.lines().enumerate() {
                text.t x="0" y=(format!("{:.1}", bottom + 12.0 + LINE * index as f64)) { (line) }
            }
            g class=(marks::class(bar.style)) {
                g.p {
                    title { (bar.label) ": " (text(bar.spread.median)) " (" (text(bar.spread.min)) " to " (text(bar.spread.max)) ")" }
                    // At least as wide as can be seen.
                    path.m d=(format!("M{left} {top:.1}H{:.1}v{BAR}H{left}z", end.max(left + 2.0))) {}
                    path.q d=(format!("M{low:.1} {middle:.1}H{high:.1}")) {}
                }
            }
            text.t.b x=(format!("{:.1}", high.max(end) + 8.0)) y=(format!("{:.1}", middle + 4.0)) { (text(bar.spread.median)) }
            ({ bottom = top + ROW; "" })
        }
        path.axis d=(format!("M{left} {}V{bottom:.1}", TOP - 4.0)) {}
    };
    let figures: Vec<String> =
        bars.iter().map(|bar| format!("{} {}", bar.label, text(bar.spread.median))).collect();
    marks::svg(bottom + 6.0, &format!("{title}, {unit}: {}", figures.join(", ")), &drawing)
}
