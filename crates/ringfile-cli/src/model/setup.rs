//! The setup of a run: the value of every factor.

use serde::{Deserialize, Serialize};

use super::{Buffers, Cache, Engine, Memory, Open, RingFlags, Route, Rw, Side};

/// The value of every factor of a run. Runs with the same setup are repetitions, in other rounds or as A/A runs.
///
/// A new factor must be optional or have a default, so that older files can still be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Setup {
    /// What carries out the job.
    pub engine: Engine,
    /// Threads.
    pub numjobs: usize,
    /// Operations in flight for each thread.
    pub iodepth: usize,
    /// Reads in a batch, if reads are batched. Engines without batches have it too, so that they fall into the same
    /// cell.
    pub batch: Option<usize>,
    /// Batches in flight for each thread; likewise.
    pub inflight: Option<usize>,
    /// Reads or writes, random or sequential.
    pub rw: Rw,
    /// Kind of buffers, as requested.
    pub buffers: Buffers,
    /// Side of the pool (`perf pool`).
    pub side: Option<Side>,
    /// Kind of memory (`perf pool`).
    pub memory: Option<Memory>,
    /// Whether O_DIRECT was in effect.
    pub direct: bool,
    /// Whether files were opened adaptively (ringfile).
    #[serde(default)]
    pub adaptive: bool,
    /// State of the page cache, as requested.
    pub cache: Cache,
    /// Route of the operations, as requested (ringfile).
    pub route: Option<Route>,
    /// Setup flags of the rings, as requested (`perf buffers`).
    pub ring_flags: Option<RingFlags>,
    /// Bytes of an operation.
    #[serde(rename = "block_size_bytes")]
    pub block: u64,
}

/// How reads are grouped into batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    /// Reads in a batch.
    pub size: usize,
    /// Batches in flight for each thread.
    pub inflight: usize,
}

/// How operations reach the file: direct or through the page cache, and on which route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// How files are opened.
    pub open: Open,
    /// State of the page cache before the runs.
    pub cache: Cache,
    /// Route, as requested.
    pub route: Option<Route>,
}

/// One thread that reads random blocks of 4 KiB, one at a time, with the library's defaults. Other setups are derived
/// from it.
impl Default for Setup {
    fn default() -> Setup {
        Setup {
            engine: Engine::Ringfile,
            numjobs: 1,
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
            block: 4096,
        }
    }
}

impl Setup {
    /// Returns how reads are grouped into batches, if they are.
    pub fn batching(&self) -> Option<Batching> {
        self.batch.zip(self.inflight).map(|(size, inflight)| Batching { size, inflight })
    }

    /// Returns how files are opened.
    pub fn open(&self) -> Open {
        match (self.direct, self.adaptive) {
            (true, _) => Open::Direct,
            (false, true) => Open::Adaptive,
            (false, false) => Open::Buffered,
        }
    }

    /// Returns this setup with the file opened in another way.
    pub fn opened(self, open: Open) -> Setup {
        Setup { direct: open == Open::Direct, adaptive: open == Open::Adaptive, ..self }
    }

    /// Returns how operations reach the file.
    pub fn way(&self) -> Way {
        Way { open: self.open(), cache: self.cache, route: self.route }
    }
}
