//! The values of each factor, spelled as on the command line and in the JSON.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What a run does, in fio's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(clippy::enum_variant_names, reason = "fio's word for the mix is randrw")]
pub enum Rw {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    #[value(name = "randread")]
    RandRead,
    /// Random writes.
    #[value(name = "randwrite")]
    RandWrite,
    /// Random, half reads and half writes.
    #[value(name = "randrw")]
    RandRw,
}

impl Rw {
    /// Returns whether any operation writes.
    pub fn writes(self) -> bool {
        !matches!(self, Rw::Read | Rw::RandRead)
    }

    /// Returns whether blocks are chosen at random.
    pub fn random(self) -> bool {
        !matches!(self, Rw::Read | Rw::Write)
    }
}

/// The kind of buffers that was requested for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Buffers {
    /// Memory that the kernel maps for each operation.
    Normal,
    /// Memory registered with the kernel once.
    Fixed,
    /// Memory in several parts (readv, writev) that the kernel maps for each operation.
    Vectored,
    /// Memory in several parts that is registered with the kernel once.
    VectoredFixed,
}

impl Buffers {
    /// All kinds.
    pub const ALL: [Buffers; 4] =
        [Buffers::Normal, Buffers::Fixed, Buffers::Vectored, Buffers::VectoredFixed];

    /// The kinds for operations that have one buffer each.
    pub const WHOLE: [Buffers; 2] = [Buffers::Normal, Buffers::Fixed];

    /// Returns whether the memory is registered.
    pub fn registered(self) -> bool {
        matches!(self, Buffers::Fixed | Buffers::VectoredFixed)
    }

    /// Returns whether the memory is in several parts.
    pub fn vectored(self) -> bool {
        matches!(self, Buffers::Vectored | Buffers::VectoredFixed)
    }
}

/// How the library carries out operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Route {
    /// The cheapest route, learned from the file's first operations.
    Auto,
    /// io_uring.
    Ring,
    /// A plain call on the same thread.
    Inline,
    /// A plain call on another thread.
    Workers,
    /// Linux AIO, for direct I/O.
    Aio,
}

impl From<Route> for ringfile::Route {
    fn from(route: Route) -> ringfile::Route {
        match route {
            Route::Auto => ringfile::Route::Auto,
            Route::Ring => ringfile::Route::Ring,
            Route::Inline => ringfile::Route::Inline,
            Route::Workers => ringfile::Route::Workers,
            Route::Aio => ringfile::Route::Aio,
        }
    }
}

/// The setup flags of the measured rings: when the kernel finishes operations, and which thread submits them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RingFlags {
    /// No flags: the kernel interrupts the thread for each completion.
    None,
    /// COOP_TASKRUN: completions wait until the thread enters the kernel.
    Coop,
    /// DEFER_TASKRUN with SINGLE_ISSUER: completions wait until the thread asks for them.
    Defer,
    /// SQPOLL: a kernel thread submits.
    Sqpoll,
}

impl RingFlags {
    /// The kernel thread sleeps after this time without work.
    pub const SQPOLL_IDLE: Duration = Duration::from_secs(1);

    /// Returns the setup flags that these features of a ring imply.
    pub fn among(features: &[String]) -> RingFlags {
        let has = |name: &str| features.iter().any(|feature| feature == name);
        match (has("sqpoll"), has("defer_taskrun"), has("coop_taskrun")) {
            (true, _, _) => RingFlags::Sqpoll,
            (false, true, _) => RingFlags::Defer,
            (false, false, true) => RingFlags::Coop,
            (false, false, false) => RingFlags::None,
        }
    }
}

/// How a file is opened: whether its I/O goes through the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Open {
    /// All I/O goes through the page cache.
    Buffered,
    /// O_DIRECT: all I/O bypasses the page cache.
    Direct,
    /// Cached data is read from the page cache, other data by direct I/O (ringfile only).
    Adaptive,
}

/// What happens to the page cache before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// The whole file is read into the cache.
    Warm,
    /// The file is dropped from the cache.
    Cold,
    /// Nothing.
    Keep,
    /// The file is dropped, and the process's memory is limited to a quarter of the file's size (`perf file` only).
    #[value(hide = true)]
    Mixed,
}

/// Which blocks random operations visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Each block once: a run ends when all have been visited.
    Once,
    /// Any block, however often.
    Any,
}

