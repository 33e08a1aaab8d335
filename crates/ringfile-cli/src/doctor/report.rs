//! The report: the facts, and the findings that follow from them.

use serde::Serialize;

use super::device::Device;
use super::features::Feature;
use super::file::FileFacts;
use super::process::Process;

/// The version of the JSON's form. New fields keep it; changes of existing ones raise it.
pub const SCHEMA: u32 = 1;

/// The whole report: the JSON's outermost object.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The form of this JSON: 1.
    pub schema: u32,
    /// The release of the running kernel.
    pub kernel: Option<String>,
    /// Parts of io_uring, and flags of reads and writes, each tried.
    pub features: Vec<Feature>,
    /// What this process may do.
    pub process: Process,
    /// PATH and its file system.
    pub file: FileFacts,
    /// The block device below; `null` if there is none, or it is unknown.
    pub device: Option<Device>,
    /// The conclusions, most costly first.
    pub findings: Vec<Finding>,
}

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
    pub cost: u32,
}

/// A text of a finding, made for it or constant.
pub trait Text: Into<String> {}

impl<T: Into<String>> Text for T {}

impl Finding {
    /// Returns a finding that costs most.
    pub fn costly(cost: u32, title: impl Text, detail: impl Text, fix: impl Text) -> Finding {
        Finding { severity: Severity::Costly, ..Finding::notable(cost, title, detail, fix) }
    }

    /// Returns a finding that costs something.
    pub fn notable(cost: u32, title: impl Text, detail: impl Text, fix: impl Text) -> Finding {
        let (title, detail, fix) = (title.into(), detail.into(), fix.into());
        Finding { severity: Severity::Notable, title, detail, fix, cost }
    }

    /// Returns a finding that needs nothing.
    pub fn fine(title: impl Text, detail: impl Text) -> Finding {
        Finding { severity: Severity::Fine, ..Finding::notable(0, title, detail, "nothing to do") }
    }
}
