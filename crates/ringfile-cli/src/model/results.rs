//! The Rust types of the JSON that `--json` writes, and that `ringfile report` reads.
//!
//! Within one schema number, fields are added but never changed or removed; a newer field that a file lacks is read as
//! null. A figure that was not measured is null, never absent. Counts, sizes and latencies are integers, all other
//! numbers have a fraction. Names end with their unit: `_s` seconds, `_ns` nanoseconds, `_us` microseconds, `_bytes`
//! bytes.

use serde::{Deserialize, Serialize};

use super::advice::Advice;
use super::{Buffers, Cache, Engine, Profile, RingFlags, Route, Run, Rw, Spread, groups};
use crate::machine;
use crate::numbers::counted;

/// The schema number of these types.
pub const SCHEMA: u32 = 1;

/// Everything that one command measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The kind of measurement; null in files older than this field.
    pub kind: Option<Kind>,
    /// The command line.
    pub command: String,
    /// Whether Ctrl-C or SIGTERM ended it early.
    pub interrupted: bool,
    /// The machine that was measured.
    pub machine: Machine,
    /// The parameters in effect, defaults included.
    pub params: Params,
    /// The runs, in the order in which they were made.
    pub runs: Vec<Run>,
    /// Notes about the figures, one line each.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What to set for this file on this machine (`perf buffers`).
    #[serde(default)]
    pub advice: Vec<Advice>,
    /// Cells in which route `auto` is behind the best single route.
    #[serde(default)]
    pub behind: Vec<Behind>,
    /// Where CPU time went (`perf buffers --profile`).
    #[serde(default)]
    pub profile: Vec<Profile>,
}

impl Results {
    /// Returns the results of a command without advice and notes.
    pub fn new(kind: Kind, command: String, machine: Machine, params: Params, runs: Vec<Run>) -> Results {
        Results { schema: SCHEMA, kind: Some(kind), command, machine, params, runs, ..Results::default() }
    }

    /// Returns the rounds in words: of an interrupted command, how many each of its cells has.
    pub fn rounds(&self) -> String {
        let asked = counted(self.params.rounds as usize, "round");
        let made = Spread::of(groups(&self.runs).iter().map(|group| group.len() as f64));
        let begun = made.map_or(1.0, |made| if made.min < made.max { made.max } else { made.max + 1.0 });
        match self.interrupted {
            true => format!(
                "interrupted during round {} of {}",
                begun.min(self.params.rounds.into()),
                self.params.rounds
            ),
            false => asked,
        }
    }

    /// Returns whether a run compares buffers, rather than one of the other choices that `perf buffers` measures.
    pub fn is_of_grid(&self, run: &Run) -> bool {
        let (params, setup) = (&self.params, &run.setup);
        setup.direct == params.direct
            && !(setup.adaptive || setup.engine.is_fio())
            && (!setup.engine.is_ours() || params.route.first() == setup.route.as_ref())
            && params.cache.first() == Some(&setup.cache)
    }
}

/// The kind of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// `perf file`.
    File,
    /// `perf file --cache mixed`.
    Mixed,
    /// `perf batch`.
    Batch,
    /// `perf multiread`.
    Multiread,
    /// `perf buffers`.
    Buffers,
    /// `perf pool`.
    Pool,
}

impl Kind {
    /// Returns the command's name.
    pub fn command(self) -> &'static str {
        match self {
            Kind::File => "perf file",
            Kind::Mixed => "perf file --cache mixed",
            Kind::Batch => "perf batch",
            Kind::Multiread => "perf multiread",
            Kind::Buffers => "perf buffers",
            Kind::Pool => "perf pool",
        }
    }
}

/// Facts about the machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// Model name of the processor.
    pub cpu_model: Option<String>,
    /// Cores the process may use.
    pub cpus: usize,
    /// File system of the file, or `block device`.
    pub filesystem: String,
    /// Features of io_uring on this machine.
    pub ring_features: Option<Vec<String>>,
    /// Version of fio, if it took part.
    pub fio: Option<String>,
}

impl Machine {
    /// Describes this machine, with a file on `filesystem`.
    pub fn here(filesystem: String) -> Machine {
        Machine {
            kernel: machine::kernel(),
            cpu_model: machine::cpu_model(),
            cpus: machine::cpus(),
            filesystem,
            ring_features: ringfile::metrics::ring_features().ok(),
            fio: None,
        }
    }
}

/// Parameters of a measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Params {
    /// The file or device, as an absolute path.
    pub file: String,
    /// Whether it was created for this command, and removed at its end.
    pub file_created: bool,
    /// Bytes of the file that were used.
    pub size_bytes: u64,
    /// Bytes of an operation; the first requested size if there are several.
    pub block_size_bytes: u64,
    /// All requested sizes of an operation, in bytes.
    #[serde(default)]
    pub block_sizes_bytes: Vec<u64>,
    /// Requested bytes per second of each side; null without a limit.
    pub rate_limit_bytes: Option<u64>,
    /// Requested parts of vectored buffers.
    pub parts: Option<usize>,
    /// Length of each run.
    pub duration_s: f64,
    /// Warm-up before each run.
    pub warmup_s: f64,
    /// Threads.
    pub numjobs: Vec<usize>,
    /// Operations in flight for each thread.
    pub iodepth: Vec<usize>,
    /// Reads in a batch; empty without batches.
    pub batch: Vec<usize>,
    /// Batches in flight for each thread; empty without batches.
    pub inflight: Vec<usize>,
    /// Access.
    pub rw: Vec<Rw>,
    /// Buffers.
    pub buffers: Vec<Buffers>,
    /// O_DIRECT.
    pub direct: bool,
    /// Page cache.
    pub cache: Vec<Cache>,
    /// Routes of ringfile's operations.
    pub route: Vec<Route>,
    /// Requested setup flags of the rings; empty if each engine used its own.
    #[serde(default)]
    pub ring_flags: Vec<RingFlags>,
    /// Engines that ringfile was compared with.
    pub against: Vec<Engine>,
    /// Rounds.
    pub rounds: u32,
    /// Whether contents were checked.
    pub verify: bool,
}

/// A cell in which route `auto` is slower than another route.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Behind {
    /// The cell in words.
    pub cell: String,
    /// The best single route in this cell.
    pub route: Route,
    /// IOPS of `auto`, the median of the rounds.
    pub auto_iops: f64,
    /// IOPS of the best route, the median of the rounds.
    pub route_iops: f64,
    /// IOPS of `auto` divided by IOPS of the best route: the median of the ratios within rounds.
    pub ratio: f64,
    /// The noise as a fraction, which the difference exceeds; null if there were too few rounds to judge.
    pub noise: Option<f64>,
    /// The finding in one sentence.
    pub note: String,
}

impl Behind {
    /// Returns whether there were enough rounds to be certain.
    pub fn is_sure(&self) -> bool {
        self.noise.is_some()
    }
}
