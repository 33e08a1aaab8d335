//! The second table: what a choice changes, IOPS before and after, and every figure in per cent.
//!
//! Runs are paired inside one round, for the machine is not the same at another time; what is shown in per cent is the
//! median of the rounds' changes, with the least and the most. A/A is a run against the same once more: a
//! change that is not larger says nothing.

use super::cold;
use super::columns::{Columns, Extra};
use super::results::{Role, Run};
use super::statistics::{Metric, Spread};
use super::table::{Table, change, rate};
use crate::cli::{Buffers, Executor, Route, Rw};
use crate::engine::Engine;
use crate::values;

/// One comparison in one cell: a name, and pairs of runs, one for each round.
struct Comparison<'a> {
    name: String,
    cell: Cell,
    pairs: Vec<(&'a Run, &'a Run)>,
}

#[derive(Clone, Copy, PartialEq)]
struct Cell {
    numjobs: usize,
    iodepth: usize,
    batch: Option<usize>,
    inflight: Option<usize>,
    rw: Rw,
    extra: Extra,
}

impl Cell {
    fn of(run: &Run) -> Cell {
        Cell {
            numjobs: run.numjobs,
            iodepth: run.iodepth,
            batch: run.batch,
            inflight: run.inflight,
            rw: run.rw,
            extra: Extra::of(run),
        }
    }

    /// What is read or written, or the batches in flight and the reads in each.
    fn mode(self) -> String {
        match (self.inflight, self.batch) {
            (Some(inflight), Some(batch)) => format!("{inflight}×{batch}"),
            _ => values::name(&self.rw),
        }
    }

    /// The same cell as another engine's runs have it: they know no routes.
    fn of_others(self) -> Cell {
        Cell { extra: Extra { route: None, executor: None, ..self.extra }, ..self }
    }
}

/// The table of changes between runs; empty where there is nothing to compare.
pub fn table(runs: &[Run]) -> Table {
    let several_rounds = runs.iter().any(|run| run.round > 1);
    let columns = Columns::of(runs);
    let in_batches = runs.iter().any(|run| run.batch.is_some());
    let mut table = Table::default().text("change in %").number("jobs");
    table = if in_batches { table.text("batches") } else { table.number("depth").text("mode") };
    table = columns.titles(table);
    if several_rounds {
        table = table.text("rounds");
    }
    table = table.end_keys().number("before → after");
    for (title, _) in METRICS {
        table = table.number(title);
    }
    for comparison in comparisons(runs) {
        let spreads: Vec<Option<Spread>> =
            METRICS.iter().map(|&(_, metric)| comparison.spread(metric)).collect();
        let mut iops = comparison.iops();
        let cell = comparison.cell;
        let mut labels = vec![comparison.name, cell.numjobs.to_string()];
        // Batches tell the depth.
        labels.extend((!in_batches).then(|| cell.iodepth.to_string()));
        labels.push(cell.mode());
        labels.extend(columns.cells(cell.extra));
        for (part, figure) in PARTS.iter().take(if several_rounds { PARTS.len() } else { 1 }) {
            let mut cells = labels.clone();
            if several_rounds {
                cells.push((*part).to_string());
            }
            // Of the medians; beside the least and the most it would be of other rounds.
            cells.push(std::mem::take(&mut iops));
            cells.extend(
                spreads
                    .iter()
                    .map(|spread| spread.map_or_else(|| "-".into(), |spread| change(figure(spread)))),
            );
            table.row(cells);
            // Said once; below it only what differs.
            labels.iter_mut().for_each(String::clear);
        }
    }
    table
}

/// The figures whose change is shown. MiB/s change as IOPS do, and what the worst operation of all took says nothing.
const METRICS: [(&str, Metric); 7] = [
    ("IOPS", Metric::Iops),
    ("mean", Metric::Mean),
    ("p50", Metric::P50),
    ("p95", Metric::P95),
    ("p99", Metric::P99),
    ("p99.9", Metric::P999),
    ("CPU", Metric::Cpu),
];

type Part = fn(Spread) -> f64;

/// What is shown of several rounds, one line each.
const PARTS: [(&str, Part); 3] =
    [("median", |spread| spread.median), ("min", |spread| spread.min), ("max", |spread| spread.max)];

impl Comparison<'_> {
    /// IOPS of both sides, the medians of the rounds: `621k → 514k`.
    fn iops(&self) -> String {
        let median = |side: &dyn Fn(&(&Run, &Run)) -> f64| {
            Spread::of(self.pairs.iter().map(side)).map_or_else(|| "-".into(), |iops| rate(iops.median))
        };
        format!("{} → {}", median(&|pair| pair.1.iops), median(&|pair| pair.0.iops))
    }

    fn spread(&self, metric: Metric) -> Option<Spread> {
        let comparable = |subject: &Run, base: &Run| {
            // The latency of a batch says nothing beside that of one read.
            !metric.is_latency() || subject.is_of_batches() == base.is_of_batches()
        };
        let pairs = self.pairs.iter().filter(|(subject, base)| comparable(subject, base));
        Spread::of(pairs.filter_map(|(subject, base)| {
            let (subject, base) = (metric.of(subject)?, metric.of(base)?);
            (base > 0.0).then(|| (subject / base - 1.0) * 100.0)
        }))
    }
}

