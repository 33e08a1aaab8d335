//! Direct or buffered I/O: random direct reads against buffered ones with a cold cache.

use super::measured::{Measured, Runs, Winner, at_depth, best, median, of_route, values};
use crate::model::advice::{Advice, Setting, Sure, Value};
use crate::model::{Cache, Metric, Route, Run};
use crate::numbers::rate;

/// Advice mentions reads that found their block cached if they are more than this fraction.
const FEW: f64 = 0.05;

/// Returns the advice, and whether the rest of the advice is for direct I/O.
pub fn advise(measured: &Measured<'_>) -> (Option<Advice>, bool) {
    let any_direct = measured.runs(|run| run.setup.direct);
    let buffered = measured.runs(|run| !run.setup.direct);
    if any_direct.is_empty() {
        let because = "everything was measured through the page cache".into();
        let advice = Advice::new(Setting::Direct, Value::Flag(false), because, Sure::NotCompared);
        return ((!buffered.is_empty()).then_some(advice), false);
    }
    let compared = compare(measured, &any_direct, &buffered);
    let direct = compared.as_ref().is_none_or(|advice| advice.value == Value::Flag(true));
    (compared, direct)
}

fn compare<'a>(measured: &Measured<'a>, direct: &[&'a Run], buffered: &[&'a Run]) -> Option<Advice> {
    let access = measured.access()?;
    let reads = |runs: &[&'a Run]| -> Runs<'a> {
        measured.plainest(&runs.iter().copied().filter(|run| run.setup.rw == access).collect::<Vec<_>>())
    };
    let cold: Vec<&Run> =
        reads(buffered).into_iter().filter(|run| run.setup.cache == Cache::Cold && hits(run) < 0.5).collect();
    let direct = of_first(&reads(direct), &[Route::Ring, Route::Workers, Route::Auto, Route::Inline]);
    let cold = of_first(&cold, &[Route::Auto, Route::Ring, Route::Workers, Route::Inline]);
    let depths = values(&direct, |run| run.setup.iodepth);
    let depth = depths.into_iter().rev().find(|&depth| cold.iter().any(|run| run.setup.iodepth == depth))?;
    let (direct, cold) = (at_depth(&direct, depth), at_depth(&cold, depth));
    // The file enters the cache while it is read, so fast runs find more of it there. Only misses count.
    let missed: Vec<Run> =
        cold.iter().map(|run| Run { iops: run.iops * (1.0 - hits(run)), ..(*run).clone() }).collect();
    let contest = measured.contest(&direct, &missed.iter().collect::<Vec<_>>())?;
    let most_hits = cold.iter().map(|run| hits(run)).fold(0.0, f64::max);
    let counted = if most_hits > FEW {
        format!(" (not counting the {:.0} % that found their block cached)", most_hits * 100.0)
    } else {
        String::new()
    };
    let warm =
        buffered.iter().filter(|run| run.setup.cache != Cache::Cold && run.setup.iodepth == depth).copied();
    let warm = measured.plainest(&warm.collect::<Vec<_>>());
    let warm = best(&warm).map(|(_, iops)| format!("; cached reads: {} IOPS", rate(iops)));
    let because = format!(
        "{}{} IOPS at depth {depth} with direct I/O, {}{counted}{}",
        contest.no_difference(),
        rate(median(&direct, Metric::Iops)?),
        contest.figures("cold buffered reads"),
        warm.unwrap_or_default(),
    );
    let value = Value::Flag(contest.better == Winner::Subject);
    let over = match contest.better {
        Winner::Subject => contest.over("false, not cached"),
        Winner::Base | Winner::Neither => contest.turned().over("true"),
    };
    Some(Advice::new(Setting::Direct, value, because, contest.sure).over(Some(over)))
}

/// Returns the fraction of a run's random reads that found their block cached.
fn hits(run: &Run) -> f64 {
    let mean = f64::midpoint(run.cached_before.unwrap_or(0.0), run.cached_after.unwrap_or(0.0));
    if mean.is_finite() { mean.clamp(0.0, 0.99) } else { 0.0 }
}

/// Returns the runs on the first of these routes that has any.
fn of_first<'a>(runs: &[&'a Run], routes: &[Route]) -> Runs<'a> {
    routes.iter().map(|&route| of_route(runs, route)).find(|runs| !runs.is_empty()).unwrap_or_default()
}
