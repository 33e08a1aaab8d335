//! Decides whether a difference between two sides is beyond the noise, so that it may be claimed.
//!
//! Pure functions of figures. The measure of noise is A/A: how far a run is from the same run once more in the same
//! round. A difference is claimed where every round shows it: all ratios lie on one side of 1, and each is further from
//! 1 than the noise. With fewer than three rounds, or without A/A, nothing is claimed.
//!
//! The noise is the upper quartile of the A/A changes, times a factor for the number of rounds and of comparisons. A
//! quartile, since a fourth of the A/A changes may be outlying before it moves: with the largest, or with a standard
//! deviation, one stalled run of a session hid a factor of 3.5 that all rounds showed. Every round, since two of three
//! outlying runs are not that rare, and would move the median. A session compares hundreds of cells, so the factor is
//! such that all comparisons of a session together are wrong by chance about once in a hundred sessions.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use crate::model::{Metric, Role, Run, Rw, Setup, Spread};
use crate::numbers::per_cent;

/// A smaller difference is never claimed, however quiet the machine: no one would act on it, and effects that are not
/// random (the place in the round, the layout of memory) are about as large.
const LEAST: f64 = 0.02;

/// Without rounds that show a spread, or A/A runs, a ratio as large as this says which way it leans.
pub const ON_SIGHT: f64 = 1.2;

/// Where every round leans to one side and the median by this factor, it is taken to be so, however noisy the machine:
/// not sure, but more likely than not.
pub const BY_FAR: f64 = 2.0;

/// How often all comparisons of a session together may claim something that is chance.
const RISK: f64 = 0.004;

/// With fewer rounds there is no spread to speak of.
pub const LEAST_ROUNDS: usize = 3;

/// This many A/A ratios show how far such ratios go.
const ENOUGH: usize = 15;

/// The part of a distribution beyond its upper quartile.
const QUARTER: f64 = 0.25;

/// The upper quartile of a normal distribution's sizes, in standard deviations.
const NORMAL_QUARTILE: f64 = 1.15;

/// An A/A change counts as at most this many upper quartiles: a normal distribution goes that far once in 1800.
const OUTLYING: f64 = 3.0;

/// About as many comparisons of one kind with another over all cells as lead to one session's advice.
const COMPARED_AS_A_WHOLE: usize = 12;

/// About as many comparisons in one cell, or of one cell with another, as lead to one session's advice.
pub const COMPARED_FOR_ADVICE: usize = 24;

/// The result of comparing two sides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// Subject over base, paired within rounds.
    pub ratio: Spread,
    /// Rounds that have both.
    pub rounds: usize,
    /// How much more the subject must have in every round to be claimed, or have less by that factor, as a fraction;
    /// infinite where no A/A tells.
    pub noise: f64,
    /// Whether the difference may be claimed.
    pub outside: bool,
}

impl Verdict {
    /// Returns whether the subject has more by such a factor, so far as can be told: surely, or with too few rounds to
    /// judge on sight.
    fn gains(&self, factor: f64) -> bool {
        self.ratio.median > factor && (self.outside || !self.is_judged())
    }

    /// Returns whether the subject seems to have more by such a factor: surely, or with too much noise to be sure, in
    /// every round and [by far](BY_FAR).
    pub fn seems_more(&self, factor: f64) -> bool {
        let leans_so = self.ratio.min > 1.0 && self.ratio.median >= BY_FAR.max(factor);
        self.gains(factor) || (!self.outside && leans_so)
    }

    /// Returns whether the difference is large enough to lean to a side without knowing the noise.
    pub fn leans(&self) -> bool {
        self.ratio.median.ln().abs() >= ON_SIGHT.ln()
    }

    /// Base over subject.
    pub fn turned(self) -> Verdict {
        let Spread { median, min, max } = self.ratio;
        Verdict { ratio: Spread { median: median.recip(), min: max.recip(), max: min.recip() }, ..self }
    }

    /// In a sentence: `1.21 [1.15..1.30] times that (outside the noise of 4.0 %)`.
    pub fn times(&self, what: &str) -> String {
        format!("{} times {what} ({})", range(self.ratio), self.judgement())
    }

