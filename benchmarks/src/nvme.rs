//! `compare nvme`: random reads of an NVMe drive as a block device (O_DIRECT), polled, and by passthrough commands.
//!
//! The drive is only read, so nothing is known about its content: in each round all sides must have read the same.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use fastrand::Rng;
use ringfile::{Buffer, File, OpenOptions, Pool, Route};
use ringfile_cli::shared::{self, Table};

use crate::device;
use crate::rounds::{cpu_time, in_turn, spread_of};
use crate::table::spread;

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    /// The drive's block device, such as /dev/nvme0n1
    #[arg(long)]
    drive: PathBuf,
    /// Bytes of one read, one row for each size
    #[arg(long, value_delimiter = ',', default_value = "512,4k,16k,64k,256k,1m", value_parser = shared::size)]
    bs: Vec<u64>,
    /// Reads in flight
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    depth: Vec<usize>,
    /// Length of one run
    #[arg(long, default_value = "500ms", value_parser = shared::duration)]
    duration: Duration,
    /// Rounds of all sides in turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// How many reads of each task are compared between the sides.
const COMPARED: u64 = 4;

/// How the drive is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Direct,
    Again,
    Polled,
    Passthrough,
}

impl Side {
    const ALL: [Side; 4] = [Side::Direct, Side::Again, Side::Polled, Side::Passthrough];

    fn name(self) -> &'static str {
        match self {
            Side::Direct => "direct",
            Side::Again => "direct once more (A/A)",
            Side::Polled => "polled",
            Side::Passthrough => "passthrough",
        }
    }

    fn open(self, drive: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).direct(true).route(Route::Ring);
        Ok(match self {
            Side::Direct | Side::Again => options.open_blocking(drive)?,
            Side::Polled => options.iopoll(true).open_blocking(drive)?,
            Side::Passthrough => options.open_blocking(character_device(drive)?)?,
        })
    }
}

struct Run {
    rate: f64,
    cpu_of_a_read: f64,
    content: u64,
}

/// Measures every size and depth, and prints a table.
pub fn compare(options: &Options) -> io::Result<()> {
    if options.rounds == 0 || options.depth.contains(&0) {
        return Err(io::Error::other("rounds and depth: must be at least 1"));
    }
    let table = Table::default().text("block").number("depth").text("side").number("thousand reads/s");
    let mut table = table.number("over direct").number("CPU µs/read").number("over direct's");
    let mut refused = BTreeSet::new();
    for &block in &options.bs {
        for &depth in &options.depth {
            let measured = measure(options, block, depth, &mut refused)?;
            let Some((_, direct)) = measured.first() else { continue };
            for (side, runs) in &measured {
                let over = |of: fn(&Run) -> f64| {
                    spread_of(runs.iter().zip(direct).map(|(run, direct)| of(run) / of(direct)))
                };
                table.row(vec![
                    block.to_string(),
                    depth.to_string(),
                    side.name().into(),
                    spread(spread_of(runs.iter().map(|run| run.rate / 1e3)), 1),
                    spread(over(|run| run.rate), 2),
                    spread(spread_of(runs.iter().map(|run| run.cpu_of_a_read)), 1),
                    spread(over(|run| run.cpu_of_a_read), 2),
                ]);
            }
        }
    }
    print!("\n### {}\n\n{table}", options.drive.display());
    refused.iter().for_each(|reason| println!("\nNot measured: {reason}"));
    Ok(())
}