/// What carries out a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// This library: a task for each operation, or in `perf multiread` blocking batches.
    Ringfile,
    /// This library: blocking batches on plain threads.
    RingfileBlocking,
    /// This library: batches awaited in tokio.
    RingfileTokio,
    /// This library: a `Queue` for each thread, driven by a loop like fio's.
    RingfileQueue,
    /// fio's io_uring engine.
    Fio,
    /// fio's io_uring engine, submitting and reaping in batches.
    FioBatch,
    /// fio's psync engine.
    FioPsync,
    /// A loop of pread and pwrite.
    Pread,
    /// A hand-written loop over a ring, with any kind of buffers. It submits a batch and waits for all of it.
    ByHand,
}

impl Engine {
    /// The engines that `perf file` can compare ringfile with.
    pub const AGAINST: [Engine; 4] = [Engine::Fio, Engine::FioBatch, Engine::FioPsync, Engine::Pread];

    /// Returns whether it is this library.
    pub fn is_ours(self) -> bool {
        match self {
            Engine::Ringfile | Engine::RingfileBlocking | Engine::RingfileTokio | Engine::RingfileQueue => {
                true
            }
            Engine::Fio | Engine::FioBatch | Engine::FioPsync => false,
            Engine::Pread | Engine::ByHand => false,
        }
    }

    /// Returns whether the measurement continues without it if it cannot run.
    pub fn may_be_left_out(self) -> bool {
        self.is_fio() || self == Engine::ByHand
    }

    /// Returns whether it does one operation at a time on each thread, whatever depth was requested.
    pub fn one_at_a_time(self) -> bool {
        matches!(self, Engine::FioPsync | Engine::Pread)
    }

    /// Returns whether it can send NVMe commands.
    pub fn takes_namespaces(self) -> bool {
        self.is_ours() || matches!(self, Engine::Fio | Engine::FioBatch)
    }

    /// Returns whether it is fio, which runs as another program.
    pub fn is_fio(self) -> bool {
        matches!(self, Engine::Fio | Engine::FioBatch | Engine::FioPsync)
    }

    /// Returns the kinds of buffers that it supports.
    pub fn buffers(self) -> &'static [Buffers] {
        match self {
            Engine::FioPsync | Engine::Pread => &[Buffers::Normal],
            Engine::Fio | Engine::FioBatch => &Buffers::WHOLE,
            Engine::ByHand | Engine::Ringfile => &Buffers::ALL,
            Engine::RingfileBlocking | Engine::RingfileTokio | Engine::RingfileQueue => &Buffers::ALL,
        }
    }

    /// Returns a description, if its name does not explain it.
    pub fn described(self) -> Option<&'static str> {
        Some(match self {
            Engine::Ringfile | Engine::RingfileBlocking => "this library, on plain threads or its own",
            Engine::RingfileTokio => "this library, batches awaited in tokio",
            Engine::RingfileQueue => return None,
            Engine::Fio => "fio's io_uring engine with the same job",
            Engine::FioBatch => "the same, submitting and reaping in batches",
            Engine::FioPsync => "fio's loop of plain calls",
            Engine::Pread => "a loop of plain calls",
            Engine::ByHand => "a hand-written loop over a ring, with the same buffers",
        })
    }
}

/// The side of `perf pool` that a run or a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Fills buffers and writes them.
    Producer,
    /// Reads them back and checks them.
    Consumer,
}

/// Where the memory for operations comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// The library's pool, with direct I/O.
    Pool,
    /// The library's pool, through the page cache.
    PoolBuffered,
    /// Aligned memory allocated for each operation, with direct I/O.
    Malloc,
    /// A `Vec` for each operation, through the page cache.
    Vec,
    /// A `Vec` for each operation, through the page cache, which keeps nothing of it (`RWF_DONTCACHE`).
    VecUncached,
}

impl Memory {
    /// Returns whether I/O bypasses the page cache.
    pub fn is_direct(self) -> bool {
        match self {
            Memory::Pool | Memory::Malloc => true,
            Memory::PoolBuffered | Memory::Vec | Memory::VecUncached => false,
        }
    }

    /// Returns whether the page cache is to keep nothing.
    pub fn is_uncached(self) -> bool {
        self == Memory::VecUncached
    }

    /// Returns whether the memory is the library's pool.
    pub fn is_pooled(self) -> bool {
        match self {
            Memory::Pool | Memory::PoolBuffered => true,
            Memory::Malloc | Memory::Vec | Memory::VecUncached => false,
        }
    }

    /// Returns the kind of buffers: a pool's memory is registered.
    pub fn buffers(self) -> Buffers {
        if self.is_pooled() { Buffers::Fixed } else { Buffers::Normal }
    }
}
