//! `compare ranges`: many ranges of one file, read by tasks in tokio in each of the usual ways: cold, hot, and with memory for
//! half of the file. The program is that of tokio's issue 8367.
//!
//! Each run is a process of its own (this program again), so that none finds threads or rings of another. Cold runs begin
//! without a page of the file in the cache, hot ones with all. Each page is checked to be the one that belongs at its offset.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use clap::{Args, ValueEnum};
use fastrand::Rng;
use ringfile::{Buffer, OpenOptions, Pool};
use ringfile_cli::shared::{MemoryGroup, Table, size};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use crate::data::{self, PAGE, Place};
use crate::device::{self, ReadCounter};
use crate::rounds::{cpu_time, in_process, in_turn, spread_of};
use crate::table::spread;
use crate::throughput::{drop_cache, wait_until_trusted};

/// The workers of the runtime.
const WORKERS: usize = 2;

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    place: Place,
    /// Bytes of a range
    #[arg(long, value_delimiter = ',', default_value = "4k,16k,128k", value_parser = size)]
    bs: Vec<u64>,
    /// The most ranges of one run
    #[arg(long, default_value_t = 12_000)]
    ranges: usize,
    /// How many tasks read at the same time
    #[arg(long, default_value_t = 128)]
    tasks: usize,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Only these ways, by the beginning of their names
    #[arg(long, value_delimiter = ',')]
    ways: Vec<String>,
}

/// Which ranges are read, and what is in memory at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
enum Part {
    /// Each block once, in random order; nothing is cached
    Once,
    /// Ranges at random, with repeats; nothing is cached
    Cold,
    /// The same; all of the file is cached
    Hot,
    /// The same as cold (root), with memory for half of the file
    Half,
}

impl Part {
    fn title(self) -> &'static str {
        match self {
            Part::Once => "each block once, cold",
            Part::Cold => "random ranges, cold",
            Part::Hot => "random ranges, hot",
            Part::Half => "random ranges, cold, memory for half of the file",
        }
    }
}

/// How the ranges are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Way {
    Mmap,
    Pread,
    PreadDirect,
    TokioFs,
    Adaptive,
    AdaptiveAttached,
    DirectAttached,
}

const TOKIO_FS: &str = if cfg!(tokio_unstable) { "tokio::fs, io_uring" } else { "tokio::fs" };
const WAYS: [(&str, Way); 8] = [
    ("mmap in spawn_blocking", Way::Mmap),
    ("pread in spawn_blocking", Way::Pread),
    ("pread, O_DIRECT", Way::PreadDirect),
    (TOKIO_FS, Way::TokioFs),
    ("ringfile", Way::Adaptive),
    ("ringfile, attached", Way::AdaptiveAttached),
    ("ringfile, direct, attached", Way::DirectAttached),
    ("ringfile, A/A", Way::Adaptive),
];

impl Way {
    fn is_ours(self) -> bool {
        matches!(self, Way::Adaptive | Way::AdaptiveAttached | Way::DirectAttached)
    }

    fn is_direct(self) -> bool {
        matches!(self, Way::PreadDirect | Way::DirectAttached)
    }
}

/// One run: passed to its process as an argument, in JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct One {
    path: std::path::PathBuf,
    size: u64,
    block: u64,
    ranges: usize,
    tasks: usize,
    seed: u64,
    part: Part,
    way: Way,
}

/// What a run did.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Done {
    ranges: usize,
    seconds: f64,
    /// CPU time in seconds, including kernel workers.
    cpu: f64,
    /// Bytes that the device read, for any program.
    device_bytes: u64,
    /// The share of the file in the page cache at the start.
    cached: f64,
}

/// Measures all ways, and prints a table for each part and length of a range.
pub fn compare(options: &Options) -> io::Result<()> {
    options.place.clean_up_after(compare_all(options))
}

fn compare_all(options: &Options) -> io::Result<()> {
    let size = options.place.prepare(128 << 10)?;
    wait_until_trusted(&options.place.file)?;
    let is_chosen =
        |name: &str| options.ways.is_empty() || options.ways.iter().any(|way| name.starts_with(way));
    let ways: Vec<(&str, Way)> = WAYS.into_iter().filter(|(name, _)| is_chosen(name)).collect();
    if !cfg!(tokio_unstable) {
        eprintln!("tokio::fs reads through io_uring only with RUSTFLAGS='--cfg tokio_unstable'");
    }
    for part in Part::value_variants()
        .iter()
        .copied()
        .filter(|part| options.only.is_empty() || options.only.contains(part))
    {
        for &block in &options.bs {
            measure_all(options, size, &ways, part, block)?;
        }
    }
    Ok(())
}

