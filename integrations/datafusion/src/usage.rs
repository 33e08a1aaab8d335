//! The cost of a query: time, processor time, and how its data was read.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringfile::metrics::Metrics;
use rustix::time::{ClockId, clock_gettime};

/// The totals at the start of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    began: Instant,
    cpu: Duration,
    idle: Duration,
    disk: u64,
    ringfile: Metrics,
}

/// The resources used during a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Elapsed time.
    pub time: Duration,
    /// Processor time of all threads of this process.
    pub cpu: Duration,
    /// The sum of the idle times of all processors; if one processor is idle all the time, that is `time`.
    pub idle: Duration,
    /// Bytes that this process made the kernel read from disks.
    pub disk: u64,
    /// ringfile's operations.
    pub ringfile: Metrics,
}

impl Meter {
    /// Starts a measurement.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn start() -> Result<Self> {
        let (idle, disk) = (idle()?, disk()?);
        Ok(Self { idle, disk, ringfile: ringfile::metrics(), cpu: cpu(), began: Instant::now() })
    }

    /// Returns what was used since the start.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn stop(self) -> Result<Usage> {
        let (time, cpu) = (self.began.elapsed(), cpu() - self.cpu);
        Ok(Usage {
            time,
            cpu,
            idle: idle()?.saturating_sub(self.idle),
            disk: disk()? - self.disk,
            ringfile: ringfile::metrics() - self.ringfile,
        })
    }
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// Returns the idle time of all processors, including the time in which they wait for disks. `/proc/stat` counts hundredths
/// of a second.
fn idle() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let ticks = |at: usize| stat.lines().next()?.split_whitespace().nth(at)?.parse::<u64>().ok();
    let ticks = ticks(4).zip(ticks(5)).map(|(idle, waiting)| idle + waiting);
    Ok(Duration::from_millis(10 * ticks.context("/proc/stat does not begin with the processors' times")?))
}

fn disk() -> Result<u64> {
    let io = std::fs::read_to_string("/proc/self/io").context("cannot read /proc/self/io")?;
    let bytes = io.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok());
    bytes.context("/proc/self/io has no read_bytes")
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (time, cpu) = (self.time.as_secs_f64(), self.cpu.as_secs_f64());
        write!(f, "{time:.3} s, {cpu:.3} s of processor time, {} read from disks", Bytes(self.disk))?;
        let all = &self.ringfile;
        if all.ops == 0 {
            return Ok(());
        }
        let ring = all.ops.saturating_sub(all.inline_ops + all.worker_ops + all.aio_ops);
        write!(f, "\nringfile: {} operations, {} read: {ring} by a ring", all.ops, Bytes(all.bytes_read))?;
        write!(f, ", {} in place, {} by workers, {} by AIO", all.inline_ops, all.worker_ops, all.aio_ops)?;
        if all.cache_hits + all.cache_misses > 0 {
            write!(f, "\nadaptive: {} cached, {} not", all.cache_hits, all.cache_misses)?;
            write!(f, ", {} of these read into the cache", all.cache_admitted)?;
            write!(f, "; read ahead: {} used, {} not", Bytes(all.ahead_used), Bytes(all.ahead_unused))?;
        }
        Ok(())
    }
}

/// A number of bytes, in MiB.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}
