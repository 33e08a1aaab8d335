//! Tables of what a choice changes: every figure before and after, and the change in per cent.
//!
//! Runs are paired within one round, since a machine's speed changes over time. The table shows the medians of both
//! sides, and the median, the least and the most of the rounds' changes. A/A compares a run with a repetition of itself: a smaller change means
//! nothing.

use super::cold;
use super::medians::{differs, keyed, labels, optional};
use super::table::Table;
use crate::model::{
    Buffers, Engine, Factor, Metric, Role, Route, Run, Setup, Spread, columns, distinct, words,
};
use crate::numbers;
use crate::values::name;

/// One comparison in one cell: pairs of runs, subject and base, one for each round.
#[derive(Debug)]
pub struct Comparison<'a> {
    /// The name, `subject/base`.
    pub name: String,
    /// The pairs; never empty.
    pub pairs: Vec<(&'a Run, &'a Run)>,
}

/// Returns the table of changes between runs; empty if there is nothing to compare.
pub fn table(runs: &[Run]) -> Table {
    let in_batches = runs.iter().any(|run| run.setup.batch.is_some());
    let mut keys = vec![Factor::Jobs];
    // The batches determine the depth.
    keys.extend(if in_batches { [Factor::Batch].as_slice() } else { &[Factor::Depth, Factor::Rw] });
    keys.extend(differs(runs, Factor::InFlight).then_some(Factor::InFlight));
    keys.extend(optional(runs));
    of(&keys, &columns::CHANGES, &comparisons(runs))
}

/// Returns a table of comparisons, with a row for each of these metrics: columns for these factors of the subjects, then
/// the change.
pub fn of(keys: &[Factor], metrics: &[Metric], comparisons: &[Comparison<'_>]) -> Table {
    let several_rounds = comparisons.iter().any(|comparison| comparison.pairs.len() > 1);
    let mut table = keyed(keys).first("change").text("figure").end_keys();
    table = table.number("before → after").number("%");
    if several_rounds {
        table = table.number("least..most");
    }
    for comparison in comparisons {
        let mut said = vec![comparison.name.clone()];
        said.extend(labels(keys, comparison.pairs[0].0));
        for metric in metrics {
            let Some(Change { base, subject, percent }) = comparison.change(*metric) else { continue };
            let [median, min, max] = [percent.median, percent.min, percent.max].map(numbers::change);
            let mut row = said.clone();
            row.push(metric.title().into());
            row.extend([format!("{} → {}", metric.short(base), metric.short(subject)), median]);
            row.extend(several_rounds.then(|| format!("{min}..{max}")));
            table.row(row);
            // The rows below repeat neither name nor labels.
            said.iter_mut().for_each(String::clear);
        }
    }
    table
}

/// How a figure changes.
struct Change {
    /// The median of the base.
    base: f64,
    /// The median of the subject.
    subject: f64,
    /// The rounds' changes in per cent.
    percent: Spread,
}

impl Comparison<'_> {
    /// Returns how a figure changes; `None` if it cannot be compared.
    fn change(&self, metric: Metric) -> Option<Change> {
        let comparable = |subject: &Run, base: &Run| {
            // The latency of a batch cannot be compared with that of one read.
            !metric.is_latency() || subject.is_of_batches() == base.is_of_batches()
        };
        let pairs = self.pairs.iter().filter(|(subject, base)| comparable(subject, base));
        let figures = pairs.filter_map(|(subject, base)| Some((metric.of(subject)?, metric.of(base)?)));
        let figures: Vec<(f64, f64)> = figures.filter(|&(_, base)| base > 0.0).collect();
        let subject = Spread::of(figures.iter().map(|pair| pair.0))?.median;
        let base = Spread::of(figures.iter().map(|pair| pair.1))?.median;
        let percent = Spread::of(figures.iter().map(|(subject, base)| (subject / base - 1.0) * 100.0))?;
        Some(Change { base, subject, percent })
    }
}

