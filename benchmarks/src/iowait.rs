//! What `no_iowait` changes: direct random reads of 4 KiB on one thread, with and without it in turn. Prints a line for each
//! run: reads a second, CPU time of the process and the system's iowait, both in hundredths of the run's time.

use std::error::Error;
use std::time::{Duration, Instant};

use ringfile::{File, OpenOptions, Pool, Route, Runtime};

const PAGE: usize = 4096;
const PAGES: u64 = 256 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, rounds, seconds, depths @ ..] = arguments.as_slice() else {
        return Err("usage: iowait FILE ROUNDS SECONDS DEPTH…".into());
    };
    let seconds = Duration::from_secs_f64(seconds.parse()?);
    if std::fs::metadata(path).map_or(true, |metadata| metadata.len() != PAGES * PAGE as u64) {
        std::fs::write(path, vec![7; PAGES as usize * PAGE])?;
        std::fs::File::open(path)?.sync_all()?;
    }
    println!("| depth | no_iowait | reads a second | CPU | iowait |");
    println!("|--:|---|--:|--:|--:|");
    for _ in 0..rounds.parse()? {
        for depth in depths {
            for no_iowait in [false, true, false] {
                let (reads, cpu, iowait) = run(path, depth.parse()?, no_iowait, seconds)?;
                println!("| {depth} | {no_iowait} | {reads:.0} | {cpu:.1} | {iowait:.1} |");
            }
        }
    }
    Ok(())
}

/// Reads for a while. Returns reads a second, and CPU time and iowait in hundredths of the time.
fn run(
    path: &str,
    depth: usize,
    no_iowait: bool,
    length: Duration,
) -> Result<(f64, f64, f64), Box<dyn Error>> {
    let file = OpenOptions::new().read(true).direct(true).route(Route::Ring).open_blocking(path)?;
    let pool = Pool::new(16 << 20);
    let runtime = Runtime::builder().threads(1).no_iowait(no_iowait).build()?;
    let before = (cpu_ticks()?, iowait_ticks()?);
    let began = Instant::now();
    let tasks: Vec<_> = (0..depth)
        .map(|task| {
            let (file, pool) = (file.clone(), pool.clone());
            runtime.spawn(async move { read(&file, &pool, task as u64, began + length).await })
        })
        .collect();
    let mut reads = 0;
    for task in tasks {
        reads += task.join().map_err(|error| error.to_string())??;
    }
    let took = began.elapsed().as_secs_f64();
    // A tick is a hundredth of a second.
    let [cpu, iowait] =
        [cpu_ticks()? - before.0, iowait_ticks()? - before.1].map(|ticks| ticks as f64 / took);
    runtime.shutdown();
    Ok((reads as f64 / took, cpu, iowait))
}

async fn read(file: &File, pool: &Pool, seed: u64, until: Instant) -> std::io::Result<u64> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut buffer, mut reads) = (pool.get(PAGE)?, 0);
    while Instant::now() < until {
        buffer = file.read_at(buffer, random.u64(0..PAGES) * PAGE as u64).await?;
        reads += 1;
    }
    Ok(reads)
}

/// proc_pid_stat(5): fields 14 and 15, user and system time.
fn cpu_ticks() -> Result<u64, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit_once(") ").ok_or("no name")?.1.split(' ');
    Ok(fields.skip(11).take(2).map(|field| field.parse::<u64>()).sum::<Result<_, _>>()?)
}

/// proc_stat(5): the fifth number of all cores together.
fn iowait_ticks() -> Result<u64, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    Ok(stat.split_whitespace().nth(5).ok_or("no iowait")?.parse()?)
}