    /// In few words: `1.21 times that`, `0.98 times that (inside the noise)`.
    pub fn about_times(&self, what: &str) -> String {
        let ratio = range(Spread { min: self.ratio.median, max: self.ratio.median, ..self.ratio });
        let judgement = match (self.outside, self.is_judged()) {
            (true, _) => "",
            (false, true) => " (inside the noise)",
            (false, false) => " (not judged)",
        };
        format!("{ratio} times {what}{judgement}")
    }

    /// Returns whether there were rounds and A/A runs enough to judge.
    pub fn is_judged(&self) -> bool {
        self.rounds >= LEAST_ROUNDS && self.noise.is_finite()
    }

    /// In a table: `1.21 [1.15..1.30]*`, with the star where it is outside the noise.
    pub fn in_table(&self) -> String {
        format!("{}{}", range(self.ratio), if self.outside { "*" } else { " " })
    }

    /// Returns the judgement alone: `outside the noise of 4.0 %`.
    pub fn judgement(&self) -> String {
        match self.rounds {
            1 => "one round shows no spread".into(),
            rounds if rounds < LEAST_ROUNDS => format!("{rounds} rounds are too few to judge"),
            _ if !self.noise.is_finite() => "the noise was not measured".into(),
            _ => {
                let side = if self.outside { "outside" } else { "inside" };
                let down = self.ratio.median < 1.0;
                let noise = per_cent(if down { fewer(self.noise) } else { self.noise });
                if !self.outside && self.ratio.median.ln().abs() > self.noise.ln_1p() {
                    format!("not every round is outside the noise of {noise}")
                } else {
                    format!("{side} the noise of {noise}")
                }
            }
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", range(self.ratio), self.judgement())
    }
}

/// Returns a ratio with its least and most, where there are several rounds: `1.21 [1.15..1.30]`.
fn range(ratio: Spread) -> String {
    let decimals = if ratio.median < 10.0 { 2 } else { 1 };
    let figure = |value: f64| format!("{value:.decimals$}");
    let (median, min, max) = (figure(ratio.median), figure(ratio.min), figure(ratio.max));
    if ratio.min < ratio.max { format!("{median} [{min}..{max}]") } else { median }
}

/// Returns the same noise as a decrease: an increase of 100 % is a decrease of 50 %.
pub fn fewer(noise: f64) -> f64 {
    noise / (1.0 + noise)
}

/// Returns the noise beyond which a difference may be claimed: never less than [`LEAST`], and infinite where nothing
/// tells.
pub fn floor(noise: f64) -> f64 {
    if noise >= 0.0 { noise.max(LEAST) } else { f64::INFINITY }
}

/// Returns whether two ranges of different sessions may be called different: they lie apart, and the medians by more
/// than the noise.
pub fn are_apart(first: Spread, other: Spread, rounds: usize, noise: f64) -> bool {
    let apart = first.max < other.min || other.max < first.min;
    let size = (other.median / first.median).ln().abs();
    rounds >= LEAST_ROUNDS && apart && size > floor(noise).ln_1p()
}

/// Compares two sides: figures of subject and base, a pair for each round, with the noise as a fraction. `None` if no
/// pair can be compared.
pub fn compare(pairs: &[(f64, f64)], noise: f64) -> Option<Verdict> {
    let ratios: Vec<f64> = pairs.iter().filter_map(|&(subject, base)| log_ratio(subject, base)).collect();
    judge(&ratios, noise)
}

/// Returns the judgement over rounds, of the logarithm of each round's ratio.
fn judge(ratios: &[f64], noise: f64) -> Option<Verdict> {
    let spread = Spread::of(ratios.iter().copied())?;
    let noise = floor(noise);
    let least = if spread.min > 0.0 { spread.min } else { -spread.max };
    let outside = ratios.len() >= LEAST_ROUNDS && least > noise.ln_1p();
    let ratio = Spread { median: spread.median.exp(), min: spread.min.exp(), max: spread.max.exp() };
    Some(Verdict { ratio, rounds: ratios.len(), noise, outside })
}

/// Logarithm of subject over base; `None` if one of them is no positive figure.
fn log_ratio(subject: f64, base: f64) -> Option<f64> {
    let positive = |figure: f64| figure.is_finite() && figure > 0.0;
    (positive(subject) && positive(base)).then(|| subject.ln() - base.ln())
}

/// Figures of two sides, in pairs of the same round.
pub fn pairs(subject: &[&Run], base: &[&Run], metric: Metric) -> Vec<(f64, f64)> {
    by_round(subject, base, metric).into_iter().map(|(_, subject, base)| (subject, base)).collect()
}

fn by_round(subject: &[&Run], base: &[&Run], metric: Metric) -> Vec<(u32, f64, f64)> {
    let pair = |run: &&Run| {
        let other = base.iter().find(|other| other.round == run.round)?;
        Some((run.round, metric.of(run)?, metric.of(other)?))
    };
    subject.iter().filter_map(pair).collect()
}

/// What all setups of a cell have in common: one of them has the A/A run for all.
fn place_of(setup: &Setup) -> Setup {
    let &Setup { numjobs, processes, iodepth, batch, inflight, rw, block, .. } = setup;
    Setup { numjobs, processes, iodepth, batch, inflight, rw, block, ..Setup::default() }
}

/// The noise of one figure in a session, from its A/A runs.
#[derive(Debug, Clone)]
pub struct Noise {
    /// |logarithm| of every A/A ratio, with what was done.
    all: Vec<(Rw, f64)>,
    /// Logarithms of the A/A ratios of each cell, with their rounds.
    cells: HashMap<Setup, Vec<(u32, f64)>>,
    /// The number of comparisons in the session: the risk is divided among them.
    comparisons: usize,
}

impl Noise {
    /// Returns the noise of a session.
    pub fn of(runs: &[Run], metric: Metric) -> Noise {
        let measured: HashMap<(Setup, u32), &Run> = runs
            .iter()
            .filter(|run| run.role == Role::Measure)
            .map(|run| ((run.setup, run.round), run))
            .collect();
        let mut cells: HashMap<Setup, Vec<(u32, f64)>> = HashMap::new();
        for again in runs.iter().filter(|run| run.role == Role::Aa) {
            let first = measured.get(&(again.setup, again.round)).and_then(|run| metric.of(run));
            let ratio = metric.of(again).zip(first).and_then(|(again, first)| log_ratio(again, first));
            if let Some(ratio) = ratio {
                cells.entry(place_of(&again.setup)).or_default().push((again.round, ratio));
            }
        }
        let of_cell = |(place, ratios): (&Setup, &Vec<(u32, f64)>)| {
            let rw = place.rw;
            ratios.iter().map(move |(_, ratio)| (rw, ratio.abs())).collect::<Vec<_>>()
        };
        let all = cells.iter().flat_map(of_cell).collect();
        let comparisons = measured.keys().map(|(setup, _)| setup).collect::<HashSet<_>>().len();
        Noise { all, cells, comparisons: comparisons.max(1) }
    }

