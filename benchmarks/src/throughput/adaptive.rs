//! `compare adaptive`: compares adaptive files with buffered and direct ones, by cached reads, cold random reads and cold
//! sequential reads.
//!
//! Ratios are formed within a round. The first side runs twice (A/A), which shows the noise.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use ringfile::{Buffer, File, OpenOptions, Pool, block_on};
use serde::{Deserialize, Serialize};

use super::grid::{self, Form};
use super::{Cache, Run, Trial, cells, ratios, runs_in_turn};
use crate::data::{PAGE, Place};
use crate::job::{Job, Stream, Tally};
use crate::order::Order;
use crate::table::spread;

/// The length of a run that reads blocks repeatedly. The other runs end when each block has been read once.
const REPEATED: Duration = Duration::from_secs(1);
/// The pause after filling the file: an adaptive file's read-ahead trusts a change time only if it is older than 5 s.
const TRUSTED_AFTER: Duration = Duration::from_secs(7);

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    place: Place,
    /// Only these rows
    #[arg(long, value_delimiter = ',', value_parser = ["warm", "cold", "sequential", "passes"])]
    only: Vec<String>,
    /// Instead of these rows, print the grid of adaptive files against buffered and direct ones (root): long takes three
    /// hours, short ten minutes. The file is twice as large as --size
    #[arg(long)]
    grid: Option<Form>,
    /// Only the cells of the grid whose names contain all parts of one of these: "4k/zipf/cold,pass"
    #[arg(long, value_delimiter = ',', requires = "grid")]
    cells: Vec<String>,
    /// Save each cell of the grid to this file, and do not measure cells again that are in it
    #[arg(long, requires = "grid")]
    saved: Option<PathBuf>,
}

/// The kinds of file that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Side {
    Adaptive,
    Buffered,
    Direct,
}

impl Side {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Buffered => "buffered",
            Self::Direct => "direct",
        }
    }
}

/// The executor that polls the reads.
#[derive(Clone, Copy)]
enum Executor {
    Ringfile,
    Tokio,
    Futures,
}

struct Row {
    name: &'static str,
    what: &'static str,
    cache: Cache,
    order: Order,
    block: usize,
    depth: usize,
    executor: Executor,
    sides: [Side; 2],
}

#[rustfmt::skip]
const ROWS: [Row; 8] = {
    use {Executor::*, Side::*};
    let warm = Row {
        name: "warm", what: "", cache: Cache::Full, order: Order::Random, block: PAGE, depth: 1, executor: Ringfile,
        sides: [Adaptive, Buffered],
    };
    let cold = Row { name: "cold", cache: Cache::Empty, order: Order::ShuffledOnce, ..warm };
    const K128: usize = 128 << 10;
    [
        Row { what: "cached 4 KiB, 1", ..warm },
        Row { what: "cached 4 KiB, 16", depth: 16, ..warm },
        Row { what: "cached 128 KiB, 16", depth: 16, block: K128, ..warm },
        Row { what: "cached 4 KiB, 16, tokio", depth: 16, executor: Tokio, ..warm },
        Row { what: "cached 128 KiB, 16, tokio", depth: 16, block: K128, executor: Tokio, ..warm },
        Row { what: "cached 4 KiB, 1, futures::executor", executor: Futures, ..warm },
        Row { what: "cold random 128 KiB, 16", block: K128, depth: 16, sides: [Adaptive, Direct], ..cold },
        Row { name: "sequential", what: "cold sequential 64 KiB, 1", order: Order::InOrderOnce, block: 64 << 10, ..cold },
    ]
};

/// Prints the table.
pub fn compare(options: &Options) -> io::Result<()> {
    options.place.clean_up_after(match options.grid {
        None => compare_all(options),
        Some(form) => grid::compare(&options.place, form, &options.cells, options.saved.as_deref()),
    })
}

