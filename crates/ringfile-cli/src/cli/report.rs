//! The command line of `ringfile report`.

use std::path::PathBuf;

use clap::Args;

use super::examples;

/// Show saved results as a page, or compare several.
///
/// Takes the files that a perf command wrote with `--json`, for instance of two machines, of two kernels, or of before
/// and after a change. One file becomes a page; several are compared with the first one, cell by cell: differences
/// larger than the spread of the rounds and A/A runs of both files are printed, the others are only counted. Measure
/// with --rounds 3 or more: with fewer, no difference is claimed.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output", after_long_help = examples::REPORT)]
pub struct ReportArgs {
    /// Files that --json wrote; the others are compared with the first
    #[arg(value_name = "JSON", required = true, help_heading = None::<&str>)]
    pub results: Vec<PathBuf>,
    /// Write the page of a single JSON file to this file
    #[arg(long, value_name = "FILE.html")]
    pub out: Option<PathBuf>,
    /// Replace an output file that exists
    #[arg(long)]
    pub force: bool,
}
