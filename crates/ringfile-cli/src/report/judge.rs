//! Decides whether a difference between two sides is beyond the noise, so that it may be claimed.
//!
//! Pure functions of figures. Noise is measured by A/A: how far a run is from its repetition in the same round. A
//! difference is claimed if every round shows it: all ratios lie on one side of 1, each further from 1 than the noise.
//! With fewer than three rounds, or without A/A runs, nothing is claimed.
//!
//! The noise is the upper quartile of the A/A changes, times a factor for the numbers of rounds and comparisons. A
//! quartile moves only when a fourth of the A/A changes are outliers: with the largest change, or a standard deviation,
//! one stalled run of a session hid a factor of 3.5 that all rounds showed. Every round must agree because two outliers
//! in three runs are not that rare, and would move the median. A session compares hundreds of cells, so the factor is
//! chosen such that about one session in a hundred makes any wrong claim by chance.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use crate::model::advice::Over;
use crate::model::{Metric, Role, Run, Rw, Setup, Spread};
use crate::numbers::per_cent;

/// The smallest difference that is claimed, however quiet the machine: nobody would act on less, and effects that are
/// not random (the position in the round, the layout of memory) are about as large.
const LEAST: f64 = 0.02;

/// With too few rounds or no A/A runs, a ratio as large as this shows which side leads.
pub const ON_SIGHT: f64 = 1.2;

/// If every round favours one side and the median does so by this factor, the difference counts as likely, though not
/// certain, however noisy the machine.
pub const BY_FAR: f64 = 2.0;

/// The probability that any of a session's comparisons claims a chance difference.
const RISK: f64 = 0.004;

/// Fewer rounds than this have no usable spread.
pub const LEAST_ROUNDS: usize = 3;

/// This many A/A ratios are enough to know their distribution.
const ENOUGH: usize = 15;

/// The fraction of a distribution beyond its upper quartile.
const QUARTER: f64 = 0.25;

/// The upper quartile of a normal distribution's absolute values, in standard deviations.
const NORMAL_QUARTILE: f64 = 1.15;

/// An A/A change counts as at most this many upper quartiles: a normal distribution goes that far once in 1800.
const OUTLYING: f64 = 3.0;

/// The approximate number of comparisons of one kind with another over all cells behind one session's advice.
const COMPARED_AS_A_WHOLE: usize = 12;

/// The approximate number of comparisons in one cell, or of one cell with another, behind one session's advice.
pub const COMPARED_FOR_ADVICE: usize = 24;

/// The result of comparing two sides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// Subject divided by base, paired within rounds.
    pub ratio: Spread,
    /// The number of rounds that have both.
    pub rounds: usize,
    /// The fraction by which the subject must exceed the base in every round to be claimed, or fall short by the same
    /// factor. Infinite without A/A runs.
    pub noise: f64,
    /// Whether the difference may be claimed.
    pub outside: bool,
}

impl Verdict {
    /// Returns whether the subject has more by such a factor: outside the noise, or without enough rounds to judge.
    fn gains(&self, factor: f64) -> bool {
        self.ratio.median > factor && (self.outside || !self.is_judged())
    }

    /// Returns whether the subject seems to have more by such a factor: it [gains](Self::gains) it, or, inside the
    /// noise, has more in every round and [by far](BY_FAR).
    pub fn seems_more(&self, factor: f64) -> bool {
        let leans_so = self.ratio.min > 1.0 && self.ratio.median >= BY_FAR.max(factor);
        self.gains(factor) || (!self.outside && leans_so)
    }

    /// Returns whether the difference is large enough to favour a side without knowing the noise.
    pub fn leans(&self) -> bool {
        self.ratio.median.ln().abs() >= ON_SIGHT.ln()
    }

    /// Returns base divided by subject.
    pub fn turned(self) -> Verdict {
        let Spread { median, min, max } = self.ratio;
        Verdict { ratio: Spread { median: median.recip(), min: max.recip(), max: min.recip() }, ..self }
    }