    /// Returns the noise for this many comparisons instead of all that the session allows.
    pub fn for_comparisons(self, comparisons: usize) -> Noise {
        Noise { comparisons: comparisons.max(1), ..self }
    }

    /// Returns the median of the session's A/A changes, as a fraction.
    pub fn usual(&self) -> Option<f64> {
        Spread::of(self.all.iter().map(|(_, ratio)| *ratio)).map(|ratios| ratios.median.exp_m1())
    }

    /// Returns how far a ratio must be from 1 in every round, as a fraction, in the cell of a setup. Infinite without
    /// A/A.
    pub fn in_cell(&self, setup: &Setup, rounds: usize) -> f64 {
        (self.spread(&place_of(setup)) * reach(rounds, self.comparisons)).exp_m1()
    }

    /// The same for changes other than A/A, as absolute logarithms.
    pub fn of_spread(&self, changes: &[f64], rounds: usize) -> f64 {
        (upper_quartile(changes.iter().copied()) * reach(rounds, self.comparisons)).exp_m1()
    }

    /// Returns the upper quartile of the A/A changes in a cell: of its own or of the session's, whichever is more.
    /// Writes are often noisier than reads, so only those of the session count that did the same, where there are
    /// enough.
    fn spread(&self, place: &Setup) -> f64 {
        let same = |(rw, ratio): &(Rw, f64)| (*rw == place.rw).then_some(*ratio);
        let same: Vec<f64> = self.all.iter().filter_map(same).collect();
        let session =
            if same.len() >= ENOUGH { same } else { self.all.iter().map(|(_, ratio)| *ratio).collect() };
        let session = upper_quartile(session.into_iter());
        let own = self.cells.get(place).map(|own| upper_quartile(own.iter().map(|(_, ratio)| ratio.abs())));
        own.map_or(session, |own| own.max(session))
    }

