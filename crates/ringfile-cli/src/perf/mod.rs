//! `ringfile perf`: measurements.

pub mod batch;
pub mod buffers;
mod check;
pub mod file;
mod mixed;
pub mod multiread;
mod notes;
mod outputs;
pub mod plan;
pub mod pool;
mod processes;
mod session;
mod worker;

pub use processes::WORKER;
pub use worker::run as run_worker;

use crate::error::{Failure, usage};
use crate::machine;
use crate::model::{Cache, Engine, Open};
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
    let forbidden =
        std::env::var("RINGFILE_BACKEND").is_ok_and(|backend| matches!(backend.as_str(), "workers" | "aio"));
    !forbidden && ringfile::ring_features().is_ok()
}

/// Returns how to open files.
fn opened(direct: bool) -> Open {
    if direct { Open::Direct } else { Open::Buffered }
}

fn default_cache(asked: &Option<List<Cache>>, direct: bool) -> Vec<Cache> {
    values::listed(asked, &[if direct { Cache::Keep } else { Cache::Warm }])
}

/// Returns the requested engines; the first must be one of this library's.
fn engines(asked: Option<&List<Engine>>, all: &[Engine]) -> Result<Vec<Engine>, Failure> {
    let Some(asked) = asked.map(List::values) else { return Ok(all.to_vec()) };
    let names = |engines: &[Engine]| engines.iter().map(values::name).collect::<Vec<_>>().join(", ");
    if let Some(other) = asked.iter().find(|engine| !all.contains(engine)) {
        let (other, known) = (values::name(other), names(all));
        return usage(format!("--engines {other} is not known here; choose from {known}"));
    }
    let (ours, others): (Vec<Engine>, Vec<Engine>) = asked.iter().partition(|engine| engine.is_ours());
    if ours.is_empty() {
        let ours: Vec<Engine> = all.iter().copied().filter(|engine| engine.is_ours()).collect();
        return usage(format!("--engines has nothing of ringfile to compare with: add {}", names(&ours)));
    }
    Ok([ours, others].concat())
}
