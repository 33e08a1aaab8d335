//! The work, the same for every side: the offsets, the duration, the checks, and when the clock is read.
//!
//! A side asks a [`Stream`] for the next offset, reads there, and gives the bytes to the stream, which checks them,
//! reads the clock once, and counts. No side has its own code for any of that.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use ringfile_cli::shared;

use crate::data::{self, PAGE};
use crate::order::{Blocks, Order, Plan};

/// One read in this many is checked to its last byte.
const SAMPLE: u64 = 1024;

/// The work that a side does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// The file or block device.
    pub path: PathBuf,
    /// The number of its bytes to read from, a multiple of `block`.
    pub size: u64,
    /// Whether to use O_DIRECT.
    pub direct: bool,
    /// Bytes of one read.
    pub block: usize,
    /// Buffers of one read: 1, or the parts of a vectored read.
    pub parts: usize,
    /// Reads in flight; for batches, reads of one batch.
    pub depth: usize,
    /// The most reads in flight if the side uses batches, each of which ends before the next begins.
    pub in_flight: Option<usize>,
    /// Time that is not counted.
    pub warmup: Duration,
    /// Time that is counted.
    pub duration: Duration,
    /// The seed of the offsets.
    pub seed: u64,
    /// The order of the blocks.
    pub order: Order,
}

impl Job {
    /// Starts the clock. A side calls it once its ring is ready.
    pub fn start(&self) -> Window<'_> {
        let plan = Plan::new(self.order, self.size / self.block as u64, self.seed, self.depth);
        let begin = Instant::now();
        let open = begin + self.warmup;
        Window { job: self, plan, begin, open, close: open + self.duration }
    }

    /// Opens the file as `direct` says.
    pub fn open(&self) -> io::Result<std::fs::File> {
        use std::os::unix::fs::OpenOptionsExt;
        let file = std::fs::OpenOptions::new().read(true).custom_flags(self.open_flags()).open(&self.path)?;
        self.advise(&file)?;
        Ok(file)
    }

    /// Keeps the kernel from reading ahead, if the page cache is empty at first.
    pub fn advise(&self, file: impl AsFd) -> io::Result<()> {
        if self.order.ends() && !self.direct { shared::advise_order(file, true) } else { Ok(()) }
    }

    /// Returns the flags for open(2), apart from the access mode.
    pub fn open_flags(&self) -> i32 {
        if self.direct { libc::O_DIRECT } else { 0 }
    }

    /// Returns the size of one buffer in bytes.
    pub fn part(&self) -> usize {
        self.block / self.parts
    }
}

/// The time in which reads count.
#[derive(Debug, Clone)]
pub struct Window<'a> {
    job: &'a Job,
    plan: Plan,
    begin: Instant,
    open: Instant,
    close: Instant,
}

impl Window<'_> {
    /// The reads of one task.
    pub fn stream(&self, task: usize) -> Stream {
        Stream {
            blocks: self.plan.of_task(task),
            block: self.job.block,
            part: self.job.part(),
            offset: 0,
            last: self.begin,
            open: self.open,
            close: self.close,
            // Tasks do their long checks at different times; otherwise all would do them in the same turn.
            until_sample: SAMPLE * (task as u64 + 1) / self.job.depth as u64,
            tally: Tally::default(),
        }
    }
}

/// One task's reads.
#[derive(Debug)]
pub struct Stream {
    blocks: Blocks,
    block: usize,
    part: usize,
    offset: u64,
    last: Instant,
    open: Instant,
    close: Instant,
    until_sample: u64,
    tally: Tally,
}

impl Stream {
    /// Returns where to read next; `None` when the time is over.
    #[inline]
    pub fn next(&mut self) -> Option<u64> {
        if self.last >= self.close {
            return None;
        }
        let block = self.blocks.next()?;
        self.offset = block * self.block as u64;
        Some(self.offset)
    }

    /// Checks and counts the bytes of the read at the last offset.
    #[inline]
    pub fn done(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.done_parts(std::iter::once(bytes))
    }

