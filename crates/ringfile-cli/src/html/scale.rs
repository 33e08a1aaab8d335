//! Axes of plots: maps a value to a place between 0 and 1, and chooses the ticks.
//!
//! Knows only numbers. Invariants: every value that a scale was created for has a place from 0 to 1, and there are at
//! least two ticks, each within the scale.

use crate::values::short_size;

/// One axis.
#[derive(Debug, Clone)]
pub struct Scale {
    /// Whether the axis is logarithmic.
    logarithmic: bool,
    low: f64,
    high: f64,
    /// Part of the axis left free at both ends.
    margin: f64,
    /// The values of the ticks, with their labels.
    pub ticks: Vec<(f64, String)>,
}

impl Scale {
    /// Creates a scale from 0 to a round number at or above the largest value.
    pub fn from_zero(values: impl Iterator<Item = f64>, label: fn(f64) -> String) -> Scale {
        let most = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        Scale::linear(0.0, if most > 0.0 { most } else { 1.0 }, label)
    }

    fn linear(low: f64, high: f64, label: fn(f64) -> String) -> Scale {
        let step = round_step((high - low) / 4.0);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        // Counted in whole steps: sums of fractions would drift, and 0 would not be 0.
        let count = (last - first).min(100.0) as usize;
        let ticks = (0..=count).map(|index| {
            let value = (first + index as f64) * step;
            (value, label(value))
        });
        let (low, high) = (first * step, last * step);
        Scale { logarithmic: false, low, high, margin: 0.0, ticks: ticks.collect() }
    }

    /// Creates a logarithmic scale between round numbers. Values that are not positive have no place on it.
    pub fn logarithmic(values: impl Iterator<Item = f64>, label: fn(f64) -> String) -> Scale {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|value| value.is_finite() && *value > 0.0) {
            (low, high) = (low.min(value), high.max(value));
        }
        if high <= 0.0 {
            (low, high) = (1.0, 10.0);
        }
        let rounds = round_numbers(low, high);
        let (low, high) = (rounds[0], rounds[rounds.len() - 1]);
        let decades = (high / low).log10();
        // As many as fit: 1, 2, 5 of each decade, else whole decades, else every second one.
        let every = (decades / 5.0).ceil().max(1.0) as i64;
        let shown = |&&value: &&f64| {
            let exponent = value.log10();
            let whole = (exponent - exponent.round()).abs() < 1e-9;
            rounds.len() <= 8 || (whole && (exponent.round() as i64).rem_euclid(every) == 0)
        };
        let ticks = rounds.iter().filter(shown).map(|&value| (value, label(value))).collect();
        Scale { logarithmic: true, low, high, margin: 0.0, ticks }
    }

    /// Creates a logarithmic scale with ticks at the values themselves, for depths and block sizes, which double.
    pub fn doublings(values: &[f64], label: fn(f64) -> String) -> Scale {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|value| *value > 0.0).collect();
        sorted.sort_by(f64::total_cmp);
        sorted.dedup();
        if sorted.is_empty() {
            sorted.push(1.0);
        }
        let (low, high) = (sorted[0], sorted[sorted.len() - 1]);
        let mut scale = Scale { logarithmic: true, low, high, margin: 0.07, ticks: Vec::new() };
        let mut last = f64::NEG_INFINITY;
        for value in sorted {
            let place = scale.place(value);
            // Labels closer than this would touch.
            if place - last > 0.085 {
                scale.ticks.push((value, label(value)));
                last = place;
            }
        }
        scale
    }

    /// Creates a scale with a tick for each label, at 0, 1, 2, …
    pub fn steps(labels: &[&str]) -> Scale {
        let ticks = labels.iter().enumerate().map(|(index, label)| (index as f64, (*label).to_string()));
        let high = labels.len().saturating_sub(1) as f64;
        Scale { logarithmic: false, low: 0.0, high, margin: 0.06, ticks: ticks.collect() }
    }

    /// Returns the place of a value, from 0 to 1.
    pub fn place(&self, value: f64) -> f64 {
        let part = if self.high <= self.low {
            0.5
        } else if self.logarithmic {
            (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.margin + part.clamp(0.0, 1.0) * (1.0 - 2.0 * self.margin)
    }

    /// Returns whether a value can be shown.
    pub fn shows(&self, value: f64) -> bool {
        value.is_finite() && (!self.logarithmic || value > 0.0)
    }
}

/// Returns the smallest of 1, 2, 2.5, 5 times a power of ten that is not less.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0].into_iter().find(|factor| factor * power >= least * 0.999_999);
    factor.unwrap_or(10.0) * power
}

