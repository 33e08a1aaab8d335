//! What to set for a file on a machine, from what `perf buffers` measured there.
//!
//! Pure functions of results: one file for each question, and none knows how anything was measured. Invariants: advice
//! rests only on what was measured, each piece with its figure; if no difference is beyond the noise, it says so, and a
//! setting is the default, or what most rounds favour.

mod block_size;
mod buffers;
mod depth;
mod direct;
mod measured;
mod pool;
mod route;
pub mod text;

#[cfg(test)]
pub mod recorded;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;

use crate::model::Results;
use crate::model::advice::Advice;
use measured::Measured;

/// How advice begins if the measurement shows no difference.
const NO_DIFFERENCE: &str = "no difference beyond the noise: ";

/// Returns the settings for the measured file, in the order in which one follows from another.
pub fn advise(results: &Results) -> Vec<Advice> {
    let measured = Measured::of(results);
    if measured.access().is_none() {
        return Vec::new();
    }
    let (direct_advice, direct) = direct::advise(&measured);
    let (route_advice, route) = route::advise(&measured, direct);
    let (buffers_advice, kind) = buffers::advise(&measured, direct, route);
    let depth = depth::advise(&measured, direct, route, kind);
    let at_depth = depth.as_ref().map_or(1, |(_, depth)| *depth);
    let block = block_size::advise(&measured, direct, route, at_depth, kind);
    let of_block = block.as_ref().map(|(_, block)| *block);
    let mut advice: Vec<Advice> =
        [direct_advice, route_advice, buffers_advice].into_iter().flatten().collect();
    advice.extend(depth.map(|(advice, _)| advice));
    advice.extend(block.map(|(advice, _)| advice));
    let capacity =
        of_block.map(|block| pool::capacity(&results.params, at_depth, block, results.machine.cpus));
    advice.extend(capacity);
    advice.push(pool::huge_pages());
    advice.extend(pool::workers(route, at_depth));
    advice
}

/// Returns a size as the configuration file has it, in the largest unit that leaves no remainder.
fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes > 0 && bytes.trailing_zeros() >= *shift) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}
