//! What a run was, taken apart: which of it differs within a session, which axis it goes on, and what tells series and
//! plots apart.
//!
//! Knows runs, no drawing. Invariants: two runs with another key differ in some [`Part`], so none hides another.

use clap::ValueEnum;
use serde::Serialize;

use super::scale;
use crate::report::results::{Kind, Run};
use crate::values;

/// A part of what a run was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// What did it.
    Engine,
    /// Kind of buffers.
    Buffers,
    /// Where memory came from.
    Memory,
    /// Side of the pool.
    Side,
    /// Access.
    Rw,
    /// O_DIRECT.
    Direct,
    /// Page cache.
    Cache,
    /// Way of the operations.
    Route,
    /// Flags of the rings.
    RingFlags,
    /// Who ran the tasks.
    Executor,
    /// Processes.
    Processes,
    /// Threads.
    Jobs,
    /// Bytes of an operation.
    Block,
    /// Operations in flight.
    Depth,
    /// Reads in a batch.
    Batch,
    /// Batches in flight.
    InFlight,
}

impl Part {
    /// All, in the order in which they are named.
    pub const ALL: [Part; 16] = [
        Part::Engine,
        Part::Memory,
        Part::Side,
        Part::Rw,
        Part::Block,
        Part::Processes,
        Part::Jobs,
        Part::Depth,
        Part::InFlight,
        Part::Batch,
        Part::Buffers,
        Part::Direct,
        Part::Cache,
        Part::Route,
        Part::RingFlags,
        Part::Executor,
    ];

    /// Title of its column.
    pub fn title(self) -> &'static str {
        match self {
            Part::Engine => "engine",
            Part::Buffers => "buffers",
            Part::Memory => "memory",
            Part::Side => "side",
            Part::Rw => "mode",
            Part::Direct => "I/O",
            Part::Cache => "cache",
            Part::Route => "route",
            Part::RingFlags => "ring flags",
            Part::Executor => "executor",
            Part::Processes => "processes",
            Part::Jobs => "jobs",
            Part::Block => "block",
            Part::Depth => "depth",
            Part::Batch => "batch",
            Part::InFlight => "in flight",
        }
    }

    /// What its axis shows.
    pub fn axis(self) -> &'static str {
        match self {
            Part::Depth => "depth: operations in flight for each thread",
            Part::Batch => "reads in a batch",
            Part::InFlight => "batches in flight for each thread",
            Part::Block => "block size in bytes",
            Part::Jobs => "threads",
            Part::Processes => "processes",
            other => other.title(),
        }
    }

    /// Its value in a cell of a table.
    pub fn cell(self, run: &Run) -> Option<String> {
        Some(match self {
            Part::Engine => values::name(&run.engine),
            Part::Buffers => values::name(&run.buffers),
            Part::Memory => word(&run.memory?),
            Part::Side => word(&run.side?),
            Part::Rw => values::name(&run.rw),
            Part::Direct => if run.direct { "direct" } else { "buffered" }.into(),
            Part::Cache => values::name(&run.cache),
            Part::Route => name(run.route)?,
            Part::RingFlags => name(run.ring_flags)?,
            Part::Executor => name(run.executor)?,
            Part::Block => scale::block(run.block_size_bytes as f64),
            Part::Processes | Part::Jobs | Part::Depth | Part::Batch | Part::InFlight => {
                format!("{}", self.number(run)?)
            }
        })
    }

    /// Its value in a title, where nothing above says what it is.
    pub fn words(self, run: &Run) -> Option<String> {
        let cell = self.cell(run)?;
        let counted = |one: &str, more: &str| format!("{cell} {}", if cell == "1" { one } else { more });
        Some(match self {
            Part::Cache => match cell.as_str() {
                // Direct I/O goes past it.
                "keep" if run.direct => return None,
                "keep" => "cache as it is".into(),
                state => format!("{state} cache"),
            },
            Part::Executor => format!("in {cell}"),
            Part::RingFlags => format!("flags {cell}"),
            Part::Processes => counted("process", "processes"),
            Part::Jobs => counted("thread", "threads"),
            Part::Block => format!("{cell} blocks"),
            Part::Depth => format!("depth {cell}"),
            Part::Batch => format!("batches of {cell}"),
            Part::InFlight => counted("batch in flight", "batches in flight"),
            Part::Rw => access(&cell),
            _ => cell,
        })
    }

    /// Its value on an axis.
    pub fn number(self, run: &Run) -> Option<f64> {
        match self {
            Part::Processes => run.processes.map(|count| count as f64),
            Part::Jobs => Some(run.numjobs as f64),
            Part::Block => Some(run.block_size_bytes as f64),
            Part::Depth => Some(run.iodepth as f64),
            Part::Batch => run.batch.map(|count| count as f64),
            Part::InFlight => run.inflight.map(|count| count as f64),
            _ => None,
        }
    }

    /// Whether its values are counts or sizes.
    pub fn counts(self) -> bool {
        use Part::*;
        matches!(self, Processes | Jobs | Block | Depth | Batch | InFlight)
    }

    /// How its axis is labelled.
    pub fn label(self) -> fn(f64) -> String {
        if self == Part::Block { scale::block } else { scale::count }
    }
}