fn comparisons(runs: &[Run]) -> Vec<Comparison<'_>> {
    let mut found = Vec::new();
    for cell in cells(runs) {
        let mut add = |name: String, subject: &dyn Fn(&Run) -> bool, base: &dyn Fn(&Run) -> bool| {
            let pairs = pairs(runs, |run| Cell::of(run) == cell && subject(run), base);
            if !pairs.is_empty() {
                found.push(Comparison { name, cell, pairs });
            }
        };
        let same = |run: &Run| Cell::of(run) == cell && run.role == Role::Measure;
        if cell.batch.is_some() {
            compare_batches(runs, cell, &mut add);
            continue;
        }
        let ringfile =
            |buffers| move |run: &Run| is(run, Engine::Ringfile, buffers) && run.role == Role::Measure;
        add("fixed/normal".into(), &ringfile(Buffers::Fixed), &|run| {
            same(run) && ringfile(Buffers::Normal)(run)
        });
        compare_routes(runs, cell, &mut add);
        for engine in [Engine::Fio, Engine::FioBatch, Engine::FioPsync, Engine::Pread] {
            for buffers in [Buffers::Normal, Buffers::Fixed] {
                let name = format!("{}/{}", values::name(&buffers), values::name(&engine));
                // Engines that do one thing at a time are measured once for all depths and kinds of buffers.
                add(name, &ringfile(buffers), &|run| {
                    let there = if engine.one_at_a_time() {
                        run.engine == engine
                            && Cell { iodepth: cell.iodepth, ..Cell::of(run) } == cell.of_others()
                    } else {
                        is(run, engine, buffers) && Cell::of(run) == cell.of_others()
                    };
                    there && run.role == Role::Measure
                });
            }
        }
        compare_noise(runs, cell, &mut add);
    }
    found
}

/// The first of ringfile's runs with the same once more.
fn compare_noise(runs: &[Run], cell: Cell, add: &mut Add<'_>) {
    let again = |run: &Run| {
        let same = |again: &&Run| again.role == Role::Aa && Cell::of(again) == cell;
        runs.iter().filter(same).any(|again| (again.engine, again.buffers) == (run.engine, run.buffers))
    };
    add("A/A".into(), &|run| run.role == Role::Aa, &|run| {
        Cell::of(run) == cell && run.role == Role::Measure && again(run)
    });
}

/// Each of ringfile's forms over each of the others, which have plain buffers.
fn compare_batches(runs: &[Run], cell: Cell, add: &mut Add<'_>) {
    let others = [Engine::Fio, Engine::TwoRings, Engine::SubmitOnly, Engine::Pread];
    for ours in [Engine::RingfileBlocking, Engine::RingfileTokio, Engine::RingfileQueue, Engine::Ringfile] {
        let measured = |buffers| move |run: &Run| is(run, ours, buffers) && run.role == Role::Measure;
        add(format!("{} fixed/normal", values::name(&ours)), &measured(Buffers::Fixed), &|run| {
            Cell::of(run) == cell && measured(Buffers::Normal)(run)
        });
        for buffers in [Buffers::Normal, Buffers::Fixed] {
            let with = if buffers == Buffers::Fixed { " fixed" } else { "" };
            for other in others {
                let name = format!("{}{with}/{}", values::name(&ours), values::name(&other));
                add(name, &measured(buffers), &|run| {
                    let there = Cell { iodepth: cell.iodepth, ..Cell::of(run) } == cell.of_others();
                    run.engine == other && there && run.role == Role::Measure
                });
            }
        }
    }
    compare_noise(runs, cell, add);
}

type Add<'a> = dyn FnMut(String, &dyn Fn(&Run) -> bool, &dyn Fn(&Run) -> bool) + 'a;

/// Each route and executor over the first one that was asked for, with the same buffers.
fn compare_routes(runs: &[Run], cell: Cell, add: &mut Add<'_>) {
    let ringfile = |run: &&Run| run.engine == Engine::Ringfile && run.role == Role::Measure;
    let Some(first) = runs.iter().find(ringfile) else { return };
    let base = Cell { extra: Extra { cache: cell.extra.cache, ..Extra::of(first) }, ..cell };
    if base == cell {
        return;
    }
    let name = format!("{}/{}", way(cell.extra), way(base.extra));
    let buffers = first.buffers;
    add(name, &|run| is(run, Engine::Ringfile, buffers) && run.role == Role::Measure, &|run| {
        Cell::of(run) == base && is(run, Engine::Ringfile, buffers) && run.role == Role::Measure
    });
}

