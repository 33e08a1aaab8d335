//! Compares `get_ranges` of 32 ranges of 128 KiB each with object_store's `LocalFileSystem`, cold and warm.
//!
//! `cargo bench -p ringfile-object-store --bench get_ranges -- --folder FOLDER [--size MIB] [--rounds N] [--calls N]`
//! prints a Markdown table. The folder gets a file `ranges.bin`, which is filled if it does not exist, and is kept. In
//! each round all sides run in turn, starting with a different one each time; a ratio is taken within a round, and
//! `LocalFileSystem` runs twice (A/A), which shows the noise. Before a cold round the file is dropped from the page
//! cache, and no block is read twice; in a warm round all of it is cached. Every page of every range is checked for its
//! position, and the table has the device's own count of bytes read. `--in-flight N` makes N calls at a time.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use futures::{StreamExt, TryStreamExt};
use object_store_014::local::LocalFileSystem;
use object_store_014::{ObjectStore, path};
use ringfile_object_store::{Caching, RingfileStore};
use rustix::fs::{Advice, fadvise, fdatasync};

const PAGE: u64 = 4096;
const RANGE: u64 = 128 << 10;
const RANGES: u64 = 32;
const NAME: &str = "ranges.bin";
const SIDES: [&str; 5] =
    ["LocalFileSystem", "ringfile adaptive", "ringfile buffered", "ringfile direct", "A/A"];

struct Settings {
    folder: PathBuf,
    size: u64,
    rounds: usize,
    calls: u64,
    in_flight: usize,
}

#[derive(Clone, Copy)]
struct Run {
    bytes: u64,
    seconds: f64,
    cpu: f64,
    from_device: u64,
}

fn main() -> io::Result<()> {
    let Some(settings) = settings() else {
        eprintln!("nothing measured: --folder FOLDER names where the file is, on a disk");
        return Ok(());
    };
    prepare(&settings)?;
    println!(
        "| cache | side | MiB/s median [min..max] | CPU ms/GB | device MiB a run | over LocalFileSystem |"
    );
    println!("|---|---|--:|--:|--:|--:|");
    for is_cold in [true, false] {
        compare(&settings, is_cold)?;
    }
    Ok(())
}

fn settings() -> Option<Settings> {
    let mut settings =
        Settings { folder: PathBuf::new(), size: 1 << 30, rounds: 5, calls: u64::MAX, in_flight: 1 };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        match word.as_str() {
            "--folder" => settings.folder = value().into(),
            "--size" => settings.size = value().parse::<u64>().ok()? << 20,
            "--rounds" => settings.rounds = value().parse().ok()?,
            "--calls" => settings.calls = value().parse().ok()?,
            "--in-flight" => settings.in_flight = value().parse().ok()?,
            _ => {}
        }
    }
    settings.calls = settings.calls.min(settings.size / (RANGE * RANGES));
    (!settings.folder.as_os_str().is_empty()).then_some(settings)
}

fn word_of(page: u64) -> u64 {
    page.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

/// Makes the file, each of whose pages holds its position.
fn prepare(settings: &Settings) -> io::Result<()> {
    let path = settings.folder.join(NAME);
    if std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() >= settings.size) {
        return Ok(());
    }
    eprintln!("filling {}", path.display());
    let file = File::create(&path)?;
    let mut chunk = vec![0; 1 << 20];
    for at in 0..settings.size >> 20 {
        for (page, bytes) in (at << 8..).zip(chunk.chunks_exact_mut(PAGE as usize)) {
            let mut word = word_of(page);
            for place in bytes.chunks_exact_mut(8) {
                place.copy_from_slice(&word.to_le_bytes());
                // The rest of a page cannot be compressed.
                word = word.rotate_left(17).wrapping_mul(0xD134_2543_DE82_EF95).wrapping_add(1);
            }
        }
        file.write_all_at(&chunk, at << 20)?;
    }
    file.sync_all()
}

fn compare(settings: &Settings, is_cold: bool) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut runs: [Vec<Run>; SIDES.len()] = Default::default();
    for round in 0..settings.rounds {
        for turn in 0..SIDES.len() {
            let at = (turn + round) % SIDES.len();
            let run = measure(settings, &runtime, is_cold, at)?;
            eprintln!(
                "round {} {}: {:.0} MiB/s",
                round + 1,
                SIDES[at],
                run.bytes as f64 / run.seconds / 1048576.0
            );
            runs[at].push(run);
        }
    }
    let cache = if is_cold { "cold" } else { "warm" };
    for (side, of_side) in SIDES.iter().zip(&runs) {
        let of = |figure: fn(&Run) -> f64| of_side.iter().map(figure).collect::<Vec<f64>>();
        let ratios = of_side
            .iter()
            .zip(&runs[0])
            .map(|(run, local)| (run.bytes as f64 / run.seconds) / (local.bytes as f64 / local.seconds));
        println!(
            "| {cache} | {side} | {} | {} | {:.0} | {} |",
            spread(of(|run| run.bytes as f64 / run.seconds / 1048576.0), 0),
            spread(of(|run| run.cpu / run.bytes as f64 * 1e12), 0),
            median(of(|run| run.from_device as f64 / 1048576.0)),
            spread(ratios.collect(), 2),
        );
    }
    Ok(())
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

