//! `compare log`: producers append batches of messages to one log at a fixed rate, and wait until each batch is durable.
//!
//! The sides differ in how they write and sync. The CPU time is that of the whole machine, with kernel threads: the time in
//! which no core was idle. After each run the log is read and every message in it checked.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::BufMut;
use clap::Args;
use futures::StreamExt;
use futures::channel::mpsc;
use futures::future::{join, join_all};
use ringfile::{Appender, OpenOptions, Pool, Record};
use ringfile_cli::shared::{self, Table, Whole};

use crate::rounds::{in_turn, spread_of};
use crate::table::spread;
use crate::{data, device, entries};

const MESSAGE: usize = 1000;
/// Offset, producer and number of a message.
const HEADER: usize = 24;
/// The number of places in the pattern at which the rest of a message may begin.
const PLACES: u64 = 4096;

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    /// An existing folder on the disk to measure; two files are created there, and removed at the end
    #[arg(long)]
    folder: PathBuf,
    /// Instead compares this many threads that append single entries, each as soon as its last one is durable
    #[arg(long)]
    threads: Option<u64>,
    /// Bytes of an entry, with --threads
    #[arg(long, default_value_t = 1024)]
    entry: usize,
    /// How many producers append to the log
    #[arg(long, default_value_t = 4)]
    producers: u64,
    /// Messages of 1000 bytes in a batch
    #[arg(long, default_value_t = 256)]
    batch: u64,
    /// How many consumers read each batch back and check it as soon as it is durable; 0 for none
    #[arg(long, default_value_t = 0)]
    consumers: u64,
    /// Adds sides that start at most one sync in this time: the appender, and one shared by hand
    #[arg(long, value_parser = shared::duration)]
    sync_interval: Option<Duration>,
    /// Bytes a second of all producers
    #[arg(long, default_value_t = 250_000_000)]
    rate: u64,
    /// Length of one run
    #[arg(long, default_value = "4s", value_parser = shared::duration)]
    duration: Duration,
    /// Rounds of all sides in turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// What one run does.
struct Job {
    producers: u64,
    consumers: u64,
    /// Messages in a batch.
    batch: u64,
    /// Batches of each producer.
    batches: u64,
    /// The time between two batches of a producer.
    interval: Duration,
    pattern: Vec<u8>,
}

/// What one run gives: the time from when each batch was due until it was durable, and the number of syncs.
type Ran = io::Result<(Vec<Duration>, u64)>;

struct Side {
    name: String,
    how: How,
}

#[derive(Clone, Copy)]
enum How {
    /// Each producer is a thread that writes and syncs its batches. With an interval, producers that wait share a sync.
    Buffered { shared: Option<Duration> },
    /// With the least time between two syncs.
    Appender(Duration),
}

fn sides(interval: Option<Duration>) -> Vec<Side> {
    let none = Duration::ZERO;
    let side = |name: &str, how| Side { name: name.into(), how };
    let mut sides = vec![
        side("buffered write, fdatasync", How::Buffered { shared: None }),
        side("buffered write, fdatasync shared by hand", How::Buffered { shared: Some(none) }),
        side("Appender, O_DIRECT", How::Appender(none)),
    ];
    if let Some(interval) = interval {
        let name = |of: &str| format!("{of}, every {interval:?} at most");
        sides.push(side(&name("shared by hand"), How::Buffered { shared: Some(interval) }));
        sides.push(side(&name("Appender, O_DIRECT"), How::Appender(interval)));
    }
    sides.push(side("A/A", How::Buffered { shared: None }));
    sides
}

struct Outcome {
    /// CPU seconds for a GB.
    cpu: f64,
    /// p50 and p99.9, in µs.
    latencies: [f64; 2],
    /// For a batch.
    syncs: f64,
}

impl Job {
    fn bytes_of_batch(&self) -> usize {
        self.batch as usize * MESSAGE
    }

    fn bytes(&self) -> u64 {
        self.producers * self.batches * self.bytes_of_batch() as u64
    }

    fn body(&self, offset: u64) -> &[u8] {
        &self.pattern[(offset % PLACES) as usize..][..MESSAGE - HEADER]
    }

