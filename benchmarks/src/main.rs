//! `compare`: measures ringfile, a hand-written ring loop and other io_uring runtimes with the same reads.
//!
//! Prints Markdown tables to standard output and progress to standard error. This file only knows the command line.

mod allocations;
mod allocs;
mod blocked;
mod buffer;
mod cache;
mod data;
mod device;
mod fuse;
mod in_tokio;
mod job;
mod log;
mod new_file;
mod nvme;
mod order;
mod ranges;
mod reproduce;
mod rounds;
mod routes;
mod sides;
mod table;
mod throughput;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use data::Place;
use job::Job;
use ringfile_cli::shared::{self, Table};
use sides::{BATCHES, SIDES, Side, VECTORED};

#[derive(Debug, Parser)]
#[command(
    version,
    about = "Compares random reads of ringfile with those of a hand-written ring loop and other runtimes"
)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    place: Option<Place>,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    reads: Reads,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare vectored reads of 32 x 4 KiB with registered and normal buffers (READV_FIXED, READV), and reads of single
    /// blocks
    Vectored(Common),
    /// Count ringfile's heap allocations for each kind of operation
    Allocs {
        /// A file on a file system with O_DIRECT; it is created and filled if it does not exist
        #[arg(long)]
        file: PathBuf,
    },
    /// Compare blocking batches with a hand-written loop that does the same, and count their heap allocations
    Batch {
        #[command(flatten)]
        common: Common,
        /// Reads of one batch
        #[arg(long, value_delimiter = ',', default_value = "64,256")]
        batch: Vec<usize>,
        /// The most reads of a batch in flight
        #[arg(long, value_delimiter = ',', default_value = "16,128")]
        in_flight: Vec<usize>,
    },
    /// Compare reads awaited in tokio: ringfile, spawn_blocking, and a ring that tokio's own threads drive; and in plain
    /// threads
    Tokio {
        #[command(flatten)]
        common: Common,
        /// Begin with an empty page cache, and read each block three times: a third of the reads wait
        #[arg(long, conflicts_with_all = ["direct", "duration", "warmup"])]
        cold: bool,
        /// How many tasks read at the same time
        #[arg(long, value_delimiter = ',', default_value = "16,128")]
        tasks: Vec<usize>,
    },
    /// Do one measurement; `tokio` starts this command for each
    #[command(hide = true)]
    InTokio {
        #[arg(value_parser = rounds::argument::<in_tokio::One>)]
        one: in_tokio::One,
    },
    /// Do one measurement; `adaptive --grid` starts this command for each
    #[command(hide = true)]
    InGrid {
        #[arg(value_parser = rounds::argument::<throughput::GridRun>)]
        one: throughput::GridRun,
    },
    /// Do one measurement; `cache working-set` starts this command for each
    #[command(hide = true)]
    InCache {
        #[arg(value_parser = rounds::argument::<cache::One>)]
        one: cache::One,
    },
    /// Compare ringfile's page cache with mmap, the kernel's page cache and other caches: hits, misses, a working set larger
    /// than memory, and hit rates
    Cache(cache::Options),
    /// Compare random reads and writes of ringfile on each route, on several file systems (see places.sh)
    Routes(routes::Options),
    /// Compare the throughput of adaptive, buffered and direct files, with the page cache empty and full
    Adaptive(throughput::Adaptive),
    /// Compare `get_ranges` of ringfile's object store and of LocalFileSystem, with the page cache empty and full
    GetRanges(throughput::GetRanges),
    /// Compare many ranges of a file, read by tasks in tokio in each of the usual ways: cold, hot, and with little memory
    Ranges(ranges::Options),
    /// Do one measurement; `ranges` starts this command for each
    #[command(hide = true)]
    InRanges {
        #[arg(value_parser = rounds::argument::<ranges::One>)]
        one: ranges::One,
    },
    /// Compare a log of small entries by several threads, each synced: Appender, and pwrite with fdatasync as log engines do it
    Log(log::Options),
    /// Compare how fast direct writes fill a new file whose space was prepared in each of the usual ways
    NewFile(new_file::Options),
    /// Compare direct, polled and passthrough reads of an NVMe drive, which is only read
    Nvme(nvme::Options),
    /// Measure published figures on this machine, and print them beside those of docs/figures.toml (see `reproduce`)
    Reproduce(reproduce::Options),
    /// Run a command that may not use io_uring, as in a container with Docker's default seccomp profile
    Blocked(blocked::Options),
    /// Serve a file through FUSE, as DIRECTORY/data, until it is unmounted
    Fuse {
        /// Where to mount it
        directory: PathBuf,
        /// The file that it serves
        backing: PathBuf,
    },
    /// Print the sides and their settings
    Sides,
}

