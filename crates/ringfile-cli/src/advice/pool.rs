//! Settings that follow from the others: memory for the pool, its pages, and threads for plain calls.

use super::size;
use crate::model::advice::{Advice, Setting, Sure, Value};
use crate::model::{Params, Route};
use crate::numbers::counted;
use crate::values::Bytes;

/// The smallest advised pool: a smaller one would save no memory worth mentioning.
const LEAST: u64 = 64 << 20;

/// More than any machine's memory; the configuration must accept what is advised.
const MOST: u64 = 1 << 46;

/// Advises memory for all operations in flight, and as much for buffers that are in use meanwhile.
pub fn capacity(params: &Params, depth: usize, block: u64, cpus: usize) -> Advice {
    let threads = params.processes.iter().copied().max().unwrap_or(1).max(cpus).max(1);
    let in_flight = (depth as u64).saturating_mul(block).saturating_mul(threads as u64);
    let wanted = in_flight.saturating_mul(2).clamp(LEAST, MOST).next_multiple_of(1 << 20);
    let enough = if wanted == LEAST { "; less than 64 MiB saves nothing" } else { "" };
    let because = format!(
        "{depth} in flight of {} for {} make {}, and as much again for what is in use meanwhile{enough}",
        Bytes(block),
        counted(threads, "thread"),
        Bytes(in_flight),
    );
    Advice::new(Setting::Capacity, Value::Text(size(wanted)), because, Sure::NotCompared)
}

/// Advises huge pages if the machine has some.
pub fn huge_pages() -> Advice {
    let because = "the default: huge pages where the machine has some to give".into();
    Advice::new(Setting::HugePages, Value::Text("auto".into()), because, Sure::NotCompared)
}

/// Threads that make plain calls, where they are the best way.
pub fn workers(route: Route, depth: usize) -> Option<Advice> {
    let because = "one for each operation in flight, for each makes one call at a time".into();
    (route == Route::Workers)
        .then(|| Advice::new(Setting::Workers, Value::Number(depth as u64), because, Sure::NotCompared))
}