    /// Writes a batch that begins at `offset`.
    fn fill(&self, place: &mut impl BufMut, mut offset: u64, producer: u64, number: u64) {
        for message in 0..self.batch {
            place.put_u64(offset);
            place.put_u64(producer);
            place.put_u64(number * self.batch + message);
            place.put_slice(self.body(offset));
            offset += MESSAGE as u64;
        }
    }

    /// When a batch is due. The producers take turns.
    fn due(&self, began: Instant, producer: u64, number: u64) -> Instant {
        let turn = self.interval.mul_f64(producer as f64 / self.producers as f64);
        began + turn + self.interval * number as u32
    }

    /// Checks a batch of `producer` that was read at `offset`.
    fn check_batch(&self, batch: &[u8], mut offset: u64, producer: u64, mut number: u64) -> io::Result<()> {
        for message in batch.chunks_exact(MESSAGE) {
            let is_right =
                [offset, producer, number] == header(message) && message[HEADER..] == *self.body(offset);
            if !is_right {
                return Err(io::Error::other(format!("the message at {offset} is wrong")));
            }
            (offset, number) = (offset + MESSAGE as u64, number + 1);
        }
        Ok(())
    }

    /// Checks that the log has every message of every producer once, in the producer's order.
    fn check(&self, path: &Path) -> io::Result<()> {
        let (file, mut batch) = (File::open(path)?, vec![0; self.bytes_of_batch()]);
        let mut next = vec![0; self.producers as usize];
        for at in (0..self.bytes()).step_by(batch.len()) {
            file.read_exact_at(&mut batch, at)?;
            let [_, producer, _] = header(&batch);
            let wrong = || io::Error::other(format!("the message at {at} is wrong"));
            let known = next.get_mut(producer as usize).ok_or_else(wrong)?;
            self.check_batch(&batch, at, producer, *known)?;
            *known += self.batch;
        }
        let all = self.batches * self.batch;
        if next.iter().all(|&next| next == all) {
            Ok(())
        } else {
            Err(io::Error::other("messages are missing"))
        }
    }
}

/// Returns the offset, the producer and the number of a message.
fn header(message: &[u8]) -> [u64; 3] {
    let word = |at: usize| message[at..at + 8].iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
    [0, 8, 16].map(word)
}

/// A timer that a task awaits.
struct Timer(ringfile::File);

impl Timer {
    fn new() -> io::Result<Self> {
        // SAFETY: makes a descriptor.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: nothing else has the descriptor.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self(ringfile::File::from(File::from(owned))))
    }

    async fn wait_until(&self, due: Instant) -> io::Result<()> {
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let once = libc::timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let settings = libc::itimerspec { it_interval: never, it_value: once };
            // SAFETY: the kernel reads one valid record.
            let answer = unsafe {
                libc::timerfd_settime(
                    self.0.as_fd().as_raw_fd(),
                    0,
                    &raw const settings,
                    std::ptr::null_mut(),
                )
            };
            if answer < 0 {
                return Err(io::Error::last_os_error());
            }
            self.0.read_at(vec![0; 8], 0).await?;
        }
    }
}

/// A batch that is durable: its offset, producer and first message.
type Batch = (u64, u64, u64);

