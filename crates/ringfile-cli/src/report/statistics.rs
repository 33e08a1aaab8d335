//! Figures over rounds: the median, with the least and the most beside it.

use super::results::Run;

/// Median, minimum and maximum of some figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Spread {
    /// Of any number of figures; `None` of none.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Spread { median, min, max })
    }
}

/// A figure of a run that has a column in the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Operations for each second.
    Iops,
    /// Bytes for each second, shown in MiB.
    Bandwidth,
    /// Latencies, shown in microseconds.
    Mean,
    /// See above.
    P50,
    /// See above.
    P95,
    /// See above.
    P99,
    /// See above.
    P999,
    /// See above; files from before it have none.
    P9999,
    /// See above.
    Max,
    /// CPU time for one operation in microseconds.
    Cpu,
}

impl Metric {
    /// All, in the order of the columns; p99.99 has one where there are more threads than cores.
    pub const ALL: [Metric; 10] = [
        Metric::Iops,
        Metric::Bandwidth,
        Metric::Mean,
        Metric::P50,
        Metric::P95,
        Metric::P99,
        Metric::P999,
        Metric::P9999,
        Metric::Max,
        Metric::Cpu,
    ];

    /// Whether it is a latency.
    pub fn is_latency(self) -> bool {
        use Metric::*;
        matches!(self, Mean | P50 | P95 | P99 | P999 | P9999 | Max)
    }

    /// The figure, in the unit of the tables; `None` where the run has none.
    pub fn of(self, run: &Run) -> Option<f64> {
        let micros = |nanos: u64| nanos as f64 / 1000.0;
        match self {
            Metric::Iops => Some(run.iops),
            Metric::Bandwidth => Some(run.bw_bytes / f64::from(1 << 20)),
            Metric::Mean => run.latency_ns.map(|latency| micros(latency.mean)),
            Metric::P50 => run.latency_ns.map(|latency| micros(latency.p50)),
            Metric::P95 => run.latency_ns.map(|latency| micros(latency.p95)),
            Metric::P99 => run.latency_ns.map(|latency| micros(latency.p99)),
            Metric::P999 => run.latency_ns.map(|latency| micros(latency.p999)),
            Metric::P9999 => {
                run.latency_ns.filter(|latency| latency.p9999 > 0).map(|latency| micros(latency.p9999))
            }
            Metric::Max => run.latency_ns.map(|latency| micros(latency.max)),
            Metric::Cpu => run.cpu_us_per_io,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_odd_even_one_and_none() {
        let spread = |figures: &[f64]| Spread::of(figures.iter().copied());
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(spread(&[4.0, 1.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(spread(&[5.0]), Some(Spread { median: 5.0, min: 5.0, max: 5.0 }));
        assert_eq!(spread(&[]), None);
    }
}
