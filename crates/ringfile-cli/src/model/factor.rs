//! The catalogue of factors: the name of each, and its value in a setup.
//!
//! Invariant: two different setups differ in some [`Factor`], so no run hides another in a table or plot.

use clap::ValueEnum;

use super::{Run, Rw, Setup, distinct};
use crate::values::{name, short_size};

/// Something that can differ between runs, in the order in which tables and titles name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Factor {
    /// What carries out the job.
    Engine,
    /// Where memory comes from.
    Memory,
    /// Side of the pool.
    Side,
    /// Reads or writes, random or sequential.
    Rw,
    /// Bytes of an operation.
    Block,
    /// Threads.
    Jobs,
    /// Operations in flight.
    Depth,
    /// Batches in flight.
    InFlight,
    /// Reads in a batch.
    Batch,
    /// Kind of buffers.
    Buffers,
    /// How the file is opened: direct, buffered or adaptive.
    Open,
    /// Page cache before the run.
    Cache,
    /// Route of the operations.
    Route,
    /// Flags of the rings.
    RingFlags,
}

/// The value of a factor.
enum FactorValue {
    Word(String),
    Count(usize),
    Bytes(u64),
}

impl Factor {
    /// Returns the title of its column, and the label of its axis.
    fn titles(self) -> (&'static str, &'static str) {
        match self {
            Factor::Engine => ("engine", "engine"),
            Factor::Memory => ("memory", "memory"),
            Factor::Side => ("side", "side"),
            Factor::Rw => ("mode", "mode"),
            Factor::Block => ("bs", "block size in bytes"),
            Factor::Jobs => ("jobs", "threads"),
            Factor::Depth => ("depth", "depth: operations in flight for each thread"),
            Factor::InFlight => ("inflight", "batches in flight for each thread"),
            Factor::Batch => ("batch", "reads in a batch"),
            Factor::Buffers => ("buffers", "buffers"),
            Factor::Open => ("way", "way"),
            Factor::Cache => ("cache", "page cache"),
            Factor::Route => ("route", "route"),
            Factor::RingFlags => ("ring", "ring"),
        }
    }

    fn value(self, setup: &Setup) -> Option<FactorValue> {
        Some(match self {
            Factor::Engine => FactorValue::Word(name(&setup.engine)),
            Factor::Memory => FactorValue::Word(name(&setup.memory?)),
            Factor::Side => FactorValue::Word(name(&setup.side?)),
            Factor::Rw => FactorValue::Word(name(&setup.rw)),
            Factor::Block => FactorValue::Bytes(setup.block),
            Factor::Jobs => FactorValue::Count(setup.numjobs),
            Factor::Depth => FactorValue::Count(setup.iodepth),
            Factor::InFlight => FactorValue::Count(setup.inflight?),
            Factor::Batch => FactorValue::Count(setup.batch?),
            Factor::Buffers => FactorValue::Word(name(&setup.buffers)),
            Factor::Open => FactorValue::Word(name(&setup.open())),
            Factor::Cache => FactorValue::Word(name(&setup.cache)),
            Factor::Route => FactorValue::Word(name(&setup.route?)),
            Factor::RingFlags => FactorValue::Word(name(&setup.ring_flags?)),
        })
    }

    /// Returns the title of its column.
    pub fn title(self) -> &'static str {
        self.titles().0
    }

    /// Returns the label of its axis.
    pub fn axis(self) -> &'static str {
        self.titles().1
    }

    /// Returns its value as a table shows it.
    pub fn cell(self, setup: &Setup) -> Option<String> {
        Some(match self.value(setup)? {
            FactorValue::Word(word) => word,
            FactorValue::Count(count) => count.to_string(),
            FactorValue::Bytes(bytes) => short_size(bytes),
        })
    }

    /// Returns its value on an axis; `None` if it has no number.
    pub fn number(self, setup: &Setup) -> Option<f64> {
        match self.value(setup)? {
            FactorValue::Word(_) => None,
            FactorValue::Count(count) => Some(count as f64),
            FactorValue::Bytes(bytes) => Some(bytes as f64),
        }
    }

    /// Returns whether its values are counts or sizes.
    pub fn counts(self) -> bool {
        use Factor::*;
        matches!(self, Jobs | Block | Depth | Batch | InFlight)
    }

    /// Returns its value as a title shows it, with the factor's name.
    pub fn words(self, setup: &Setup) -> Option<String> {
        use Factor::*;
        let cell = self.cell(setup)?;
        let counted = |one: &str, more: &str| format!("{cell} {}", if cell == "1" { one } else { more });
        Some(match self {
            Cache => match cell.as_str() {
                // Direct I/O bypasses it.
                "keep" if setup.direct => return None,
                "keep" => "cache as it is".into(),
                state => format!("{state} cache"),
            },
            RingFlags => format!("flags {cell}"),
            Jobs => counted("thread", "threads"),
            Block => format!("{cell} blocks"),
            Depth => format!("depth {cell}"),
            Batch => format!("batches of {cell}"),
            InFlight => counted("batch in flight", "batches in flight"),
            Rw => setup.rw.words().into(),
            Engine | Memory | Side | Buffers | Open | Route => cell,
        })
    }
}

impl Rw {
    /// Returns the access in plain English.
    pub fn words(self) -> &'static str {
        match self {
            Rw::Read => "sequential reads",
            Rw::Write => "sequential writes",
            Rw::RandRead => "random reads",
            Rw::RandWrite => "random writes",
            Rw::RandRw => "random reads and writes",
        }
    }
}

/// Returns the factors in which these runs differ, in the order of [`Factor`].
pub fn differing(runs: &[&Run]) -> Vec<Factor> {
    let differs = |factor: &Factor| distinct(runs.iter().map(|run| factor.cell(&run.setup))).len() > 1;
    let in_batches = runs.iter().any(|run| run.setup.batch.is_some());
    // The batches determine the depth.
    let told = |factor: &Factor| in_batches && *factor == Factor::Depth;
    let all = Factor::value_variants().iter().copied();
    all.filter(|factor| differs(factor) && !told(factor)).collect()
}

/// Returns the factors in which these runs differ, without those that an earlier one determines: the side of a pool
/// determines whether it reads.
pub fn telling(runs: &[&Run]) -> Vec<Factor> {
    let tells = |one: Factor, other: Factor| {
        let pairs = distinct(runs.iter().map(|run| (one.cell(&run.setup), other.cell(&run.setup))));
        distinct(pairs.iter().map(|(one, _)| one)).len() == pairs.len()
    };
    let mut telling: Vec<Factor> = Vec::new();
    for factor in differing(runs) {
        use Factor::{Buffers, Open, Route, Rw};
        let named = matches!(factor, Rw | Buffers | Open | Route);
        if !(named && telling.iter().any(|&other| tells(other, factor))) {
            telling.push(factor);
        }
    }
    telling
}

/// Returns the values of some factors in words.
pub fn words(factors: &[Factor], setup: &Setup) -> String {
    let words: Vec<String> = factors.iter().filter_map(|factor| factor.words(setup)).collect();
    words.join(", ")
}