/// All producers and consumers are tasks of one thread. The producers share one appender.
fn appender(job: &Job, path: &Path, interval: Duration) -> Ran {
    let file = OpenOptions::new().read(true).write(true).direct(true).open(path)?;
    let most = job.bytes_of_batch();
    // Room for a group of all producers, and the block in which the one before it ended.
    let block = most * job.producers as usize + data::PAGE;
    let pool = Pool::new(8 * block);
    let (file, pool) = (&file, &pool);
    let run = || async {
        let log = &Appender::open(file, pool, 0)
            .recycle(true)
            .block(block)
            .depth(2)
            .sync_interval(interval)
            .await?;
        let (feeds, batches): (Vec<_>, Vec<_>) = (0..job.consumers).map(|_| mpsc::unbounded()).unzip();
        let began = Instant::now();
        let producers = (0..job.producers).map(|producer| {
            let feed = feeds.get((producer % job.consumers.max(1)) as usize).cloned();
            async move {
                let (timer, mut latencies) = (Timer::new()?, Vec::new());
                for number in 0..job.batches {
                    let due = job.due(began, producer, number);
                    timer.wait_until(due).await?;
                    let fill = |record: &mut Record<'_>| job.fill(record, record.offset(), producer, number);
                    let offset = log.append_with(most, fill).await?;
                    log.sync().await?;
                    latencies.push(due.elapsed());
                    if let Some(feed) = &feed {
                        // The consumer's failure is the run's.
                        let _ = feed.unbounded_send((offset, producer, number * job.batch));
                    }
                }
                io::Result::Ok(latencies)
            }
        });
        let consumers = batches.into_iter().map(|mut batches: mpsc::UnboundedReceiver<Batch>| async move {
            while let Some((offset, producer, number)) = batches.next().await {
                // Whole blocks are read without a copy.
                let from = offset - offset % data::PAGE as u64;
                let len = ((offset - from) as usize + most).next_multiple_of(data::PAGE);
                let read = file.read_at(pool.get_async(len).await?, from).await?;
                let batch = read.get((offset - from) as usize..).and_then(|read| read.get(..most));
                let batch = batch.ok_or(io::ErrorKind::UnexpectedEof)?;
                job.check_batch(batch, offset, producer, number)?;
            }
            io::Result::Ok(())
        });
        let producers: Vec<_> = producers.collect();
        drop(feeds);
        let (ended, checked) = join(join_all(producers), join_all(consumers)).await;
        let syncs = log.metrics().syncs;
        log.close().await?;
        checked.into_iter().collect::<io::Result<()>>()?;
        Ok((ended.into_iter().collect::<io::Result<Vec<_>>>()?.concat(), syncs))
    };
    std::thread::scope(|scope| {
        scope.spawn(|| ringfile::block_on(run())).join().map_err(|_| io::Error::other("panicked"))?
    })
}

/// The syncs that producers share.
#[derive(Default)]
struct Group {
    /// How many of the batches that were written are durable.
    durable: u64,
    /// Whether a producer syncs.
    syncs: bool,
    /// When the last sync began.
    began: Option<Instant>,
}

/// Each producer is a thread that writes its batches at the end of the log, and each consumer one that reads them.
fn buffered(job: &Job, path: &Path, shared: Option<Duration>) -> Ran {
    let file = File::options().read(true).write(true).open(path)?;
    let (end, written, syncs) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let sync = || {
        syncs.fetch_add(1, Ordering::Relaxed);
        file.sync_data()
    };
    let (group, ended) = (Mutex::new(Group::default()), Condvar::new());
    let lock = || group.lock().unwrap_or_else(PoisonError::into_inner);
    // The first of the producers that wait syncs for all of them.
    let sync_together = |interval: Duration, mine: u64| {
        let mut group = lock();
        while group.durable < mine {
            if group.syncs {
                group = ended.wait(group).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            group.syncs = true;
            let left = group.began.map(|began| interval.saturating_sub(began.elapsed()));
            drop(group);
            std::thread::sleep(left.unwrap_or_default());
            let (began, covers) = (Instant::now(), written.load(Ordering::Acquire));
            let synced = sync();
            group = lock();
            (group.syncs, group.began) = (false, Some(began));
            ended.notify_all();
            synced?;
            group.durable = covers;
        }
        io::Result::Ok(())
    };
    let began = Instant::now();
    let produce = |producer: u64, feed: Option<std::sync::mpsc::Sender<Batch>>| {
        let (mut batch, mut latencies) = (Vec::with_capacity(job.bytes_of_batch()), Vec::new());
        for number in 0..job.batches {
            let due = job.due(began, producer, number);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let offset = end.fetch_add(job.bytes_of_batch() as u64, Ordering::Relaxed);
            batch.clear();
            job.fill(&mut batch, offset, producer, number);
            file.write_all_at(&batch, offset)?;
            let mine = written.fetch_add(1, Ordering::AcqRel) + 1;
            match shared {
                Some(interval) => sync_together(interval, mine)?,
                None => sync()?,
            }
            latencies.push(due.elapsed());
            if let Some(feed) = &feed {
                // The consumer's failure is the run's.
                let _ = feed.send((offset, producer, number * job.batch));
            }
        }
        io::Result::Ok(latencies)
    };
    let consume = |batches: std::sync::mpsc::Receiver<Batch>| {
        let mut batch = vec![0; job.bytes_of_batch()];
        for (offset, producer, number) in batches {
            file.read_exact_at(&mut batch, offset)?;
            job.check_batch(&batch, offset, producer, number)?;
        }
        io::Result::Ok(Vec::new())
    };
    let (produce, consume) = (&produce, &consume);
    let ended: io::Result<Vec<_>> = std::thread::scope(|scope| {
        let (feeds, batches): (Vec<_>, Vec<_>) =
            (0..job.consumers).map(|_| std::sync::mpsc::channel()).unzip();
        let mut threads: Vec<_> =
            batches.into_iter().map(|batches| scope.spawn(|| consume(batches))).collect();
        threads.extend((0..job.producers).map(|producer| {
            let feed = feeds.get((producer % job.consumers.max(1)) as usize).cloned();
            scope.spawn(move || produce(producer, feed))
        }));
        drop(feeds);
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("panicked")))
        };
        threads.into_iter().map(join).collect()
    });
    Ok((ended?.concat(), syncs.into_inner()))
}

