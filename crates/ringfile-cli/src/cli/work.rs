//! Options for the blocks that a run visits and how many: shared by `perf file`, `perf batch` and `perf multiread`.

use clap::Args;

use crate::model::Access;
use crate::values::{self, IoSize};

/// Which blocks operations visit, and how many operations there are.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Work")]
pub struct WorkArgs {
    /// Blocks that random operations visit: once (each block once in random order, divided among the threads; the run
    /// ends after the last block; fio: random map), any (each operation picks a random block; fio: norandommap)
    /// [default: once with --cache cold or --io-size all, else any]
    #[arg(long, value_name = "WHICH")]
    pub access: Option<Access>,
    /// End each run after all threads together have moved this many bytes, instead of after --duration: a size, or all
    /// (as much as --size)
    #[arg(long, value_name = "SIZE", value_parser = values::io_size, conflicts_with = "duration")]
    pub io_size: Option<IoSize>,
}

/// When ringfile-queue and fio submit and collect; the options have fio's names.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Queue")]
pub struct QueueArgs {
    /// Reads that ringfile-queue and fio submit together [default: as many as the depth allows; fio: 1]
    #[arg(long, alias = "iodepth_batch_submit", value_name = "N", value_parser = values::count::<32768>)]
    pub iodepth_batch_submit: Option<u32>,
    /// Completions that ringfile-queue and fio wait for [default: 1]
    #[arg(long, alias = "iodepth_batch_complete", value_name = "N", value_parser = values::count::<32768>)]
    pub iodepth_batch_complete: Option<u32>,
    /// ringfile-queue and fio add reads again when at most this many are in flight [default: the depth]
    #[arg(long, alias = "iodepth_low", value_name = "N", value_parser = values::count::<32768>)]
    pub iodepth_low: Option<u32>,
}
