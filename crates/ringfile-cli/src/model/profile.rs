//! Where CPU time went, as found by `--profile`.

use serde::{Deserialize, Serialize};

use super::{Buffers, Rw};

/// The profile of one kind of buffers in one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Buffers.
    pub buffers: Buffers,
    /// Access.
    pub rw: Rw,
    /// Bytes of an operation.
    pub block_size_bytes: u64,
    /// Operations in flight.
    pub iodepth: usize,
    /// The event that was sampled: `cycles`, or `cpu-clock` if the machine has no counters.
    pub event: String,
    /// Number of samples.
    pub samples: u64,
    /// Number of operations that were made meanwhile; 0 in older files.
    #[serde(default)]
    pub ops: u64,
    /// Percentage of samples in the kernel; 0 if this user may not sample it.
    pub kernel_percent: f64,
    /// The most expensive functions of the kernel, not counting the functions that they call.
    pub kernel: Vec<Hot>,
    /// The most expensive functions in user space.
    pub user: Vec<Hot>,
    /// All functions of the kernel in which a sample was taken.
    #[serde(default)]
    pub kernel_all: Vec<Hot>,
    /// All functions in user space in which a sample was taken.
    #[serde(default)]
    pub user_all: Vec<Hot>,
    /// The flame graph, an SVG.
    pub flame_graph: String,
}

/// An expensive function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hot {
    /// Its name.
    pub function: String,
    /// Percentage of all samples that were in the function itself.
    pub percent: f64,
}
