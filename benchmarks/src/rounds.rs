//! Runs every side in turn, in an order that rotates from round to round, and checks how reliable the figures are.
//!
//! Each run is checked: the bytes were right, all of them arrived, and the device really was read (direct) or the page
//! cache really was full (cached). A run that fails a check ends the benchmark.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ringfile_cli::shared::{self, Spread};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::allocations;
use crate::device::{self, ReadCounter};
use crate::job::{Job, Tally};
use crate::sides::Side;

/// How far the device's count of reads may differ from the benchmark's, as a fraction.
const COUNT_TOLERANCE: f64 = 0.02;

/// The result of one run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Counts, with the bytes that were checked.
    pub tally: Tally,
    /// Reads that the device counted during the whole run.
    pub device_reads: Option<u64>,
    /// Heap allocations of the side's thread during the whole run.
    pub allocations: u64,
    /// CPU time of the process during the whole run, including kernel workers.
    pub cpu: Duration,
    /// The fraction of the file in the page cache, before and after the run.
    pub cached: Option<(f64, f64)>,
}

impl Outcome {
    /// Returns reads per second.
    pub fn iops(&self) -> f64 {
        self.tally.ops as f64 / self.tally.span.as_secs_f64()
    }
}

/// Runs all sides in turn, in each round beginning with the next one, and returns the outcomes of each side. `run` gets the
/// number of the round, from 1, and the index of the side; if it returns `None`, the round has no outcome of that side.
pub fn in_turn<T, E>(
    rounds: usize,
    sides: usize,
    mut run: impl FnMut(usize, usize) -> Result<Option<T>, E>,
) -> Result<Vec<Vec<T>>, E> {
    let mut outcomes: Vec<Vec<T>> = (0..sides).map(|_| Vec::with_capacity(rounds)).collect();
    for round in 0..rounds {
        for turn in 0..sides {
            let side = (turn + round) % sides;
            outcomes[side].extend(run(round + 1, side)?);
        }
    }
    Ok(outcomes)
}

/// Runs all rounds; returns the outcomes of each side, in the given order.
pub fn measure(sides: &[Side], job: &Job, rounds: usize) -> io::Result<Vec<Vec<Outcome>>> {
    let names: Vec<&str> = sides.iter().map(|side| side.name).collect();
    measure_with(&names, job, rounds, |side, job| (sides[side].run)(job))
}

/// As [`measure`], but calls `run` with the index of the side.
pub fn measure_with(
    names: &[&str],
    job: &Job,
    rounds: usize,
    run: impl Fn(usize, &Job) -> io::Result<Tally> + Sync,
) -> io::Result<Vec<Vec<Outcome>>> {
    in_turn(rounds, names.len(), |round, side| {
        let (name, depth) = (names[side], job.depth);
        let outcome = run_one(job, || run(side, job)).map_err(|error| {
            io::Error::new(error.kind(), format!("{name}, depth {depth}, round {round}: {error}"))
        })?;
        let kiops = outcome.iops() / 1e3;
        eprintln!("round {round}/{rounds} depth {depth:<3} {name:<18} {kiops:>9.1} kIOPS");
        Ok(Some(outcome))
    })
}

fn run_one(job: &Job, run: impl Fn() -> io::Result<Tally> + Sync) -> io::Result<Outcome> {
    let counter = if job.direct { Some(counter_of(&job.path)?) } else { None };
    let buffered = if job.direct { None } else { Some(File::open(&job.path)?) };
    // Work that ends would end sooner with some blocks cached.
    let prepare = if job.order.ends() { empty } else { warm };
    let cached_before = buffered.as_ref().map(|file| prepare(file, job.size)).transpose()?.flatten();
    let reads_before = counter.as_ref().map(ReadCounter::read).transpose()?;
    let cpu_before = cpu_time()?;
    let (result, allocations) = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let before = allocations::here();
            let result = run();
            (result, allocations::here() - before)
        });
        thread.join().map_err(|_| io::Error::other("panicked"))
    })?;
    let cpu = cpu_time()?.saturating_sub(cpu_before);
    let tally = result?;
    let device_reads = match (&counter, reads_before) {
        (Some(counter), Some(before)) => Some(counter.read()? - before),
        _ => None,
    };
    let cached_after = buffered.as_ref().and_then(|file| shared::cached_fraction(file, job.size));
    check(job, &tally, device_reads, counter.as_ref().is_some_and(|counter| counter.exclusive))?;
    Ok(Outcome { tally, device_reads, allocations, cpu, cached: cached_before.zip(cached_after) })
}

