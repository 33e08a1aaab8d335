//! How many operations to have in flight: the smallest depth at which IOPS stop growing.

use super::measured::NO_DIFFERENCE;
use super::measured::{Measured, Runs, at_depth, elsewhere, median, of_kind, values};
use crate::model::advice::{Advice, Setting, Sure, Value};
use crate::model::{Buffers, Cache, Metric, Route, Run, Rw};
use crate::numbers::{figure, rate};
use crate::report::judge::Verdict;

/// The factor in IOPS that makes more operations in flight worth their latency.
const WORTH: f64 = 1.05;

/// The largest depth that the configuration accepts.
const MOST: usize = 4096;

/// Returns the advice, and the depth.
pub fn advise(measured: &Measured<'_>, direct: bool, route: Route, kind: Buffers) -> Option<(Advice, usize)> {
    let reads = runs(measured, direct, route, measured.access()?);
    let stop = stops(measured, &of_kind(&reads, kind))?;
    let mut because = stop.because() + &elsewhere(&reads, direct, route);
    if let Some(price) = stop.price() {
        because += &format!("; {price}");
    }
    let writes = [Rw::RandWrite, Rw::Write].into_iter().filter(|&rw| Some(rw) != measured.access());
    let writes = writes.map(|rw| of_kind(&runs(measured, direct, route, rw), kind));
    // Writes on another way could not be compared with these reads.
    let writes = writes
        .filter(|runs| runs.first().map(|run| run.setup.way()) == reads.first().map(|run| run.setup.way()));
    let writes = writes.filter_map(|runs| stops(measured, &runs)).find(|writes| writes.depth != stop.depth);
    if let Some(writes) = writes {
        because += &format!("; writes stop gaining at depth {}", writes.depth);
    }
    let depth = stop.depth.clamp(1, MOST);
    let over = stop.before.as_ref().map(|(before, _, gain)| gain.over(before.to_string(), "IOPS"));
    let advice = Advice::new(Setting::Depth, Value::Number(depth as u64), because, stop.sure());
    Some((advice.over(over), depth))
}

/// Returns the runs with the smallest blocks at all depths on the advised way, or on the grid's way if the grid does
/// not have that.
fn runs<'a>(measured: &Measured<'a>, direct: bool, route: Route, rw: Rw) -> Runs<'a> {
    let smallest = |is_so: &dyn Fn(&Run) -> bool| {
        let runs = measured.runs(|run| run.setup.rw == rw && is_so(run));
        let threads = runs.iter().map(|run| run.setup.numjobs).min();
        let block = runs.iter().map(|run| run.setup.block).min();
        let is_least = |run: &&Run| Some(run.setup.numjobs) == threads && Some(run.setup.block) == block;
        runs.into_iter().filter(is_least).collect::<Vec<_>>()
    };
    let of_route =
        |run: &Run| run.setup.direct == direct && run.setup.route.is_none_or(|of_run| of_run == route);
    let warm = smallest(&|run| of_route(run) && run.setup.cache != Cache::Cold);
    let cold = smallest(&|run| of_route(run) && run.setup.cache == Cache::Cold);
    let any = smallest(&|run| {
        run.setup.direct == direct && run.setup.cache != Cache::Cold && run.setup.route != Some(Route::Inline)
    });
    // Through the page cache, cold reads come first: only they wait for the disk.
    let several = |runs: &Runs<'a>| values(runs, |run| run.setup.iodepth).len() > 1;
    let ways = [cold, warm, any];
    let several = ways.iter().find(|runs| several(runs)).cloned();
    several.or_else(|| ways.into_iter().find(|runs| !runs.is_empty())).unwrap_or_default()
}

/// The depth at which IOPS stop growing.
struct Stop<'a> {
    depth: usize,
    at: Runs<'a>,
    /// The next smaller measured depth, and the gain over it.
    before: Option<(usize, Runs<'a>, Verdict)>,
    /// The greater depth with the most IOPS, compared with this one.
    deeper: Option<(usize, Verdict)>,
}

fn stops<'a>(measured: &Measured<'_>, runs: &[&'a Run]) -> Option<Stop<'a>> {
    let depths = values(runs, |run| run.setup.iodepth);
    let at = |depth: usize| at_depth(runs, depth);
    let over = |depth: usize, base: usize| measured.compare_apart(&at(depth), &at(base), Metric::Iops);
    let deeper = |depth: usize| {
        let deeper = depths.iter().filter(move |&&other| other > depth);
        deeper.filter_map(move |&other| Some((other, over(other, depth)?))).collect::<Vec<_>>()
    };
    let depth = depths
        .iter()
        .copied()
        .find(|&depth| !deeper(depth).iter().any(|&(_, verdict)| verdict.seems_more(WORTH)))?;
    let before = depths.iter().copied().rfind(|&other| other < depth);
    let before = before.and_then(|other| Some((other, at(other), over(depth, other)?)));
    let most = |one: &(usize, Verdict), other: &(usize, Verdict)| {
        one.1.ratio.median.total_cmp(&other.1.ratio.median)
    };
    let deeper = deeper(depth).into_iter().max_by(most);
    Some(Stop { depth, at: at(depth), before, deeper })
}

impl Stop<'_> {
    fn sure(&self) -> Sure {
        let verdicts = [self.before.as_ref().map(|before| before.2), self.deeper.map(|deeper| deeper.1)];
        let mut verdicts = verdicts.into_iter().flatten();
        match (verdicts.clone().next(), verdicts.any(|verdict| verdict.outside)) {
            (_, true) => Sure::OutsideNoise,
            (Some(first), false) if first.is_judged() => Sure::InsideNoise,
            _ => Sure::NotCompared,
        }
    }

    fn because(&self) -> String {
        let iops = median(&self.at, Metric::Iops).map(rate).unwrap_or_default();
        let cold = self.at.iter().any(|run| run.setup.cache == Cache::Cold);
        let cold = if cold { " with a cold cache" } else { "" };
        let mut text = match self.sure() {
            Sure::InsideNoise => format!("{NO_DIFFERENCE}{iops} IOPS{cold}"),
            _ => format!("{iops} IOPS{cold}"),
        };
        if let Some((before, _, verdict)) = &self.before {
            text += &format!(", {}", verdict.times(&format!("depth {before}")));
        }
        match self.deeper {
            Some((deeper, verdict)) => text += &format!("; depth {deeper}: {}", verdict.times("that")),
            None if self.before.is_some() => text += "; no greater depth was measured",
            None => text += "; no other depth was measured",
        }
        text
    }

    /// Returns the latency at this depth and the one before.
    fn price(&self) -> Option<String> {
        let here = median(&self.at, Metric::P99)?;
        let before = self.before.as_ref();
        let before = before.and_then(|(depth, runs, _)| Some((depth, median(runs, Metric::P99)?)));
        let against =
            before.map(|(depth, p99)| format!(", {} at depth {depth}", figure(p99))).unwrap_or_default();
        Some(format!("p99 {} µs{against}", figure(here)))
    }
}
