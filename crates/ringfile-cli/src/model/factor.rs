//! The catalogue of factors: how each is called, and which value a setup has.
//!
//! Invariant: two different setups differ in some [`Factor`], so no run hides another in a table or plot.

use super::{Run, Rw, Setup, distinct};
use crate::values::{name, short_size};

/// Something that can be chosen for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Factor {
    /// What carries it out.
    Engine,
    /// Where memory comes from.
    Memory,
    /// Side of the pool.
    Side,
    /// Reads or writes, random or sequential.
    Rw,
    /// Bytes of an operation.
    Block,
    /// Processes.
    Processes,
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
    /// Past the page cache or through it.
    Open,
    /// Page cache before the run.
    Cache,
    /// Route of the operations.
    Route,
    /// Flags of the rings.
    RingFlags,
    /// Executor of the tasks.
    Executor,
}

/// The value of a factor.
enum Value {
    Word(String),
    Count(usize),
    Bytes(u64),
}

impl Factor {
    /// All, in the order in which they are named.
    pub const ALL: [Factor; 16] = [
        Factor::Engine,
        Factor::Memory,
        Factor::Side,
        Factor::Rw,
        Factor::Block,
        Factor::Processes,
        Factor::Jobs,
        Factor::Depth,
        Factor::InFlight,
        Factor::Batch,
        Factor::Buffers,
        Factor::Open,
        Factor::Cache,
        Factor::Route,
        Factor::RingFlags,
        Factor::Executor,
    ];

    /// Title of its column, and what its axis shows.
    fn titles(self) -> (&'static str, &'static str) {
        match self {
            Factor::Engine => ("engine", "engine"),
            Factor::Memory => ("memory", "memory"),
            Factor::Side => ("side", "side"),
            Factor::Rw => ("mode", "mode"),
            Factor::Block => ("bs", "block size in bytes"),
            Factor::Processes => ("proc", "processes"),
            Factor::Jobs => ("jobs", "threads"),
            Factor::Depth => ("depth", "depth: operations in flight for each thread"),
            Factor::InFlight => ("inflight", "batches in flight for each thread"),
            Factor::Batch => ("batch", "reads in a batch"),
            Factor::Buffers => ("buffers", "buffers"),
            Factor::Open => ("way", "way"),
            Factor::Cache => ("cache", "page cache"),
            Factor::Route => ("route", "route"),
            Factor::RingFlags => ("ring", "ring"),
            Factor::Executor => ("executor", "executor"),
        }
    }

    fn value(self, setup: &Setup) -> Option<Value> {
        Some(match self {
            Factor::Engine => Value::Word(name(&setup.engine)),
            Factor::Memory => Value::Word(name(&setup.memory?)),
            Factor::Side => Value::Word(name(&setup.side?)),
            Factor::Rw => Value::Word(name(&setup.rw)),
            Factor::Block => Value::Bytes(setup.block),
            Factor::Processes => Value::Count(setup.processes?),
            Factor::Jobs => Value::Count(setup.numjobs),
            Factor::Depth => Value::Count(setup.iodepth),
            Factor::InFlight => Value::Count(setup.inflight?),
            Factor::Batch => Value::Count(setup.batch?),
            Factor::Buffers => Value::Word(name(&setup.buffers)),
            Factor::Open => Value::Word(name(&setup.open())),
            Factor::Cache => Value::Word(name(&setup.cache)),
            Factor::Route => Value::Word(name(&setup.route?)),
            Factor::RingFlags => Value::Word(name(&setup.ring_flags?)),
            Factor::Executor => Value::Word(name(&setup.executor?)),
        })
    }

    /// Title of its column.
    pub fn title(self) -> &'static str {
        self.titles().0
    }

    /// What its axis shows.
    pub fn axis(self) -> &'static str {
        self.titles().1
    }

    /// Its value in a cell of a table.
    pub fn cell(self, setup: &Setup) -> Option<String> {
        Some(match self.value(setup)? {
            Value::Word(word) => word,
            Value::Count(count) => count.to_string(),
            Value::Bytes(bytes) => short_size(bytes),
        })
    }

    /// Its value on an axis.
    pub fn number(self, setup: &Setup) -> Option<f64> {
        match self.value(setup)? {
            Value::Word(_) => None,
            Value::Count(count) => Some(count as f64),
            Value::Bytes(bytes) => Some(bytes as f64),
        }
    }

    /// Whether its values are counts or sizes.
    pub fn counts(self) -> bool {
        use Factor::*;
        matches!(self, Processes | Jobs | Block | Depth | Batch | InFlight)
    }

    /// Its value in a title, where nothing above says what it is.
    pub fn words(self, setup: &Setup) -> Option<String> {
        let cell = self.cell(setup)?;
        let counted = |one: &str, more: &str| format!("{cell} {}", if cell == "1" { one } else { more });
        Some(match self {
            Factor::Cache => match cell.as_str() {
                // Direct I/O goes past it.
                "keep" if setup.direct => return None,
                "keep" => "cache as it is".into(),
                state => format!("{state} cache"),
            },
            Factor::Executor => format!("in {cell}"),
            Factor::RingFlags => format!("flags {cell}"),
            Factor::Processes => counted("process", "processes"),
            Factor::Jobs => counted("thread", "threads"),
            Factor::Block => format!("{cell} blocks"),
            Factor::Depth => format!("depth {cell}"),
            Factor::Batch => format!("batches of {cell}"),
            Factor::InFlight => counted("batch in flight", "batches in flight"),
            Factor::Rw => setup.rw.words().into(),
            Factor::Engine
            | Factor::Memory
            | Factor::Side
            | Factor::Buffers
            | Factor::Open
            | Factor::Route => cell,
        })
    }
}

impl Rw {
    /// The word in plain English.
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

/// Returns the factors in which some of these runs differ, in the order of [`Factor::ALL`].
pub fn differing(runs: &[&Run]) -> Vec<Factor> {
    let differs = |factor: &Factor| distinct(runs.iter().map(|run| factor.cell(&run.setup))).len() > 1;
    let in_batches = runs.iter().any(|run| run.setup.batch.is_some());
    // Batches tell the depth.
    let told = |factor: &Factor| in_batches && *factor == Factor::Depth;
    Factor::ALL.into_iter().filter(|factor| differs(factor) && !told(factor)).collect()
}

/// The same without those that follow from another one before them: the side of a pool tells whether it reads.
pub fn telling(runs: &[&Run]) -> Vec<Factor> {
    let tells = |one: Factor, other: Factor| {
        let pairs = distinct(runs.iter().map(|run| (one.cell(&run.setup), other.cell(&run.setup))));
        distinct(pairs.iter().map(|(one, _)| one)).len() == pairs.len()
    };
    let mut telling: Vec<Factor> = Vec::new();
    for factor in differing(runs) {
        use Factor::{Buffers, Executor, Open, Route, Rw};
        let named = matches!(factor, Rw | Buffers | Open | Route | Executor);
        if !(named && telling.iter().any(|&other| tells(other, factor))) {
            telling.push(factor);
        }
    }
    telling
}

/// The values of some factors in words.
pub fn words(factors: &[Factor], setup: &Setup) -> String {
    let words: Vec<String> = factors.iter().filter_map(|factor| factor.words(setup)).collect();
    words.join(", ")
}
