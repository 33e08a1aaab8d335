//! What advice asks about the measured runs: runs of one kind, medians, and comparisons against the noise of their
//! cells.

use crate::model::advice::{Over, Sure};
use crate::model::{Buffers, Engine, Metric, Open, Results, Role, Route, Run, Rw, Setup, Spread, Way};
use std::collections::HashMap;

use crate::report::judge::{self, COMPARED_FOR_ADVICE, Noise, Verdict};

use crate::values::name;

/// The beginning of advice if the measurement shows no difference.
pub const NO_DIFFERENCE: &str = "no difference beyond the noise: ";

/// CPU time decides only if the IOPS of the cheaper side are at least this fraction of the other's.
const NO_LESS: f64 = 0.9;

/// Runs of some kind in all rounds.
pub type Runs<'a> = Vec<&'a Run>;

/// All runs of ringfile in one session.
#[derive(Debug)]
pub struct Measured<'a> {
    runs: Runs<'a>,
    iops: Noise,
    cpu: Noise,
    /// How far rounds of the same setup differ in IOPS, as logarithms.
    between: Vec<f64>,
}

/// The better of two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Winner {
    /// The first.
    Subject,
    /// The second.
    Base,
    /// Undecided: the difference is inside the noise.
    Neither,
}

/// The result of comparing two sides in IOPS and CPU time.
#[derive(Debug, Clone, Copy)]
pub struct Contest {
    /// Subject over base.
    pub iops: Verdict,
    /// The same for the CPU time of one I/O.
    pub cpu: Option<Verdict>,
    /// Which is better.
    pub better: Winner,
    /// How sure that is.
    pub sure: Sure,
    /// Whether CPU time decided.
    pub by_cpu: bool,
}

impl Contest {
    /// IOPS decide; if they are within the noise, CPU time does. With too few rounds to judge, the medians decide in
    /// the same way, and the result is never sure.
    pub fn of(iops: Verdict, cpu: Option<Verdict>) -> Contest {
        let judged = iops.is_judged();
        let differs = |verdict: Verdict| if judged { verdict.outside } else { verdict.leans() };
        let (ratio, cheaper) =
            (iops.ratio.median, cpu.filter(|&cpu| differs(cpu)).map(|cpu| cpu.ratio.median < 1.0));
        let (better, by_cpu) = match cheaper {
            _ if differs(iops) => (if ratio > 1.0 { Winner::Subject } else { Winner::Base }, false),
            Some(true) if ratio >= NO_LESS => (Winner::Subject, true),
            Some(false) if ratio <= 1.0 / NO_LESS => (Winner::Base, true),
            _ => (Winner::Neither, false),
        };
        let sure = match better {
            _ if !judged => Sure::NotCompared,
            Winner::Neither => Sure::InsideNoise,
            _ => Sure::OutsideNoise,
        };
        Contest { iops, cpu, better, sure, by_cpu }
    }

    /// Returns the beginning of a sentence if neither side is better, `no difference beyond …: `; empty if one is, or
    /// if that is unknown.
    pub fn no_difference(&self) -> &'static str {
        match (self.sure, self.cpu.is_some_and(|cpu| cpu.outside)) {
            (Sure::InsideNoise, false) => NO_DIFFERENCE,
            (Sure::InsideNoise, true) => "undecided, because IOPS may be worse where CPU time is better: ",
            _ => "",
        }
    }

    /// Returns the result with the sides exchanged.
    pub fn turned(self) -> Contest {
        let better = match self.better {
            Winner::Subject => Winner::Base,
            Winner::Base => Winner::Subject,
            Winner::Neither => Winner::Neither,
        };
        Contest { iops: self.iops.turned(), cpu: self.cpu.map(Verdict::turned), better, ..self }
    }

    /// Returns what decided, for a table.
    pub fn over(&self, instead_of: impl Into<String>) -> Over {
        match self.cpu {
            Some(cpu) if self.by_cpu => cpu.over(instead_of, "CPU time"),
            _ => self.iops.over(instead_of, "IOPS"),
        }
    }

    /// Returns the figures: `1.02 [0.99..1.05] times the IOPS of normal (inside the noise of 4.0 %), 0.90 times its CPU
    /// time`.
    pub fn figures(&self, of_what: &str) -> String {
        let iops = self.iops.times(&format!("the IOPS of {of_what}"));
        match self.cpu {
            Some(cpu) if self.by_cpu => {
                format!("{iops}, {}: chosen for this", cpu.times("its CPU time for one I/O"))
            }
            Some(cpu) => format!("{iops}, {}", cpu.about_times("its CPU time")),
            None => iops,
        }
    }

    /// Returns the figures in few words: `0.70 times the IOPS of normal, 1.43 times its CPU time`.
    pub fn short(&self, of_what: &str) -> String {
        let cpu = self.cpu.map(|cpu| format!(", {}", cpu.about_times("its CPU time"))).unwrap_or_default();
        format!("{}{cpu}", self.iops.about_times(&format!("the IOPS of {of_what}")))
    }
}