/// Returns the device's counter of reads. Without one, nothing would show that direct reads came from a cache, so its
/// absence is an error.
fn counter_of(path: &Path) -> io::Result<ReadCounter> {
    ReadCounter::of(path)?.ok_or_else(|| {
        io::Error::other(
            "no block device counts this file's reads: --direct needs a device, or a file on ext4 or xfs",
        )
    })
}

/// Reads the file into the page cache unless all of it is cached. Returns the cached fraction afterwards.
fn warm(file: &File, size: u64) -> io::Result<Option<f64>> {
    // The kernel evicts idle pages within a minute, so this is done before every run, not once.
    if shared::cached_fraction(file, size).is_none_or(|share| share < 1.0) {
        device::read_in(file, size)?;
    }
    Ok(shared::cached_fraction(file, size))
}

/// Empties the page cache of the file. Returns the cached fraction afterwards.
fn empty(file: &File, size: u64) -> io::Result<Option<f64>> {
    device::drop_cache(file, size)?;
    Ok(shared::cached_fraction(file, size))
}

fn check(job: &Job, tally: &Tally, device_reads: Option<u64>, exclusive: bool) -> io::Result<()> {
    if tally.ops == 0 {
        return Err(io::Error::other("no read ended inside the window"));
    }
    if tally.all_bytes != tally.all_ops * job.block as u64 {
        return Err(io::Error::other(format!("{} reads returned {} bytes", tally.all_ops, tally.all_bytes)));
    }
    let Some(device_reads) = device_reads else { return Ok(()) };
    let ratio = device_reads as f64 / tally.all_ops as f64;
    // A disk that others use may have read more. A device that only this benchmark uses may have read neither more nor
    // less.
    if ratio < 1.0 - COUNT_TOLERANCE || (exclusive && ratio > 1.0 + COUNT_TOLERANCE) {
        return Err(io::Error::other(format!(
            "claims {} reads, the device counted {device_reads}: this was not O_DIRECT at this block size",
            tally.all_ops
        )));
    }
    Ok(())
}

/// Starts this program again with a hidden command, which does one measurement: a process of its own finds no threads, rings or
/// memory of another. `one` is its argument; returns what it prints. Both are JSON.
pub fn in_process<One: Serialize, Done: DeserializeOwned>(command: &str, one: &One) -> io::Result<Done> {
    let arguments = [command, &serde_json::to_string(one)?];
    let output = Command::new(std::env::current_exe()?).args(arguments).stderr(Stdio::inherit()).output()?;
    match serde_json::from_slice(&output.stdout) {
        Ok(done) if output.status.success() => Ok(done),
        _ => Err(io::Error::other(format!("the measuring process ended with {}", output.status))),
    }
}

/// Reads the argument of such a process.
pub fn argument<One: DeserializeOwned>(text: &str) -> Result<One, serde_json::Error> {
    serde_json::from_str(text)
}

/// Returns the user and system time that the process and its ended children have used so far. This includes kernel
/// workers, which are threads of the process.
pub fn cpu_time() -> io::Result<Duration> {
    Ok(shared::own_usage()?.cpu() + shared::children_cpu()?)
}

/// Returns the spread of the figures of at least one round.
pub fn spread_of(figures: impl IntoIterator<Item = f64>) -> Spread {
    Spread::of(figures).expect("there is at least one round")
}

/// Returns the spread of the ratios within each round.
pub fn spread_of_ratios(over: &[Outcome], under: &[Outcome]) -> Spread {
    spread_of(over.iter().zip(under).map(|(a, b)| a.iops() / b.iops()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Order;

    #[test]
    fn a_device_that_was_not_read_is_noticed() {
        let job = Job {
            path: "x".into(),
            size: 8192,
            direct: true,
            block: 4096,
            parts: 1,
            depth: 1,
            in_flight: None,
            warmup: Duration::ZERO,
            duration: Duration::from_secs(1),
            seed: 1,
            order: Order::Random,
        };
        let tally = Tally { ops: 900, all_ops: 1000, all_bytes: 4096 * 1000, ..Tally::default() };
        assert!(check(&job, &tally, Some(1000), true).is_ok());
        assert!(check(&job, &tally, Some(970), false).is_err());
        assert!(check(&job, &tally, Some(1030), true).is_err());
        assert!(check(&job, &tally, Some(1030), false).is_ok());
        assert!(check(&job, &Tally { ops: 0, ..tally.clone() }, None, false).is_err());
        assert!(check(&job, &Tally { all_bytes: 4096, ..tally }, None, false).is_err());
    }
}
