//! The route of operations: the ring, or plain calls at once.
//!
//! For direct I/O the greatest depth decides, because that is its purpose. For buffered I/O the routes were compared
//! with everything cached, where plain calls look best, so these are advised only if they are much faster, as on file
//! systems in memory or without non-blocking I/O.

use super::measured::{Contest, Measured, Winner, at_depth, best, median, of_route, values};
use crate::model::advice::{Advice, Setting, Sure, Value};
use crate::model::{Cache, Metric, Route, Run, Spread};
use crate::numbers::rate;
use crate::values::name;

/// How many times as fast buffered plain calls must be, over all depths: a read that is not cached would block in them.
const BY_FAR: f64 = 1.5;

/// Returns the advice, and the route that the rest of the advice is for.
pub fn advise(measured: &Measured<'_>, direct: bool) -> (Option<Advice>, Route) {
    let Some(access) = measured.access() else { return (None, Route::Auto) };
    let runs = measured
        .runs(|run| run.setup.direct == direct && run.setup.rw == access && run.setup.cache != Cache::Cold);
    let runs = measured.plainest(&runs);
    let of = |route: Route| of_route(&runs, route);
    // Without a ring, the grid was measured on route auto, or on workers if requested.
    let queued = [Route::Ring, Route::Workers, Route::Auto].into_iter().find(|&route| !of(route).is_empty());
    let only = runs.first().and_then(|run| run.setup.route).unwrap_or(Route::Auto);
    let Some(queued) = queued else { return (None, only) };
    let contests = contests(measured, &of(Route::Inline), &of(queued));
    if contests.is_empty() {
        return (None, queued);
    }
    let (mut route, sure) = choose(&contests, direct, queued);
    let mut because = because(&contests, (route, queued), sure, &runs);
    if let Some(iops) = waits(measured, direct).filter(|_| route == Route::Inline) {
        because += &format!(
            "; but cold reads reach {} IOPS, and each would block an inline call: auto distinguishes them",
            rate(iops)
        );
        route = Route::Auto;
    }
    // Auto has both.
    let over = contests.last().filter(|_| route != Route::Auto).map(|&(_, contest)| match route {
        Route::Inline => contest.over(name(&queued)),
        _ => contest.turned().over(name(&Route::Inline)),
    });
    (Some(Advice::new(Setting::Route, Value::Text(name(&route)), because, sure).over(over)), route)
}

/// Compares plain calls with the queued route at each depth at which both were measured, smallest first.
fn contests(measured: &Measured<'_>, inline: &[&Run], queued: &[&Run]) -> Vec<(usize, Contest)> {
    let at = |depth| measured.contest(&at_depth(inline, depth), &at_depth(queued, depth));
    values(inline, |run| run.setup.iodepth)
        .into_iter()
        .filter_map(|depth| Some((depth, at(depth)?)))
        .collect()
}

fn choose(contests: &[(usize, Contest)], direct: bool, queued: Route) -> (Route, Sure) {
    let last = contests.len() - 1;
    let deciding = if direct { &contests[last..] } else { contests };
    let for_side = |better| deciding.iter().filter(move |(_, contest)| contest.better == better);
    let surest = |better| {
        let sure = for_side(better).any(|(_, contest)| contest.sure == Sure::OutsideNoise);
        if sure { Sure::OutsideNoise } else { Sure::NotCompared }
    };
    let (inline, other) = (for_side(Winner::Subject).count(), for_side(Winner::Base).count());
    let logarithms: f64 = contests.iter().map(|(_, contest)| contest.iops.ratio.median.ln()).sum();
    let by_far = direct || (logarithms / contests.len() as f64).exp() >= BY_FAR;
    match (inline > 0, other > 0) {
        (true, _) => (if by_far { Route::Inline } else { Route::Auto }, surest(Winner::Subject)),
        (false, true) => (queued, surest(Winner::Base)),
        (false, false) if contests.iter().all(|(_, contest)| contest.sure == Sure::NotCompared) => {
            (Route::Auto, Sure::NotCompared)
        }
        (false, false) => (Route::Auto, Sure::InsideNoise),
    }
}

/// Returns the figures of the chosen side over the other: at the greatest depth in full, at the others in few words.
fn because(
    contests: &[(usize, Contest)],
    (route, queued): (Route, Route),
    sure: Sure,
    runs: &[&Run],
) -> String {
    let (first, second) = if route == queued { (queued, Route::Inline) } else { (Route::Inline, queued) };
    let figures = |contest: Contest| if route == queued { contest.turned() } else { contest };
    let deepest = contests.last().filter(|_| sure == Sure::InsideNoise);
    let mut text = deepest.map_or("", |(_, contest)| contest.no_difference()).to_string();
    let iops =
        |route: Route, depth: usize| median(&of_route(&at_depth(runs, depth), route), Metric::Iops).map(rate);
    for (index, &(depth, contest)) in contests.iter().rev().enumerate() {
        let contest = figures(contest);
        if index == 0 {
            let (iops, figures) = (iops(first, depth).unwrap_or_default(), contest.figures(&name(&second)));
            text += &format!("{} {iops} IOPS at depth {depth}, {figures}", name(&first));
        } else {
            text += &format!("; at depth {depth}: {}", contest.short(&name(&second)));
        }
    }
    let deepest = contests.last().map_or(1, |(depth, _)| *depth);
    match iops(Route::Auto, deepest).filter(|_| queued != Route::Auto) {
        Some(auto) => format!("{text}; auto {auto} at depth {deepest}"),
        None => text,
    }
}

/// Returns the IOPS of cold buffered reads, if those are much slower than cached ones.
fn waits(measured: &Measured<'_>, direct: bool) -> Option<f64> {
    let cold = measured.runs(|run| !run.setup.direct && run.setup.cache == Cache::Cold && !direct);
    let (_, iops) = best(&measured.plainest(&cold))?;
    let warm = measured.runs(|run| !run.setup.direct && run.setup.cache != Cache::Cold);
    let warm = Spread::of(warm.iter().map(|run| run.iops))?;
    (iops * 2.0 < warm.median).then_some(iops)
}