fn run_one(side: &Side, job: &Job, path: &Path) -> io::Result<Outcome> {
    let file = File::open(path)?;
    match side.how {
        How::Buffered { .. } => drop(device::read_in(&file, job.bytes())?),
        How::Appender(_) => shared::drop_cache(&file)?,
    }
    let whole = || Whole::so_far().ok_or_else(|| io::Error::other("/proc/stat can't be read"));
    let (before, began) = (whole()?, Instant::now());
    let (mut latencies, syncs) = match side.how {
        How::Buffered { shared } => buffered(job, path, shared)?,
        How::Appender(interval) => appender(job, path, interval)?,
    };
    let (elapsed, done) = (began.elapsed(), whole()?.since(&before));
    job.check(path)?;
    // The disk may pause for a while.
    if elapsed > (job.interval * job.batches as u32).mul_f64(1.5) + Duration::from_secs(1) {
        return Err(io::Error::other("the rate was not carried: choose a lower --rate"));
    }
    let cores = std::thread::available_parallelism()?.get();
    let [_, _, _, idle, _] = done.times;
    let busy = elapsed.as_secs_f64() * cores as f64 - idle.as_secs_f64();
    latencies.sort_unstable();
    let percentile =
        |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    Ok(Outcome {
        cpu: busy / (job.bytes() as f64 / 1e9),
        latencies: [percentile(0.5), percentile(0.999)],
        syncs: syncs as f64 / (job.producers * job.batches) as f64,
    })
}

/// Compares all sides, and prints a table.
pub fn compare(options: &Options) -> io::Result<()> {
    if let Some(threads) = options.threads {
        let Options { entry, duration, rounds, .. } = *options;
        return entries::compare(&entries::Job { threads, entry, duration, rounds }, &options.folder);
    }
    if [options.producers, options.batch, options.rate, options.rounds as u64].contains(&0) {
        return Err(io::Error::other("producers, batch, rate and rounds: must be at least 1"));
    }
    if options.duration.is_zero() {
        return Err(io::Error::other("duration: must be more than 0"));
    }
    let bytes = options.batch * MESSAGE as u64 * options.producers;
    let interval = Duration::from_secs_f64(bytes as f64 / options.rate as f64);
    let batches = (options.duration.as_secs_f64() / interval.as_secs_f64()).ceil() as u64;
    let mut pattern = vec![0; MESSAGE + PLACES as usize];
    fastrand::Rng::with_seed(1).fill(&mut pattern);
    let Options { producers, consumers, batch, .. } = *options;
    let job = Job { producers, consumers, batch, batches, interval, pattern };
    let sides = sides(options.sync_interval);
    let paths = ["buffered", "direct"].map(|name| options.folder.join(format!("ringfile-log-{name}.bin")));
    let mut created = Vec::new();
    let measured = measure(&job, &sides, &paths, options.rounds, &mut created);
    for path in created {
        std::fs::remove_file(path)?;
    }
    print(&job, &sides, &measured?, options);
    Ok(())
}

