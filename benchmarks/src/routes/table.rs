//! Prints the table of routes in Markdown, row by row.

use std::time::Duration;

use ringfile_cli::shared::{RouteOps, Spread};

use super::row::Row;
use super::run::Outcome;
use super::{SIDES, SINGLE};
use crate::rounds::spread_of;
use crate::table;

/// The column of `auto` among the sides; a second `auto` (A/A) follows it.
const AUTO: usize = SINGLE;

/// Prints the head.
pub fn header() {
    println!(
        "| place | I/O | depth | ring | inline | workers | aio | auto | best | auto / best | A/A | auto went | cached |"
    );
    println!("|---|---|--:|--:|--:|--:|--:|--:|---|--:|--:|---|---|");
}

/// Prints one row.
pub fn row(row: &Row, outcomes: &[Vec<Outcome>]) {
    let spread = |side: usize| match &outcomes[side][..] {
        [] => "–".to_owned(),
        outcomes => table::spread(spread_of(outcomes.iter().map(|outcome| outcome.kiops)), 1),
    };
    let over = |side: usize| ratios(&outcomes[AUTO], &outcomes[side]);
    let best = best(outcomes);
    println!(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
        row.place,
        row.work(),
        row.depth,
        spread(0),
        spread(1),
        spread(2),
        spread(3),
        spread(AUTO),
        SIDES[best].0,
        table::spread(over(best), 3),
        table::spread(over(AUTO + 1), 3),
        went(&outcomes[AUTO..]),
        cached(outcomes.iter().flatten()),
    );
}

/// Prints how reliable the table is, and which rows are missing.
pub fn footer(rounds: usize, duration: Duration, checked: u64, skipped: &[String]) {
    println!(
        "\nkIOPS, median [min..max] of {rounds} rounds of {duration:?}, one thread, random 4 KiB. `best` is the single route \
         that `auto` does worst against, `auto / best` and `A/A` (`auto` over `auto` once more) are medians of ratios inside a \
         round. Every read had its offset checked, {checked} reads and written pages were checked whole."
    );
    for row in skipped {
        println!("\nSKIPPED {row}");
    }
}

/// Returns the best single route: the one to which `auto` has the lowest median ratio.
fn best(outcomes: &[Vec<Outcome>]) -> usize {
    let median = |side: &usize| ratios(&outcomes[AUTO], &outcomes[*side]).median;
    (0..SINGLE)
        .filter(|&side| !outcomes[side].is_empty())
        .min_by(|a, b| median(a).total_cmp(&median(b)))
        .unwrap_or(0)
}

fn ratios(over: &[Outcome], under: &[Outcome]) -> Spread {
    spread_of(over.iter().zip(under).map(|(a, b)| a.kiops / b.kiops))
}

/// Returns the percentage of operations on each route, over all runs of these sides.
fn went(sides: &[Vec<Outcome>]) -> String {
    let mut sum = RouteOps::default();
    sides.iter().flatten().for_each(|outcome| sum += outcome.went);
    let all = sum.total() as f64;
    let parts = [("ring", sum.ring), ("inline", sum.inline), ("workers", sum.workers), ("aio", sum.aio)];
    let parts = parts.into_iter().filter(|(_, count)| *count > 0);
    parts
        .map(|(name, count)| format!("{name} {:.1} %", count as f64 / all * 100.0))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Returns the smallest and largest cached fractions before the runs, and after them.
fn cached<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> String {
    let shares: Vec<(f64, f64)> = outcomes.filter_map(|outcome| outcome.cached).collect();
    if shares.is_empty() {
        return "–".to_owned();
    }
    let range = |of: fn(&(f64, f64)) -> f64| {
        let spread = spread_of(shares.iter().map(of));
        let (low, high) = (spread.min * 100.0, spread.max * 100.0);
        if high - low < 0.5 { format!("{high:.0} %") } else { format!("{low:.0}..{high:.0} %") }
    };
    format!("{} → {}", range(|share| share.0), range(|share| share.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_route_is_the_one_that_auto_does_worst_against() {
        let side = |figures: [f64; 3]| {
            figures.map(|kiops| Outcome { kiops, went: RouteOps::default(), cached: None }).to_vec()
        };
        let outcomes = [
            [10.0, 30.0, 10.0],
            [20.0, 20.0, 20.0],
            [1.0, 1.0, 99.0],
            [2.0; 3],
            [19.0, 19.0, 19.0],
            [19.0; 3],
        ]
        .map(side);
        assert_eq!(best(&outcomes), 1);
        let mut buffered = outcomes.to_vec();
        buffered[3].clear();
        assert_eq!(best(&buffered), 1);
        assert_eq!(ratios(&outcomes[AUTO], &outcomes[1]).median, 0.95);
    }
}