#[derive(Debug, Args)]
struct Reads {
    /// Bytes of one read
    #[arg(long, default_value = "4k", value_parser = shared::size)]
    bs: u64,
    /// Reads in flight, one table for each number
    #[arg(long, value_delimiter = ',', default_value = "16,128")]
    depth: Vec<usize>,
    /// Only these sides (see `compare sides`)
    #[arg(long, value_delimiter = ',')]
    sides: Vec<String>,
    /// The side that all others are compared with, and that runs twice
    #[arg(long, default_value = "ringfile")]
    base: String,
}

#[derive(Debug, Args)]
struct Common {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
struct How {
    /// Read with O_DIRECT; by default, reads come from the page cache
    #[arg(long)]
    direct: bool,
    /// Counted time of one run
    #[arg(long, default_value = "1s", value_parser = shared::duration)]
    duration: Duration,
    /// Length of the warm-up before each run, which is not counted
    #[arg(long, default_value = "300ms", value_parser = shared::duration)]
    warmup: Duration,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match (cli.command, cli.place) {
        (Some(Command::Sides), _) => {
            list();
            Ok(())
        }
        (Some(Command::Vectored(common)), _) => common.place.clean_up_after(vectored(&common)),
        (Some(Command::Allocs { file }), _) => allocs(&file),
        (Some(Command::Batch { common, batch, in_flight }), _) => {
            common.place.clean_up_after(batches(&common, &batch, &in_flight))
        }
        (Some(Command::Tokio { common, cold, tasks }), _) => {
            common.place.clean_up_after(tokio_reads(&common, cold, &tasks))
        }
        (Some(Command::InTokio { one }), _) => in_tokio::measure(&one),
        (Some(Command::InGrid { one }), _) => throughput::in_grid(&one),
        (Some(Command::InCache { one }), _) => cache::measure(&one),
        (Some(Command::Cache(options)), _) => cache::compare(&options),
        (Some(Command::Routes(options)), _) => routes::compare(&options),
        (Some(Command::Adaptive(options)), _) => throughput::adaptive(&options),
        (Some(Command::GetRanges(options)), _) => throughput::get_ranges(&options),
        (Some(Command::Ranges(options)), _) => ranges::compare(&options),
        (Some(Command::InRanges { one }), _) => ranges::measure(&one),
        (Some(Command::Log(options)), _) => log::compare(&options),
        (Some(Command::NewFile(options)), _) => new_file::compare(&options),
        (Some(Command::Nvme(options)), _) => nvme::compare(&options),
        (Some(Command::Reproduce(options)), _) => reproduce::run(&options),
        (Some(Command::Blocked(options)), _) => Err(blocked::run(&options)),
        (Some(Command::Fuse { directory, backing }), _) => fuse::serve(&directory, &backing),
        (None, Some(place)) => {
            let common = Common { place, how: cli.how };
            common.place.clean_up_after(compare(&common, &cli.reads))
        }
        (None, None) => Err(io::Error::other("name the file to read: --file PATH")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list() {
    for side in SIDES.iter().chain(VECTORED).chain(BATCHES) {
        println!("{:<18} {}", side.name, side.settings);
    }
}

fn compare(common: &Common, reads: &Reads) -> io::Result<()> {
    let (sides, base) = with_repeat(chosen(&reads.sides)?, &reads.base)?;
    job::check_block(reads.bs, 1).map_err(io::Error::other)?;
    let size = common.place.prepare(reads.bs)?;
    for &depth in &reads.depth {
        if depth == 0 {
            return Err(io::Error::other("depth: must be at least 1"));
        }
        let job = common.job(size, reads.bs as usize, 1, depth);
        let outcomes = rounds::measure(&sides, &job, common.place.rounds)?;
        table::print(&sides, &outcomes, base, &job);
    }
    Ok(())
}

fn vectored(common: &Common) -> io::Result<()> {
    const PARTS: usize = 32;
    const DEPTH: usize = 16;
    let block = PARTS * data::PAGE;
    let size = common.place.prepare(block as u64)?;
    let (sides, base) = with_repeat(VECTORED.to_vec(), VECTORED[0].name)?;
    let job = common.job(size, block, PARTS, DEPTH);
    let outcomes = rounds::measure(&sides, &job, common.place.rounds)?;
    table::print(&sides, &outcomes, base, &job);

    let plain = ["ringfile", "ringfile-normal", "hand", "hand-normal"].map(str::to_owned);
    let (sides, base) = with_repeat(chosen(&plain)?, "ringfile")?;
    let job = common.job(size, data::PAGE, 1, DEPTH);
    let outcomes = rounds::measure(&sides, &job, common.place.rounds)?;
    table::print(&sides, &outcomes, base, &job);
    Ok(())
}

fn tokio_reads(common: &Common, cold: bool, tasks: &[usize]) -> io::Result<()> {
    /// Longer than reading a file takes.
    const HOUR: Duration = Duration::from_secs(3600);
    if tasks.contains(&0) {
        return Err(io::Error::other("tasks: must be at least 1"));
    }
    let size = common.place.prepare(data::PAGE as u64)?;
    for &tasks in tasks {
        let mut job = common.job(size, data::PAGE, 1, tasks);
        if cold {
            (job.order, job.warmup, job.duration) = (order::Order::ShuffledThrice, Duration::ZERO, HOUR);
        }
        in_tokio::compare(&job, common.place.rounds)?;
    }
    // Cached reads end at the first poll.
    if common.how.direct { in_tokio::compare_delays(&common.job(size, data::PAGE, 1, 1)) } else { Ok(()) }
}

fn batches(common: &Common, reads: &[usize], in_flight: &[usize]) -> io::Result<()> {
    if reads.iter().chain(in_flight).any(|&number| number == 0) {
        return Err(io::Error::other("batch: must be at least 1"));
    }
    let size = common.place.prepare(data::PAGE as u64)?;
    let (sides, base) = with_repeat(BATCHES.to_vec(), BATCHES[0].name)?;
    let pairs = || reads.iter().flat_map(|&reads| in_flight.iter().map(move |&most| (reads, most)));
    for (reads, most) in pairs() {
        let job = Job { in_flight: Some(most), ..common.job(size, data::PAGE, 1, reads) };
        let outcomes = rounds::measure(&sides, &job, common.place.rounds)?;
        table::print(&sides, &outcomes, base, &job);
    }
    allocations::count_all_threads();
    println!("\n### Heap allocations of one batch, all threads\n");
    let table = Table::default().text("route").number("reads").number("in flight");
    let mut table = table.number("in building it").number("in `run`");
    for route in [ringfile::Route::Auto, ringfile::Route::Ring] {
        for (reads, most) in pairs() {
            let (built, run) =
                sides::batch_allocations(&common.place.file, common.how.direct, route, reads, most)?;
            table.row(vec![
                format!("{route:?}"),
                reads.to_string(),
                most.to_string(),
                built.to_string(),
                run.to_string(),
            ]);
        }
    }
    print!("{table}");
    Ok(())
}

fn allocs(file: &Path) -> io::Result<()> {
    const SIZE: u64 = 64 << 20;
    let size = data::prepare(file, SIZE, false, data::PAGE as u64)?;
    allocs::run(file, size)
}

fn chosen(names: &[String]) -> io::Result<Vec<Side>> {
    if names.is_empty() {
        return Ok(SIDES.to_vec());
    }
    let find = |name: &String| {
        let unknown = || io::Error::other(format!("no side {name:?}; `compare sides` lists them"));
        SIDES.iter().find(|side| side.name == name).copied().ok_or_else(unknown)
    };
    names.iter().map(find).collect()
}

/// Adds the base once more, as the A/A row. How far its ratio is from 1 shows the noise in the other ratios.
fn with_repeat(mut sides: Vec<Side>, base: &str) -> io::Result<(Vec<Side>, usize)> {
    let index = sides.iter().position(|side| side.name == base);
    let index = index.ok_or_else(|| io::Error::other(format!("the base {base:?} is not among the sides")))?;
    sides.push(Side { name: "A/A", settings: "the base once more", ..sides[index] });
    Ok((sides, index))
}

impl Common {
    fn job(&self, size: u64, block: usize, parts: usize, depth: usize) -> Job {
        Job {
            path: self.place.file.clone(),
            size,
            direct: self.how.direct,
            block,
            parts,
            depth,
            in_flight: None,
            warmup: self.how.warmup,
            duration: self.how.duration,
            seed: self.place.seed,
            order: order::Order::Random,
        }
    }
}