/// Adds to `created` the files that it has created.
fn measure<'a>(
    job: &Job,
    sides: &[Side],
    paths: &'a [PathBuf; 2],
    rounds: usize,
    created: &mut Vec<&'a Path>,
) -> io::Result<Vec<Vec<Outcome>>> {
    for path in paths {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = File::options().read(true).write(true).create_new(true).open(path).map_err(named)?;
        created.push(path);
        // A recycled log: its blocks are allocated and written.
        data::fill(&file, job.bytes().next_multiple_of(data::PAGE as u64))?;
    }
    in_turn(rounds, sides.len(), |round, index| {
        let side = &sides[index];
        let is_direct = matches!(side.how, How::Appender(_));
        let outcome = run_one(side, job, &paths[usize::from(is_direct)])?;
        eprintln!("round {round}/{rounds} {:<42} {:.2} CPU seconds for a GB", side.name, outcome.cpu);
        Ok(Some(outcome))
    })
}

fn print(job: &Job, sides: &[Side], outcomes: &[Vec<Outcome>], options: &Options) {
    let Options { producers, consumers, batch, .. } = *options;
    let rate = options.rate as f64 / 1e6;
    println!(
        "\n### One log, {producers} producers, {consumers} consumers, durable batches of {batch} messages, {rate:.0} MB/s\n"
    );
    let table = Table::default()
        .text("side")
        .number("CPU seconds for a GB, median [min..max]")
        .number("over the first");
    let mut table = table.number("syncs for a batch").number("p50 µs").number("p99.9 µs");
    for (side, rounds) in sides.iter().zip(outcomes) {
        let latency = |at: usize| spread(spread_of(rounds.iter().map(|outcome| outcome.latencies[at])), 0);
        let ratios = rounds.iter().zip(&outcomes[0]).map(|(one, base)| one.cpu / base.cpu);
        table.row(vec![
            side.name.clone(),
            spread(spread_of(rounds.iter().map(|outcome| outcome.cpu)), 2),
            spread(spread_of(ratios), 2),
            spread(spread_of(rounds.iter().map(|outcome| outcome.syncs)), 2),
            latency(0),
            latency(1),
        ]);
    }
    print!("{table}");
    println!("\n{} rounds of {:.2} GB; every message checked.", options.rounds, job.bytes() as f64 / 1e9);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_or_missing_message_is_noticed() {
        let pattern = (0..MESSAGE + PLACES as usize).map(|at| at as u8).collect();
        let job = Job { producers: 2, consumers: 0, batch: 3, batches: 2, interval: Duration::ZERO, pattern };
        let path = std::env::temp_dir().join(format!("ringfile-log-test-{}", std::process::id()));
        let (mut log, len) = (Vec::new(), job.bytes_of_batch());
        for (producer, number) in [(0, 0), (1, 0), (1, 1), (0, 1)] {
            let offset = log.len() as u64;
            job.fill(&mut log, offset, producer, number);
        }
        let check = |log: &[u8]| {
            std::fs::write(&path, log).and_then(|()| job.check(&path)).map_err(|error| error.to_string())
        };
        assert_eq!(check(&log), Ok(()));
        for at in [0, 8, 16, 999, 5 * MESSAGE + HEADER] {
            let mut wrong = log.clone();
            wrong[at + 7] ^= 1;
            assert!(check(&wrong).is_err_and(|error| error.contains("is wrong")), "{at}");
        }
        assert!(check(&log[..3 * len]).is_err(), "the last batch is missing");
        let (first, rest) = log.split_at(len);
        assert!(check(&[rest, first].concat()).is_err(), "in another order");
        std::fs::remove_file(&path).expect("it was created");
    }
}
