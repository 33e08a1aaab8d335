//! `ringfile perf`: measurements.

pub mod batch;
pub mod buffers;
mod check;
pub mod file;
mod mixed;
mod notes;
mod outputs;
pub mod plan;
pub mod pool;
mod request;
mod session;

use crate::machine;
use crate::model::{Cache, Open};
use crate::values::{self, List};

/// Returns 1, and the number of cores.
fn default_numjobs() -> Vec<usize> {
    match machine::cpus() {
        1 => vec![1],
        cores => vec![1, cores],
    }
}

/// Returns whether io_uring can be used: the kernel allows it, and the environment does not forbid it.
fn has_ring() -> bool {
    let forbidden = std::env::var("RINGFILE_DISABLE")
        .is_ok_and(|disabled| matches!(disabled.as_str(), "io_uring" | "io_uring,aio"));
    !forbidden && ringfile::metrics::ring_features().is_ok()
}

/// Returns how to open files.
fn opened(direct: bool) -> Open {
    if direct { Open::Direct } else { Open::Buffered }
}

fn default_cache(asked: &Option<List<Cache>>, direct: bool) -> Vec<Cache> {
    values::listed(asked, &[if direct { Cache::Keep } else { Cache::Warm }])
}
