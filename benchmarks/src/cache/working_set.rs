//! `compare cache working-set`: a working set larger than the memory for it, alone and beside a scan.
//!
//! Each run is a process of its own (this program again). The kernel's page cache is limited by a control group, the
//! others by their capacity; both to the same bytes. A run begins with nothing in memory; its warm-up is not counted.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use ringfile::block_on;
use ringfile_cli::shared::{self, MemoryGroup, Table};
use serde::{Deserialize, Serialize};

use super::Mapping;
use super::sides::{Cache, Foyer, Moka, Own, Quick, read_all};
use crate::data::{PAGE, Place};
use crate::device::ReadCounter;
use crate::job::{Job, Stream, Tally};
use crate::order::Order;
use crate::rounds::{cpu_time, in_process, in_turn, spread_of};
use crate::table::spread;
use crate::throughput::{drop_cache, read_adaptive, wait_until_trusted};

/// What the control group allows beyond the page cache: the process's own memory, page tables and threads.
const OWN_MEMORY: u64 = 16 << 20;

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    place: Place,
    /// Memory: one over this part of the file
    #[arg(long, default_value_t = 4)]
    part: u64,
    /// Tasks, each of which reads one page after the other; with mmap threads
    #[arg(long, default_value_t = 64)]
    tasks: usize,
    /// Counted time of one run
    #[arg(long, default_value = "2s", value_parser = shared::duration)]
    duration: Duration,
    /// Length of the warm-up before each run, which is not counted
    #[arg(long, default_value = "3s", value_parser = shared::duration)]
    warmup: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Way {
    Own,
    Adaptive,
    Mmap,
    Quick,
    Moka,
    Foyer,
}

const SIDES: [(&str, Way); 7] = [
    ("ringfile-cache", Way::Own),
    ("adaptive file", Way::Adaptive),
    ("mmap", Way::Mmap),
    ("quick_cache", Way::Quick),
    ("moka", Way::Moka),
    ("foyer-memory", Way::Foyer),
    ("A/A (ringfile-cache)", Way::Own),
];
const BASE: usize = 0;
const AGAIN: usize = 6;

/// One run: passed to its process as an argument, in JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct One {
    job: Job,
    way: Way,
    /// Bytes that the cache, or the control group, may have.
    memory: u64,
}

/// What a run did in the counted time.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Done {
    reads: u64,
    seconds: f64,
    /// CPU time of the process in seconds, with kernel workers.
    cpu: f64,
    /// Bytes that the device read, for any program.
    device_bytes: u64,
    /// Memory of the process at the end, without what it has mapped of files.
    resident: u64,
}

impl Done {
    fn rate(&self) -> f64 {
        self.reads as f64 / self.seconds
    }

    fn cpu_us(&self) -> f64 {
        self.cpu / self.reads as f64 * 1e6
    }
}

/// Prints the tables.
pub fn compare(options: &Options) -> io::Result<()> {
    options.place.clean_up_after(compare_all(options))
}

fn compare_all(options: &Options) -> io::Result<()> {
    let place = &options.place;
    if options.part == 0 || options.tasks == 0 || options.duration.is_zero() {
        return Err(io::Error::other("part, tasks and duration: must be at least 1"));
    }
    let size = place.prepare(PAGE as u64)?;
    wait_until_trusted(&place.file)?;
    let memory = size / options.part;
    for (what, order) in [("alone", Order::Zipf), ("beside a scan", Order::ScanBesideZipf)] {
        let runs = in_turn(place.rounds, SIDES.len(), |round, side| {
            let job = Job {
                path: place.file.clone(),
                size,
                direct: false,
                block: PAGE,
                parts: 1,
                depth: options.tasks,
                in_flight: None,
                warmup: options.warmup,
                duration: options.duration,
                seed: place.seed.wrapping_add(round as u64),
                order,
            };
            let (name, way) = SIDES[side];
            let done: Done = in_process("in-cache", &One { job, way, memory })?;
            let (rate, cpu) = (done.rate() / 1e3, done.cpu_us());
            eprintln!("round {round}/{} {what:<13} {name:<20} {rate:>8.1} kIOPS {cpu:>6.2} µs", place.rounds);
            io::Result::Ok(Some(done))
        })?;
        print(what, &runs);
    }
    println!(
        "\n{} rounds of {:?} after {:?} from an empty cache; {} tasks in one thread (mmap: threads), {} of {} MiB as memory. \
         \"Beside a scan\": each task's every eighth read is the next page of the file. The device may have read for \
         others too.",
        place.rounds,
        options.duration,
        options.warmup,
        options.tasks,
        memory >> 20,
        size >> 20
    );
    Ok(())
}