/// Returns 1, 2, 5 times powers of ten, from one at or below `low` to one at or above `high`, at least two.
fn round_numbers(low: f64, high: f64) -> Vec<f64> {
    let mut numbers = Vec::new();
    let first = low.log10().floor() as i32;
    let last = high.log10().ceil() as i32 + 1;
    for exponent in first..=last {
        for factor in [1.0, 2.0, 5.0] {
            let number = factor * 10_f64.powi(exponent);
            if number <= low * 1.000_001 {
                numbers.clear();
            }
            numbers.push(number);
            if number >= high * 0.999_999 && numbers.len() > 1 {
                return numbers;
            }
        }
    }
    numbers
}

/// Returns a count on an axis: `0`, `250`, `40k`, `1.2M`.
pub fn count(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    format!("{}{unit}", trimmed(scaled))
}

/// Returns microseconds on an axis: `20 µs`, `5 ms`, `1 s`.
pub fn micros(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{} s", trimmed(value / 1e6)),
        value if value >= 1e3 => format!("{} ms", trimmed(value / 1e3)),
        value => format!("{} µs", trimmed(value)),
    }
}

/// Returns a block size on an axis: `4k`, `1m`, as the command line takes it.
pub fn block(value: f64) -> String {
    short_size(value as u64)
}

/// Returns a figure with three digits at most behind the point, none of them a 0 at the end.
pub fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale) -> Vec<&str> {
        scale.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn linear_ticks_are_round_and_include_zero() {
        let scale = Scale::from_zero([3.0, 141_000.0].into_iter(), count);
        assert_eq!(labels(&scale), ["0", "50k", "100k", "150k"]);
        assert!((scale.place(75_000.0) - 0.5).abs() < 1e-9);
        assert_eq!(
            labels(&Scale::from_zero([0.7].into_iter(), micros)),
            ["0 µs", "0.2 µs", "0.4 µs", "0.6 µs", "0.8 µs"]
        );
    }

    #[test]
    fn logarithmic_ticks_are_few() {
        let narrow = Scale::logarithmic([70.0, 900.0].into_iter(), micros);
        assert_eq!(labels(&narrow), ["50 µs", "100 µs", "200 µs", "500 µs", "1 ms"]);
        let wide = Scale::logarithmic([3.0, 2_000_000.0].into_iter(), micros);
        assert_eq!(labels(&wide), ["100 µs", "10 ms", "1 s"]);
        assert_eq!(wide.place(2.0), 0.0);
    }

    #[test]
    fn depths_stand_at_equal_distances_and_never_touch() {
        let scale = Scale::doublings(&[64.0, 1.0, 16.0, 4.0], count);
        assert_eq!(labels(&scale), ["1", "4", "16", "64"]);
        let steps: Vec<f64> = scale.ticks.iter().map(|(value, _)| scale.place(*value)).collect();
        assert!((steps[1] - steps[0] - (steps[3] - steps[2])).abs() < 1e-9);
        let crowded: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert!(Scale::doublings(&crowded, count).ticks.len() < 14);
        assert_eq!(Scale::doublings(&[7.0], count).place(7.0), 0.5);
    }

    #[test]
    fn odd_values_have_a_scale_too() {
        for values in
            [vec![], vec![0.0], vec![f64::NAN, f64::INFINITY], vec![1e-12], vec![1e300, 1.0], vec![5.0; 3]]
        {
            let scales = [
                Scale::from_zero(values.iter().copied(), count),
                Scale::logarithmic(values.iter().copied(), micros),
            ];
            for scale in scales {
                assert!(scale.ticks.len() >= 2, "{values:?}: {scale:?}");
                let places = scale.ticks.iter().map(|(value, _)| scale.place(*value));
                assert!(
                    places.into_iter().all(|place| (0.0..=1.0).contains(&place)),
                    "{values:?}: {scale:?}"
                );
                assert!(
                    values
                        .iter()
                        .all(|value| !scale.shows(*value) || (0.0..=1.0).contains(&scale.place(*value)))
                );
            }
        }
    }

    #[test]
    fn axis_labels_are_short() {
        for (value, text) in [(0.0, "0"), (250.0, "250"), (2500.0, "2.5k"), (1.2e6, "1.2M")] {
            assert_eq!(count(value), text);
        }
        for (value, text) in
            [(512.0, "512"), (4096.0, "4k"), (524_288.0, "512k"), (1_048_576.0, "1m"), (1536.0, "1536")]
        {
            assert_eq!(block(value), text);
        }
    }
}