    /// Checks and counts the bytes of a vectored read at the last offset.
    #[inline]
    pub fn done_parts<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]> + Clone) -> io::Result<()> {
        let mut at = self.offset;
        for part in parts.clone() {
            let claimed = data::claimed_offset(part);
            if part.len() != self.part || claimed != Some(at) {
                return Err(wrong(at, part.len(), claimed));
            }
            self.tally.checksum = self.tally.checksum.wrapping_add(at);
            at += part.len() as u64;
        }
        if at != self.offset + self.block as u64 {
            return Err(wrong(self.offset, (at - self.offset) as usize, None));
        }
        self.until_sample = match self.until_sample {
            0 => self.check_all(parts)?,
            n => n - 1,
        };
        self.count();
        Ok(())
    }

    /// Counts a write of a whole block at the last offset; what it wrote is checked at the end.
    #[inline]
    pub fn wrote(&mut self) {
        self.count();
    }

    #[cold]
    fn check_all<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>) -> io::Result<u64> {
        let mut at = self.offset;
        for part in parts {
            if !data::is_right(at, part) {
                return Err(io::Error::other(format!(
                    "the bytes read at offset {at} are not those of the file"
                )));
            }
            at += part.len() as u64;
        }
        self.tally.checked_whole += 1;
        Ok(SAMPLE - 1)
    }

    #[inline]
    fn count(&mut self) {
        // The only clock read of an operation: it ends this one, starts the next, and shows whether the time is over.
        let now = Instant::now();
        self.tally.all_ops += 1;
        self.tally.all_bytes += self.block as u64;
        if now >= self.open && now < self.close {
            let latency = (now - self.last).as_nanos() as u64;
            self.tally.ops += 1;
            self.tally.latency_sum_ns += latency;
            self.tally.latency_max_ns = self.tally.latency_max_ns.max(latency);
        }
        self.last = now;
    }

    /// Returns what this task did.
    pub fn into_tally(mut self) -> Tally {
        self.tally.span = self.last.min(self.close).saturating_duration_since(self.open);
        self.tally
    }
}

#[cold]
fn wrong(offset: u64, len: usize, claimed: Option<u64>) -> io::Error {
    io::Error::other(match claimed {
        Some(claimed) => format!("read {len} bytes at offset {offset}, but the bytes belong at {claimed}"),
        None => format!("read {len} bytes at offset {offset}, fewer than requested"),
    })
}

/// Counts of one task, or of all of them.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Tally {
    /// Reads that ended while time was counted.
    pub ops: u64,
    /// All reads, including those of the warm-up: the device must have counted as many.
    pub all_ops: u64,
    /// Bytes of all reads; each read had its offset checked.
    pub all_bytes: u64,
    /// Reads checked to the last byte.
    pub checked_whole: u64,
    /// The sum of the offsets in the bytes that were read, modulo 2^64.
    pub checksum: u64,
    /// The sum of the latencies, in nanoseconds: the time from one completion of a task to its next.
    pub latency_sum_ns: u64,
    /// The longest latency, in nanoseconds.
    pub latency_max_ns: u64,
    /// The time from the start of the counted time to the last completion, or to the end of the counted time.
    pub span: Duration,
}

impl Tally {
    /// Adds another task's counts.
    pub fn add(&mut self, other: &Tally) {
        self.ops += other.ops;
        self.all_ops += other.all_ops;
        self.all_bytes += other.all_bytes;
        self.checked_whole += other.checked_whole;
        self.checksum = self.checksum.wrapping_add(other.checksum);
        self.latency_sum_ns += other.latency_sum_ns;
        self.latency_max_ns = self.latency_max_ns.max(other.latency_max_ns);
        self.span = self.span.max(other.span);
    }

    /// Returns the counts of all tasks, or the first task's error.
    pub fn sum(tasks: impl IntoIterator<Item = io::Result<Tally>>) -> io::Result<Tally> {
        let mut total = Tally::default();
        for task in tasks {
            total.add(&task?);
        }
        Ok(total)
    }
}