/// fio's words as a reader has them.
pub fn access(word: &str) -> String {
    match word {
        "randread" => "random reads",
        "randwrite" => "random writes",
        "randrw" => "random reads and writes",
        "read" => "sequential reads",
        "write" => "sequential writes",
        other => other,
    }
    .into()
}

fn name<T: ValueEnum>(value: Option<T>) -> Option<String> {
    value.as_ref().map(values::name)
}

/// The word that JSON has for a value.
fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_string)).unwrap_or_default()
}

/// Those in which some of these runs differ, in the order of [`Part::ALL`].
pub fn differing(runs: &[&Run]) -> Vec<Part> {
    let differs = |part: &Part| runs.iter().any(|run| part.cell(run) != part.cell(runs[0]));
    let in_batches = runs.iter().any(|run| run.batch.is_some());
    // Batches tell the depth.
    Part::ALL.into_iter().filter(|part| differs(part) && !(in_batches && *part == Part::Depth)).collect()
}

/// The same without those that another one before them tells: the side of a pool tells whether it reads.
pub fn telling(runs: &[&Run]) -> Vec<Part> {
    let tells = |one: Part, other: Part| {
        let same = |a: &Run, b: &Run| one.cell(a) != one.cell(b) || other.cell(a) == other.cell(b);
        runs.iter().all(|a| runs.iter().all(|b| same(a, b)))
    };
    let mut telling: Vec<Part> = Vec::new();
    for part in differing(runs) {
        let named = matches!(part, Part::Rw | Part::Buffers | Part::Direct | Part::Route | Part::Executor);
        if !(named && telling.iter().any(|&other| tells(other, part))) {
            telling.push(part);
        }
    }
    telling
}

/// Some parts of a run in words.
pub fn words(parts: &[Part], run: &Run) -> String {
    let words: Vec<String> = parts.iter().filter_map(|part| part.words(run)).collect();
    words.join(", ")
}

/// Words as they begin a title; where there are none, `otherwise`.
pub fn titled(words: &str, otherwise: &str) -> String {
    let mut letters = words.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => otherwise.into(),
    }
}

/// How a session's runs are laid out over plots.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Horizontal axis; none where there is only one place.
    pub x: Option<Part>,
    /// What tells series apart.
    pub series: Vec<Part>,
    /// What tells groups of plots apart.
    pub headings: Vec<Part>,
    /// What tells plots of a group apart.
    pub plots: Vec<Part>,
}

impl Layout {
    /// For runs of a command.
    pub fn of(kind: Option<Kind>, runs: &[&Run]) -> Layout {
        let differing = telling(runs);
        let axes: &[Part] = match kind {
            Some(Kind::Batch | Kind::Multiread) => &[Part::Batch, Part::InFlight, Part::Jobs],
            Some(Kind::Pool) => &[],
            _ => &[Part::Depth, Part::Block, Part::Jobs],
        };
        let x = axes.iter().copied().find(|axis| differing.contains(axis));
        let lines = [Part::Engine, Part::Memory, Part::Buffers, Part::Route, Part::RingFlags, Part::Executor];
        let sizes = [Part::Block, Part::Depth, Part::Batch];
        let (series, others): (Vec<Part>, Vec<Part>) =
            differing.into_iter().filter(|&part| Some(part) != x).partition(|part| lines.contains(part));
        let (mut plots, mut headings): (Vec<Part>, Vec<Part>) =
            others.into_iter().partition(|part| sizes.contains(part));
        if plots.is_empty() {
            plots = headings.split_off(headings.len().min(1));
            if plots.is_empty() {
                std::mem::swap(&mut plots, &mut headings);
            }
        }
        Layout { x, series, headings, plots }
    }

    /// The same with another axis; the old one tells plots apart.
    pub fn over(&self, axis: Part) -> Layout {
        let mut plots: Vec<Part> = self.plots.iter().copied().filter(|&part| part != axis).collect();
        plots.extend(self.x.filter(|&x| x != axis));
        Layout { x: Some(axis), plots, ..self.clone() }
    }

    /// The name of a run's series; what never differs is named by its engine.
    pub fn name(&self, run: &Run) -> String {
        let name = words(&self.series, run);
        if name.is_empty() { values::name(&run.engine) } else { name }
    }
}

/// Things in the order in which their names first come.
pub fn by<T: Copy, N: PartialEq>(things: &[T], name: impl Fn(T) -> N) -> Vec<(N, Vec<T>)> {
    let mut groups: Vec<(N, Vec<T>)> = Vec::new();
    for &thing in things {
        let name = name(thing);
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, group)) => group.push(thing),
            None => groups.push((name, vec![thing])),
        }
    }
    groups
}
