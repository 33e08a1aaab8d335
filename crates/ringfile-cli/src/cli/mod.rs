//! The command line. Options have fio's names where fio has them.
//!
//! Only the syntax and each value's range are checked here. Each command checks whether its options fit together and
//! fit the file. Options that several commands share are in `shared`. The types of the values are in
//! [`crate::model`].

mod buffers;
mod doctor;
mod examples;
mod pool;
mod report;
mod shared;

pub use report::ReportArgs;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

pub use self::doctor::DoctorArgs;
use crate::model::{Buffers, Cache, Engine, Open, Route, Rw};
use crate::values::{self, List};
pub use buffers::BuffersArgs;
pub use pool::PoolArgs;
pub use shared::{OutputArgs, RunArgs, TestFileArgs, TimingArgs};

/// Measure what each disk I/O choice is worth on this machine, with Linux io_uring.
#[derive(Debug, Parser)]
#[command(name = "ringfile", version, arg_required_else_help = true, max_term_width = 100)]
#[command(after_long_help = examples::ALL)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one of them, once")]
pub enum Command {
    /// Measure I/O on this machine.
    #[command(subcommand)]
    Perf(Box<PerfCommand>),
    Report(ReportArgs),
    /// Find out what makes I/O slow here, and what to do about it.
    #[command(long_about = doctor::LONG, after_long_help = doctor::AFTER)]
    Doctor(DoctorArgs),
    /// Print shell completions.
    ///
    /// For bash: `ringfile completions bash > /etc/bash_completion.d/ringfile`.
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, or write the pages of all commands to a folder.
    ///
    /// To install them: `ringfile man /usr/local/share/man/man1`.
    Man(ManArgs),
}

/// `ringfile man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Folder for the pages of all commands [default: print the main page]
    #[arg(value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
    /// Replace pages that exist
    #[arg(long)]
    pub force: bool,
}

/// What `ringfile perf` measures.
#[derive(Debug, Subcommand)]
pub enum PerfCommand {
    /// Registered and vectored buffers, block sizes, depths, direct I/O and routes: what each is worth, and what to
    /// set.
    ///
    /// Measures normal, fixed (registered), vectored and vectored-fixed buffers for every combination of --bs,
    /// --iodepth and --numjobs, with IOPS, latencies, CPU time, context switches and system calls; with the smallest
    /// block also direct I/O, the page cache, and the routes; adaptive files and, if it is installed, fio for the page of
    /// --report. Prints advice on buffers, depth, block size, direct I/O and route; each piece names the figure that
    /// decided it and says whether that is outside the noise. --explain prints the reasons too, and --tables all figures.
    Buffers(BuffersArgs),
    /// Reads and writes of one file or device, with and without registered buffers.
    ///
    /// Runs every combination of --numjobs, --iodepth, --rw, --cache, --route and --buffers for --duration,
    /// each after --warmup, and prints what each choice changes over all of them; --tables prints a Markdown table of the
    /// results and one of the changes: IOPS, MiB/s, p50, p99, p99.9 and CPU time before → after. Without options it measures a
    /// file of 1 GiB in memory (/dev/shm), which shows the cost of the software alone: io_uring with normal and with
    /// registered buffers, and the route that ringfile chooses by itself, with registered buffers, as a program's pool
    /// has. To measure a disk, give a --file on it.
    File(FileArgs),
    /// Random reads in batches, several batches in flight for each thread, page cache dropped before each run.
    ///
    /// Measures blocking batches from plain threads (ringfile-blocking), the same batches awaited in tokio
    /// (ringfile-tokio), a loop over a queue (ringfile-queue), and a plain io_uring job of fio. The last two keep
    /// --batch × --inflight reads in flight. The table shows each in per cent of fio, with the number of cores that it
    /// kept busy. With a cold page cache each engine reads each block at most once. The threads of one job may run on all cores; `taskset -c 0
    /// ringfile perf batch` keeps everything on one. Without --file it reads a file on the disk of $TMPDIR or /var/tmp,
    /// since a file in memory cannot be dropped from the cache.
    #[command(mut_arg("batch", |arg| arg.help("Reads in a batch [default: 64]")))]
    #[command(mut_arg("cache", |arg| arg.help(cache_help("cold"))))]
    Batch(BatchArgs),
    /// Blocking reads of many blocks at once, from several threads: the time per read.
    ///
    /// Each thread reads one batch after another. The engines are: ringfile (a blocking batch); by-hand (a hand-written
    /// ring for each thread, which submits the batch and waits for all of it); pread (a loop of plain calls); fio
    /// (io_uring, with the batch as its depth). The table shows each in per cent of pread and of fio.
    #[command(mut_arg("batch", |arg| arg.help("Reads in a batch [default: 10,250,1000]")))]
    #[command(mut_arg("cache", |arg| arg.help(cache_help("warm"))))]
    Multiread(MultireadArgs),
    /// A message log: producers write pooled buffers to segment files at a fixed rate, consumers read them back.
    ///
    /// Each producer takes buffers, fills them, and writes them in batches to its own segments, with O_DIRECT;
    /// consumers take the batches in turn, read them back, check every byte and release the buffers. Segments are
    /// unnamed files, so nothing is left behind; each is reused once it has been read. The same work is then measured
    /// with memory from malloc, and with plain buffered I/O from Vec.
    ///
    /// With --rate-limit, batches are due at fixed times, however late earlier ones were, and none is skipped. A rate
    /// that cannot be kept is reported, with the rate reached and the operations left undone.
    #[command(mut_args(pool::in_its_words))]
    Pool(PoolArgs),
}

