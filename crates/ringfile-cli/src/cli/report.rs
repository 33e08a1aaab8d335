//! The command line of `ringfile report`.

use std::path::PathBuf;

use clap::Args;

use super::examples;
use crate::html::drawing::What;

/// Show saved results as a page, or compare several.
///
/// Takes the files that a perf command wrote with `--json`, for instance of two machines, of two kernels, or of before
/// and after a change. One file becomes a page; several are compared with the first one, cell by cell. Differences
/// larger than the spread of the rounds and A/A runs of both files come first; the others are only counted. Measure
/// with --rounds 3 or more: with fewer, no difference is claimed.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output", after_long_help = examples::REPORT)]
pub struct ReportArgs {
    /// Files that --json wrote; the others are compared with the first
    #[arg(value_name = "JSON", required = true, help_heading = None::<&str>)]
    pub results: Vec<PathBuf>,
    /// Write the page to this file
    #[arg(long, value_name = "FILE.html")]
    pub out: Option<PathBuf>,
    /// Write one plot of a single JSON file to this file, for instance for a README
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// What the plot shows
    #[arg(long, value_name = "PLOT", default_value = "iops", requires = "svg")]
    pub plot: What,
    /// Replace output files that exist
    #[arg(long)]
    pub force: bool,
}
