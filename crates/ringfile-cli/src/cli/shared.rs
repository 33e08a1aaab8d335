//! Options that several commands share.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::values;

/// The options that all commands on one file share, but `perf buffers`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub test_file: TestFileArgs,
    #[command(flatten)]
    pub timing: TimingArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The file or device that a command measures.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "File")]
pub struct TestFileArgs {
    /// File, block device or NVMe namespace (/dev/ng0n1) [default: ringfile-perf-PID.bin in /dev/shm, with --cache cold
    /// in $TMPDIR or /var/tmp]; a file that does not exist is made for the run, and has no name
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// How much of the file to use [default: 1g, or less if there is no room for it]
    #[arg(long = "size", id = "size", value_name = "SIZE", value_parser = values::size)]
    pub asked_size: Option<u64>,
    /// The size if none is asked for.
    #[arg(skip = 1_u64 << 30)]
    pub default_size: u64,
    /// Allow writing to a --file that exists, or to a device: its contents are lost. An empty file grows to --size
    #[arg(long)]
    pub overwrite: bool,
}

impl TestFileArgs {
    /// Returns how much of the file to use.
    pub fn size(&self) -> u64 {
        self.asked_size.unwrap_or(self.default_size)
    }
}

/// How long each measurement takes, and how often it is repeated.
#[derive(Debug, Args)]
#[command(next_help_heading = "Timing")]
pub struct TimingArgs {
    /// Length of each run, at most 24h
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::positive_duration)]
    pub duration: Duration,
    /// Warm-up before each run, not counted; none with a cold page cache
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = values::duration)]
    pub warmup: Duration,
    /// Rounds; each measures all engines in turn, beginning with a different one
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::count::<1000>)]
    pub rounds: u32,
}

/// The outputs of a command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Write all results to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a report to this file: plots, tables and notes as one HTML page
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Replace output files that exist
    #[arg(long)]
    pub force: bool,
    /// Print only the results, without progress and notes
    #[arg(long)]
    pub quiet: bool,
    /// Also print all figures: tables, and notes on what they mean
    #[arg(long)]
    pub tables: bool,
    /// Whether to print the reasons of the advice.
    #[arg(skip)]
    pub explain: bool,
}
