//! Everything that is chosen for a run.

use serde::{Deserialize, Serialize};

use super::{Buffers, Cache, Engine, Executor, Memory, Open, RingFlags, Route, Rw, Side};

/// The value of every factor of a run. Runs with the same setup are repetitions of each other, in other rounds or as A/A.
///
/// A factor that is new is optional, or has a default, so that files from before it can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Setup {
    /// What carries it out.
    pub engine: Engine,
    /// Threads.
    pub numjobs: usize,
    /// Processes, each on a core of its own with `numjobs` threads (`perf buffers`).
    #[serde(default)]
    pub processes: Option<usize>,
    /// Operations in flight for each thread.
    pub iodepth: usize,
    /// Reads in a batch, where reads go in batches. Engines without batches have it too, to be found beside the others.
    pub batch: Option<usize>,
    /// Batches in flight for each thread, likewise.
    pub inflight: Option<usize>,
    /// Reads or writes, random or sequential.
    pub rw: Rw,
    /// Buffers, as asked for.
    pub buffers: Buffers,
    /// Side of the pool (`perf pool`).
    #[serde(default)]
    pub side: Option<Side>,
    /// Where memory comes from (`perf pool`).
    #[serde(default)]
    pub memory: Option<Memory>,
    /// O_DIRECT, as it was in effect.
    pub direct: bool,
    /// Whether files were opened adaptively (ringfile).
    #[serde(default)]
    pub adaptive: bool,
    /// Page cache, as asked for.
    pub cache: Cache,
    /// Route of the operations, as asked for (ringfile).
    pub route: Option<Route>,
    /// Flags of the rings, as asked for (`perf buffers`).
    #[serde(default)]
    pub ring_flags: Option<RingFlags>,
    /// Executor of the tasks (ringfile).
    pub executor: Option<Executor>,
    /// Bytes of an operation.
    #[serde(rename = "block_size_bytes")]
    pub block: u64,
}

/// How reads are put together to batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    /// Reads in a batch.
    pub size: usize,
    /// Batches in flight for each thread.
    pub inflight: usize,
}

/// How operations reach the file: past the page cache or through it, and on which route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// How files are opened.
    pub open: Open,
    /// Page cache before the runs.
    pub cache: Cache,
    /// Route, as asked for.
    pub route: Option<Route>,
}

/// One random read of 4 KiB at a time by one thread, on the library's own terms: what other setups are made from.
impl Default for Setup {
    fn default() -> Setup {
        Setup {
            engine: Engine::Ringfile,
            numjobs: 1,
            processes: None,
            iodepth: 1,
            batch: None,
            inflight: None,
            rw: Rw::RandRead,
            buffers: Buffers::Normal,
            side: None,
            memory: None,
            direct: false,
            adaptive: false,
            cache: Cache::Keep,
            route: Some(Route::Auto),
            ring_flags: None,
            executor: Some(Executor::Ringfile),
            block: 4096,
        }
    }
}

impl Setup {
    /// The batches that reads go in, if any.
    pub fn batching(&self) -> Option<Batching> {
        self.batch.zip(self.inflight).map(|(size, inflight)| Batching { size, inflight })
    }

    /// How files are opened.
    pub fn open(&self) -> Open {
        match (self.direct, self.adaptive) {
            (true, _) => Open::Direct,
            (false, true) => Open::Adaptive,
            (false, false) => Open::Buffered,
        }
    }

    /// The same with files opened in another way.
    pub fn opened(self, open: Open) -> Setup {
        Setup { direct: open == Open::Direct, adaptive: open == Open::Adaptive, ..self }
    }

    /// How operations reach the file.
    pub fn way(&self) -> Way {
        Way { open: self.open(), cache: self.cache, route: self.route }
    }
}
