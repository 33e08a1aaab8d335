//! `compare adaptive` and `compare get-ranges`: throughput with the page cache empty and full.
//!
//! This file has what both share: the file, one run with its checks, and the rounds. A run that fails a check ends the
//! benchmark.

mod adaptive;
mod get_ranges;
mod grid;

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use ringfile_cli::shared::Spread;

use crate::data::Place;
use crate::device::{self, ReadCounter};
use crate::rounds::{cpu_time, in_turn, spread_of};
use crate::table::spread;

pub use adaptive::{Options as Adaptive, compare as adaptive, read_adaptive, wait_until_trusted};
pub use get_ranges::{Options as GetRanges, compare as get_ranges};
pub use grid::{One as GridRun, measure as in_grid};

/// How much of the file may be in a cache that should be empty, as a fraction: other readers may have read pages, and some
/// cannot be dropped.
const LEFT: f64 = 0.001;
/// How much of a fully cached file the kernel may have evicted during a run, as a fraction.
const GIVEN_AWAY: f64 = 0.01;

/// Drops the file from the page cache. `memory` is how much of it may be there during a run.
pub fn drop_cache(file: &File, size: u64, memory: Option<u64>) -> io::Result<()> {
    /// Pages that another processor has just used cannot be dropped at once.
    const ATTEMPTS: usize = 20;
    // Pages that are cached already would count against the control group that read them.
    device::drop_cache(file, size.min(memory.unwrap_or(u64::MAX)))?;
    for _ in 0..ATTEMPTS {
        if device::resident_share(file, size)? <= LEFT {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
        ringfile_cli::shared::drop_cache(file)?;
    }
    let left = device::resident_share(file, size)? * 100.0;
    Err(io::Error::other(format!("{left:.1} % of the file stays in the page cache")))
}

/// Runs all sides in turn, in each round beginning with the next one. Returns the runs of each side.
pub fn runs_in_turn(
    what: &str,
    rounds: usize,
    sides: &[&str],
    mut run: impl FnMut(usize) -> io::Result<Run>,
) -> io::Result<Vec<Vec<Run>>> {
    in_turn(rounds, sides.len(), |round, side| {
        let name = sides[side];
        let done =
            run(side).map_err(|error| io::Error::new(error.kind(), format!("{what}, {name}: {error}")))?;
        eprintln!("round {round}/{rounds} {what} {name:<18} {:>7.0} MiB/s", done.mib_per_second());
        Ok(Some(done))
    })
}

/// How much of the file is in the page cache when a run begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    Empty,
    Full,
}

/// What one run did.
#[derive(Clone, Copy)]
pub struct Run {
    pub bytes: u64,
    pub seconds: f64,
    /// CPU time of the process in seconds, including kernel workers.
    pub cpu: f64,
    /// Bytes that the device read during the run, for any program.
    pub device_bytes: u64,
}

impl Run {
    fn mib_per_second(&self) -> f64 {
        mib(self.bytes) / self.seconds
    }

    fn cpu_ms_per_gb(&self) -> f64 {
        self.cpu / self.bytes as f64 * 1e12
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Returns the cells that a row has in both tables: throughput, CPU time, and the bytes that the device read.
fn cells(runs: &[Run]) -> String {
    let of = |figure: fn(&Run) -> f64| spread_of(runs.iter().map(figure));
    let (rate, cpu) = (of(Run::mib_per_second), of(Run::cpu_ms_per_gb));
    let device = of(|run| mib(run.device_bytes)).median;
    format!("{} | {} | {device:.0}", spread(rate, 0), spread(cpu, 0))
}

/// Returns the spread of the ratios within each round.
pub fn ratios(over: &[Run], under: &[Run], figure: fn(&Run) -> f64) -> Spread {
    spread_of(over.iter().zip(under).map(|(one, other)| figure(one) / figure(other)))
}

/// A run that is about to start, with the page cache prepared for it.
pub struct Trial {
    file: File,
    size: u64,
    cache: Cache,
    counter: ReadCounter,
}

impl Trial {
    /// Empties or fills the page cache.
    pub fn prepare(place: &Place, size: u64, cache: Cache) -> io::Result<Self> {
        let counter = ReadCounter::of(&place.file)?;
        let counter = counter.ok_or_else(|| io::Error::other("no block device counts this file's reads"))?;
        let trial = Self { file: File::open(&place.file)?, size, cache, counter };
        match cache {
            Cache::Empty => {
                drop_cache(&trial.file, size, None)?;
                Ok(trial)
            }
            Cache::Full => {
                if trial.cached()? < 1.0 {
                    device::read_in(&trial.file, size)?;
                }
                Ok(trial)
            }
        }
    }

    fn cached(&self) -> io::Result<f64> {
        device::resident_share(&self.file, self.size)
    }

    /// Measures `read`, which returns how many bytes it read, and checks whether they came from the cache or the device.
    pub fn measure(self, read: impl FnOnce() -> io::Result<u64>) -> io::Result<Run> {
        let (device, cpu, began) = (self.counter.bytes()?, cpu_time()?, Instant::now());
        let bytes = read()?;
        let run = Run {
            bytes,
            seconds: began.elapsed().as_secs_f64(),
            cpu: (cpu_time()? - cpu).as_secs_f64(),
            device_bytes: self.counter.bytes()? - device,
        };
        let is_right = match self.cache {
            Cache::Empty => run.device_bytes >= bytes,
            Cache::Full => self.cached()? >= 1.0 - GIVEN_AWAY,
        };
        if bytes > 0 && is_right {
            return Ok(run);
        }
        let (device, cached) = (run.device_bytes, self.cached()? * 100.0);
        Err(io::Error::other(format!(
            "{bytes} bytes were read, {device} of them by the device; {cached:.1} % of the file is cached"
        )))
    }
}