    /// Returns the verdict for a sentence: `1.21 [1.15..1.30] times that (outside the noise of 4.0 %)`.
    pub fn times(&self, what: &str) -> String {
        format!("{} times {what} ({})", range(self.ratio), self.judgement())
    }

    /// Returns the verdict in few words: `1.21 times that`, `0.98 times that (inside the noise)`.
    pub fn about_times(&self, what: &str) -> String {
        let ratio = range(Spread { min: self.ratio.median, max: self.ratio.median, ..self.ratio });
        let judgement = match (self.outside, self.is_judged()) {
            (true, _) => "",
            (false, true) => " (inside the noise)",
            (false, false) => " (not judged)",
        };
        format!("{ratio} times {what}{judgement}")
    }

    /// Returns whether there were enough rounds and A/A runs to judge.
    pub fn is_judged(&self) -> bool {
        self.rounds >= LEAST_ROUNDS && self.noise.is_finite()
    }

    /// Returns the verdict for a table: `1.21 [1.15..1.30]*`, with a star if it is outside the noise.
    pub fn in_table(&self) -> String {
        format!("{}{}", range(self.ratio), if self.outside { "*" } else { " " })
    }

    /// Returns the verdict for a table of advice: the subject of `figure` over that of another value.
    pub fn over(&self, instead_of: impl Into<String>, figure: &str) -> Over {
        let noise = self.is_judged().then(|| self.noise_text());
        Over { instead_of: instead_of.into(), gain: format!("{figure} × {}", range(self.ratio)), noise }
    }

    /// Returns the judgement alone: `outside the noise of 4.0 %`.
    pub fn judgement(&self) -> String {
        match self.rounds {
            1 => "one round shows no spread".into(),
            rounds if rounds < LEAST_ROUNDS => format!("{rounds} rounds are too few to judge"),
            _ if !self.noise.is_finite() => "the noise was not measured".into(),
            _ => {
                let side = if self.outside { "outside" } else { "inside" };
                let noise = self.noise_text();
                if !self.outside && self.ratio.median.ln().abs() > self.noise.ln_1p() {
                    format!("not every round is outside the noise of {noise}")
                } else {
                    format!("{side} the noise of {noise}")
                }
            }
        }
    }
}