/// Runs the sides that the drive has, `direct` first; none without it. Adds why others are left out to `refused`.
fn measure(
    options: &Options,
    block: u64,
    depth: usize,
    refused: &mut BTreeSet<String>,
) -> io::Result<Vec<(Side, Vec<Run>)>> {
    let mut sides = Vec::from(Side::ALL);
    sides.retain(|side| match side.open(&options.drive).and_then(|file| fits(&file, block)) {
        Ok(()) => true,
        Err(error) => {
            refused.insert(format!("{} with {block} bytes: {error}", side.name()));
            false
        }
    });
    if sides.first() != Some(&Side::Direct) {
        return Ok(Vec::new());
    }
    let runs = in_turn(options.rounds, sides.len(), |round, at| {
        match run(options, sides[at], block as usize, depth, round as u64) {
            // A drive without poll queues opens, and refuses polled reads.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) && sides[at] == Side::Polled => {
                refused.insert(format!("polled: {error}"));
                Ok(None)
            }
            other => other.map(Some),
        }
    })?;
    let differs =
        |runs_of: &[Run]| runs_of.iter().zip(&runs[0]).any(|(run, direct)| run.content != direct.content);
    if let Some(at) = runs.iter().position(|runs_of| differs(runs_of)) {
        return Err(io::Error::other(format!("{} has read other bytes than direct", sides[at].name())));
    }
    Ok(sides.into_iter().zip(runs).filter(|(_, runs)| !runs.is_empty()).collect())
}

/// Returns the character device of the namespace: /dev/ng0n1 for /dev/nvme0n1.
fn character_device(drive: &Path) -> io::Result<PathBuf> {
    let name = drive.file_name().and_then(|name| name.to_str()?.strip_prefix("nvme"));
    let name =
        name.ok_or_else(|| io::Error::other("not an NVMe drive's block device, such as /dev/nvme0n1"))?;
    Ok(drive.with_file_name(format!("ng{name}")))
}

fn fits(file: &File, block: u64) -> io::Result<()> {
    let unit = file.alignment().bytes as u64;
    if block.is_multiple_of(unit) {
        Ok(())
    } else {
        Err(io::Error::other(format!("blocks have {unit} bytes")))
    }
}

fn run(options: &Options, side: Side, block: usize, depth: usize, round: u64) -> io::Result<Run> {
    let before = cpu_time()?;
    let measured = std::thread::scope(|scope| {
        let reads = || ringfile::block_on(read_all(options, side, block, depth, round));
        scope.spawn(reads).join().map_err(|_| io::Error::other("panicked"))
    })?;
    let (reads, content, took) = measured?;
    let cpu = cpu_time()?.saturating_sub(before).as_secs_f64() * 1e6;
    Ok(Run { rate: reads as f64 / took.as_secs_f64(), cpu_of_a_read: cpu / reads as f64, content })
}

async fn read_all(
    options: &Options,
    side: Side,
    block: usize,
    depth: usize,
    round: u64,
) -> io::Result<(u64, u64, Duration)> {
    let pool = Pool::builder().capacity((64 << 20).max(block * depth * 2)).build()?;
    let file = side.open(&options.drive)?;
    let blocks = device::length(&std::fs::File::open(&options.drive)?)? / block as u64;
    if blocks == 0 {
        return Err(io::Error::other("the drive is too small"));
    }
    let began = Instant::now();
    let end = began + options.duration;
    let mut tasks = Vec::with_capacity(depth);
    for task in 0..depth {
        let random = Rng::with_seed(round << 32 | task as u64);
        tasks.push(ringfile::spawn(read(file.clone(), pool.get(block)?, random, block, blocks, end)));
    }
    let (mut reads, mut content) = (0, 0_u64);
    for task in tasks {
        let (of_task, bytes) = task.await.map_err(|error| io::Error::other(error.to_string()))??;
        (reads, content) = (reads + of_task, content.rotate_left(7) ^ bytes);
    }
    Ok((reads, content, began.elapsed()))
}

/// Reads until the end; returns the number of reads, and a sum of what the first ones read.
async fn read(
    file: File,
    mut buffer: Buffer,
    mut random: Rng,
    block: usize,
    blocks: u64,
    end: Instant,
) -> io::Result<(u64, u64)> {
    let (mut reads, mut content) = (0, 0_u64);
    while reads < COMPARED || Instant::now() < end {
        buffer = file.read_at(buffer, random.u64(..blocks) * block as u64).await?;
        if buffer.len() != block {
            return Err(io::Error::other(format!("read {} of {block} bytes", buffer.len())));
        }
        if reads < COMPARED {
            let words =
                buffer.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or([0; 8])));
            content = words
                .fold(content, |sum, word| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
        }
        reads += 1;
    }
    Ok((reads, content))
}
