//! Compares two sessions cell by cell: which figures differ by more than each session varies in itself.
//!
//! Pure functions of results. Runs of different sessions are not paired, so this compares medians, and the ranges of
//! the rounds and A/A runs. A difference is claimed only if both sides have three rounds or more, and the ranges lie
//! apart by more than the A/A noise of both sessions and than the variation of each from round to round.

use clap::ValueEnum;

use super::facts::{self, Fact};
use super::load::Saved;
use crate::error::{Failure, refuse};
use crate::html::drawing;
use crate::model::{
    Factor, Group, Kind, Metric, Results, Role, Run, Setup, Spread, Way, columns, groups, telling, words,
};
use crate::report::judge::{self, LEAST_ROUNDS, Noise};

/// Factors in which two sessions may differ throughout and still be compared: the sessions may have been made to
/// compare them.
const MAY_DIFFER: [Factor; 5] = [Factor::Open, Factor::Cache, Factor::Route, Factor::RingFlags, Factor::Jobs];

/// One session beside another.
#[derive(Debug)]
pub struct SessionComparison<'a> {
    /// The session that others are compared with.
    pub first: &'a Saved,
    /// The session that is compared with it.
    pub other: &'a Saved,
    /// Differences of machine and parameters.
    pub facts: Vec<Fact>,
    /// Figures that differ outside the spread, the largest change first.
    pub outside: Vec<Difference>,
    /// The other figures, in the same order.
    pub inside: Vec<Difference>,
    /// How many cells only the first session has, and how many only the other has.
    pub alone: [usize; 2],
}

/// One figure in one cell of both sessions.
#[derive(Debug, Clone)]
pub struct Difference {
    /// The cell, in words.
    pub cell: String,
    /// The figure.
    pub metric: Metric,
    /// Median and range of the first session.
    pub first: Spread,
    /// Median and range of the other session.
    pub other: Spread,
    /// The number of rounds of the session that has fewer.
    pub rounds: usize,
    /// How far a ratio must be from 1, as a fraction.
    pub noise: f64,
}

impl Difference {
    /// Returns the other's median over the first's, with the least and the most ratio of their rounds.
    pub fn ratio(&self) -> Spread {
        let (first, other) = (self.first, self.other);
        Spread { median: other.median / first.median, min: other.min / first.max, max: other.max / first.min }
    }

    /// Returns whether the change is larger than the variation within the sessions.
    pub fn outside(&self) -> bool {
        judge::are_apart(self.first, self.other, self.rounds, self.noise)
    }

    /// Returns the size of the change, the same for doubling and halving.
    fn size(&self) -> f64 {
        self.ratio().median.ln().abs()
    }
}

impl<'a> SessionComparison<'a> {
    /// Compares two sessions of the same command that have cells in common.
    pub fn of(first: &'a Saved, other: &'a Saved) -> Result<SessionComparison<'a>, Failure> {
        let (one, two) = (&first.results, &other.results);
        // Old files do not record their kind.
        if let Some((one, two)) = one.kind.zip(two.kind)
            && one != two
        {
            let (one, two, other) = (one.command(), two.command(), other.path.display());
            let why = format!("is of {one} and {other} of {two}: compare results of the same command");
            return refuse(&first.path, why);
        }
        let (ours, theirs) = (groups(&one.runs), groups(&two.runs));
        let names = Names::of(one, two, &ours, &theirs);
        let alone = [(&ours, &theirs), (&theirs, &ours)].map(|(groups, others)| {
            groups.iter().filter(|group| names.find(others, group[0]).is_none()).count()
        });
        let both: Vec<(&Run, &Run)> =
            ours.iter().filter_map(|group| Some((group[0], names.find(&theirs, group[0])?))).collect();
        let mut differences = differences(one, two, &both, &names);
        if differences.is_empty() {
            let other = other.path.display();
            let why = format!("and {other} have no cell in common: measure both with the same options");
            return refuse(&first.path, why);
        }
        differences.sort_by(|one, other| other.size().total_cmp(&one.size()));
        let (outside, inside) = differences.into_iter().partition(Difference::outside);
        Ok(SessionComparison { first, other, facts: facts::differing(one, two), outside, inside, alone })
    }

    /// Returns why no difference can be claimed, however large, if that is so.
    pub fn blind(&self) -> Option<&'static str> {
        let few = |difference: &Difference| difference.rounds < LEAST_ROUNDS;
        let unknown = |difference: &Difference| !difference.noise.is_finite();
        if !self.outside.is_empty() {
            None
        } else if self.inside.iter().all(few) {
            Some("fewer than 3 rounds show no spread: measure both with --rounds 3 or more")
        } else if self.inside.iter().all(unknown) {
            Some("a session without A/A runs has unknown noise")
        } else {
            None
        }
    }
}

