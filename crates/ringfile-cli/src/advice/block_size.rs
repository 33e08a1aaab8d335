//! The block size for reading large amounts: the smallest one near the best bandwidth.

use super::measured::{Measured, Runs, at_depth, elsewhere, median, of_kind, values};
use super::size;
use crate::model::advice::{Advice, Setting, Sure, Value};
use crate::model::{Buffers, Cache, Metric, Open, Route, Run, Way};
use crate::numbers::figure;
use crate::values::Bytes;

/// "Near", as a fraction of the best bandwidth.
const NEAR: f64 = 0.9;

/// The largest size that the configuration accepts.
const LARGEST: u64 = 1 << 30;

/// Returns the advice, and the size.
pub fn advise(
    measured: &Measured<'_>,
    direct: bool,
    route: Route,
    depth: usize,
    kind: Buffers,
) -> Option<(Advice, u64)> {
    let access = measured.access()?;
    let runs = measured.runs(|run| run.setup.rw == access && run.setup.cache != Cache::Cold);
    let grid = grid(&runs, direct, route)?;
    let depths = values(&grid, |run| run.setup.iodepth);
    let depth = depths.iter().copied().find(|&other| other >= depth).or(depths.last().copied())?;
    let runs = of_kind(&at_depth(&grid, depth), kind);
    let of = |block: u64| runs.iter().copied().filter(|run| run.setup.block == block).collect::<Runs<'_>>();
    let blocks = values(&runs, |run| run.setup.block);
    let bandwidth = |block: u64| median(&of(block), Metric::Bandwidth);
    let sizes: Vec<(u64, f64)> =
        blocks.iter().filter_map(|&block| Some((block, bandwidth(block)?))).collect();
    let &(best, most) = sizes.iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
    let over = |block: u64, base: u64| measured.compare_apart(&of(block), &of(base), Metric::Bandwidth);
    let is_near = |block: u64| {
        let larger =
            sizes.iter().filter(|(other, _)| *other > block).filter_map(|&(other, _)| over(other, block));
        !larger.into_iter().any(|verdict| verdict.seems_more(1.0 / NEAR))
    };
    let near = sizes.iter().position(|&(block, _)| is_near(block))?;
    let (block, here) = sizes[near];
    let smaller = near.checked_sub(1).map(|before| sizes[before].0);
    let gain = smaller.and_then(|smaller| over(block, smaller));
    let cached = runs.iter().any(|run| run.setup.cache == Cache::Warm);
    let cached = if cached { " from the page cache" } else { "" };
    let mut because = format!("{} MiB/s{cached} at depth {depth}", figure(here));
    if let Some((smaller, gain)) = smaller.zip(gain) {
        because += &format!(", {}", gain.times(&format!("that with {}", Bytes(smaller))));
    }
    if best != block {
        because += &format!("; the most is {} MiB/s with {}", figure(most), Bytes(best));
    }
    because += &elsewhere(&runs, direct, route);
    if blocks.len() == 1 {
        because += "; no other size was measured";
    } else if block != blocks[0] {
        because += &format!("; for random look-ups use {}", Bytes(blocks[0]));
    }
    let sure = match gain {
        Some(gain) if gain.outside => Sure::OutsideNoise,
        Some(gain) if gain.is_judged() => Sure::InsideNoise,
        _ => Sure::NotCompared,
    };
    let block = block.clamp(1, LARGEST);
    let over = smaller.zip(gain).map(|(smaller, gain)| gain.over(size(smaller), "MiB/s"));
    Some((Advice::new(Setting::BlockSize, Value::Text(size(block)), because, sure).over(over), block))
}

/// Returns the runs of the fewest threads on the way with the most sizes; of several such ways, on the advised one.
fn grid<'a>(runs: &[&'a Run], direct: bool, route: Route) -> Option<Runs<'a>> {
    let threads = runs.iter().map(|run| run.setup.numjobs).min()?;
    let of_way = |way: Way| -> Runs<'a> {
        runs.iter().copied().filter(|run| run.setup.way() == way && run.setup.numjobs == threads).collect()
    };
    let mut ways: Vec<Way> = runs.iter().map(|run| run.setup.way()).collect();
    ways.dedup();
    let sizes = |way: Way| values(&of_way(way), |run| run.setup.block).len();
    let rank = |way: &Way| (sizes(*way), (way.open == Open::Direct) == direct, way.route == Some(route));
    ways.into_iter().max_by_key(rank).map(of_way)
}
