//! The verdict that a command prints first: what each choice changes, over all cells together.

use super::change::{self, Comparison};
use super::judge::{Cell, Noise, compare_all};
use super::medians::labels;
use super::pool;
use crate::model::{Factor, Kind, Metric, Results, Run, Spread, differing, groups};

/// The most lines of a verdict.
const MOST: usize = 3;

/// Returns at most three lines.
pub fn lines(results: &Results) -> Vec<String> {
    match results.kind {
        Some(Kind::Buffers | Kind::Mixed) => Vec::new(),
        Some(Kind::Pool) => of(&results.runs, &pool::comparisons(&results.runs)),
        _ => of(&results.runs, &change::comparisons(&results.runs)),
    }
}

/// Returns what was claimed first, then what was not; without a comparison, the fastest runs.
fn of(runs: &[Run], comparisons: &[Comparison<'_>]) -> Vec<String> {
    let mut names: Vec<&str> = comparisons.iter().map(|comparison| comparison.name.as_str()).collect();
    names.retain(|name| *name != "A/A");
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(*name));
    let noise = [Metric::Iops, Metric::Cpu].map(|metric| Noise::of(runs, metric));
    let judge = |name: &&str| {
        let verdict = |metric, noise: &Noise| {
            let cells = comparisons.iter().filter(|comparison| comparison.name == **name);
            let cells = cells.filter_map(|comparison| {
                let (subjects, bases): (Vec<&Run>, Vec<&Run>) = comparison.pairs.iter().copied().unzip();
                Cell::of(&subjects, &bases, metric)
            });
            compare_all(&cells.collect::<Vec<_>>(), noise)
        };
        let iops = verdict(Metric::Iops, &noise[0])?;
        let cpu = verdict(Metric::Cpu, &noise[1]);
        let (subject, base) = name.rsplit_once('/')?;
        let cpu = cpu.map(|cpu| format!("; {}", cpu.about_times("its CPU time"))).unwrap_or_default();
        Some((!iops.outside, format!("{subject}: {}{cpu}", iops.times(&format!("the IOPS of {base}")))))
    };
    let mut judged: Vec<(bool, String)> = names.iter().filter_map(judge).collect();
    judged.sort_by_key(|(is_unsure, _)| *is_unsure);
    let mut lines: Vec<String> = judged.into_iter().map(|(_, line)| line).take(MOST).collect();
    if lines.is_empty() {
        lines.extend(fastest(runs));
    }
    lines
}

fn fastest(runs: &[Run]) -> Option<String> {
    let groups = groups(runs);
    let median = |group: &[&Run], metric: Metric| {
        Some(Spread::of(group.iter().filter_map(|run| metric.of(run)))?.median)
    };
    let (best, iops) = groups
        .iter()
        .filter_map(|group| Some((group, median(group, Metric::Iops)?)))
        .max_by(|one, other| one.1.total_cmp(&other.1))?;
    let firsts: Vec<&Run> = groups.iter().map(|group| group[0]).collect();
    let factors = [vec![Factor::Engine], differing(&firsts)].concat();
    let what = labels(&factors, best[0]).join(", ");
    let figure = |metric: Metric, name: &str| {
        median(best, metric).map(|value| format!(", {name} {}", metric.short(value))).unwrap_or_default()
    };
    Some(format!(
        "{what}: {} IOPS{}{}",
        Metric::Iops.short(iops),
        figure(Metric::P99, "p99 µs"),
        figure(Metric::Cpu, "CPU µs")
    ))
}
