//! What was measured, as the questions ask for it: runs of one kind, medians, and comparisons with the noise of their
//! cells.

use crate::cli::{Buffers, Cache, Route, Rw};
use crate::engine::Engine;
use crate::report::judge::{self, Noise, Verdict};
use crate::report::results::{Results, Role, Run};
use crate::report::statistics::{Metric, Spread};

use super::Sure;

/// Without rounds that show a spread, a ratio as large as that says which way it leans.
const LEANS: f64 = 1.5;

/// Where CPU time decides, IOPS may be less by no more than this.
const NO_LESS: f64 = 0.95;

/// Runs of some kind, of all rounds.
pub type Runs<'a> = Vec<&'a Run>;

/// All that ringfile measured in one session.
#[derive(Debug)]
pub struct Measured<'a> {
    runs: Runs<'a>,
    iops: Noise,
    cpu: Noise,
}

/// Which of two sides is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// The first.
    Subject,
    /// The second.
    Base,
    /// That can't be told.
    Neither,
}

/// What came of comparing two sides in IOPS and CPU time.
#[derive(Debug, Clone, Copy)]
pub struct Contest {
    /// Subject over base.
    pub iops: Verdict,
    /// The same of the CPU time for one I/O.
    pub cpu: Option<Verdict>,
    /// Which is better.
    pub better: Better,
    /// How sure that is.
    pub sure: Sure,
    /// Whether CPU time decided.
    pub by_cpu: bool,
}

impl Contest {
    /// IOPS decide; where they can't be told apart, CPU time does.
    pub fn of(iops: Verdict, cpu: Option<Verdict>) -> Contest {
        let contest = |better, sure, by_cpu| Contest { iops, cpu, better, sure, by_cpu };
        let ratio = iops.ratio.median;
        let cheaper = cpu.is_some_and(|cpu| cpu.less()) && ratio >= NO_LESS;
        let dearer = cpu.is_some_and(|cpu| cpu.more()) && ratio <= 1.0 / NO_LESS;
        if iops.outside {
            contest(if iops.more() { Better::Subject } else { Better::Base }, Sure::OutsideNoise, false)
        } else if cheaper || dearer {
            contest(if cheaper { Better::Subject } else { Better::Base }, Sure::OutsideNoise, true)
        } else if iops.is_judged() {
            contest(Better::Neither, Sure::InsideNoise, false)
        } else if ratio >= LEANS {
            contest(Better::Subject, Sure::NotCompared, false)
        } else if ratio <= 1.0 / LEANS {
            contest(Better::Base, Sure::NotCompared, false)
        } else {
            contest(Better::Neither, Sure::NotCompared, false)
        }
    }

    /// The figures: `IOPS 1.21 [1.15..1.30], outside the noise of 4.0 %; CPU for one I/O …`.
    pub fn figures(&self, of_what: &str) -> String {
        let cpu = self.cpu.map(|cpu| format!("; CPU for one I/O {cpu}")).unwrap_or_default();
        let decides = if self.by_cpu { ", which decides" } else { "" };
        format!("IOPS {} of {of_what}{cpu}{decides}", comma_last(self.iops))
    }
}

/// `1.21 [1.15..1.30] (outside the noise of 4.0 %)`, to stand within a sentence.
fn comma_last(verdict: Verdict) -> String {
    let text = verdict.to_string();
    match text.split_once(", ") {
        Some((ratio, judgement)) => format!("{ratio} ({judgement})"),
        None => text,
    }
}

impl<'a> Measured<'a> {
    /// Of a session.
    pub fn of(results: &'a Results) -> Measured<'a> {
        let ours = |run: &&Run| {
            run.engine == Engine::Ringfile
                && run.role == Role::Measure
                && run.iops.is_finite()
                && run.iops > 0.0
        };
        Measured {
            runs: results.runs.iter().filter(ours).collect(),
            iops: Noise::of(&results.runs, Metric::Iops),
            cpu: Noise::of(&results.runs, Metric::Cpu),
        }
    }

    /// The runs that are so.
    pub fn runs(&self, is_so: impl Fn(&Run) -> bool) -> Runs<'a> {
        self.runs.iter().copied().filter(|run| is_so(run)).collect()
    }

    /// The access that advice is about: random reads, or what comes first where there are none.
    pub fn access(&self) -> Option<Rw> {
        let has = |rw: Rw| self.runs.iter().any(|run| run.rw == rw).then_some(rw);
        has(Rw::RandRead).or_else(|| has(Rw::Read)).or_else(|| self.runs.first().map(|run| run.rw))
    }