/// Returns kinds of buffers for operations that have one buffer each.
fn whole_buffers(text: &str) -> Result<List<Buffers>, String> {
    values::words_of(&Buffers::WHOLE, text)
}

/// Engines that `perf file` is compared with.
fn against(text: &str) -> Result<List<Engine>, String> {
    values::words_of(&Engine::AGAINST, text)
}

/// States of the page cache that every command can begin with.
fn cache(text: &str) -> Result<List<Cache>, String> {
    values::words_of(&[Cache::Warm, Cache::Cold, Cache::Keep], text)
}

/// Returns the help of `--cache`, whose default differs between commands.
fn cache_help(default: &str) -> String {
    format!(
        "Page cache before each run: warm (the whole file cached), cold (the file dropped), keep (unchanged) [default: {default}, \
         with --direct keep]"
    )
}

/// `ringfile perf file`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Job", after_long_help = examples::FILE)]
pub struct FileArgs {
    /// Block size of each operation
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = values::size)]
    pub bs: u64,
    /// Threads [default: 1 and all cores]
    #[arg(long, value_name = "LIST", value_parser = values::counts::<1024>)]
    pub numjobs: Option<List<usize>>,
    /// Operations in flight for each thread
    #[arg(long, value_name = "LIST", default_value = "1,16", value_parser = values::counts::<32768>)]
    pub iodepth: List<usize>,
    /// Operations: read, write (sequential), randread, randwrite, randrw (half and half) [default: randread,randwrite]
    #[arg(long, value_name = "LIST", value_parser = values::words::<Rw>)]
    pub rw: Option<List<Rw>>,
    /// Buffers: normal, fixed (registered with the kernel) [default: normal,fixed]
    #[arg(long, value_name = "LIST", value_parser = whole_buffers)]
    pub buffers: Option<List<Buffers>>,
    /// Route of ringfile's operations: auto (learned for each file), ring (io_uring), inline (a plain call on the same
    /// thread), workers (a plain call on another thread), aio (Linux AIO, with --direct) [default: ring with both kinds
    /// of buffers, since they differ only there, and auto with fixed ones, which a pool's are; if --buffers is given,
    /// auto; with --direct, ring]
    #[arg(long, value_name = "LIST", value_parser = values::words::<Route>)]
    pub route: Option<List<Route>>,
    /// Bypass the page cache (O_DIRECT)
    #[arg(long)]
    pub direct: bool,
    /// How ringfile opens the file: buffered, direct (as --direct), adaptive (cached data from the page cache, other
    /// data by direct I/O). Other engines open it in the first way listed [default: buffered]
    #[arg(long, value_name = "LIST", value_parser = values::words::<Open>, conflicts_with = "direct")]
    pub open: Option<List<Open>>,
    /// Page cache before each run: warm (the whole file cached), cold (the file dropped), keep (unchanged) [default:
    /// warm, with --direct keep]. Or mixed: repeated reads of --bs (Zipf) during a scan of the file, with memory
    /// limited to a quarter of --size, at least 256m (by a control group, which needs root), measured with adaptive,
    /// buffered and direct opening in turn; only the first --iodepth and --route are used, and options that do not
    /// apply are refused
    #[arg(long, value_name = "LIST", value_parser = values::words::<Cache>)]
    pub cache: Option<List<Cache>>,
    /// Also measure other engines: fio (io_uring, plain and registered), fio-batch (the same, submitting and reaping in
    /// batches), fio-psync (plain calls by fio), pread (a loop of plain calls); the last two at depth 1
    #[arg(long, value_name = "LIST", value_parser = against)]
    pub against: Option<List<Engine>>,
    /// Fill the file first and check every read against the offset and checksum in its block
    #[arg(long)]
    pub verify: bool,
    #[command(flatten)]
    pub run: RunArgs,
}

