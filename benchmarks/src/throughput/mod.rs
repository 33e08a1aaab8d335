//! `compare adaptive` and `compare get-ranges`: throughput with the page cache empty and full.
//!
//! This file has what both share: the file, one run with its checks, and the rounds. A run that fails a check ends the
//! benchmark.

mod adaptive;
mod get_ranges;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;

use crate::data;
use crate::device::{self, ReadCounter};
use crate::rounds::{Spread, cpu_time};
use crate::table::spread;
use crate::units;

pub use adaptive::{Options as Adaptive, compare as adaptive};
pub use get_ranges::{Options as GetRanges, compare as get_ranges};

/// The share of an empty cache that pages of other readers, or pages that could not be dropped, may take.
const LEFT: f64 = 0.001;
/// The share of a full cache that the kernel may have given away during a run.
const GIVEN_AWAY: f64 = 0.01;

/// The file under test.
#[derive(Debug, Args)]
struct Place {
    /// The file, on a disk with O_DIRECT; made and filled if it is not there
    #[arg(long)]
    file: PathBuf,
    /// Bytes of it to use
    #[arg(long, default_value = "1g", value_parser = units::size)]
    size: u64,
    /// Overwrite what the file holds
    #[arg(long)]
    fill: bool,
    /// Remove the file in the end
    #[arg(long)]
    remove: bool,
    /// Rounds of all sides in turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seed of the offsets
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Place {
    /// Makes sure that the file holds what the checks expect. Returns the bytes to use, a multiple of `block`.
    fn prepare(&self, block: u64) -> io::Result<u64> {
        if self.rounds == 0 {
            return Err(io::Error::other("no rounds, no result"));
        }
        data::prepare(&self.file, self.size, self.fill, block)
    }

    fn clean_up_after(&self, result: io::Result<()>) -> io::Result<()> {
        if self.remove { result.and(std::fs::remove_file(&self.file)) } else { result }
    }

    /// Runs all sides in turn, in each round beginning with the next one. Returns the runs of each side.
    fn in_turn(
        &self,
        what: &str,
        sides: &[&str],
        mut run: impl FnMut(usize) -> io::Result<Run>,
    ) -> io::Result<Vec<Vec<Run>>> {
        let mut runs = vec![Vec::with_capacity(self.rounds); sides.len()];
        for round in 0..self.rounds {
            for turn in 0..sides.len() {
                let side = (turn + round) % sides.len();
                let done = run(side).map_err(|error| {
                    io::Error::new(error.kind(), format!("{what}, {}: {error}", sides[side]))
                })?;
                eprintln!(
                    "round {}/{} {what} {:<18} {:>7.0} MiB/s",
                    round + 1,
                    self.rounds,
                    sides[side],
                    done.mib_per_second()
                );
                runs[side].push(done);
            }
        }
        Ok(runs)
    }
}

/// What the page cache has of the file when a run begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cache {
    Empty,
    Full,
}

/// What one run did.
#[derive(Clone, Copy)]
struct Run {
    bytes: u64,
    seconds: f64,
    /// Processor time of the process, kernel workers included, in seconds.
    cpu: f64,
    /// Bytes that the device read meanwhile, for any program.
    device_bytes: u64,
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

/// The cells of a table's row that both tables have: throughput, processor time, what the device read.
fn cells(runs: &[Run]) -> String {
    let of = |figure: fn(&Run) -> f64| Spread::of(runs.iter().map(figure));
    let (rate, cpu) = (of(Run::mib_per_second), of(Run::cpu_ms_per_gb));
    let device = of(|run| mib(run.device_bytes)).median;
    format!("{} | {} | {device:.0}", spread(rate, 0), spread(cpu, 0))
}

/// The ratios inside each round.
fn ratios(over: &[Run], under: &[Run], figure: fn(&Run) -> f64) -> Spread {
    Spread::of(over.iter().zip(under).map(|(one, other)| figure(one) / figure(other)))
}

/// One run to come, with the page cache as it shall be.
struct Trial {
    file: File,
    size: u64,
    cache: Cache,
    counter: ReadCounter,
}

impl Trial {
    /// Empties or fills the cache.
    fn prepare(place: &Place, size: u64, cache: Cache) -> io::Result<Self> {
        let counter = ReadCounter::of(&place.file)?;
        let counter = counter.ok_or_else(|| io::Error::other("no block device counts this file's reads"))?;
        let trial = Self { file: File::open(&place.file)?, size, cache, counter };
        match cache {
            Cache::Empty => {
                // Dirty pages can't be dropped.
                trial.file.sync_data()?;
                device::drop_from_cache(&trial.file)?;
                match trial.cached()? {
                    share if share <= LEFT => Ok(trial),
                    share => Err(io::Error::other(format!("{:.1} % stay in the cache", share * 100.0))),
                }
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

    /// Measures reads, which say how many bytes they brought, and checks where these came from.
    fn measure(self, read: impl FnOnce() -> io::Result<u64>) -> io::Result<Run> {
        let (device, cpu, began) = (self.counter.bytes()?, cpu_time(), Instant::now());
        let bytes = read()?;
        let run = Run {
            bytes,
            seconds: began.elapsed().as_secs_f64(),
            cpu: (cpu_time() - cpu).as_secs_f64(),
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
        Err(io::Error::other(format!("{bytes} bytes read, {device} by the device; {cached:.1} % are cached")))
    }
}
