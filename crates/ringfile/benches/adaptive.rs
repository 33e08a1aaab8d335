//! Compares adaptive files with buffered and direct ones: cached reads, cold random reads, cold sequential reads.
//!
//! `cargo bench -p ringfile --bench adaptive -- --file PATH [--size MIB] [--rounds N] [--only ROW,...]` prints a
//! Markdown table. It makes and fills the file if it does not exist, on ext4, XFS, Btrfs or F2FS, and keeps it. In each
//! round all sides run in turn, starting with a different one each time; a ratio is taken within a round, and the first
//! side runs twice (A/A), which shows the noise. Every page of every read is checked for its position. What is cached
//! is checked around every run, and the table has the device's own count of bytes read.

use std::cell::Cell;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use futures::StreamExt;
use ringfile::{Buffer, File, OpenOptions, Pool, block_on};
use rustix::fs::{Advice, fadvise, fdatasync};

const PAGE: usize = 4096;
const WARM_RUN: Duration = Duration::from_secs(1);

/// The sides of the comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Adaptive,
    Buffered,
    Direct,
}

/// The executor that polls the futures.
#[derive(Clone, Copy)]
enum Executor {
    Ringfile,
    Tokio,
    Futures,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Everything is cached; for a second.
    Warm,
    /// Nothing is cached; each block once, at random.
    Once,
    /// Nothing is cached; each block once, in order.
    InOrder,
}

struct Row {
    name: &'static str,
    what: &'static str,
    work: Work,
    block: usize,
    depth: usize,
    executor: Executor,
    sides: [Side; 2],
}

#[rustfmt::skip]
const ROWS: [Row; 8] = {
    use {Executor::*, Side::*, Work::*};
    let warm = Row { name: "warm", what: "", work: Warm, block: PAGE, depth: 1, executor: Ringfile, sides: [Adaptive, Buffered] };
    const K128: usize = 128 << 10;
    [
        Row { what: "cached 4 KiB, 1", ..warm },
        Row { what: "cached 4 KiB, 16", depth: 16, ..warm },
        Row { what: "cached 128 KiB, 16", depth: 16, block: K128, ..warm },
        Row { what: "cached 4 KiB, 16, tokio", depth: 16, executor: Tokio, ..warm },
        Row { what: "cached 128 KiB, 16, tokio", depth: 16, block: K128, executor: Tokio, ..warm },
        Row { what: "cached 4 KiB, 1, futures::executor", executor: Futures, ..warm },
        Row { name: "cold", what: "cold random 128 KiB, 16", work: Once, block: K128, depth: 16, sides: [Adaptive, Direct], ..warm },
        Row { name: "sequential", what: "cold sequential 64 KiB, 1", work: InOrder, block: 64 << 10, depth: 1, ..warm },
    ]
};

struct Settings {
    file: PathBuf,
    size: u64,
    rounds: usize,
    only: Vec<String>,
}

/// The result of one run.
#[derive(Clone, Copy)]
struct Run {
    bytes: u64,
    seconds: f64,
    cpu: f64,
    from_device: u64,
}

impl Run {
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    fn cpu_for_a_gb(&self) -> f64 {
        self.cpu / self.bytes as f64 * 1e9
    }
}

fn main() -> io::Result<()> {
    let Some(settings) = settings() else {
        eprintln!("nothing measured: --file PATH names the file");
        return Ok(());
    };
    prepare(&settings)?;
    println!(
        "| reads | side | MiB/s median [min..max] | CPU ms/GB | device MiB a run | rate / other | CPU / other |"
    );
    println!("|---|---|--:|--:|--:|--:|--:|");
    for row in &ROWS {
        if settings.only.is_empty() || settings.only.iter().any(|name| name == row.name) {
            compare(&settings, row)?;
        }
    }
    Ok(())
}

fn settings() -> Option<Settings> {
    let mut settings = Settings { file: PathBuf::new(), size: 1 << 30, rounds: 5, only: Vec::new() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        match word.as_str() {
            "--file" => settings.file = value().into(),
            "--size" => settings.size = value().parse::<u64>().ok()? << 20,
            "--rounds" => settings.rounds = value().parse().ok()?,
            "--only" => settings.only = value().split(',').map(Into::into).collect(),
            _ => {}
        }
    }
    (!settings.file.as_os_str().is_empty()).then_some(settings)
}

