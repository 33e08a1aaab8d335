//! How large an operation should be where much is read: the smallest that comes near the best bandwidth.

use super::measured::{Measured, Runs, Way, at_depth, median, of_kind, values};
use super::{Advice, Setting, Sure, Value, size};
use crate::cli::{Buffers, Cache};
use crate::report::results::Run;
use crate::report::statistics::Metric;
use crate::report::table::figure;
use crate::values::Bytes;

/// How near is near.
const NEAR: f64 = 0.9;

/// The largest that the configuration takes.
const LARGEST: u64 = 1 << 30;

/// What to advise, and the size.
pub fn advise(measured: &Measured<'_>, direct: bool, depth: usize, kind: Buffers) -> Option<(Advice, u64)> {
    let access = measured.access()?;
    let runs = measured.runs(|run| run.rw == access && run.cache != Cache::Cold);
    let grid = grid(&runs, direct)?;
    let depths = values(&grid, |run| run.iodepth);
    let depth = depths.iter().copied().find(|&other| other >= depth).or(depths.last().copied())?;
    let runs = of_kind(&at_depth(&grid, depth), kind);
    let of =
        |block: u64| runs.iter().copied().filter(|run| run.block_size_bytes == block).collect::<Runs<'_>>();
    let blocks = values(&runs, |run| run.block_size_bytes);
    let bandwidth = |block: u64| median(&of(block), Metric::Bandwidth);
    let sizes: Vec<(u64, f64)> =
        blocks.iter().filter_map(|&block| Some((block, bandwidth(block)?))).collect();
    let &(best, most) = sizes.iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
    let near = sizes.iter().position(|&(_, bandwidth)| bandwidth >= NEAR * most)?;
    let (block, here) = sizes[near];
    let smaller = near.checked_sub(1).map(|before| sizes[before].0);
    let gain =
        smaller.and_then(|smaller| measured.compare_apart(&of(block), &of(smaller), Metric::Bandwidth));
    let mut because = format!("{} MiB/s at depth {depth}", figure(here));
    if let Some((smaller, gain)) = smaller.zip(gain) {
        because += &format!(", over {} {gain}", Bytes(smaller));
    }
    if best != block {
        because += &format!("; the most is {} MiB/s with {}", figure(most), Bytes(best));
    }
    if blocks.len() == 1 {
        because += "; no other size was measured";
    } else if block != blocks[0] {
        because += &format!("; to look up single records {} is right", Bytes(blocks[0]));
    }
    let sure = match gain {
        Some(gain) if gain.outside => Sure::OutsideNoise,
        Some(gain) if gain.is_judged() => Sure::InsideNoise,
        _ => Sure::NotCompared,
    };
    let block = block.min(LARGEST);
    Some((Advice::new(Setting::BlockSize, Value::Text(size(block)), because, sure), block))
}

/// The runs on the way that has the most sizes, of one process; on the advised side of the page cache if there are as many.
fn grid<'a>(runs: &[&'a Run], direct: bool) -> Option<Runs<'a>> {
    let processes = runs.iter().map(|run| run.processes).min()?;
    let of_way = |way: Way| -> Runs<'a> {
        runs.iter().copied().filter(|run| Way::of(run) == way && run.processes == processes).collect()
    };
    let mut ways: Vec<Way> = runs.iter().map(|run| Way::of(run)).collect();
    ways.dedup();
    let rank = |way: &Way| (values(&of_way(*way), |run| run.block_size_bytes).len(), way.direct == direct);
    ways.into_iter().max_by_key(rank).map(of_way)
}