impl<'a> Measured<'a> {
    /// Returns the runs of a session.
    pub fn of(results: &'a Results) -> Measured<'a> {
        // Advice is for the library's own ring flags, or for the first that were measured.
        let flags = results.params.ring_flags.first().copied();
        let ours = |run: &&Run| {
            run.setup.engine == Engine::Ringfile
                && !run.setup.adaptive
                && run.setup.ring_flags == flags
                && run.role == Role::Measure
                && run.iops.is_finite()
                && run.iops > 0.0
        };
        let runs: Runs<'a> = results.runs.iter().filter(ours).collect();
        let noise = |metric| Noise::of(&results.runs, metric).for_comparisons(COMPARED_FOR_ADVICE);
        Measured { between: between(&runs), runs, iops: noise(Metric::Iops), cpu: noise(Metric::Cpu) }
    }

    /// Returns the runs for which this holds.
    pub fn runs(&self, is_so: impl Fn(&Run) -> bool) -> Runs<'a> {
        self.runs.iter().copied().filter(|run| is_so(run)).collect()
    }

    /// Returns the access that advice is about: random reads; else sequential ones; else that of the first run.
    pub fn access(&self) -> Option<Rw> {
        let has = |rw: Rw| self.runs.iter().any(|run| run.setup.rw == rw).then_some(rw);
        has(Rw::RandRead).or_else(|| has(Rw::Read)).or_else(|| self.runs.first().map(|run| run.setup.rw))
    }

    /// Returns the runs that other choices are compared in: the smallest block, the fewest threads, and whole, plain
    /// buffers if there are any.
    pub fn plainest(&self, runs: &[&'a Run]) -> Runs<'a> {
        let Some(threads) = runs.iter().map(|run| run.setup.numjobs).min() else { return Vec::new() };
        let fewest = runs.iter().filter(|run| run.setup.numjobs == threads);
        let block = fewest.clone().map(|run| run.setup.block).min();
        let smallest: Runs<'a> = fewest.copied().filter(|run| Some(run.setup.block) == block).collect();
        of_kind(&smallest, Buffers::Normal)
    }

    /// Compares two sides that were measured in turn.
    pub fn contest(&self, subject: &[&Run], base: &[&Run]) -> Option<Contest> {
        let cpu = self.compare(subject, base, Metric::Cpu);
        Some(Contest::of(self.compare(subject, base, Metric::Iops)?, cpu))
    }

    fn compare(&self, subject: &[&Run], base: &[&Run], metric: Metric) -> Option<Verdict> {
        let pairs = judge::pairs(subject, base, metric);
        let noise = self.noise(metric);
        let floors = [subject.first()?, base.first()?].map(|run| noise.in_cell(&run.setup, pairs.len()));
        judge::compare(&pairs, floors[0].max(floors[1]))
    }

    /// Compares two sides of different cells, which were not measured in turn, so that the machine may have changed in
    /// between. The noise is then at least as large as the differences between rounds of one setup, in this session and
    /// on these two sides.
    pub fn compare_apart(&self, subject: &[&Run], base: &[&Run], metric: Metric) -> Option<Verdict> {
        let together = self.compare(subject, base, metric)?;
        let own = [apart(subject, metric), apart(base, metric)].concat();
        let spreads = [&own, &self.between].into_iter().filter(|apart| !apart.is_empty());
        let noise = spreads.map(|apart| self.noise(metric).of_spread(apart, together.rounds));
        judge::compare(&judge::pairs(subject, base, metric), noise.fold(together.noise, f64::max))
    }

    /// Returns how far a run usually is from its repetition, as a fraction; `None` without A/A.
    pub fn usual_noise(&self) -> Option<f64> {
        self.iops.usual()
    }

    /// Returns the noise of a figure.
    pub fn noise(&self, metric: Metric) -> &Noise {
        if metric == Metric::Cpu { &self.cpu } else { &self.iops }
    }
}

/// Returns how far rounds of the same setup differ in IOPS, over all kinds and cells.
fn between(runs: &[&Run]) -> Vec<f64> {
    let mut kinds: HashMap<Setup, Runs<'_>> = HashMap::new();
    for &run in runs {
        kinds.entry(run.setup).or_default().push(run);
    }
    kinds.values().flat_map(|rounds| apart(rounds, Metric::Iops)).collect()
}

/// Returns how far rounds of one kind are from each other, as logarithms: √2 times as far as from their median. One
/// round, which defines the median, is left out.
fn apart(runs: &[&Run], metric: Metric) -> Vec<f64> {
    let figures = runs.iter().filter_map(|run| metric.of(run));
    let figures: Vec<f64> =
        figures.filter(|figure| figure.is_finite() && *figure > 0.0).map(f64::ln).collect();
    let Some(Spread { median, .. }) = Spread::of(figures.iter().copied()) else { return Vec::new() };
    let mut apart: Vec<f64> =
        figures.iter().map(|figure| (figure - median).abs() * std::f64::consts::SQRT_2).collect();
    apart.sort_by(f64::total_cmp);
    apart.split_off(1)
}

/// Returns the runs with these buffers; if there are none, those with whole ones, or else with those of the first run.
pub fn of_kind<'a>(runs: &[&'a Run], buffers: Buffers) -> Runs<'a> {
    let kinds = [buffers, Buffers::Normal, Buffers::Fixed];
    let first = runs.first().map(|run| run.setup.buffers);
    let mut kinds = kinds.into_iter().chain(first);
    let kind = kinds.find(|&kind| runs.iter().any(|run| run.setup.buffers == kind));
    runs.iter().copied().filter(|run| Some(run.setup.buffers) == kind).collect()
}