fn word_of(page: u64) -> u64 {
    page.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

/// Makes the file, each of whose pages holds its position, and waits until data read ahead is trusted.
fn prepare(settings: &Settings) -> io::Result<()> {
    let path = &settings.file;
    let is_there = std::fs::metadata(path).is_ok_and(|metadata| metadata.len() >= settings.size);
    if !is_there {
        eprintln!("filling {}", path.display());
        let file = std::fs::File::create(path)?;
        let mut chunk = vec![0; 1 << 20];
        for at in 0..settings.size >> 20 {
            for (page, bytes) in (at << 8..).zip(chunk.chunks_exact_mut(PAGE)) {
                let mut word = word_of(page);
                for place in bytes.chunks_exact_mut(8) {
                    place.copy_from_slice(&word.to_le_bytes());
                    // The rest of a page cannot be compressed.
                    word = word.rotate_left(17).wrapping_mul(0xD134_2543_DE82_EF95).wrapping_add(1);
                }
            }
            file.write_all_at(&chunk, at << 20)?;
        }
        file.sync_all()?;
    }
    let age = || SystemTime::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_secs() as i64);
    while age() - std::fs::metadata(path)?.ctime() < 7 {
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

fn compare(settings: &Settings, row: &Row) -> io::Result<()> {
    let sides = [row.sides[0], row.sides[1], row.sides[0]];
    let mut runs: [Vec<Run>; 3] = Default::default();
    for round in 0..settings.rounds {
        for turn in 0..sides.len() {
            let at = (turn + round) % sides.len();
            let run = measure(settings, row, sides[at])?;
            eprintln!(
                "{} round {} {}: {:.0} MiB/s",
                row.what,
                round + 1,
                name(sides[at]),
                run.rate() / 1048576.0
            );
            runs[at].push(run);
        }
    }
    for (at, side) in [name(sides[0]), name(sides[1]), "A/A"].into_iter().enumerate() {
        let over = |figure: fn(&Run) -> f64| {
            // The first side over each; A/A over the first.
            let (above, below) = if at == 2 { (2, 0) } else { (0, 1) };
            let ratios = runs[above].iter().zip(&runs[below]).map(|(one, other)| figure(one) / figure(other));
            if at == 1 { String::new() } else { spread(ratios.collect(), 2) }
        };
        let of = |figure: fn(&Run) -> f64| runs[at].iter().map(figure).collect::<Vec<f64>>();
        println!(
            "| {} | {side} | {} | {} | {:.0} | {} | {} |",
            row.what,
            spread(of(|run| run.rate() / 1048576.0), 0),
            spread(of(|run| run.cpu_for_a_gb() * 1e3), 0),
            median(of(|run| run.from_device as f64 / 1048576.0)),
            over(Run::rate),
            over(Run::cpu_for_a_gb),
        );
    }
    Ok(())
}

fn name(side: Side) -> &'static str {
    match side {
        Side::Adaptive => "adaptive",
        Side::Buffered => "buffered",
        Side::Direct => "direct",
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

fn spread(figures: Vec<f64>, digits: usize) -> String {
    let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
    let most = figures.iter().copied().fold(0.0, f64::max);
    format!("{:.digits$} [{least:.digits$}..{most:.digits$}]", median(figures))
}

fn measure(settings: &Settings, row: &Row, side: Side) -> io::Result<Run> {
    let path = &settings.file;
    settle(path, settings.size, row.work)?;
    let mut options = OpenOptions::new();
    options.read(true).adaptive(side == Side::Adaptive).direct(side == Side::Direct);
    let file = options.open(path)?;
    if side == Side::Adaptive && !file.is_adaptive() {
        return Err(io::Error::other("this kernel or file system has no adaptive files"));
    }
    let plan = Plan {
        file,
        block: row.block,
        blocks: settings.size / row.block as u64,
        work: row.work,
        next: Cell::new(0),
        until: Instant::now() + if row.work == Work::Warm { WARM_RUN } else { Duration::from_secs(3600) },
        read: Cell::new(0),
    };
    let pool = Pool::new((row.depth * row.block * 2).max(4 << 20));
    let buffers = (0..row.depth).map(|_| pool.get(row.block)).collect::<Result<Vec<_>, _>>()?;
    let all = async {
        let tasks: futures::stream::FuturesUnordered<_> =
            buffers.into_iter().map(|buffer| plan.read_all(buffer)).collect();
        tasks.collect::<Vec<io::Result<()>>>().await.into_iter().collect::<io::Result<()>>()
    };
    let (device, cpu, began) = (read_by_device(path)?, cpu(), Instant::now());
    match row.executor {
        Executor::Ringfile => block_on(all),
        Executor::Tokio => tokio::runtime::Builder::new_current_thread().build()?.block_on(all),
        Executor::Futures => futures::executor::block_on(all),
    }?;
    let run = Run {
        bytes: plan.read.get(),
        seconds: began.elapsed().as_secs_f64(),
        cpu: self::cpu() - cpu,
        from_device: read_by_device(path)? - device,
    };
    let is_wrong = match row.work {
        Work::Warm => cached(path)? < settings.size * 99 / 100,
        Work::Once | Work::InOrder => {
            run.bytes != plan.blocks * row.block as u64 || run.from_device < run.bytes
        }
    };
    if is_wrong {
        return Err(io::Error::other(format!(
            "{} of {} bytes were read, {} by the device, {} are cached",
            run.bytes,
            settings.size,
            run.from_device,
            cached(path)?
        )));
    }
    Ok(run)
}

/// Reads the whole file into the cache, or drops it.
fn settle(path: &Path, size: u64, work: Work) -> io::Result<()> {
    let file = std::fs::File::open(path)?;
    match work {
        Work::Warm if cached(path)? >= size => Ok(()),
        Work::Warm => {
            let mut chunk = vec![0; 1 << 20];
            (0..size >> 20).try_for_each(|at| file.read_exact_at(&mut chunk, at << 20))
        }
        Work::Once | Work::InOrder => {
            fdatasync(&file)?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
            match cached(path)? {
                0..PAGES_LEFT => Ok(()),
                bytes => Err(io::Error::other(format!("{bytes} bytes could not be dropped from the cache"))),
            }
        }
    }
}

const PAGES_LEFT: u64 = 64 * PAGE as u64;

struct Plan {
    file: File,
    block: usize,
    blocks: u64,
    work: Work,
    next: Cell<u64>,
    until: Instant,
    read: Cell<u64>,
}

impl Plan {
    async fn read_all(&self, mut buffer: Buffer) -> io::Result<()> {
        while let Some(block) = self.next() {
            let offset = block * self.block as u64;
            buffer.clear();
            buffer = self.file.read_exact_at(buffer, offset).await?;
            let pages = offset / PAGE as u64..;
            for (page, bytes) in pages.zip(buffer.chunks_exact(PAGE)) {
                if bytes[..8] != word_of(page).to_le_bytes() {
                    return Err(io::Error::other(format!("page {page} holds what belongs elsewhere")));
                }
            }
            self.read.set(self.read.get() + buffer.len() as u64);
        }
        Ok(())
    }

    fn next(&self) -> Option<u64> {
        let number = self.next.replace(self.next.get() + 1);
        let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
        match self.work {
            Work::Warm => (Instant::now() < self.until).then_some(mixed % self.blocks),
            // An odd factor visits each block once if the number of blocks is a power of two.
            Work::Once if self.blocks.is_power_of_two() => {
                (number < self.blocks).then(|| number.wrapping_mul(0x9E37_79B9_7F4A_7C15) & (self.blocks - 1))
            }
            Work::Once | Work::InOrder => (number < self.blocks).then_some(number),
        }
    }
}

/// Returns the CPU time of the process, kernel workers included, in seconds.
fn cpu() -> f64 {
    // SAFETY: all zeros are a `rusage`, which the kernel fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Returns the bytes that the file's device has read since it exists, for any program.
fn read_by_device(path: &Path) -> io::Result<u64> {
    let device = std::fs::metadata(path)?.dev();
    let stat = format!("/sys/dev/block/{}:{}/stat", rustix::fs::major(device), rustix::fs::minor(device));
    let text = std::fs::read_to_string(stat)?;
    let sectors = text.split_whitespace().nth(2).and_then(|word| word.parse::<u64>().ok());
    sectors.map(|sectors| sectors * 512).ok_or_else(|| io::Error::other("the device does not count"))
}

/// Returns how many bytes of the file are in the page cache.
fn cached(path: &Path) -> io::Result<u64> {
    let file = std::fs::File::open(path)?;
    let (range, mut stat) = ([0_u64; 2], [0_u64; 5]);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: `cachestat` (451) reads two numbers and writes five, which live here.
    let status = unsafe { libc::syscall(451, fd, range.as_ptr(), stat.as_mut_ptr(), 0) };
    if status == 0 { Ok(stat[0] * PAGE as u64) } else { Err(io::Error::last_os_error()) }
}
