//! `compare log`: threads append small entries to one log, each as soon as its last one is durable.
//!
//! The first sides do what log engines such as raft-engine do: the first of the waiting threads writes the entries of all
//! that wait, and syncs once. The appender's threads append and sync; it makes the groups. In a new file the engine allocates
//! space in pieces, as raft-engine does. The CPU time is the whole machine's. After each run every entry is read and checked.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use ringfile::{Appender, OpenOptions, Pool};
use ringfile_cli::shared::{self, Table, Whole};

use crate::data;
use crate::rounds::{in_turn, spread_of};
use crate::table::spread;

/// Offset, thread and number of an entry.
const HEADER: usize = 24;
/// What an engine allocates at once.
const ALLOCATED: u64 = 2 << 20;

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    /// An existing folder on the disk to measure; a file is created there, and removed at the end
    #[arg(long)]
    folder: PathBuf,
    /// How many threads append, each as soon as its last entry is durable
    #[arg(long, default_value_t = 8)]
    threads: u64,
    /// Bytes of an entry
    #[arg(long, default_value_t = 1024)]
    entry: usize,
    /// Adds a side: the appender, which starts at most one sync in this time
    #[arg(long, value_parser = shared::duration)]
    sync_interval: Option<Duration>,
    /// Length of one run
    #[arg(long, default_value = "1s", value_parser = shared::duration)]
    duration: Duration,
    /// Rounds of all sides in turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// A write for each entry of a group, or one for all of them.
    Engine { one_write: bool },
    /// With the most zeros that are written ahead, by default as the library says, and the least time between two syncs.
    Appender { ahead: Option<u64>, interval: Duration },
}

/// The log of an engine: the entries of the threads that wait for the next group.
#[derive(Default)]
struct Group {
    waiting: Vec<u8>,
    /// Groups that have begun to collect entries.
    next: u64,
    durable: u64,
    leads: bool,
    end: u64,
    allocated: u64,
}

struct Outcome {
    entries: f64,
    /// CPU of the whole machine for an entry, in µs.
    cpu: f64,
}

fn fill(entry: &mut [u8], thread: u64, number: u64) {
    let seed = thread << 32 | number;
    for (at, word) in entry.chunks_mut(8).enumerate() {
        let mixed = (seed + at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        word.copy_from_slice(&mixed.to_le_bytes()[..word.len()]);
    }
    entry[8..16].copy_from_slice(&thread.to_le_bytes());
    entry[16..HEADER].copy_from_slice(&number.to_le_bytes());
}

/// Runs `append` in all threads until the time is over; returns the number of entries.
fn in_threads(job: &Options, append: impl Fn(&[u8]) -> io::Result<()> + Sync) -> io::Result<u64> {
    let (append, began) = (&append, Instant::now());
    std::thread::scope(|scope| {
        let run = |thread: u64| {
            let (mut entry, mut number) = (vec![0; job.entry], 0);
            while began.elapsed() < job.duration {
                fill(&mut entry, thread, number);
                append(&entry)?;
                number += 1;
            }
            io::Result::Ok(number)
        };
        let threads: Vec<_> = (0..job.threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("panicked")))
        };
        threads.into_iter().map(join).sum()
    })
}

