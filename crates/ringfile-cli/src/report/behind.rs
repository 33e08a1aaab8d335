//! Finds the cells in which route `auto` is behind the best single route, which is a defect of the library.
//!
//! Pure functions of results. Invariants: only runs that differ in nothing but the route are compared.

use super::judge::{self, Noise, Verdict};
use crate::model::{Behind, Factor, Metric, Route, Run, Setup, Spread, differing, groups, words};
use crate::numbers::rate;
use crate::values;

/// Returns all cells of a session in which `auto` is behind.
pub fn cells_behind(runs: &[Run]) -> Vec<Behind> {
    let groups = groups(runs);
    let of_auto: Vec<&Vec<&Run>> =
        groups.iter().filter(|group| group[0].setup.route == Some(Route::Auto)).collect();
    let firsts: Vec<&Run> = of_auto.iter().map(|group| group[0]).collect();
    let parts: Vec<Factor> = if firsts.is_empty() { Vec::new() } else { differing(&firsts) };
    let noise = Noise::of(runs, Metric::Iops);
    let in_cell = |auto: &&Vec<&Run>| {
        let (best, route_iops) = best_single_route(&groups, &auto[0].setup)?;
        let pairs = judge::pairs(auto, best, Metric::Iops);
        let verdict = judge::compare(&pairs, noise.in_cell(&auto[0].setup, pairs.len()))?;
        behind(&parts, auto, (best[0].setup.route?, route_iops), verdict)
    };
    of_auto.iter().filter_map(in_cell).collect()
}

/// Returns the runs on the fastest single route and their median IOPS, among runs that differ from `auto` in the route
/// alone.
fn best_single_route<'a>(groups: &'a [Vec<&'a Run>], auto: &Setup) -> Option<(&'a [&'a Run], f64)> {
    let single =
        [Route::Ring, Route::Inline, Route::Workers].map(|route| Setup { route: Some(route), ..*auto });
    let beside = groups.iter().filter(|group| single.contains(&group[0].setup));
    let rated = beside.filter_map(|group| Some((group.as_slice(), median(group)?)));
    rated.max_by(|(_, one), (_, other)| one.total_cmp(other))
}

fn median(group: &[&Run]) -> Option<f64> {
    Spread::of(group.iter().map(|run| run.iops)).map(|spread| spread.median)
}

fn behind(parts: &[Factor], auto: &[&Run], best: (Route, f64), verdict: Verdict) -> Option<Behind> {
    let ratio = verdict.ratio.median;
    let judged = verdict.is_judged();
    if ratio >= 1.0 || !(verdict.outside || (!judged && verdict.leans())) {
        return None;
    }
    let (route, route_iops) = best;
    let (auto_iops, cell) = (median(auto)?, words(parts, &auto[0].setup));
    let place = if cell.is_empty() { String::new() } else { format!(", {cell}") };
    let figures = format!(
        "{} IOPS against {} on route {}{place}: {}",
        rate(auto_iops),
        rate(route_iops),
        values::name(&route),
        verdict.times("that")
    );
    let note = if judged {
        format!("auto is behind, which is a defect of ringfile to report: {figures}")
    } else {
        format!("auto may be behind: {figures}; measure with --rounds 5 to be sure")
    };
    Some(Behind { cell, route, auto_iops, route_iops, ratio, noise: judged.then_some(verdict.noise), note })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::tests::recorded::{Truth, World, all_the_same};

    /// `auto` has 0.82 times the IOPS of ring and inline.
    fn behind(job: Setup) -> Truth {
        let truth = all_the_same(job);
        if job.route == Some(Route::Auto) { Truth { iops: truth.iops * 0.82, ..truth } } else { truth }
    }

    /// Ring is the slowest and auto in between, as in perf buffers where a plain call is best.
    fn best_of_one(job: Setup) -> Truth {
        let truth = all_the_same(job);
        let factor = match job.route {
            Some(Route::Auto) => 0.7,
            Some(Route::Ring) => 0.5,
            Some(Route::Inline | Route::Workers | Route::Aio) | None => 1.0,
        };
        Truth { iops: truth.iops * factor, ..truth }
    }

    fn quick(truth: fn(Setup) -> Truth) -> World {
        World { noise: (0.02, 0.02), direct: false, ..World::new(truth).quick() }
    }

    #[test]
    fn auto_that_is_behind_is_named_with_figures_and_noise() {
        let results = quick(behind).session(1);
        let behind = cells_behind(&results.runs);
        let cells: Vec<&str> = behind.iter().map(|behind| behind.cell.as_str()).collect();
        assert_eq!(cells, ["depth 1", "depth 16"], "{behind:?}");
        for behind in behind {
            assert!(behind.is_sure() && (behind.ratio - 0.82).abs() < 0.05, "{behind:?}");
            assert!(behind.auto_iops < behind.route_iops);
            for part in ["auto is behind", "k IOPS against", "on route", "times that (outside the noise of"] {
                assert!(behind.note.contains(part), "{part}: {}", behind.note);
            }
        }
        let slow = cells_behind(&quick(best_of_one).session(1).runs);
        assert!(slow.iter().all(|behind| behind.route == Route::Inline) && slow.len() == 2, "{slow:?}");
    }

    #[test]
    fn auto_that_is_not_behind_is_not_named() {
        for seed in 0..40 {
            let world = World { noise: (0.02, 0.2), bad_rounds: 30, ..quick(all_the_same) };
            assert_eq!(cells_behind(&world.session(seed).runs), [], "seed {seed}");
        }
        assert_eq!(cells_behind(&[]), []);
    }

    #[test]
    fn with_one_round_the_conclusion_is_called_unsure() {
        let once = |truth| World { rounds: 1, ..quick(truth) }.session(1);
        let behind = cells_behind(&once(best_of_one).runs);
        assert!(!behind.is_empty() && behind.iter().all(|behind| !behind.is_sure()), "{behind:?}");
        assert!(behind[0].note.starts_with("auto may be behind") && behind[0].note.contains("one round"));
        assert_eq!(cells_behind(&once(all_the_same).runs), []);
    }
}
