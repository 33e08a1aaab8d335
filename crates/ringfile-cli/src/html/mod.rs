//! Results as a page to look at: one HTML file that needs nothing else, no network and no script.
//!
//! Knows results, never how they were measured. What always holds: text that came from outside (file names, command lines,
//! notes) is escaped; the page fits its window from 360 pixels up without scrolling sideways.

pub mod cells;
pub mod compare;
pub mod drawing;
mod figures;
mod marks;
mod page;
mod plot;
mod rounds;
mod scale;
pub mod sections;
pub mod standalone;
mod strip;
mod tables;

use maud::html;

use crate::report::results::Results;

/// The page of one session.
pub fn write(results: &Results) -> String {
    let title = sections::title(results);
    let body = html! {
        (sections::header(results))
        (sections::advice(results))
        @if results.runs.is_empty() { p.note { "Nothing was measured: the command ended before its first run." } }
        (sections::plots(results))
        (rounds::section(results))
        (sections::profile(results))
        (tables::section(results))
        (sections::notes(results))
    };
    page::page(&title, &body)
}

/// About how wide a text is in a drawing; no font is measured, so this errs on the wide side.
fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 6.7
}
