//! The command line of `ringfile perf pool`.

use std::path::PathBuf;

use clap::{Arg, Args};

use super::examples;
use super::shared::{OutputArgs, TimingArgs};
use crate::model::Memory;
use crate::values::{self, List};

/// `ringfile perf pool`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Job", after_long_help = examples::POOL)]
pub struct PoolArgs {
    /// Threads that fill buffers and write them
    #[arg(long, value_name = "N", default_value = "4", value_parser = values::count::<256>)]
    pub producers: u32,
    /// Threads that read the data back and check it; with 0, nothing is read
    #[arg(long, value_name = "N", default_value = "4", value_parser = values::count_or_none::<256>)]
    pub consumers: u32,
    /// Bytes per second of all producers and consumers together: of 500MB, producers write 250MB and consumers read as
    /// much; without consumers, producers have all (MB are powers of 1000, m and MiB of 1024) [default: as fast as possible]
    #[arg(long, value_name = "SIZE", value_parser = values::rate)]
    pub rate_limit: Option<u64>,
    /// Bytes of each buffer
    #[arg(long, value_name = "SIZE", default_value = "64k", value_parser = values::size)]
    pub bs: u64,
    /// Buffers written, and read back, together
    #[arg(long, value_name = "N", default_value = "4", value_parser = values::count::<4096>)]
    pub batch: u32,
    /// Kinds of memory, measured in turn: pool (ringfile's, registered, O_DIRECT), pool-buffered (the same through the
    /// page cache), malloc (aligned memory allocated for each operation, O_DIRECT), vec (a Vec for each operation,
    /// through the page cache), vec-uncached (the same, but the page cache keeps nothing: RWF_DONTCACHE, Linux 6.14)
    /// [default: pool,malloc,vec; with --message-size pool,pool-buffered,vec]
    #[arg(long, value_name = "LIST", value_parser = values::words::<Memory>)]
    pub memory: Option<List<Memory>>,
    /// Write a log of messages of this many bytes instead of buffers of --bs; --batch messages are appended together.
    /// With pool memory they go through ringfile's Appender, with vec each batch is one buffered write
    #[arg(long, value_name = "SIZE", value_parser = values::size, conflicts_with = "bs")]
    pub message_size: Option<u64>,
    /// Count a batch as written only once it is durable (by the Appender's sync, or fdatasync)
    #[arg(long)]
    pub sync: bool,
    /// Folder for segments, on the disk to be measured [default: $TMPDIR, else /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Disk space of segments, of which the oldest is used again: how far producers may run ahead of consumers
    #[arg(long, value_name = "SIZE", default_value = "256m", value_parser = values::size)]
    pub size: u64,
    #[command(flatten)]
    pub timing: TimingArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl PoolArgs {
    /// Returns the kinds of memory to measure.
    pub fn kinds(&self) -> Vec<Memory> {
        match (&self.memory, self.message_size) {
            (Some(memory), _) => memory.values().to_vec(),
            (None, Some(_)) => vec![Memory::Pool, Memory::PoolBuffered, Memory::Vec],
            (None, None) => vec![Memory::Pool, Memory::Malloc, Memory::Vec],
        }
    }
}

/// Replaces the help of shared options where it reads differently for this command.
pub fn in_its_words(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "duration" => arg.default_value("10s"),
        "warmup" => arg.help("Warm-up before each run, not counted"),
        "rounds" => {
            arg.help("Rounds; each measures all kinds of memory in turn, beginning with a different one")
        }
        _ => arg,
    }
}
