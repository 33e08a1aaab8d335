//! The layout of a session's runs over plots: which factor goes on the axis, and which distinguish series and plots.

use crate::model::{Factor, Kind, Run, telling, words};
use crate::values;

/// The factors on the axis, of the series, and of the plots.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The factor on the horizontal axis, if runs differ in one.
    pub x: Option<Factor>,
    /// Factors that distinguish series.
    pub series: Vec<Factor>,
    /// Factors that distinguish groups of plots.
    pub headings: Vec<Factor>,
    /// Factors that distinguish the plots of a group.
    pub plots: Vec<Factor>,
}

impl Layout {
    /// Returns the layout for runs of a command.
    pub fn of(kind: Option<Kind>, runs: &[&Run]) -> Layout {
        let differing = telling(runs);
        use Factor::{Batch, Block, Buffers, Depth, Engine, InFlight, Jobs, Memory, RingFlags, Route};
        let axes: &[Factor] = match kind {
            Some(Kind::Batch | Kind::Multiread) => &[Batch, InFlight, Jobs],
            Some(Kind::Pool) => &[],
            _ => &[Depth, Block, Jobs],
        };
        let x = axes.iter().copied().find(|axis| differing.contains(axis));
        let lines = [Engine, Memory, Buffers, Route, RingFlags];
        let sizes = [Block, Depth, Batch];
        let (series, others): (Vec<Factor>, Vec<Factor>) =
            differing.into_iter().filter(|&part| Some(part) != x).partition(|part| lines.contains(part));
        let (mut plots, mut headings): (Vec<Factor>, Vec<Factor>) =
            others.into_iter().partition(|part| sizes.contains(part));
        if plots.is_empty() {
            plots = headings.split_off(headings.len().min(1));
            if plots.is_empty() {
                std::mem::swap(&mut plots, &mut headings);
            }
        }
        Layout { x, series, headings, plots }
    }

    /// Returns the same layout with another axis. The old axis then distinguishes plots.
    pub fn over(&self, axis: Factor) -> Layout {
        let mut plots: Vec<Factor> = self.plots.iter().copied().filter(|&part| part != axis).collect();
        plots.extend(self.x.filter(|&x| x != axis));
        Layout { x: Some(axis), plots, ..self.clone() }
    }

    /// Returns the name of a run's series: its engine, if all runs are alike.
    pub fn name(&self, run: &Run) -> String {
        let name = words(&self.series, &run.setup);
        if name.is_empty() { values::name(&run.setup.engine) } else { name }
    }
}

/// Returns words as a title, or `otherwise` if there are none.
pub fn titled(words: &str, otherwise: &str) -> String {
    let mut letters = words.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => otherwise.into(),
    }
}