fn print(what: &str, runs: &[Vec<Done>]) {
    println!("\n### Working set (Zipf 0.99, 4 KiB), {what}\n");
    let table = Table::default().text("side").number("thousand reads/s, median [min..max]");
    let table =
        table.number("ringfile-cache / side").number("CPU µs a read").number("CPU, side / ringfile-cache");
    let mut table = table.number("device pages a read").number("MiB of the process, without files");
    for ((name, _), side) in SIDES.iter().zip(runs) {
        let ratio = |of: fn(&Done, &Done) -> f64| {
            spread(spread_of(runs[BASE].iter().zip(side).map(|(base, side)| of(base, side))), 2)
        };
        let of = |figure: fn(&Done) -> f64| spread_of(side.iter().map(figure));
        let misses = of(|done| done.device_bytes as f64 / (done.reads * PAGE as u64) as f64);
        table.row(vec![
            (*name).into(),
            spread(of(|done| done.rate() / 1e3), 1),
            ratio(|base, side| base.rate() / side.rate()),
            spread(of(Done::cpu_us), 2),
            ratio(|base, side| side.cpu_us() / base.cpu_us()),
            format!("{:.3}", misses.median),
            format!("{:.0}", of(|done| done.resident as f64 / f64::from(1 << 20)).median),
        ]);
    }
    print!("{table}");
    let best = (0..AGAIN).filter(|&side| side != BASE);
    let median = |side: &usize| spread_of(runs[*side].iter().map(Done::rate)).median;
    if let Some(best) = best.max_by(|one, other| median(one).total_cmp(&median(other))) {
        let ratios = runs[BASE].iter().zip(&runs[best]).map(|(base, side)| base.rate() / side.rate());
        println!(
            "\nringfile-cache over the best other way ({}): {}.",
            SIDES[best].0,
            spread(spread_of(ratios), 2)
        );
    }
}

/// Does one measurement, and prints what it did as JSON.
pub fn measure(one: &One) -> io::Result<()> {
    let One { job, way, memory } = one;
    let counter = ReadCounter::of(&job.path)?;
    let counter = counter.ok_or_else(|| io::Error::other("no block device counts this file's reads"))?;
    let plain = File::open(&job.path)?;
    drop_cache(&plain, job.size, Some(*memory))?;
    let bytes = *memory as usize;
    let group = match way {
        Way::Adaptive | Way::Mmap => Some(MemoryGroup::enter(memory + OWN_MEMORY)?),
        Way::Own | Way::Quick | Way::Moka | Way::Foyer => None,
    };
    let now = || io::Result::Ok((cpu_time()?, counter.bytes()?));
    let (opened, tally) = std::thread::scope(|scope| {
        let opened = scope.spawn(|| {
            std::thread::sleep(job.warmup);
            now()
        });
        let tally = match way {
            Way::Adaptive => read_adaptive(job).and_then(|tally| Ok((tally, resident()?))),
            Way::Mmap => by_mmap(job, &plain),
            Way::Own => cached(job, bytes, Own::open),
            Way::Quick => cached(job, bytes, Quick::open),
            Way::Moka => cached(job, bytes, Moka::open),
            Way::Foyer => cached(job, bytes, Foyer::open),
        };
        (opened.join().unwrap_or_else(|_| Err(io::Error::other("panicked"))), tally)
    });
    let ((cpu, device), (tally, resident)) = (now()?, tally?);
    let (cpu_before, device_before) = opened?;
    drop(group);
    let done = Done {
        reads: tally.ops,
        seconds: tally.span.as_secs_f64(),
        cpu: (cpu - cpu_before).as_secs_f64(),
        device_bytes: device - device_before,
        resident,
    };
    if done.reads == 0 {
        return Err(io::Error::other("no read ended inside the window"));
    }
    println!("{}", serde_json::to_string(&done)?);
    Ok(())
}

fn cached<C: Cache>(
    job: &Job,
    bytes: usize,
    open: fn(&Path, usize, usize) -> io::Result<C>,
) -> io::Result<(Tally, u64)> {
    block_on(async {
        let cache = open(&job.path, job.block, bytes)?;
        Ok((read_all(&cache, job).await?, resident()?))
    })
}

fn by_mmap(job: &Job, file: &File) -> io::Result<(Tally, u64)> {
    let map = Mapping::new(file, job.size, 0)?;
    map.advise_random()?;
    let window = job.start();
    let read = |mut stream: Stream| {
        while let Some(offset) = stream.next() {
            stream.done(&map[offset as usize..][..PAGE])?;
        }
        Ok(stream.into_tally())
    };
    let tally = std::thread::scope(|scope| {
        let read = &read;
        let tasks = (0..job.depth).map(|task| window.stream(task));
        let threads: Vec<_> = tasks.map(|stream| scope.spawn(move || read(stream))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("panicked")))
        };
        Tally::sum(threads.into_iter().map(join))
    })?;
    Ok((tally, resident()?))
}

/// Returns how much memory the process has that belongs to no file, in bytes.
fn resident() -> io::Result<u64> {
    resident_of(&std::fs::read_to_string("/proc/self/status")?)
        .ok_or_else(|| io::Error::other("/proc/self/status has no RssAnon"))
}

fn resident_of(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(resident_of("VmRSS:\t 9 kB\nRssAnon:\t     12 kB\nRssFile:\t 3 kB\n"), Some(12 << 10));
        assert_eq!(resident_of("VmRSS:\t 9 kB\n"), None);
        assert!(resident().unwrap() > 0);
    }

    #[test]
    fn a_mapping_has_the_bytes_of_the_file() {
        let path = std::env::temp_dir().join(format!("ringfile-mapping-test-{}", std::process::id()));
        let bytes: Vec<u8> = (0..2 * PAGE).map(|at| (at / 7) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let map = Mapping::new(&File::open(&path).unwrap(), bytes.len() as u64, libc::MAP_POPULATE).unwrap();
        std::fs::remove_file(&path).unwrap();
        map.advise_random().unwrap();
        assert_eq!(map[..], bytes[..]);
    }
}
