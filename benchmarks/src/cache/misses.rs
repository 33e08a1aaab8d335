//! `compare cache misses`: what a cache adds to a read that it misses. Each block is read once, in a random order.

use std::io;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use ringfile::block_on;
use ringfile_cli::shared::Table;

use super::sides::{Cache, Own, Quick, read_all};
use crate::data::Place;
use crate::job::Job;
use crate::order::Order;
use crate::rounds::spread_of;
use crate::sides::SIDES;
use crate::table::spread;
use crate::throughput::{self, Run, Trial, ratios, runs_in_turn};

/// Caches may hold one over this part of the file, so that they also evict.
const PART: u64 = 4;
/// Longer than reading a file takes.
const UNTIL_ITS_END: Duration = Duration::from_secs(3600);

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    place: Place,
}

/// The sides; the first is the one that all are compared with.
const NAMES: [&str; 5] = ["direct", "ringfile-cache", "ringfile-cache, new", "quick_cache", "A/A (direct)"];

/// Prints a table for each size of read.
pub fn compare(options: &Options) -> io::Result<()> {
    options.place.clean_up_after(compare_all(&options.place))
}

fn compare_all(place: &Place) -> io::Result<()> {
    for (block, depth) in [(4 << 10, 128), (128 << 10, 16)] {
        let size = place.prepare(block as u64)?;
        let job = Job {
            path: place.file.clone(),
            size,
            direct: true,
            block,
            parts: 1,
            depth,
            in_flight: None,
            warmup: Duration::ZERO,
            duration: UNTIL_ITS_END,
            seed: place.seed,
            order: Order::ShuffledOnce,
        };
        let memory = (size / PART) as usize;
        let own = filled(&job, memory, Own::open)?;
        let quick = filled(&job, memory, Quick::open)?;
        let what = format!("{} KiB, {depth} in flight", block >> 10);
        let runs = runs_in_turn(&what, place.rounds, &NAMES, |side| {
            let trial = Trial::prepare(place, size, throughput::Cache::Empty)?;
            own.empty();
            quick.empty();
            trial.measure(|| {
                let tally = match side {
                    1 => block_on(read_all(&own, &job)),
                    2 => block_on(async { read_all(&Own::open(&job.path, block, memory)?, &job).await }),
                    3 => block_on(read_all(&quick, &job)),
                    _ => (SIDES[0].run)(&job),
                }?;
                if tally.all_bytes == size {
                    return Ok(size);
                }
                Err(io::Error::other(format!("{} of {size} bytes were read", tally.all_bytes)))
            })
        })?;
        print(&what, block, &runs);
    }
    println!(
        "\n{} rounds; each block of the file ({} MiB) once, after its pages were dropped from the page cache; caches hold \
         a quarter of it, and begin empty, in memory that was used before; \"new\": in memory that was not.",
        place.rounds,
        place.size >> 20
    );
    Ok(())
}

/// Makes a cache whose memory has been used.
fn filled<C: Cache>(
    job: &Job,
    memory: usize,
    open: fn(&Path, usize, usize) -> io::Result<C>,
) -> io::Result<C> {
    let part = Job { size: memory as u64 / job.block as u64 * job.block as u64, ..job.clone() };
    let cache = open(&job.path, job.block, memory)?;
    block_on(read_all(&cache, &part))?;
    Ok(cache)
}

fn print(what: &str, block: usize, runs: &[Vec<Run>]) {
    println!("\n### Misses: {what}\n");
    let reads = |run: &Run| run.bytes as f64 / block as f64;
    let rate = |run: &Run| reads(run) / run.seconds;
    let cpu = |run: &Run| run.cpu / run.bytes as f64;
    let table = Table::default().text("side").number("thousand reads/s, median [min..max]");
    let table = table.number("side / direct").number("CPU µs a read").number("CPU, side / direct");
    let mut table = table.number("device MiB a run");
    for (name, side) in NAMES.iter().zip(runs) {
        table.row(vec![
            (*name).into(),
            spread(spread_of(side.iter().map(|run| rate(run) / 1e3)), 1),
            spread(ratios(side, &runs[0], |run| run.bytes as f64 / run.seconds), 2),
            spread(spread_of(side.iter().map(|run| run.cpu * 1e6 / reads(run))), 2),
            spread(ratios(side, &runs[0], cpu), 2),
            format!("{:.0}", spread_of(side.iter().map(|run| run.device_bytes as f64 / 1048576.0)).median),
        ]);
    }
    print!("{table}");
}
