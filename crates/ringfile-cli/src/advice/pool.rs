//! Settings that follow from the others: the size of the pool, its pages, and the number of workers.

use super::size;
use crate::model::advice::{Advice, Setting, Sure, Value};
use crate::model::{Params, Route};
use crate::numbers::counted;
use crate::values::Bytes;

/// The smallest advised pool. A smaller one would save little memory.
const LEAST: u64 = 64 << 20;

/// More than any machine's memory; the configuration must accept what is advised.
const MOST: u64 = 1 << 46;

/// Advises memory for all operations in flight, and as much again for buffers that are in use meanwhile.
pub fn capacity(params: &Params, depth: usize, block: u64, cpus: usize) -> Advice {
    let threads = params.numjobs.iter().copied().max().unwrap_or(1).max(cpus).max(1);
    let in_flight = (depth as u64).saturating_mul(block).saturating_mul(threads as u64);
    let wanted = in_flight.saturating_mul(2).clamp(LEAST, MOST).next_multiple_of(1 << 20);
    let enough = if wanted == LEAST { "; a pool below 64 MiB would save little" } else { "" };
    let because = format!(
        "{} of {} in flight on {} use {}; doubled for buffers in use meanwhile{enough}",
        counted(depth, "operation"),
        Bytes(block),
        counted(threads, "thread"),
        Bytes(in_flight),
    );
    Advice::new(Setting::Capacity, Value::Text(size(wanted)), because, Sure::NotCompared)
}

/// Advises huge pages if the machine has some.
pub fn huge_pages() -> Advice {
    let because = "the default: huge pages if the machine has free ones".into();
    Advice::new(Setting::HugePages, Value::Text("auto".into()), because, Sure::NotCompared)
}

/// Advises the number of workers, if they are the advised route.
pub fn workers(route: Route, depth: usize) -> Option<Advice> {
    let because = "one for each operation in flight, because a worker makes one call at a time".into();
    (route == Route::Workers)
        .then(|| Advice::new(Setting::Workers, Value::Number(depth as u64), because, Sure::NotCompared))
}