fn compare_all(options: &Options) -> io::Result<()> {
    let size = options.place.prepare(128 << 10)?;
    wait_until_trusted(&options.place.file)?;
    println!(
        "| reads | side | MiB/s median [min..max] | CPU ms/GB | device MiB a run | rate / other | CPU / other |"
    );
    println!("|---|---|--:|--:|--:|--:|--:|");
    for row in &ROWS {
        if options.only.is_empty() || options.only.iter().any(|name| name == row.name) {
            compare_row(&options.place, size, row)?;
        }
    }
    if options.only.iter().any(|name| name == "passes") {
        for (block, depth) in
            [(PAGE, 16), (PAGE, 128), (16 << 10, 16), (16 << 10, 128), (128 << 10, 16), (128 << 10, 128)]
        {
            compare_passes(&options.place, size, block, depth)?;
        }
    }
    Ok(())
}

/// Compares three passes over the file, each in another random order, from an empty cache on. The first is held against direct
/// reads, the second and third against the first and second of buffered reads: adaptive files read at most one pass past the
/// cache before they fill it.
fn compare_passes(place: &Place, size: u64, block: usize, depth: usize) -> io::Result<()> {
    const SIDES: [Side; 4] = [Side::Adaptive, Side::Buffered, Side::Direct, Side::Adaptive];
    let runs = crate::rounds::in_turn(place.rounds, SIDES.len(), |round, side| {
        let job = Job {
            path: place.file.clone(),
            size,
            direct: SIDES[side] == Side::Direct,
            block,
            parts: block / PAGE,
            depth,
            in_flight: None,
            warmup: Duration::ZERO,
            duration: Duration::from_secs(3600),
            seed: place.seed.wrapping_add(10 * round as u64),
            order: Order::ShuffledOnce,
        };
        super::drop_cache(&std::fs::File::open(&place.file)?, size, None)?;
        let (file, mut buffers) = open(SIDES[side], &job)?;
        let mut rates = [0.0; 3];
        for (pass, rate) in (0..).zip(&mut rates) {
            let job = Job { seed: job.seed + pass, ..job.clone() };
            let began = std::time::Instant::now();
            let tally = block_on(read_all(&file, buffers, &job))?;
            *rate = tally.all_bytes as f64 / began.elapsed().as_secs_f64() / f64::from(1 << 20);
            buffers = open(SIDES[side], &job)?.1;
        }
        eprintln!(
            "{} KiB, depth {depth}, round {round}, {}: {rates:.0?} MiB/s",
            block >> 10,
            SIDES[side].name()
        );
        io::Result::Ok(Some(rates))
    })?;
    let rate = |side: usize, pass: usize| {
        spread(crate::rounds::spread_of(runs[side].iter().map(|rates| rates[pass])), 0)
    };
    let over = |side: usize, pass: usize, other: usize, its_pass: usize| {
        let ratios = runs[side].iter().zip(&runs[other]).map(|(one, other)| one[pass] / other[its_pass]);
        spread(crate::rounds::spread_of(ratios), 2)
    };
    println!(
        "\n{} KiB, {depth} in flight, MiB/s of three passes, each in another random order:\n",
        block >> 10
    );
    println!(
        "| pass | adaptive | buffered | direct | adaptive over | | A/A |\n|---|--:|--:|--:|---|--:|--:|"
    );
    for (pass, (other, its_pass, name)) in
        [(2, 0, "direct"), (1, 0, "buffered, pass 1"), (1, 1, "buffered, pass 2")].into_iter().enumerate()
    {
        println!(
            "| {} | {} | {} | {} | {name} | {} | {} |",
            pass + 1,
            rate(0, pass),
            rate(1, pass),
            rate(2, pass),
            over(0, pass, other, its_pass),
            over(3, pass, 0, pass)
        );
    }
    Ok(())
}

/// Waits until adaptive files read ahead in a file that was just filled.
pub fn wait_until_trusted(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    loop {
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(path.metadata()?.ctime().unsigned_abs());
        match TRUSTED_AFTER.checked_sub(changed.elapsed().unwrap_or_default()) {
            Some(rest) if !rest.is_zero() => std::thread::sleep(rest),
            _ => return Ok(()),
        }
    }
}

