//! Latencies of one run: a histogram of fixed size, with the exact sum, minimum and maximum.
//!
//! Recording allocates nothing and takes a few nanoseconds, so the measured loop can call it.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency that the histogram resolves, one minute. Percentiles count a longer one as this; the maximum is
/// exact.
const LONGEST_NANOS: u64 = 60_000_000_000;

/// The latencies that one thread measured.
#[derive(Debug, Clone)]
pub struct Recorder {
    histogram: Histogram<u64>,
    sum: u128,
    min: u64,
    max: u64,
}

impl Recorder {
    /// Returns an empty recorder with three significant digits.
    pub fn new() -> Recorder {
        let histogram =
            Histogram::new_with_bounds(1, LONGEST_NANOS, 3).expect("the bounds are constants that fit");
        Recorder { histogram, sum: 0, min: u64::MAX, max: 0 }
    }

    /// Counts one operation.
    pub fn record(&mut self, latency: Duration) {
        self.record_many(latency, 1);
    }

    /// Counts operations that were submitted and completed together.
    pub fn record_many(&mut self, latency: Duration, count: u64) {
        // 584 years fit.
        let nanos = latency.as_nanos() as u64;
        self.histogram.saturating_record_n(nanos.clamp(1, LONGEST_NANOS), count);
        self.sum += u128::from(nanos) * u128::from(count);
        (self.min, self.max) = (self.min.min(nanos), self.max.max(nanos));
    }

    /// Adds another thread's latencies.
    pub fn merge(&mut self, other: &Recorder) {
        self.histogram.add(&other.histogram).expect("all recorders have the same bounds");
        self.sum += other.sum;
        (self.min, self.max) = (self.min.min(other.min), self.max.max(other.max));
    }

    /// Returns the number of operations counted.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the percentiles; `None` if nothing was counted.
    pub fn summary(&self) -> Option<Latency> {
        let at = |quantile| self.histogram.value_at_quantile(quantile).min(self.max);
        (self.count() > 0).then(|| Latency {
            mean: (self.sum / u128::from(self.count())) as u64,
            stddev: self.histogram.stdev() as u64,
            min: self.min,
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: self.max,
        })
    }
}

/// Latency of a run's operations in nanoseconds, from submission to completion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// Arithmetic mean.
    pub mean: u64,
    /// Standard deviation.
    pub stddev: u64,
    /// The shortest.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// 99.99th percentile.
    pub p9999: u64,
    /// The longest.
    pub max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_known_series() {
        let mut recorder = Recorder::new();
        for nanos in 1..=1000 {
            recorder.record(Duration::from_nanos(nanos));
        }
        let latency = recorder.summary().expect("not empty");
        let near = |value: u64, expected: u64| value.abs_diff(expected) <= 1;
        assert!(near(latency.p50, 500) && near(latency.p95, 950), "{latency:?}");
        assert!(near(latency.p99, 990) && near(latency.p999, 999), "{latency:?}");
        assert_eq!((latency.mean, latency.max), (500, 1000));
        assert!(near(latency.p90, 900) && latency.stddev.abs_diff(289) <= 2, "{latency:?}");
    }

    #[test]
    fn threads_add_up_and_the_maximum_is_exact() {
        let (mut one, mut two) = (Recorder::new(), Recorder::new());
        one.record(Duration::from_nanos(10));
        two.record(Duration::from_secs(90));
        one.merge(&two);
        assert_eq!(one.count(), 2);
        assert_eq!(one.summary().expect("not empty").max, 90_000_000_000);
    }

    #[test]
    fn nothing_recorded_is_no_latency() {
        assert_eq!(Recorder::new().summary(), None);
    }
}