fn engine(job: &Options, path: &Path, recycled: bool, one_write: bool) -> io::Result<u64> {
    let file = File::options().read(true).write(true).open(path)?;
    let allocated = if recycled { u64::MAX } else { 0 };
    let (group, ended) = (Mutex::new(Group { allocated, ..Group::default() }), Condvar::new());
    let lock = || group.lock().unwrap_or_else(PoisonError::into_inner);
    let write_group = |entries: &[u8], at: u64, allocated: u64| {
        let mut now = allocated;
        if at + entries.len() as u64 > allocated {
            now = (at + entries.len() as u64).next_multiple_of(ALLOCATED);
            // SAFETY: a system call on an open file.
            if unsafe { libc::fallocate(file.as_raw_fd(), 0, allocated as i64, (now - allocated) as i64) } < 0
            {
                return Err(io::Error::last_os_error());
            }
        }
        let piece = if one_write { entries.len() } else { job.entry };
        for (index, entry) in entries.chunks(piece).enumerate() {
            file.write_all_at(entry, at + (index * piece) as u64)?;
        }
        file.sync_data()?;
        Ok(now)
    };
    let count = in_threads(job, |entry| {
        let mut group = lock();
        group.waiting.extend_from_slice(entry);
        let mine = group.next;
        while group.durable <= mine {
            if group.leads {
                group = ended.wait(group).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            group.leads = true;
            group.next += 1;
            let (entries, at, allocated) = (std::mem::take(&mut group.waiting), group.end, group.allocated);
            drop(group);
            let written = write_group(&entries, at, allocated);
            group = lock();
            group.leads = false;
            group.allocated = written?;
            group.end += entries.len() as u64;
            group.durable += 1;
            ended.notify_all();
        }
        Ok(())
    })?;
    if !recycled {
        file.set_len(count * job.entry as u64)?;
    }
    file.sync_all()?;
    Ok(count)
}

fn appender(
    job: &Options,
    path: &Path,
    recycled: bool,
    ahead: Option<u64>,
    interval: Duration,
) -> io::Result<u64> {
    let file = OpenOptions::new().read(true).write(true).direct(true).open_blocking(path)?;
    let pool = Pool::new(8 << 20);
    let mut open = Appender::open(&file, &pool, 0).recycle(recycled).sync_interval(interval);
    if let Some(ahead) = ahead {
        open = open.fill_ahead(ahead);
    }
    let log = ringfile::block_on(async { open.await })?;
    let count = in_threads(job, |entry| {
        ringfile::block_on(async {
            log.append(entry).await?;
            log.sync().await?;
            Ok(())
        })
    })?;
    ringfile::block_on(log.close())?;
    Ok(count)
}

/// Checks that the log has each entry of each thread once, in the thread's order.
fn check(job: &Options, path: &Path, count: u64) -> io::Result<()> {
    let log = std::fs::read(path)?;
    let (mut next, mut expected) = (vec![0; job.threads as usize], vec![0; job.entry]);
    let wrong = |at: u64| io::Error::other(format!("entry {at} is wrong"));
    for at in 0..count {
        let entry = log.get(at as usize * job.entry..).and_then(|rest| rest.get(..job.entry));
        let entry = entry.ok_or_else(|| wrong(at))?;
        let thread = u64::from_le_bytes(entry[8..16].try_into().map_err(io::Error::other)?);
        let number = next.get_mut(thread as usize).ok_or_else(|| wrong(at))?;
        fill(&mut expected, thread, *number);
        if entry != expected {
            return Err(wrong(at));
        }
        *number += 1;
    }
    Ok(())
}

fn run_one(how: How, job: &Options, path: &Path, recycled: bool, size: u64) -> io::Result<Outcome> {
    // Each run has a file of its own: how one run has laid its blocks out does not matter to the next.
    let file = File::create(path)?;
    if recycled {
        data::fill(&file, size)?;
    }
    file.sync_all()?;
    shared::drop_cache(&file)?;
    let whole = || Whole::so_far().ok_or_else(|| io::Error::other("/proc/stat can't be read"));
    let (before, began) = (whole()?, Instant::now());
    let count = match how {
        How::Engine { one_write } => engine(job, path, recycled, one_write)?,
        How::Appender { ahead, interval } => appender(job, path, recycled, ahead, interval)?,
    };
    let (elapsed, done) = (began.elapsed(), whole()?.since(&before));
    if recycled && count * job.entry as u64 > size {
        return Err(io::Error::other("the recycled file was too small"));
    }
    check(job, path, count)?;
    let cores = std::thread::available_parallelism()?.get();
    let [_, _, _, idle, _] = done.times;
    let busy = elapsed.as_secs_f64() * cores as f64 - idle.as_secs_f64();
    Ok(Outcome { entries: count as f64 / elapsed.as_secs_f64(), cpu: busy * 1e6 / count as f64 })
}

/// Compares all sides, in a new file and in a recycled one, and prints two tables.
pub fn compare(job: &Options) -> io::Result<()> {
    if job.threads == 0 || job.rounds == 0 || job.entry < HEADER || job.duration.is_zero() {
        return Err(io::Error::other(format!(
            "threads, rounds and duration: at least 1; entry: at least {HEADER}"
        )));
    }
    let path = job.folder.join("ringfile-log.bin");
    File::create_new(&path)?;
    let result = tables(job, &path);
    std::fs::remove_file(&path)?;
    result
}

fn tables(job: &Options, path: &Path) -> io::Result<()> {
    for recycled in [false, true] {
        let appender = |ahead, interval: Option<Duration>| How::Appender {
            ahead,
            interval: interval.unwrap_or_default(),
        };
        let mut sides = vec![
            ("pwrite for each entry, fdatasync by a leader", How::Engine { one_write: false }),
            ("pwrite for a group, fdatasync by a leader", How::Engine { one_write: true }),
            ("Appender, O_DIRECT", appender(None, None)),
        ];
        if !recycled {
            sides.push(("Appender, O_DIRECT, not filled ahead", appender(Some(0), None)));
        }
        if let Some(interval) = job.sync_interval {
            sides.push(("Appender, O_DIRECT, with --sync-interval", appender(None, Some(interval))));
        }
        sides.push(("A/A", How::Engine { one_write: false }));
        // More than can be written in a run: 200,000 entries a second.
        let size = (job.duration.as_secs_f64() * 2e5) as u64 * job.entry as u64;
        let size = size.next_multiple_of(data::PAGE as u64);
        let outcomes = in_turn(job.rounds, sides.len(), |round, index| {
            let (name, how) = sides[index];
            let outcome = run_one(how, job, path, recycled, size)?;
            eprintln!("round {round} {name:<46} {:.0} a second, {:.1} µs", outcome.entries, outcome.cpu);
            io::Result::Ok(Some(outcome))
        })?;
        let kind = if recycled { "recycled file" } else { "new file" };
        println!("\n### {} threads, entries of {} bytes, each synced, {kind}\n", job.threads, job.entry);
        let table = Table::default().text("side").number("entries a second, median [min..max]");
        let table = table.number("over the first").number("CPU µs for an entry");
        let mut table = table.number("over the first's");
        for ((name, _), rounds) in sides.iter().zip(&outcomes) {
            let over = |of: fn(&Outcome) -> f64| {
                let ratios = rounds.iter().zip(&outcomes[0]).map(|(one, base)| of(one) / of(base));
                spread(spread_of(ratios), 2)
            };
            table.row(vec![
                (*name).into(),
                spread(spread_of(rounds.iter().map(|outcome| outcome.entries)), 0),
                over(|outcome| outcome.entries),
                spread(spread_of(rounds.iter().map(|outcome| outcome.cpu)), 1),
                over(|outcome| outcome.cpu),
            ]);
        }
        print!("{table}");
    }
    println!("\n{} rounds of {:?}; every entry checked.", job.rounds, job.duration);
    Ok(())
}