fn compare_row(place: &Place, size: u64, row: &Row) -> io::Result<()> {
    let sides = [row.sides[0], row.sides[1], row.sides[0]];
    let names = [sides[0].name(), sides[1].name(), "A/A"];
    let runs = runs_in_turn(row.what, place.rounds, &names, |side| measure(place, size, row, sides[side]))?;
    let over = |above: usize, below: usize| {
        let rate = ratios(&runs[above], &runs[below], Run::mib_per_second);
        let cpu = ratios(&runs[above], &runs[below], Run::cpu_ms_per_gb);
        format!("{} | {}", spread(rate, 2), spread(cpu, 2))
    };
    let over = [over(0, 1), " | ".to_owned(), over(2, 0)];
    for ((name, runs), over) in names.iter().zip(&runs).zip(over) {
        println!("| {} | {name} | {} | {over} |", row.what, cells(runs));
    }
    Ok(())
}

fn measure(place: &Place, size: u64, row: &Row, side: Side) -> io::Result<Run> {
    let trial = Trial::prepare(place, size, row.cache)?;
    let job = Job {
        path: place.file.clone(),
        size,
        direct: side == Side::Direct,
        block: row.block,
        // Each page begins with its own offset.
        parts: row.block / PAGE,
        depth: row.depth,
        in_flight: None,
        warmup: Duration::ZERO,
        duration: if row.order == Order::Random { REPEATED } else { Duration::from_secs(3600) },
        seed: place.seed,
        order: row.order,
    };
    let (file, buffers) = open(side, &job)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let run = trial.measure(|| {
        let all = read_all(&file, buffers, &job);
        let tally = match row.executor {
            Executor::Ringfile => block_on(all),
            Executor::Tokio => runtime.block_on(all),
            Executor::Futures => futures::executor::block_on(all),
        };
        Ok(tally?.all_bytes)
    })?;
    if job.order != Order::Random && run.bytes != size {
        return Err(io::Error::other(format!("{} of {size} bytes were read", run.bytes)));
    }
    Ok(run)
}

/// Opens the file as the side does, and allocates a buffer for each read in flight.
pub(super) fn open(side: Side, job: &Job) -> io::Result<(File, Vec<Buffer>)> {
    let mut options = OpenOptions::new();
    options.read(true).adaptive(side == Side::Adaptive).direct(side == Side::Direct);
    let file = options.open_blocking(&job.path)?;
    if side == Side::Adaptive && !file.is_adaptive() {
        return Err(io::Error::other("this kernel or file system has no adaptive files"));
    }
    let pool = Pool::new((job.depth * job.block * 2).max(4 << 20));
    let buffers = (0..job.depth).map(|_| pool.get(job.block)).collect::<Result<Vec<_>, _>>()?;
    Ok((file, buffers))
}

/// Reads through an adaptive file in ringfile's loop.
pub fn read_adaptive(job: &Job) -> io::Result<Tally> {
    let (file, buffers) = open(Side::Adaptive, job)?;
    block_on(read_all(&file, buffers, job))
}

pub(super) async fn read_all(file: &File, buffers: Vec<Buffer>, job: &Job) -> io::Result<Tally> {
    let window = job.start();
    let tasks = buffers.into_iter().enumerate().map(|(task, buffer)| read(file, buffer, window.stream(task)));
    Tally::sum(tasks.collect::<FuturesUnordered<_>>().collect::<Vec<_>>().await)
}

async fn read(file: &File, mut buffer: Buffer, mut stream: Stream) -> io::Result<Tally> {
    while let Some(offset) = stream.next() {
        buffer.clear();
        buffer = file.read_exact_at(buffer, offset).await?;
        stream.done_parts(buffer.chunks(PAGE))?;
    }
    Ok(stream.into_tally())
}
