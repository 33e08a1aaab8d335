//! What the facts mean: findings, most costly first.
//!
//! A pure function of the facts. Invariants: a finding names the figure that it rests on, and a command or setting
//! that changes it; what is not known gives no finding.

mod device;
mod file;
mod process;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;

use serde::Serialize;

use super::Report;

/// How much a finding matters. In this order in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// I/O takes a multiple of the time it could, or does not go the way it was meant to.
    Costly,
    /// Costs something in some workloads, or is in the way of a feature.
    Notable,
    /// As it should be, nothing to do.
    Fine,
}

/// Something that the facts say about I/O here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What it is, in a few words.
    pub title: String,
    /// The figures that say so, and what it costs.
    pub detail: String,
    /// A command or a setting that changes it; `nothing to do` where it is fine.
    pub fix: String,
    /// Within its severity the dearest comes first: about how many times longer the I/O that it concerns takes. A
    /// guess, for the order alone.
    #[serde(skip)]
    cost: u32,
}

impl Finding {
    fn costly(
        cost: u32,
        title: impl Into<String>,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Finding {
        Finding {
            severity: Severity::Costly,
            title: title.into(),
            detail: detail.into(),
            fix: fix.into(),
            cost,
        }
    }

    fn notable(
        cost: u32,
        title: impl Into<String>,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Finding {
        Finding { severity: Severity::Notable, ..Finding::costly(cost, title, detail, fix) }
    }

    fn fine(title: impl Into<String>, detail: impl Into<String>) -> Finding {
        Finding { severity: Severity::Fine, ..Finding::costly(0, title, detail, "nothing to do") }
    }
}

/// Returns all findings, most costly first.
pub fn of(report: &Report) -> Vec<Finding> {
    let mut all = process::of(report);
    all.extend(file::of(report));
    all.extend(device::of(report));
    all.sort_by_key(|finding| (finding.severity, Reverse(finding.cost)));
    all
}

/// Returns a time in µs as a person reads it.
pub fn time(us: f64) -> String {
    match us {
        us if us >= 10_000.0 => format!("{:.0} ms", us / 1000.0),
        us if us >= 1000.0 => format!("{:.1} ms", us / 1000.0),
        us if us >= 10.0 => format!("{us:.0} µs"),
        us => format!("{us:.1} µs"),
    }
}