/// Pairs the runs of a setup in some role with the measured runs of another setup. Returns `None` if no round has both.
pub fn compare<'a>(
    runs: &'a [Run],
    name: String,
    (subject, role): (Setup, Role),
    base: Setup,
) -> Option<Comparison<'a>> {
    let of = |setup: Setup, role: Role| runs.iter().filter(move |run| run.setup == setup && run.role == role);
    let pair = |subject: &'a Run| {
        let base = of(base, Role::Measure).find(|base| base.round == subject.round)?;
        cold::are_comparable(subject, base).then_some((subject, base))
    };
    let pairs: Vec<_> = of(subject, role).filter_map(pair).collect();
    (!pairs.is_empty()).then_some(Comparison { name, pairs })
}

/// Returns the A/A comparisons: each repeated run with its repetition.
pub fn noise<'a>(runs: &'a [Run], of: impl Fn(&Setup) -> bool) -> Vec<Comparison<'a>> {
    let again = runs.iter().filter(|run| run.role == Role::Aa && of(&run.setup)).map(|run| run.setup);
    let again = distinct(again).into_iter();
    again.filter_map(|setup| compare(runs, "A/A".into(), (setup, Role::Aa), setup)).collect()
}

/// Returns a setup without engine and buffers, in which the runs of a cell differ.
fn cell_of(setup: &Setup) -> Setup {
    Setup { engine: Engine::Ringfile, buffers: Buffers::Normal, ..*setup }
}

/// Returns a cell as another engine has it: without route, and at depth 1 if it does one operation at a
/// time.
fn of_others(cell: Setup, engine: Engine) -> Setup {
    let iodepth = if engine.one_at_a_time() { 1 } else { cell.iodepth };
    Setup { engine, iodepth, route: None, ..cell }
}

/// Returns all comparisons of a command on one file.
pub fn comparisons(runs: &[Run]) -> Vec<Comparison<'_>> {
    let ours = runs.iter().filter(|run| run.setup.engine.is_ours());
    let mut found = Vec::new();
    for cell in distinct(ours.map(|run| cell_of(&run.setup))) {
        if cell.batch.is_some() {
            found.extend(in_batches(runs, cell));
        } else {
            found.extend(one_by_one(runs, cell));
        }
        found.extend(noise(runs, |setup| cell_of(setup) == cell));
    }
    found
}

/// Compares registered buffers with normal ones, each way with the first way, and both kinds of buffers with each of
/// the other engines.
fn one_by_one(runs: &[Run], cell: Setup) -> Vec<Comparison<'_>> {
    let fixed = Setup { buffers: Buffers::Fixed, ..cell };
    let mut found = vec![compare(runs, "fixed/normal".into(), (fixed, Role::Measure), cell)];
    found.push(compare_ways(runs, cell));
    for engine in Engine::AGAINST {
        for buffers in Buffers::WHOLE {
            let name = format!("{}/{}", name(&buffers), name(&engine));
            // Engines that do one operation at a time are measured once for all kinds of buffers.
            let theirs = if engine.one_at_a_time() { Buffers::Normal } else { buffers };
            let base = Setup { buffers: theirs, ..of_others(cell, engine) };
            found.push(compare(runs, name, (Setup { buffers, ..cell }, Role::Measure), base));
        }
    }
    found.into_iter().flatten().collect()
}

/// Compares a route with the first one asked for, with the same buffers.
fn compare_ways(runs: &[Run], cell: Setup) -> Option<Comparison<'_>> {
    let is_first = |run: &&Run| run.setup.engine == Engine::Ringfile && run.role == Role::Measure;
    let first = runs.iter().find(is_first)?.setup;
    let was_measured =
        |buffers: &Buffers| runs.iter().any(|run| run.setup == Setup { buffers: *buffers, ..cell });
    // A way may have been measured with other buffers than the first run's alone.
    let buffers = [first.buffers, Buffers::Fixed].into_iter().find(was_measured)?;
    let cell = Setup { buffers, ..cell };
    let Setup { route, direct, adaptive, .. } = first;
    let base = Setup { route, direct, adaptive, ..cell };
    let name = format!("{}/{}", way(cell, base), way(base, cell));
    (base != cell).then(|| compare(runs, name, (cell, Role::Measure), base)).flatten()
}