/// Returns an error unless `block` is a multiple of a page for each of `parts`: each part must begin with an offset, so
/// that it can be checked.
pub fn check_block(block: u64, parts: usize) -> Result<(), String> {
    let unit = (PAGE * parts) as u64;
    if block.is_multiple_of(unit) {
        Ok(())
    } else {
        Err(format!("block size {block} is not a multiple of {unit}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            path: PathBuf::new(),
            size: 1 << 20,
            direct: false,
            block: 2 * PAGE,
            parts: 2,
            depth: 4,
            in_flight: None,
            warmup: Duration::ZERO,
            duration: Duration::from_secs(3600),
            seed: 7,
            order: Order::Random,
        }
    }

    fn pages(offset: u64) -> Vec<u8> {
        let file = std::env::temp_dir().join(format!("ringfile-job-test-{}-{offset}", std::process::id()));
        let handle =
            std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&file).unwrap();
        data::fill(&handle, 1 << 20).unwrap();
        let mut bytes = vec![0; 2 * PAGE];
        std::os::unix::fs::FileExt::read_exact_at(&handle, &mut bytes, offset).unwrap();
        std::fs::remove_file(file).unwrap();
        bytes
    }

    #[test]
    fn right_bytes_count_and_wrong_ones_are_refused() {
        let job = job();
        let mut stream = job.start().stream(0);
        let offset = stream.next().unwrap();
        let bytes = pages(offset);
        stream.done_parts(bytes.chunks(PAGE)).unwrap();
        assert_eq!((stream.tally.ops, stream.tally.all_bytes), (1, 2 * PAGE as u64));

        assert!(stream.done_parts(bytes.chunks(PAGE).take(1)).is_err(), "a part too few");
        assert!(stream.done_parts(bytes.chunks(PAGE).rev()).is_err(), "parts swapped");
        assert!(stream.done_parts(bytes[..PAGE + 8].chunks(PAGE)).is_err(), "a short part");
        assert_eq!(stream.tally.all_ops, 1);

        let mut late = bytes.clone();
        late[PAGE - 1] ^= 1;
        stream.until_sample = 0;
        assert!(stream.done_parts(late.chunks(PAGE)).is_err(), "a wrong byte in a sampled read");
    }

    #[test]
    fn a_stream_ends_with_its_window_and_repeats_with_its_seed() {
        let job = Job { duration: Duration::ZERO, ..job() };
        assert_eq!(job.start().stream(0).next(), None);
        let job = Job { duration: Duration::from_secs(3600), ..job };
        let offsets = |task| {
            std::iter::repeat_with({
                let mut stream = job.start().stream(task);
                move || stream.next()
            })
            .take(64)
            .collect::<Vec<_>>()
        };
        assert_eq!(offsets(1), offsets(1));
        assert_ne!(offsets(1), offsets(2));
    }

    #[test]
    fn counts_survive_the_way_between_processes() {
        let tally = Tally { ops: 1, checksum: u64::MAX, span: Duration::from_nanos(8), ..Tally::default() };
        let text = serde_json::to_string(&tally).unwrap();
        let back: Tally = serde_json::from_str(&text).unwrap();
        assert_eq!((back.ops, back.checksum, back.span), (1, u64::MAX, Duration::from_nanos(8)));
        assert!(
            serde_json::from_str::<Tally>("1 2 3").is_err() && serde_json::from_str::<Tally>("").is_err()
        );
    }

    #[test]
    fn each_block_as_often_as_the_order_says() {
        let job = job();
        let sorted = |order| {
            let job = Job { order, ..job.clone() };
            let window = job.start();
            let of_task = |task| {
                let mut stream = window.stream(task);
                std::iter::from_fn(move || stream.next())
            };
            let mut offsets: Vec<u64> = (0..job.depth).flat_map(of_task).collect();
            assert!(!offsets.is_sorted(), "in an order that is not the file's");
            offsets.sort_unstable();
            offsets
        };
        let all: Vec<u64> = (0..job.size).step_by(job.block).collect();
        assert_eq!(sorted(Order::ShuffledOnce), all);
        let thrice: Vec<u64> = all.iter().flat_map(|&offset| [offset; 3]).collect();
        assert_eq!(sorted(Order::ShuffledThrice), thrice);

        let job = Job { order: Order::InOrderOnce, depth: 1, ..job };
        let mut stream = job.start().stream(0);
        assert_eq!(std::iter::from_fn(|| stream.next()).collect::<Vec<_>>(), all);
    }
}