/// `ringfile perf batch`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Job", after_long_help = examples::BATCH)]
pub struct BatchArgs {
    /// Block size of each read
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = values::size)]
    pub bs: u64,
    /// Threads; ringfile-blocking has --inflight threads for each [default: 1 and all cores]
    #[arg(long, value_name = "LIST", value_parser = values::counts::<1024>)]
    pub numjobs: Option<List<usize>>,
    /// Batches in flight for each thread
    #[arg(long, value_name = "LIST", default_value = "4", value_parser = values::counts::<64>)]
    pub inflight: List<usize>,
    #[command(flatten)]
    pub reads: BatchReadArgs,
}

/// `ringfile perf multiread`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Job", after_long_help = examples::MULTIREAD)]
pub struct MultireadArgs {
    /// Block size of each read
    #[arg(long, value_name = "SIZE", default_value = "16k", value_parser = values::size)]
    pub bs: u64,
    /// Threads, each with one batch in flight
    #[arg(long, value_name = "LIST", default_value = "4", value_parser = values::counts::<1024>)]
    pub numjobs: List<usize>,
    #[command(flatten)]
    pub reads: BatchReadArgs,
}

/// The options that all commands reading in batches share.
#[derive(Debug, Args)]
#[command(next_help_heading = "Reads")]
pub struct BatchReadArgs {
    /// Reads in a batch
    #[arg(long, value_name = "LIST", value_parser = values::counts::<32768>)]
    pub batch: Option<List<usize>>,
    /// ringfile's buffers: normal, fixed (registered with the kernel); other engines use normal ones
    #[arg(long, value_name = "LIST", default_value = "normal", value_parser = whole_buffers)]
    pub buffers: List<Buffers>,
    /// Route of ringfile's operations: auto (learned for each file), ring (io_uring), inline (a plain call on the same
    /// thread), workers (a plain call on another thread), aio (Linux AIO, with --direct)
    #[arg(long, value_name = "LIST", default_value = "auto", value_parser = values::words::<Route>)]
    pub route: List<Route>,
    /// Bypass the page cache (O_DIRECT)
    #[arg(long)]
    pub direct: bool,
    /// Page cache before each run
    #[arg(long, value_name = "LIST", value_parser = cache)]
    pub cache: Option<List<Cache>>,
    /// Measure only these engines, at least one of them ringfile's [default: all that are listed above]
    #[arg(long, value_name = "LIST", value_parser = values::words::<Engine>)]
    pub engines: Option<List<Engine>>,
    #[command(flatten)]
    pub run: RunArgs,
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::model::{Memory, RingFlags};
    use clap::{CommandFactory, ValueEnum};

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Returns the parsed command line `ringfile perf` with these arguments.
    pub fn perf(arguments: &str) -> PerfCommand {
        let words = "ringfile perf".split(' ').chain(arguments.split_whitespace());
        match Cli::try_parse_from(words).expect("it parses").command {
            Command::Perf(command) => *command,
            _ => panic!("another command"),
        }
    }

