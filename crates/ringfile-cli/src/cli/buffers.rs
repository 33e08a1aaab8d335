//! The command line of `ringfile perf buffers`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::examples;
use super::shared::{OutputArgs, TestFileArgs};
use crate::model::{Buffers, RingFlags, Route, Rw};
use crate::values::{self, List};

/// `ringfile perf buffers`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Measurement", after_long_help = examples::BUFFERS)]
#[command(mut_arg("file", |arg| arg.help(FILE_HELP)))]
pub struct BuffersArgs {
    /// A small grid that takes less than two minutes: 4k and 128k, depths 1, 16 and 128, one thread, 5 rounds of
    /// 150ms, 512m of the file; other options override it
    #[arg(long)]
    pub quick: bool,
    /// Block sizes [default: 4k,16k,32k,128k,512k]
    #[arg(long, value_name = "LIST", value_parser = values::sizes)]
    pub bs: Option<List<u64>>,
    /// Operations in flight for each thread [default: 1,4,16,64,128]
    #[arg(long, value_name = "LIST", value_parser = values::counts::<32_768>)]
    pub iodepth: Option<List<usize>>,
    /// Buffers: normal, fixed (registered with the kernel), vectored (in --parts), vectored-fixed [default: all]
    #[arg(long, value_name = "LIST", value_parser = values::words::<Buffers>)]
    pub buffers: Option<List<Buffers>>,
    /// Parts of a vectored block, or fewer if the file's alignment requires; blocks that cannot be divided have no
    /// vectored runs
    #[arg(long, value_name = "N", default_value = "32", value_parser = values::count::<1024>)]
    pub parts: u32,
    /// Threads, each pinned to its own core [default: 1 and, with two cores, 2]
    #[arg(long, value_name = "LIST", value_parser = values::counts::<1024>)]
    pub numjobs: Option<List<usize>>,
    /// Operations: randread, randwrite, randrw (half and half), read, write (sequential) [default: randread,randwrite;
    /// on a --file that exists, without --overwrite, randread]
    #[arg(long, value_name = "LIST", value_parser = values::words::<Rw>)]
    pub rw: Option<List<Rw>>,
    /// Bypass the page cache (O_DIRECT), and fail if the file does not support it [default: if the file supports it]
    #[arg(long, conflicts_with = "buffered")]
    pub direct: bool,
    /// Go through the page cache, after reading the whole file into it
    #[arg(long)]
    pub buffered: bool,
    /// Route of the operations: ring (io_uring), auto (learned for each file), inline (a plain call on the same
    /// thread), workers (a plain call on another thread), aio (Linux AIO, for direct I/O) [default: ring if there is
    /// one, since buffers differ only there]
    #[arg(long, value_name = "ROUTE")]
    pub route: Option<Route>,
    /// io_uring setup flags: none, coop (COOP_TASKRUN), defer (DEFER_TASKRUN), sqpoll (a kernel thread submits); the
    /// advice is for the first one listed. A flag that the kernel refuses is an error [default: ringfile's own choice,
    /// defer if possible]
    #[arg(long, value_name = "LIST", value_parser = values::words::<RingFlags>)]
    pub ring_flags: Option<List<RingFlags>>,
    /// Also measure a hand-written io_uring loop with the same buffers and flags
    #[arg(long)]
    pub by_hand: bool,
    /// Length of each run, at most 24h [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration)]
    pub duration: Option<Duration>,
    /// Warm-up before each run, not counted [default: 200ms]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub warmup: Option<Duration>,
    /// Rounds; each measures all kinds of buffers in turn, beginning with a different one. With fewer than 3, no
    /// difference is claimed [default: 3]
    #[arg(long, value_name = "N", value_parser = values::count::<1000>)]
    pub rounds: Option<u32>,
    /// Show where CPU time goes for each block size and kind of buffers: the ten most expensive functions in the kernel
    /// and in user space, and flame graphs in the --report (needs perf)
    #[arg(long)]
    pub profile: bool,
    /// Print the reasons below the advice
    #[arg(long)]
    pub explain: bool,
    /// Write the advice to this file, for `ringfile::Config::load`
    #[arg(long, value_name = "FILE.toml")]
    pub emit_config: Option<PathBuf>,
    #[command(flatten)]
    pub test_file: TestFileArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl BuffersArgs {
    /// Returns the outputs.
    pub fn output(&self) -> OutputArgs {
        OutputArgs { explain: self.explain, ..self.output.clone() }
    }

    /// Returns the file, of which a quick measurement uses less.
    pub fn test_file(&self) -> TestFileArgs {
        let default_size = if self.quick { 512 << 20 } else { self.test_file.default_size };
        TestFileArgs { default_size, ..self.test_file.clone() }
    }
}

const FILE_HELP: &str = "File or block device [default: ringfile-perf-PID.bin in TMPDIR, else in /var/tmp]; what does not exist \
                         is created, and removed at the end";