fn way(extra: Extra) -> String {
    let route = extra.route.as_ref().map(values::name::<Route>).unwrap_or_default();
    match extra.executor {
        Some(Executor::Tokio) => format!("{route} in tokio"),
        _ => route,
    }
}

fn is(run: &Run, engine: Engine, buffers: Buffers) -> bool {
    run.engine == engine && run.buffers == buffers
}

/// The cells that ringfile was measured in, in their order.
fn cells(runs: &[Run]) -> Vec<Cell> {
    let mut cells: Vec<Cell> = Vec::new();
    for cell in runs.iter().filter(|run| run.engine.is_ours()).map(Cell::of) {
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    cells
}

fn pairs(runs: &[Run], subject: impl Fn(&Run) -> bool, base: impl Fn(&Run) -> bool) -> Vec<(&Run, &Run)> {
    let subjects = runs.iter().filter(|run| subject(run));
    subjects
        .filter_map(|subject| {
            runs.iter().find(|run| run.round == subject.round && base(run)).map(|base| (subject, base))
        })
        .filter(|(subject, base)| cold::are_comparable(subject, base))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cache;

    fn run(engine: Engine, round: u32, role: Role, iodepth: usize, buffers: Buffers, iops: f64) -> Run {
        Run {
            engine,
            round,
            role,
            numjobs: 1,
            iodepth,
            batch: None,
            inflight: None,
            rw: Rw::RandRead,
            buffers,
            processes: None,
            parts: None,
            side: None,
            memory: None,
            pool: None,
            direct: false,
            cache: Cache::Warm,
            route: (engine == Engine::Ringfile).then_some(Route::Auto),
            ring_flags: None,
            executor: (engine == Engine::Ringfile).then_some(Executor::Ringfile),
            block_size_bytes: 4096,
            ops: 1,
            errors: 0,
            duration_s: 1.0,
            iops,
            bw_bytes: iops * 4096.0,
            latency_ns: None,
            cpu_us_per_io: None,
            user_us_per_io: None,
            system_us_per_io: None,
            user_percent: None,
            system_percent: None,
            context_switches: None,
            system_calls: None,
            whole_machine: None,
            cycles: None,
            instructions: None,
            enters: None,
            fixed_ops: None,
            refused: None,
            route_ops: None,
            cached_before: None,
            cached_after: None,
            enter_sizes: None,
            access: None,
            io_size_bytes: None,
            cache_hits: None,
        }
    }

    fn iops_change(runs: &[Run], name: &str, iodepth: usize) -> Option<Spread> {
        comparisons(runs)
            .into_iter()
            .find(|comparison| comparison.name == name && comparison.cell.iodepth == iodepth)
            .and_then(|comparison| comparison.spread(Metric::Iops))
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
        assert_eq!(text.lines().count(), 2 + 2 * 3);
        assert!(text.contains(" 150 → 185|") && text.contains(" 150 → 152|"), "medians, said once: {text}");
        assert_eq!(text.matches(" → ").count(), 1 + 2, "{text}");
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
        ring.route = Some(Route::Ring);
        let mut tokio = run(Ringfile, 1, Measure, 1, Normal, 50.0);
        tokio.executor = Some(Executor::Tokio);
        let runs = [
            run(Ringfile, 1, Measure, 1, Normal, 100.0),
            ring,
            tokio,
            run(Pread, 1, Measure, 1, Normal, 200.0),
        ];
        assert_eq!(iops_change(&runs, "ring/auto", 1).map(|spread| spread.median), Some(50.0));
        assert_eq!(iops_change(&runs, "auto in tokio/auto", 1).map(|spread| spread.median), Some(-50.0));
        let against = comparisons(&runs);
        let against: Vec<_> = against.iter().filter(|comparison| comparison.name == "normal/pread").collect();
        let changes: Vec<_> = against
            .iter()
            .filter_map(|comparison| comparison.spread(Metric::Iops).map(|spread| spread.median))
            .collect();
        assert_eq!(changes, [-50.0, -25.0, -75.0]);
        let title = table(&runs).to_string();
        assert!(title.starts_with("|change in %") && title.contains("|route") && title.contains("|executor"));
    }

    #[test]
    fn batches_are_compared_with_every_other_form() {
        use {Buffers::*, Engine::*, Role::*};
        let batch = |engine, role, iodepth, iops| Run {
            batch: Some(64),
            inflight: Some(4),
            executor: None,
            route: engine_route(engine),
            ..run(engine, 1, role, iodepth, Normal, iops)
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
        assert_eq!(found[0].spread(Metric::P99), None, "of a batch and of one read");
        assert!(table(&runs).to_string().contains("|4×64"));
        assert_eq!(comparisons(&runs).len(), 3);
    }

    fn engine_route(engine: Engine) -> Option<Route> {
        engine.is_ours().then_some(Route::Auto)
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