fn store(folder: &Path, side: usize) -> io::Result<Arc<dyn ObjectStore>> {
    let caching = match side {
        1 => Caching::Adaptive,
        2 => Caching::Buffered,
        3 => Caching::Direct,
        _ => return Ok(Arc::new(LocalFileSystem::new_with_prefix(folder)?)),
    };
    Ok(Arc::new(RingfileStore::builder().prefix(folder).caching(caching).build()?))
}

fn measure(
    settings: &Settings,
    runtime: &tokio::runtime::Runtime,
    is_cold: bool,
    side: usize,
) -> io::Result<Run> {
    let path = settings.folder.join(NAME);
    settle(&path, settings.size, is_cold)?;
    let store = store(&settings.folder, side)?;
    let name = path::Path::from(NAME);
    let call = |number: u64| {
        let (store, name, ranges) = (Arc::clone(&store), name.clone(), ranges(settings.size, number));
        tokio::spawn(async move {
            let given = store.get_ranges(&name, &ranges).await?;
            ranges.iter().zip(&given).try_for_each(|(range, bytes)| check(range, bytes))?;
            io::Result::Ok(given.iter().map(|bytes| bytes.len() as u64).sum::<u64>())
        })
    };
    let (device, cpu, began) = (read_by_device(&path)?, cpu(), Instant::now());
    let bytes = runtime.block_on(async {
        let calls = futures::stream::iter(0..settings.calls).map(call).buffer_unordered(settings.in_flight);
        calls.map_err(io::Error::other).try_fold(0, async |sum, bytes| Ok(sum + bytes?)).await
    })?;
    let run = Run {
        bytes,
        seconds: began.elapsed().as_secs_f64(),
        cpu: self::cpu() - cpu,
        from_device: read_by_device(&path)? - device,
    };
    let is_all = bytes == settings.calls * RANGES * RANGE;
    if !is_all
        || (is_cold && run.from_device < bytes)
        || (!is_cold && cached(&path)? < settings.size / 100 * 99)
    {
        let cached = cached(&path)?;
        let from_device = run.from_device;
        return Err(io::Error::other(format!(
            "{bytes} bytes read, {from_device} by the device, {cached} cached"
        )));
    }
    Ok(run)
}

/// Returns the ranges of a call: far from each other, and no range is used by two calls.
fn ranges(size: u64, call: u64) -> Vec<Range<u64>> {
    let blocks = size / RANGE;
    let each = (0..RANGES).map(|at| {
        let number = call * RANGES + at;
        // An odd factor visits each block once if their number is a power of two.
        let block = if blocks.is_power_of_two() {
            number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % blocks
        } else {
            number
        };
        block * RANGE..(block + 1) * RANGE
    });
    each.collect()
}

fn check(range: &Range<u64>, bytes: &[u8]) -> io::Result<()> {
    let pages = range.start / PAGE..;
    let wrong = pages
        .zip(bytes.chunks(PAGE as usize))
        .find(|(page, bytes)| bytes[..8] != word_of(*page).to_le_bytes());
    match wrong {
        None => Ok(()),
        Some((page, _)) => Err(io::Error::other(format!("page {page} holds what belongs elsewhere"))),
    }
}

/// Reads the whole file into the cache, or drops it.
fn settle(path: &Path, size: u64, is_cold: bool) -> io::Result<()> {
    let file = File::open(path)?;
    if !is_cold {
        let mut chunk = vec![0; 1 << 20];
        return if cached(path)? >= size {
            Ok(())
        } else {
            (0..size >> 20).try_for_each(|at| file.read_exact_at(&mut chunk, at << 20))
        };
    }
    fdatasync(&file)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    match cached(path)? {
        0 => Ok(()),
        bytes => Err(io::Error::other(format!("{bytes} bytes could not be dropped from the cache"))),
    }
}

/// Returns the CPU time of the process, kernel workers included, in seconds.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may contain anything, the 12th and the 13th field are ticks of 10 ms.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

/// Returns the bytes that the file's device has read since it exists, for any program.
fn read_by_device(path: &Path) -> io::Result<u64> {
    let device = std::fs::metadata(path)?.dev();
    let stat = format!("/sys/dev/block/{}:{}/stat", rustix::fs::major(device), rustix::fs::minor(device));
    let text = std::fs::read_to_string(stat)?;
    let sectors = text.split_whitespace().nth(2).and_then(|word| word.parse::<u64>().ok());
    sectors.map(|sectors| sectors * 512).ok_or_else(|| io::Error::other("the device does not count"))
}

/// Returns how many bytes of the file are in the page cache, by `fincore`.
fn cached(path: &Path) -> io::Result<u64> {
    let said = std::process::Command::new("fincore")
        .args(["--bytes", "--noheadings", "--output", "RES"])
        .arg(path)
        .output()?;
    let text = String::from_utf8_lossy(&said.stdout);
    text.trim().parse().map_err(|_| io::Error::other(format!("fincore (util-linux) said {text:?}")))
}
