//! The command line of `ringfile report`.

use std::path::PathBuf;

use clap::Args;

use super::examples;
use crate::html::drawing::What;

/// Show saved results as a page, or compare several.
///
/// Compares two machines, two kernels, before and after: takes files that `--json` of a perf command wrote. With one
/// file it writes its page; with more, each is compared with the first, cell by cell: differences larger than the
/// spread of the rounds and A/A runs of both come first, the rest is counted. Measure with --rounds 3 or more; with
/// fewer, no difference is beyond the noise.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output", after_long_help = examples::REPORT)]
pub struct ReportArgs {
    /// Results that --json wrote; the others are compared with the first
    #[arg(value_name = "JSON", required = true, help_heading = None::<&str>)]
    pub results: Vec<PathBuf>,
    /// Write the page to this file
    #[arg(long, value_name = "FILE.html")]
    pub out: Option<PathBuf>,
    /// Write one plot of a single JSON to this file, for a README
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// What that plot shows
    #[arg(long, value_name = "PLOT", default_value = "iops", requires = "svg")]
    pub plot: What,
    /// Replace output files that exist
    #[arg(long)]
    pub force: bool,
}