impl Verdict {
    fn noise_text(&self) -> String {
        let down = self.ratio.median < 1.0;
        per_cent(if down { fewer(self.noise) } else { self.noise })
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

/// Returns the noise beyond which a difference may be claimed: never less than [`LEAST`], and infinite if unknown.
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

/// Compares subject and base: a pair of figures for each round, and the noise as a fraction. Returns `None` if no pair
/// can be compared.
pub fn compare(pairs: &[(f64, f64)], noise: f64) -> Option<Verdict> {
    let ratios: Vec<f64> = pairs.iter().filter_map(|&(subject, base)| log_ratio(subject, base)).collect();
    judge(&ratios, noise)
}

/// Judges the logarithms of the rounds' ratios.
fn judge(ratios: &[f64], noise: f64) -> Option<Verdict> {
    let spread = Spread::of(ratios.iter().copied())?;
    let noise = floor(noise);
    let least = if spread.min > 0.0 { spread.min } else { -spread.max };
    let outside = ratios.len() >= LEAST_ROUNDS && least > noise.ln_1p();
    let ratio = Spread { median: spread.median.exp(), min: spread.min.exp(), max: spread.max.exp() };
    Some(Verdict { ratio, rounds: ratios.len(), noise, outside })
}

/// Returns the logarithm of subject over base, or `None` if one of them is not a positive figure.
fn log_ratio(subject: f64, base: f64) -> Option<f64> {
    let positive = |figure: f64| figure.is_finite() && figure > 0.0;
    (positive(subject) && positive(base)).then(|| subject.ln() - base.ln())
}

/// Returns the figures of two sides, paired within rounds.
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

/// Returns what all setups of a cell have in common. One of them has the A/A run for all.
fn place_of(setup: &Setup) -> Setup {
    let &Setup { numjobs, iodepth, batch, inflight, rw, block, .. } = setup;
    Setup { numjobs, iodepth, batch, inflight, rw, block, ..Setup::default() }
}

/// The noise of one figure in a session, from its A/A runs.
#[derive(Debug, Clone)]
pub struct Noise {
    /// The absolute logarithm of every A/A ratio, with the operation.
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

    /// Returns the noise for this many comparisons instead of all that the session makes.
    pub fn for_comparisons(self, comparisons: usize) -> Noise {
        Noise { comparisons: comparisons.max(1), ..self }
    }

    /// Returns the median of the session's A/A changes, as a fraction.
    pub fn usual(&self) -> Option<f64> {
        Spread::of(self.all.iter().map(|(_, ratio)| *ratio)).map(|ratios| ratios.median.exp_m1())
    }

    /// Returns how far a ratio must be from 1 in every round, as a fraction, in the cell of a setup. Infinite without
    /// A/A runs.
    pub fn in_cell(&self, setup: &Setup, rounds: usize) -> f64 {
        (self.spread(&place_of(setup)) * reach(rounds, self.comparisons)).exp_m1()
    }

    /// Returns the same for changes other than A/A, given as absolute logarithms.
    pub fn of_spread(&self, changes: &[f64], rounds: usize) -> f64 {
        (upper_quartile(changes.iter().copied()) * reach(rounds, self.comparisons)).exp_m1()
    }

    /// Returns the upper quartile of the A/A changes of a cell or of the session, whichever is larger. Writes are often
    /// noisier than reads, so of the session only runs of the same operation count, if there are enough.
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

/// Returns the upper quartile of some sizes, or infinity if there are none. Of few sizes the largest never decides: the
/// part beyond the second largest is taken to be an exponential tail, which is heavier than a normal one.
fn upper_quartile(sizes: impl Iterator<Item = f64>) -> f64 {
    let mut sizes: Vec<f64> = sizes.collect();
    sizes.sort_by(f64::total_cmp);
    let places = (sizes.len() + 1) as f64;
    let rank = ((0.75 * places).ceil() as usize).min(sizes.len().saturating_sub(1)).max(1);
    let Some(size) = sizes.get(rank - 1) else { return f64::INFINITY };
    let beyond = 1.0 - rank as f64 / places;
    size * QUARTER.ln() / beyond.ln()
}

/// Returns the distance from 0, in upper quartiles, that all rounds of any of so many comparisons exceed on one side by
/// chance in no more than [`RISK`] of all sessions, assuming exponential tails.
fn reach(rounds: usize, comparisons: usize) -> f64 {
    let wanted = RISK / comparisons as f64;
    // Half of the tail is on each side.
    let tail = 2.0 * (wanted / 2.0).powf(1.0 / rounds.max(1) as f64);
    // Many rounds hardly ever agree by chance, however small the difference. What they agree on may still be an effect
    // other than the one compared.
    tail.min(0.5).ln() / QUARTER.ln()
}

/// One of several cells that are judged together.
#[derive(Debug, Clone)]
pub struct Cell {
    place: Setup,
    /// The round, subject and base of each pair.
    rounds: Vec<(u32, f64, f64)>,
}

impl Cell {
    /// Creates a cell from the runs of two sides, or `None` if no round has both.
    pub fn of(subject: &[&Run], base: &[&Run], metric: Metric) -> Option<Cell> {
        let place = place_of(&base.first()?.setup);
        let rounds = by_round(subject, base, metric);
        (!rounds.is_empty()).then_some(Cell { place, rounds })
    }
}

/// Compares two sides over several cells together: the ratio of a round is the geometric mean over the cells. Returns
/// `None` if no cell can be compared.
///
/// A claim needs every round to be further from 1 than the same mean of the A/A runs, and than chance takes the mean of
/// so many ratios with the spread of these cells' A/A ratios.
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

/// Returns the mean over cells of each round that at least half of the cells have. A round cut short by an interruption
/// would be a mean over other cells.
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
    // Student's t instead of the normal quantile, by the Cornish-Fisher expansion: few A/A ratios know the deviation
    // badly.
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