    /// Returns the A/A ratios of a cell, with outliers cut to the limit.
    fn tamed(&self, place: &Setup) -> Option<Vec<(u32, f64)>> {
        let most = OUTLYING * self.spread(place);
        let ratios = self.cells.get(place)?.iter();
        Some(ratios.map(|&(round, ratio)| (round, ratio.clamp(-most, most))).collect())
    }
}

/// Returns the upper quartile of some sizes; infinite of none. Of few, the largest never decides: what is beyond the
/// second largest is taken to thin out as exponential tails do, which normal ones never reach.
fn upper_quartile(sizes: impl Iterator<Item = f64>) -> f64 {
    let mut sizes: Vec<f64> = sizes.collect();
    sizes.sort_by(f64::total_cmp);
    let places = (sizes.len() + 1) as f64;
    let rank = ((0.75 * places).ceil() as usize).min(sizes.len().saturating_sub(1)).max(1);
    let Some(size) = sizes.get(rank - 1) else { return f64::INFINITY };
    let beyond = 1.0 - rank as f64 / places;
    size * QUARTER.ln() / beyond.ln()
}

/// Returns how many upper quartiles from 0 no more than [`RISK`] of all sessions have every round of any of so many
/// comparisons by chance, all on one side, were the tails exponential.
fn reach(rounds: usize, comparisons: usize) -> f64 {
    let wanted = RISK / comparisons as f64;
    // Half of the tail is on each side.
    let tail = 2.0 * (wanted / 2.0).powf(1.0 / rounds.max(1) as f64);
    // Many rounds agree by chance hardly ever, however small the difference; what they agree on may be no chance and no
    // difference either.
    tail.min(0.5).ln() / QUARTER.ln()
}

/// One cell of several that are judged as a whole.
#[derive(Debug, Clone)]
pub struct Cell {
    place: Setup,
    /// Subject and base of each round.
    rounds: Vec<(u32, f64, f64)>,
}

impl Cell {
    /// Of the runs of two sides in one cell; `None` if no round has both.
    pub fn of(subject: &[&Run], base: &[&Run], metric: Metric) -> Option<Cell> {
        let place = place_of(&base.first()?.setup);
        let rounds = by_round(subject, base, metric);
        (!rounds.is_empty()).then_some(Cell { place, rounds })
    }
}

/// Compares two sides over several cells as a whole: the ratio of a round is the geometric mean over the cells. `None`
/// where no cell can be compared.
///
/// Every round must be further from 1 than the same mean of the A/A runs goes, and than chance takes the mean of so
/// many ratios that are as spread as the A/A ratios of these cells.
pub fn compare_all(cells: &[Cell], noise: &Noise) -> Option<Verdict> {
    let ratios = cells.iter().map(|cell| {
        let ratio = |&(round, subject, base): &(u32, f64, f64)| Some((round, log_ratio(subject, base)?));
        cell.rounds.iter().filter_map(ratio).collect::<Vec<_>>()
    });
    let ratios = means(&ratios.collect::<Vec<_>>());
    let again: Vec<_> = cells.iter().filter_map(|cell| noise.tamed(&cell.place)).collect();
    let spread = upper_quartile(means(&again).iter().map(|mean| mean.abs()));
    let spread = spread.max(spread_of_mean(&again));
    judge(&ratios, (spread * reach(ratios.len(), COMPARED_AS_A_WHOLE)).exp_m1())
}

/// Returns the mean over cells of each round that at least half of the cells have: after an interruption the rest would
/// be a mean of other things.
fn means(cells: &[Vec<(u32, f64)>]) -> Vec<f64> {
    let mut rounds: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for &(round, ratio) in cells.iter().flatten() {
        rounds.entry(round).or_default().push(ratio);
    }
    let most = rounds.values().map(Vec::len).max().unwrap_or(0);
    let enough = rounds.into_values().filter(|ratios| ratios.len() * 2 >= most);
    enough.map(|ratios| ratios.iter().sum::<f64>() / ratios.len() as f64).collect()
}

/// Returns the upper quartile of the mean over the cells of one round, from the spread of the cells' A/A ratios.
fn spread_of_mean(again: &[Vec<(u32, f64)>]) -> f64 {
    let squares: Vec<f64> = again.iter().flatten().map(|(_, ratio)| ratio * ratio).collect();
    if squares.is_empty() {
        return f64::INFINITY;
    }
    let known = squares.len() as f64;
    let deviation = (squares.iter().sum::<f64>() / known).sqrt();
    // Student's t over the normal quantile of about all that a session risks: there may be few A/A ratios to know the
    // deviation from. As Cornish and Fisher have it.
    let z: f64 = 3.3;
    let more = (z.powi(2) + 1.0) / (4.0 * known)
        + (5.0 * z.powi(4) + 16.0 * z.powi(2) + 3.0) / (96.0 * known * known);
    NORMAL_QUARTILE * deviation * (1.0 + more) / (again.len() as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(pairs: &[(f64, f64)], noise: f64) -> Verdict {
        compare(pairs, noise).expect("comparable")
    }

    #[test]
    fn a_claim_needs_rounds_that_agree_and_more_than_the_noise() {
        let clear = verdict(&[(121.0, 100.0), (115.0, 100.0), (130.0, 100.0)], 0.04);
        assert!(clear.outside && clear.gains(1.1) && !clear.gains(1.3));
        assert_eq!(clear.to_string(), "1.21 [1.15..1.30], outside the noise of 4.0 %");
        let noise = verdict(&[(98.0, 100.0), (103.0, 100.0), (93.0, 100.0)], 0.05);
        assert_eq!(noise.to_string(), "0.98 [0.93..1.03], inside the noise of 4.8 %");
        let torn = verdict(&[(150.0, 100.0), (150.0, 100.0), (90.0, 100.0)], 0.05);
        assert_eq!(torn.to_string(), "1.50 [0.90..1.50], not every round is outside the noise of 5.0 %");
        let small = verdict(&[(101.0, 100.0); 5], 0.001);
        assert_eq!(small.to_string(), "1.01, inside the noise of 2.0 %");
        let half = verdict(&[(50.0, 100.0); 3], 0.12);
        assert!(half.outside && half.turned().gains(1.9));
        assert_eq!(half.to_string(), "0.50, outside the noise of 11 %");
    }

    #[test]
    fn nothing_is_claimed_of_too_few_rounds_or_without_noise() {
        let one = verdict(&[(900.0, 100.0)], 0.04);
        assert_eq!(one.to_string(), "9.00, one round shows no spread");
        let two = verdict(&[(2000.0, 100.0), (2200.0, 100.0)], 0.04);
        assert_eq!(two.to_string(), "21.0 [20.0..22.0], 2 rounds are too few to judge");
        let unknown = verdict(&[(900.0, 100.0); 3], f64::INFINITY);
        assert_eq!(unknown.to_string(), "9.00, the noise was not measured");
        assert!(!one.outside && !two.outside && !unknown.outside);
    }

    #[test]
    fn figures_that_are_none_are_left_out() {
        let odd = [(0.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0), (f64::INFINITY, 1.0), (-1.0, 1.0)];
        assert_eq!(compare(&odd, 0.1), None);
        assert_eq!(compare(&[], 0.1), None);
        let huge = verdict(&[(f64::MAX, f64::MIN_POSITIVE); 3], 0.1);
        assert!(huge.outside && !huge.to_string().is_empty());
        assert!(!verdict(&[(2.0, 1.0); 3], f64::NAN).outside);
    }
}
