//! Conclusions from the facts: findings, most costly first.
//!
//! A pure function of the facts. Invariants: a finding names the figure that it rests on, and a command or setting
//! that changes it; unknown facts give no finding.

mod device;
mod file;
mod process;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;

use serde::Serialize;

use super::Report;

/// How much a finding matters; the report has them in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// I/O takes several times as long as it could, or takes another route than intended.
    Costly,
    /// Costs something in some workloads, or prevents the use of a feature.
    Notable,
    /// As it should be.
    Fine,
}

/// A conclusion about I/O here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What it is, in a few words.
    pub title: String,
    /// The figures that show it, and what it costs.
    pub detail: String,
    /// A command or a setting that changes it; `nothing to do` if it is fine.
    pub fix: String,
    /// Roughly how many times longer the affected I/O takes. Only orders the findings of one severity.
    #[serde(skip)]
    cost: u32,
}

/// A text of a finding, made for it or constant.
trait Text: Into<String> {}

impl<T: Into<String>> Text for T {}

impl Finding {
    fn costly(cost: u32, title: impl Text, detail: impl Text, fix: impl Text) -> Finding {
        Finding { severity: Severity::Costly, ..Finding::notable(cost, title, detail, fix) }
    }

    fn notable(cost: u32, title: impl Text, detail: impl Text, fix: impl Text) -> Finding {
        let (title, detail, fix) = (title.into(), detail.into(), fix.into());
        Finding { severity: Severity::Notable, title, detail, fix, cost }
    }

    fn fine(title: impl Text, detail: impl Text) -> Finding {
        Finding { severity: Severity::Fine, ..Finding::notable(0, title, detail, "nothing to do") }
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

/// Formats a time in µs with its unit.
pub fn time(us: f64) -> String {
    match us {
        us if us >= 10_000.0 => format!("{:.0} ms", us / 1000.0),
        us if us >= 1000.0 => format!("{:.1} ms", us / 1000.0),
        us if us >= 10.0 => format!("{us:.0} µs"),
        us => format!("{us:.1} µs"),
    }
}