fn measure_all(options: &Options, size: u64, ways: &[(&str, Way)], part: Part, block: u64) -> io::Result<()> {
    let Place { file, rounds, seed, .. } = &options.place;
    let title = format!("{} KiB, {}, {} in flight", block >> 10, part.title(), options.tasks);
    let runs = in_turn(*rounds, ways.len(), |round, side| {
        let one = One {
            path: file.clone(),
            size,
            block,
            ranges: options.ranges,
            tasks: options.tasks,
            seed: seed.wrapping_add(round as u64),
            part,
            way: ways[side].1,
        };
        let done: Done = in_process("in-ranges", &one)?;
        eprintln!("{title}: round {round}/{rounds}, {}: {:.3} s", ways[side].0, done.seconds);
        io::Result::Ok(Some(done))
    })?;
    println!("\n### {title}: {}\n", file.display());
    let table = Table::default().text("way").number("seconds median [min..max]").number("CPU seconds");
    let mut table = table.number("device MiB").number("best other way / it");
    let seconds = |side: usize| spread_of(runs[side].iter().map(|run| run.seconds)).median;
    let others = (0..ways.len()).filter(|&side| !ways[side].1.is_ours());
    let best = others.min_by(|&one, &other| seconds(one).total_cmp(&seconds(other)));
    for (side, (name, _)) in ways.iter().enumerate() {
        let of = |figure: fn(&Done) -> f64| spread_of(runs[side].iter().map(figure));
        let ratio = best.map_or_else(
            || "–".to_owned(),
            |best| {
                spread(
                    spread_of(runs[best].iter().zip(&runs[side]).map(|(best, it)| best.seconds / it.seconds)),
                    2,
                )
            },
        );
        table.row(vec![
            (*name).into(),
            spread(of(|run| run.seconds), 3),
            spread(of(|run| run.cpu), 2),
            format!("{:.0}", of(|run| run.device_bytes as f64 / f64::from(1 << 20)).median),
            ratio,
        ]);
    }
    print!("{table}");
    let cached = spread_of(runs.iter().flatten().map(|run| run.cached * 100.0));
    println!(
        "\n{rounds} rounds of {} ranges; {:.0} to {:.0} % of the file cached at the start.",
        runs[0][0].ranges, cached.min, cached.max
    );
    Ok(())
}

/// Does one measurement, and prints what it did as JSON.
pub fn measure(one: &One) -> io::Result<()> {
    let counter = ReadCounter::of(&one.path)?;
    let counter = counter.ok_or_else(|| io::Error::other("no block device counts this file's reads"))?;
    let plain = File::open(&one.path)?;
    let memory = (one.part == Part::Half).then_some(one.size / 2);
    match one.part {
        Part::Hot if device::resident_share(&plain, one.size)? < 1.0 => device::read_in(&plain, one.size)?,
        Part::Hot => {}
        _ => drop_cache(&plain, one.size, memory)?,
    }
    let group = memory.map(MemoryGroup::enter).transpose()?;
    let cached = device::resident_share(&plain, one.size)?;
    let offsets = offsets(one);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let (device, cpu, began) = (counter.bytes()?, cpu_time()?, Instant::now());
    runtime.block_on(read_all(one, Arc::clone(&offsets)))?;
    let done = Done {
        ranges: offsets.len(),
        seconds: began.elapsed().as_secs_f64(),
        cpu: (cpu_time()? - cpu).as_secs_f64(),
        device_bytes: counter.bytes()? - device,
        cached,
    };
    drop(group);
    let bytes = offsets.len() as u64 * one.block;
    if (one.part == Part::Once || one.way.is_direct()) && done.device_bytes < bytes {
        return Err(io::Error::other(format!(
            "{bytes} bytes were read, {} by the device",
            done.device_bytes
        )));
    }
    println!("{}", serde_json::to_string(&done)?);
    Ok(())
}

/// Returns where the ranges begin.
fn offsets(one: &One) -> Arc<[u64]> {
    let blocks = one.size / one.block;
    if one.part == Part::Once {
        return data::shuffled(blocks, one.seed)
            .iter()
            .take(one.ranges)
            .map(|block| block * one.block)
            .collect();
    }
    let mut random = Rng::with_seed(one.seed);
    (0..one.ranges).map(|_| random.u64(..blocks) * one.block).collect()
}