    /// What the other choices were measured with: the smallest block and the fewest processes, whole and plain buffers if
    /// there are such.
    pub fn plainest(&self, runs: &[&'a Run]) -> Runs<'a> {
        let Some(processes) = runs.iter().map(|run| run.processes).min() else { return Vec::new() };
        let fewest = runs.iter().filter(|run| run.processes == processes);
        let block = fewest.clone().map(|run| run.block_size_bytes).min();
        let smallest: Runs<'a> = fewest.copied().filter(|run| Some(run.block_size_bytes) == block).collect();
        of_kind(&smallest, Buffers::Normal)
    }

    /// The contest of two sides that were measured in turn.
    pub fn contest(&self, subject: &[&Run], base: &[&Run]) -> Option<Contest> {
        let cpu = self.compare(subject, base, Metric::Cpu);
        Some(Contest::of(self.compare(subject, base, Metric::Iops)?, cpu))
    }

    fn compare(&self, subject: &[&Run], base: &[&Run], metric: Metric) -> Option<Verdict> {
        let pairs = judge::pairs(subject, base, metric);
        let noise = self.noise(metric);
        let floors = [subject.first()?, base.first()?].map(|run| noise.in_cell(&run.key(), pairs.len()));
        judge::compare(&pairs, floors[0].max(floors[1]))
    }

    /// Compares two sides of different cells, which were not measured in turn: the machine may have become another between
    /// them, so how far apart the rounds of each side are counts as noise too.
    pub fn compare_apart(&self, subject: &[&Run], base: &[&Run], metric: Metric) -> Option<Verdict> {
        let together = self.compare(subject, base, metric)?;
        let noise = together.noise.max(drift(subject, metric)).max(drift(base, metric));
        judge::compare(&judge::pairs(subject, base, metric), noise)
    }

    /// The noise of a figure.
    pub fn noise(&self, metric: Metric) -> &Noise {
        if metric == Metric::Cpu { &self.cpu } else { &self.iops }
    }
}

/// How far the rounds of one kind are from their median, as a fraction.
fn drift(runs: &[&Run], metric: Metric) -> f64 {
    let figures = runs.iter().filter_map(|run| metric.of(run)).filter(|&figure| figure > 0.0);
    let Some(spread) = Spread::of(figures) else { return f64::INFINITY };
    (spread.max / spread.median).max(spread.median / spread.min) - 1.0
}

/// The runs with such buffers; where there are none, those with whole ones, or with the kind that comes first.
pub fn of_kind<'a>(runs: &[&'a Run], buffers: Buffers) -> Runs<'a> {
    let kinds = [buffers, Buffers::Normal, Buffers::Fixed];
    let first = runs.first().map(|run| run.buffers);
    let mut kinds = kinds.into_iter().chain(first);
    let kind = kinds.find(|&kind| runs.iter().any(|run| run.buffers == kind));
    runs.iter().copied().filter(|run| Some(run.buffers) == kind).collect()
}

/// The values that a property has in some runs, from the least.
pub fn values<T: Ord>(runs: &[&Run], of: impl Fn(&Run) -> T) -> Vec<T> {
    let mut values: Vec<T> = runs.iter().map(|run| of(run)).collect();
    values.sort();
    values.dedup();
    values
}

/// The runs at a depth.
pub fn at_depth<'a>(runs: &[&'a Run], depth: usize) -> Runs<'a> {
    runs.iter().copied().filter(|run| run.iodepth == depth).collect()
}

/// The median over the rounds; `None` where nothing was measured.
pub fn median(runs: &[&Run], metric: Metric) -> Option<f64> {
    let figures = runs.iter().filter_map(|run| metric.of(run)).filter(|figure| figure.is_finite());
    Spread::of(figures).map(|spread| spread.median)
}

/// Which way operations go, and past what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// O_DIRECT.
    pub direct: bool,
    /// Page cache before the runs.
    pub cache: Cache,
    /// Route, as asked for.
    pub route: Route,
}

impl Way {
    /// That of a run.
    pub fn of(run: &Run) -> Way {
        Way { direct: run.direct, cache: run.cache, route: run.route.unwrap_or(Route::Auto) }
    }
}

/// The way with the most IOPS, and how many.
pub fn best(runs: &[&Run]) -> Option<(Way, f64)> {
    let of_way = |run: &&Run| {
        let same: Runs<'_> = runs.iter().copied().filter(|other| Way::of(other) == Way::of(run)).collect();
        Some((Way::of(run), median(&same, Metric::Iops)?))
    };
    runs.iter().filter_map(of_way).max_by(|(_, one), (_, other)| one.total_cmp(other))
}
