//! The JSON that `--json` writes and `--resume` and `ringfile report` read, as Rust types.
//!
//! Within a schema number fields are added, never changed or removed: a file without a newer field is read as if that were
//! null. What was not measured is null, never absent. Counts, sizes and latencies are integers, all else numbers with a
//! fraction; units are in the names: `_s` seconds, `_ns` nanoseconds, `_us` microseconds, `_bytes` bytes.

use serde::{Deserialize, Serialize};

use super::advice::Advice;
use super::{Buffers, Cache, Engine, Executor, Profile, RingFlags, Route, Run, Rw};
use crate::machine;

/// The schema these types describe.
pub const SCHEMA: u32 = 1;

/// All that one command measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Which command measured; null in files that are older than this field.
    #[serde(default)]
    pub kind: Option<Kind>,
    /// The command line.
    pub command: String,
    /// Whether Ctrl-C or SIGTERM ended it early.
    pub interrupted: bool,
    /// Where it was measured.
    pub machine: Machine,
    /// What was asked for, as it was in effect.
    pub params: Params,
    /// What was measured, in that order.
    pub runs: Vec<Run>,
    /// What to know about the figures, one line each.
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
    /// What a command measured, before anything was concluded from it.
    pub fn new(kind: Kind, command: String, machine: Machine, params: Params, runs: Vec<Run>) -> Results {
        Results {
            schema: SCHEMA,
            kind: Some(kind),
            command,
            interrupted: false,
            machine,
            params,
            runs,
            notes: Vec::new(),
            advice: Vec::new(),
            behind: Vec::new(),
            profile: Vec::new(),
        }
    }

    /// Whether a run compares buffers, and not the other choices that `perf buffers` measures beside them.
    pub fn is_of_grid(&self, run: &Run) -> bool {
        let (params, setup) = (&self.params, &run.setup);
        setup.direct == params.direct
            && (!setup.engine.is_ours() || params.route.first() == setup.route.as_ref())
            && params.cache.first() == Some(&setup.cache)
    }
}

/// A command that measures.
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
    /// The command's name.
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
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// What the processor calls itself.
    pub cpu_model: Option<String>,
    /// Cores the process may use.
    pub cpus: usize,
    /// File system of the file, or `block device`.
    pub filesystem: String,
    /// What io_uring offers here.
    pub ring_features: Option<Vec<String>>,
    /// Version of fio, where it took part.
    pub fio: Option<String>,
}

impl Machine {
    /// This machine, with a file on `filesystem`.
    pub fn here(filesystem: String, ring_features: Option<Vec<String>>) -> Machine {
        Machine {
            kernel: machine::kernel(),
            cpu_model: machine::cpu_model(),
            cpus: machine::cpus(),
            filesystem,
            ring_features,
            fio: None,
        }
    }
}

/// Parameters of a measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Params {
    /// The file or device.
    pub file: String,
    /// Whether it was made for this command, and removed.
    pub file_created: bool,
    /// Bytes of the file that were used.
    pub size_bytes: u64,
    /// Bytes of an operation, the first asked for where there are several.
    pub block_size_bytes: u64,
    /// Bytes of an operation, all that were asked for.
    #[serde(default)]
    pub block_sizes_bytes: Vec<u64>,
    /// Processes, where they are counted.
    #[serde(default)]
    pub processes: Vec<usize>,
    /// Bytes a second that were asked for, of each side; null without a limit.
    #[serde(default)]
    pub rate_limit_bytes: Option<u64>,
    /// Parts of vectored buffers that were asked for.
    #[serde(default)]
    pub parts: Option<usize>,
    /// Length of each run; 0 if `io_size_bytes` fixes the amount instead.
    pub duration_s: f64,
    /// Bytes that all threads of a run move together (`--io-size`).
    #[serde(default)]
    pub io_size_bytes: Option<u64>,
    /// `--iodepth-batch-submit`.
    #[serde(default)]
    pub iodepth_batch_submit: Option<usize>,
    /// `--iodepth-batch-complete`.
    #[serde(default)]
    pub iodepth_batch_complete: Option<usize>,
    /// `--iodepth-low`.
    #[serde(default)]
    pub iodepth_low: Option<usize>,
    /// Time before each run that is not counted.
    pub warmup_s: f64,
    /// Threads.
    pub numjobs: Vec<usize>,
    /// Operations in flight for each thread.
    pub iodepth: Vec<usize>,
    /// Reads in a batch; empty where there are none.
    pub batch: Vec<usize>,
    /// Batches in flight for each thread; empty where there are none.
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
    /// Flags of the rings that were asked for; empty where each has its engine's own.
    #[serde(default)]
    pub ring_flags: Vec<RingFlags>,
    /// Executors of ringfile's tasks.
    pub executor: Vec<Executor>,
    /// Comparisons that took part.
    pub against: Vec<Engine>,
    /// Rounds.
    pub rounds: u32,
    /// Whether contents were checked.
    pub verify: bool,
}

/// A cell in which `auto` is behind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Behind {
    /// The cell, in words.
    pub cell: String,
    /// The best single route there.
    pub route: Route,
    /// IOPS of `auto`, the median of the rounds.
    pub auto_iops: f64,
    /// The same of that route.
    pub route_iops: f64,
    /// IOPS of `auto` over those of that route, paired within rounds: the median.
    pub ratio: f64,
    /// How far it is outside of: the noise as a fraction; null where there were too few rounds to judge.
    pub noise: Option<f64>,
    /// All of that in a sentence.
    pub note: String,
}

impl Behind {
    /// Whether there were rounds enough to be sure of it.
    pub fn is_sure(&self) -> bool {
        self.noise.is_some()
    }
}