/// Reads all ranges in tasks, each of which takes the next that nobody has read.
async fn read_all(one: &One, offsets: Arc<[u64]>) -> io::Result<()> {
    let (reader, next) = (Reader::open(one).await?, Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::with_capacity(one.tasks);
    for _ in 0..one.tasks {
        let (mut reader, len) = (reader.for_task(one).await?, one.block as usize);
        let (offsets, next) = (Arc::clone(&offsets), Arc::clone(&next));
        tasks.push(tokio::spawn(async move {
            while let Some(&at) = offsets.get(next.fetch_add(1, Ordering::Relaxed)) {
                reader.read(at, len).await?;
            }
            io::Result::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// A file that was opened as the way does, and the memory that its task uses again for each range.
enum Reader {
    Mmap(Arc<Map>, Vec<u8>),
    Pread(Arc<File>, Vec<u8>),
    PreadDirect(Arc<File>, Pool, Buffer),
    TokioFs(tokio::fs::File, Vec<u8>),
    Ringfile(ringfile::File, Pool),
}

impl Reader {
    async fn open(one: &One) -> io::Result<Reader> {
        // Each holds as much memory as is in flight, and more.
        let pool = || Pool::new(64 << 20);
        Ok(match one.way {
            Way::Mmap => Reader::Mmap(Arc::new(Map::new(&File::open(&one.path)?, one)?), Vec::new()),
            Way::Pread => Reader::Pread(Arc::new(File::open(&one.path)?), Vec::new()),
            Way::PreadDirect => {
                let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(&one.path)?;
                Reader::PreadDirect(Arc::new(file), pool(), Buffer::default())
            }
            Way::TokioFs => Reader::TokioFs(tokio::fs::File::open(&one.path).await?, Vec::new()),
            Way::Adaptive | Way::AdaptiveAttached | Way::DirectAttached => {
                if one.way != Way::Adaptive {
                    ringfile::attach_to_tokio()?;
                }
                let mut options = OpenOptions::new();
                options.read(true).adaptive(!one.way.is_direct()).direct(one.way.is_direct());
                Reader::Ringfile(options.open(&one.path).await?, pool())
            }
        })
    }

    /// Returns a reader for another task. A file of tokio has a position, so each task opens it.
    async fn for_task(&self, one: &One) -> io::Result<Reader> {
        let len = one.block as usize;
        Ok(match self {
            Reader::Mmap(map, _) => Reader::Mmap(Arc::clone(map), vec![0; len]),
            Reader::Pread(file, _) => Reader::Pread(Arc::clone(file), vec![0; len]),
            Reader::PreadDirect(file, pool, _) => {
                let mut bytes = pool.get(len)?;
                bytes.resize(len, 0);
                Reader::PreadDirect(Arc::clone(file), pool.clone(), bytes)
            }
            Reader::TokioFs(..) => Reader::TokioFs(tokio::fs::File::open(&one.path).await?, vec![0; len]),
            Reader::Ringfile(file, pool) => Reader::Ringfile(file.clone(), pool.clone()),
        })
    }

    async fn read(&mut self, at: u64, len: usize) -> io::Result<()> {
        match self {
            Reader::Mmap(map, memory) => {
                let (map, mut bytes) = (Arc::clone(map), std::mem::take(memory));
                let copy = move || {
                    bytes.copy_from_slice(&map.bytes()[at as usize..][..len]);
                    Ok(bytes)
                };
                *memory = blocking(copy).await?;
                check(at, len, memory)
            }
            Reader::Pread(file, memory) => {
                let (file, mut bytes) = (Arc::clone(file), std::mem::take(memory));
                *memory = blocking(move || file.read_exact_at(&mut bytes, at).map(|()| bytes)).await?;
                check(at, len, memory)
            }
            Reader::PreadDirect(file, _, memory) => {
                let (file, mut bytes) = (Arc::clone(file), std::mem::take(memory));
                *memory = blocking(move || file.read_exact_at(&mut bytes, at).map(|()| bytes)).await?;
                check(at, len, memory)
            }
            Reader::TokioFs(file, bytes) => {
                file.seek(io::SeekFrom::Start(at)).await?;
                file.read_exact(bytes).await?;
                check(at, len, bytes)
            }
            Reader::Ringfile(file, pool) => check(at, len, &file.read_exact_at(pool.get(len)?, at).await?),
        }
    }
}

async fn blocking<T: Send + 'static>(read: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(read).await?
}

/// Checks that each page of a range is the one that belongs at its offset.
fn check(at: u64, len: usize, bytes: &[u8]) -> io::Result<()> {
    let mut pages = (at..).step_by(PAGE).zip(bytes.chunks(PAGE));
    if bytes.len() == len && pages.all(|(at, page)| data::claimed_offset(page) == Some(at)) {
        return Ok(());
    }
    Err(io::Error::other(format!("the range at {at} is short, or has bytes of another offset")))
}

/// A file in memory, for reading.
struct Map {
    address: *const u8,
    len: usize,
}

// SAFETY: nobody writes the mapped memory.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the file; for short ranges without the kernel's read-ahead, which would read the pages around each.
    fn new(file: &File, one: &One) -> io::Result<Map> {
        let len = one.size as usize;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
        let map = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if one.block <= 16 << 10 {
            // SAFETY: the mapping was just made; the advice changes no content.
            unsafe { libc::madvise(map, len, libc::MADV_RANDOM) };
        }
        Ok(Map { address: map.cast(), len })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is as long and lives as long as `self`; the file is not changed or cut meanwhile.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`, and nothing refers to it any more.
        unsafe { libc::munmap(self.address.cast_mut().cast(), self.len) };
    }
}
