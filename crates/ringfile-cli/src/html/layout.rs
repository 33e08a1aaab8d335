//! How the runs of a session are laid out over plots: which factor goes on the axis, and which tell series and plots
//! apart.

use crate::model::{Factor, Kind, Run, telling, words};
use crate::values;

/// How a session's runs are laid out over plots.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Horizontal axis; none if there is only one place.
    pub x: Option<Factor>,
    /// Factors that tell series apart.
    pub series: Vec<Factor>,
    /// Factors that tell groups of plots apart.
    pub headings: Vec<Factor>,
    /// Factors that tell the plots of a group apart.
    pub plots: Vec<Factor>,
}

impl Layout {
    /// Returns the layout for runs of a command.
    pub fn of(kind: Option<Kind>, runs: &[&Run]) -> Layout {
        let differing = telling(runs);
        let axes: &[Factor] = match kind {
            Some(Kind::Batch | Kind::Multiread) => &[Factor::Batch, Factor::InFlight, Factor::Jobs],
            Some(Kind::Pool) => &[],
            _ => &[Factor::Depth, Factor::Block, Factor::Jobs],
        };
        let x = axes.iter().copied().find(|axis| differing.contains(axis));
        let lines = [
            Factor::Engine,
            Factor::Memory,
            Factor::Buffers,
            Factor::Route,
            Factor::RingFlags,
            Factor::Executor,
        ];
        let sizes = [Factor::Block, Factor::Depth, Factor::Batch];
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

    /// Returns the same layout with another axis. The old axis then tells plots apart.
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

/// Words as they begin a title; where there are none, `otherwise`.
pub fn titled(words: &str, otherwise: &str) -> String {
    let mut letters = words.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => otherwise.into(),
    }
}
