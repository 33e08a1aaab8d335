//! Recommends settings for a file on this machine, from the results of `perf buffers`.
//!
//! Pure functions of results, one file for each setting; none knows how anything was measured. Invariants: each piece
//! of advice names the figure that it rests on. If no difference is beyond the noise, it says so, and the value is the
//! default, or the one that most rounds favour.

mod block_size;
mod buffers;
mod depth;
mod direct;
mod measured;
mod pool;
mod route;
pub mod text;

#[cfg(test)]
pub mod tests;

use crate::model::Results;
use crate::model::advice::Advice;
use measured::Measured;

/// Returns the settings for the measured file. Each depends on those before it.
pub fn advise(results: &Results) -> Vec<Advice> {
    let measured = Measured::of(results);
    if measured.access().is_none() {
        return Vec::new();
    }
    let (direct_advice, direct) = direct::advise(&measured);
    let (route_advice, route) = route::advise(&measured, direct);
    let (buffers_advice, kind) = buffers::advise(&measured, direct, route);
    let depth = depth::advise(&measured, direct, route, kind);
    let in_flight = depth.as_ref().map_or(1, |(_, depth)| *depth);
    let block = block_size::advise(&measured, direct, route, in_flight, kind);
    let capacity =
        |(_, block): &(Advice, u64)| pool::capacity(&results.params, in_flight, *block, results.machine.cpus);
    let capacity = block.as_ref().map(capacity);
    let of_figures = [depth.map(|(advice, _)| advice), block.map(|(advice, _)| advice)];
    let that_follow = [capacity, Some(pool::huge_pages()), pool::workers(route, in_flight)];
    let choices = [direct_advice, route_advice, buffers_advice];
    choices.into_iter().chain(of_figures).chain(that_follow).flatten().collect()
}

/// Returns a size in the notation of the configuration file, in the largest unit that leaves no remainder.
fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes > 0 && bytes.trailing_zeros() >= *shift) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}
