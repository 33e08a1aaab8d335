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

use super::report::{Finding, Report};

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