/// Returns the name of a way beside another: the factors in which the two differ.
fn way(setup: Setup, other: Setup) -> String {
    let differs = |factor: &Factor| factor.cell(&setup) != factor.cell(&other);
    let mut factors = vec![Factor::Route, Factor::Open];
    factors.retain(differs);
    let route = setup.route.as_ref().map(name::<Route>).unwrap_or_default();
    if factors.is_empty() { route } else { words(&factors, &setup) }
}

/// Compares each of ringfile's interfaces with each of the other engines, which have plain buffers.
fn in_batches(runs: &[Run], cell: Setup) -> Vec<Comparison<'_>> {
    let mut found = Vec::new();
    for ours in [Engine::RingfileBlocking, Engine::RingfileTokio, Engine::RingfileQueue, Engine::Ringfile] {
        let with = |buffers| (Setup { engine: ours, buffers, ..cell }, Role::Measure);
        let title = format!("{} fixed/normal", name(&ours));
        found.push(compare(runs, title, with(Buffers::Fixed), with(Buffers::Normal).0));
        for buffers in Buffers::WHOLE {
            let fixed = if buffers == Buffers::Fixed { " fixed" } else { "" };
            for other in [Engine::Fio, Engine::ByHand, Engine::Pread] {
                let title = format!("{}{fixed}/{}", name(&ours), name(&other));
                found.push(compare(runs, title, with(buffers), of_others(cell, other)));
            }
        }
    }
    found.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Cache;

    fn run(engine: Engine, round: u32, role: Role, iodepth: usize, buffers: Buffers, iops: f64) -> Run {
        let setup = Setup { engine, iodepth, buffers, cache: Cache::Warm, ..Setup::default() };
        let ours = engine == Engine::Ringfile;
        let setup = Setup { route: ours.then_some(Route::Auto), ..setup };
        Run { ops: 1, duration_s: 1.0, iops, bw_bytes: iops * 4096.0, ..Run::new(setup, round, role) }
    }

    fn depth_of(comparison: &Comparison<'_>) -> usize {
        comparison.pairs[0].0.setup.iodepth
    }

    fn iops_change(runs: &[Run], name: &str, iodepth: usize) -> Option<Spread> {
        comparisons(runs)
            .into_iter()
            .find(|comparison| comparison.name == name && depth_of(comparison) == iodepth)
            .and_then(|comparison| Some(comparison.change(Metric::Iops)?.percent))
    }

    #[test]
    fn runs_are_paired_within_their_round() {
        use {Buffers::*, Engine::*, Role::*};
        let runs = [
            run(Ringfile, 1, Measure, 16, Normal, 100.0),
            run(Ringfile, 1, Measure, 16, Fixed, 110.0),
            run(Ringfile, 1, Aa, 16, Normal, 99.0),
            run(Ringfile, 2, Measure, 16, Normal, 200.0),
            run(Ringfile, 2, Measure, 16, Fixed, 260.0),
            run(Ringfile, 2, Aa, 16, Normal, 204.0),
        ];
        let fixed = iops_change(&runs, "fixed/normal", 16).expect("compared");
        assert!((fixed.min - 10.0).abs() < 1e-9 && (fixed.max - 30.0).abs() < 1e-9, "{fixed:?}");
        let noise = iops_change(&runs, "A/A", 16).expect("compared");
        assert!((noise.min + 1.0).abs() < 1e-9 && (noise.max - 2.0).abs() < 1e-9, "{noise:?}");
        let text = table(&runs).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2 + 2 * 2, "latencies and CPU time are unknown: {text}");
        assert_eq!(lines[2], "|fixed/normal|   1|   16|randread|IOPS  |     150 → 185| +20|   +10..+30|");
        assert_eq!(lines[3], "|            |    |     |        |MiB/s |   0.59 → 0.72| +20|   +10..+30|");
        assert_eq!(lines[4], "|A/A         |   1|   16|randread|IOPS  |     150 → 152|+0.5| -1.0..+2.0|");
        let one = table(&runs[..2]).to_string();
        assert!(one.contains("|IOPS  |     100 → 110|+10|\n"), "{one}");
    }

    #[test]
    fn plain_calls_are_compared_at_every_depth() {
        use {Buffers::*, Engine::*, Role::*};
        let runs = [
            run(Ringfile, 1, Measure, 1, Normal, 100.0),
            run(Pread, 1, Measure, 1, Normal, 50.0),
            run(Ringfile, 1, Measure, 16, Normal, 400.0),
        ];
        assert_eq!(iops_change(&runs, "normal/pread", 1).map(|spread| spread.median), Some(100.0));
        assert_eq!(iops_change(&runs, "normal/pread", 16).map(|spread| spread.median), Some(700.0));
        assert_eq!(iops_change(&runs, "fixed/pread", 16), None);
        assert_eq!(iops_change(&runs, "A/A", 1), None);
    }

    #[test]
    fn routes_are_compared_with_the_first_and_each_with_the_others() {
        use {Buffers::*, Engine::*, Role::*};
        let mut ring = run(Ringfile, 1, Measure, 1, Normal, 150.0);
        ring.setup.route = Some(Route::Ring);
        let mut inline = run(Ringfile, 1, Measure, 1, Normal, 50.0);
        inline.setup.route = Some(Route::Inline);
        let runs = [
            run(Ringfile, 1, Measure, 1, Normal, 100.0),
            ring,
            inline,
            run(Pread, 1, Measure, 1, Normal, 200.0),
        ];
        assert_eq!(iops_change(&runs, "ring/auto", 1).map(|spread| spread.median), Some(50.0));
        assert_eq!(iops_change(&runs, "inline/auto", 1).map(|spread| spread.median), Some(-50.0));
        let against = comparisons(&runs);
        let against: Vec<_> = against.iter().filter(|comparison| comparison.name == "normal/pread").collect();
        let changes: Vec<_> = against
            .iter()
            .filter_map(|comparison| comparison.change(Metric::Iops).map(|change| change.percent.median))
            .collect();
        assert_eq!(changes, [-50.0, -25.0, -75.0]);
        let title = table(&runs).to_string();
        assert!(title.starts_with("|change") && title.contains("|route"));
    }

    #[test]
    fn batches_are_compared_with_every_other_form() {
        use {Buffers::*, Engine::*, Role::*};
        let batch = |engine: Engine, role, iodepth, iops| {
            let run = run(engine, 1, role, iodepth, Normal, iops);
            let route = engine.is_ours().then_some(Route::Auto);
            let setup = Setup { batch: Some(64), inflight: Some(4), route, ..run.setup };
            Run { setup, ..run }
        };
        let runs = [
            batch(RingfileBlocking, Measure, 256, 300.0),
            batch(Fio, Measure, 256, 200.0),
            batch(Pread, Measure, 1, 100.0),
            batch(RingfileBlocking, Aa, 256, 330.0),
        ];
        let median = |name| iops_change(&runs, name, 256).map(|spread| spread.median.round());
        assert_eq!(median("ringfile-blocking/fio"), Some(50.0));
        assert_eq!(median("ringfile-blocking/pread"), Some(200.0));
        assert_eq!(median("A/A"), Some(10.0));
        let found = comparisons(&runs);
        assert!(found[0].change(Metric::P99).is_none(), "of a batch and of one read");
        assert!(table(&runs).to_string().contains("|batch|"));
        assert_eq!(comparisons(&runs).len(), 3);
    }

    #[test]
    fn fio_is_compared_with_the_same_kind_of_buffers() {
        use {Buffers::*, Engine::*, Role::*};
        let runs = [
            run(Ringfile, 1, Measure, 16, Fixed, 300.0),
            run(Fio, 1, Measure, 16, Normal, 100.0),
            run(Fio, 1, Measure, 16, Fixed, 200.0),
        ];
        assert_eq!(iops_change(&runs, "fixed/fio", 16).map(|spread| spread.median), Some(50.0));
        assert_eq!(iops_change(&runs, "normal/fio", 16), None);
    }
}