    #[test]
    fn defaults_are_the_main_job() {
        let PerfCommand::File(args) = perf("file") else { panic!("another command") };
        assert_eq!((args.bs, args.run.test_file.size()), (4096, 1 << 30));
        assert_eq!(args.iodepth.values(), [1, 16]);
        assert_eq!(args.run.timing.rounds, 1);
        assert!(args.route.is_none() && args.buffers.is_none(), "they depend on each other and on --direct");
        assert!(args.rw.is_none());
        assert!(args.against.is_none() && !args.direct && !args.verify);
    }

    #[test]
    fn a_quick_measurement_uses_less_of_the_file() {
        for (arguments, size) in [("", 1 << 30), ("--quick", 512 << 20), ("--quick --size 2g", 2 << 30)] {
            let command = perf(&format!("buffers {arguments}"));
            let PerfCommand::Buffers(args) = command else { panic!("another command") };
            assert_eq!(args.test_file().size(), size, "{arguments}");
        }
    }

    #[test]
    fn defaults_of_batches_are_the_published_measurements() {
        let PerfCommand::Batch(args) = perf("batch") else { panic!("another command") };
        assert_eq!(
            (args.bs, args.reads.run.test_file.size(), args.inflight.values()),
            (4096, 1 << 30, &[4][..])
        );
        let PerfCommand::Multiread(args) = perf("multiread") else { panic!("another command") };
        assert_eq!((args.bs, args.numjobs.values()), (16384, &[4][..]));
    }

    /// Other options with fixed words get a list of them from clap.
    #[test]
    fn help_names_every_word_that_an_option_takes() {
        fn all<T: ValueEnum>() -> Vec<String> {
            some(T::value_variants())
        }
        fn some<T: ValueEnum>(values: &[T]) -> Vec<String> {
            values.iter().map(values::name).collect()
        }
        let caches = || some(&[Cache::Warm, Cache::Cold, Cache::Keep]);
        let options = [
            ("file", "rw", all::<Rw>()),
            ("file", "buffers", some(&Buffers::WHOLE)),
            ("file", "route", all::<Route>()),
            ("file", "open", all::<Open>()),
            ("file", "cache", all::<Cache>()),
            ("file", "against", some(&Engine::AGAINST)),
            ("batch", "buffers", some(&Buffers::WHOLE)),
            ("batch", "route", all::<Route>()),
            ("batch", "cache", caches()),
            ("multiread", "buffers", some(&Buffers::WHOLE)),
            ("multiread", "route", all::<Route>()),
            ("multiread", "cache", caches()),
            ("buffers", "buffers", all::<Buffers>()),
            ("buffers", "rw", all::<Rw>()),
            ("buffers", "route", all::<Route>()),
            ("buffers", "ring_flags", all::<RingFlags>()),
            ("pool", "memory", all::<Memory>()),
        ];
        let mut cli = Cli::command();
        cli.build();
        let perf = cli.find_subcommand("perf").expect("a command");
        for (command, option, known) in options {
            let command = perf.find_subcommand(command).expect("a command");
            let arg = command.get_arguments().find(|arg| arg.get_id() == option).expect("an option");
            let help = arg.get_help().expect("a help text").to_string();
            let words: Vec<_> = help.split(|c: char| !c.is_alphanumeric() && c != '-').collect();
            for word in known {
                assert!(
                    words.contains(&&*word),
                    "{} --{option}: {word} is missing: {help}",
                    command.get_name()
                );
            }
        }
    }

    #[test]
    fn words_in_json_are_those_of_the_command_line() {
        for rw in Rw::value_variants() {
            assert_eq!(serde_json::json!(rw), serde_json::json!(values::name(rw)));
        }
        for engine in Engine::value_variants() {
            assert_eq!(serde_json::json!(engine), serde_json::json!(values::name(engine)));
        }
    }
}