/// Finds the cells of one session in another, and names them.
struct Names {
    /// The factors in which the two sessions differ throughout.
    loose: Vec<Factor>,
    /// The factors that tell cells apart.
    named: Vec<Factor>,
    /// In a grid of buffers: the way that most cells have, which goes unnamed.
    usual: Option<Way>,
}

impl Names {
    fn of(one: &Results, two: &Results, ours: &[Group<'_>], theirs: &[Group<'_>]) -> Names {
        let loose: Vec<Factor> =
            MAY_DIFFER.into_iter().filter(|&factor| is_another(factor, &one.runs, &two.runs)).collect();
        let all: Vec<&Run> = ours.iter().chain(theirs).map(|group| group[0]).collect();
        let named = telling(&all).into_iter().filter(|factor| !loose.contains(factor)).collect();
        let usual = (one.kind == Some(Kind::Buffers)).then(|| drawing::usual_way(&all)).flatten();
        Names { loose, named, usual }
    }

    /// Returns what must be the same in both sessions.
    fn place(&self, run: &Run) -> Vec<Option<String>> {
        Factor::value_variants()
            .iter()
            .filter(|factor| !self.loose.contains(factor))
            .map(|factor| factor.cell(&run.setup))
            .collect()
    }

    fn find<'a>(&self, groups: &[Group<'a>], run: &Run) -> Option<&'a Run> {
        let place = self.place(run);
        groups.iter().find(|group| self.place(group[0]) == place).map(|group| group[0])
    }

    fn words(&self, run: &Run) -> String {
        let plain = self.usual == Some(run.setup.way());
        let of_way = [Factor::Open, Factor::Cache, Factor::Route];
        let factors: Vec<Factor> =
            self.named.iter().copied().filter(|factor| !(plain && of_way.contains(factor))).collect();
        let words = words(&factors, &run.setup).replace(" blocks", "");
        if words.is_empty() { "all runs".into() } else { words }
    }
}

/// Returns all figures of all cells that both sessions have.
fn differences(one: &Results, two: &Results, both: &[(&Run, &Run)], names: &Names) -> Vec<Difference> {
    let mut differences = Vec::new();
    for metric in columns::COMPARED {
        let noise = (Noise::of(&one.runs, metric), Noise::of(&two.runs, metric));
        let wandered = wandered(one, metric).max(wandered(two, metric)).exp_m1();
        for &(own, their) in both {
            let reaches = reach(&one.runs, &own.setup, metric).zip(reach(&two.runs, &their.setup, metric));
            let Some(((first, rounds), (other, others))) = reaches else { continue };
            let rounds = rounds.min(others);
            let noise = noise.0.in_cell(&own.setup, rounds).max(noise.1.in_cell(&their.setup, rounds));
            let noise = noise.max(wandered);
            differences.push(Difference { cell: names.words(own), metric, first, other, rounds, noise });
        }
    }
    differences
}

/// Returns how far a figure wandered over the rounds of a session, as a logarithm: nine of ten cells stayed within this
/// distance of their median. A/A runs follow each other at once, but sessions are at least as far apart as rounds, and
/// a shared disk changes meanwhile: two sessions of the same grid had cells 1.33 times apart in every round.
fn wandered(session: &Results, metric: Metric) -> f64 {
    let of_cell = |cell: Group<'_>| {
        let figures = cell.iter().filter_map(|run| metric.of(run));
        let spread = Spread::of(figures.filter(|figure| figure.is_finite() && *figure > 0.0))?;
        Some((spread.max / spread.median).max(spread.median / spread.min).ln())
    };
    let mut all: Vec<f64> = groups(&session.runs).into_iter().filter_map(of_cell).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() * 9 / 10).copied().unwrap_or(0.0)
}

/// Returns whether all runs of one session have one value of a factor, and all runs of the other have another.
fn is_another(factor: Factor, first: &[Run], other: &[Run]) -> bool {
    let only = |runs: &[Run]| {
        let mut values = runs.iter().filter_map(|run| factor.cell(&run.setup));
        let value = values.next()?;
        values.all(|other| other == value).then_some(value)
    };
    matches!((only(first), only(other)), (Some(first), Some(other)) if first != other)
}

/// Returns the median of a cell's rounds, the range of these and its A/A runs, and how many rounds there are.
fn reach(runs: &[Run], cell: &Setup, metric: Metric) -> Option<(Spread, usize)> {
    let positive = |figure: &f64| figure.is_finite() && *figure > 0.0;
    let of_cell = || runs.iter().filter(|run| run.setup == *cell);
    let measured: Vec<f64> = of_cell()
        .filter(|run| run.role == Role::Measure)
        .filter_map(|run| metric.of(run))
        .filter(positive)
        .collect();
    let all = Spread::of(of_cell().filter_map(|run| metric.of(run)).filter(positive))?;
    let rounds = measured.len();
    let median = Spread::of(measured)?.median;
    Some((Spread { median, ..all }, rounds))
}