/// Returns the different values of a property in some runs, smallest first.
pub fn values<T: Ord>(runs: &[&Run], of: impl Fn(&Run) -> T) -> Vec<T> {
    let mut values: Vec<T> = runs.iter().map(|run| of(run)).collect();
    values.sort();
    values.dedup();
    values
}

/// Returns the runs on a route.
pub fn of_route<'a>(runs: &[&'a Run], route: Route) -> Runs<'a> {
    runs.iter().copied().filter(|run| run.setup.route == Some(route)).collect()
}

/// Returns the runs at a depth.
pub fn at_depth<'a>(runs: &[&'a Run], depth: usize) -> Runs<'a> {
    runs.iter().copied().filter(|run| run.setup.iodepth == depth).collect()
}

/// Returns the median over the rounds; `None` if nothing was measured.
pub fn median(runs: &[&Run], metric: Metric) -> Option<f64> {
    let figures = runs.iter().filter_map(|run| metric.of(run)).filter(|figure| figure.is_finite());
    Spread::of(figures).map(|spread| spread.median)
}

/// Returns the way with the most IOPS, and its IOPS.
pub fn best(runs: &[&Run]) -> Option<(Way, f64)> {
    let of_way = |run: &&Run| {
        let same: Runs<'_> =
            runs.iter().copied().filter(|other| other.setup.way() == run.setup.way()).collect();
        Some((run.setup.way(), median(&same, Metric::Iops)?))
    };
    runs.iter().filter_map(of_way).max_by(|(_, one), (_, other)| one.total_cmp(other))
}

/// Returns how runs were measured, if not on the advised way: `, measured with direct I/O on route ring`.
pub fn elsewhere(runs: &[&Run], direct: bool, route: Route) -> String {
    let Some(way) = runs.first().map(|run| run.setup.way()) else { return String::new() };
    let side = if way.open == Open::Direct { " with direct I/O" } else { " through the page cache" };
    let on_route = || format!(" on route {}", name(&way.route.unwrap_or(Route::Auto)));
    match ((way.open == Open::Direct) == direct, way.route == Some(route) || route == Route::Auto) {
        (true, true) => String::new(),
        (true, false) => format!(", measured{}", on_route()),
        (false, true) => format!(", measured{side}"),
        (false, false) => format!(", measured{side}{}", on_route()),
    }
}
