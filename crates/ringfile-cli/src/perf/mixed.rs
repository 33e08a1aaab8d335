//! `ringfile perf file --cache mixed`: reads that come back, under a scan of the file, with a quarter of it as memory.
//!
//! What is compared is who decides what stays in memory: the library (adaptive), the kernel (buffered), nobody (direct).
//! Tasks read blocks by Zipf's law, so that few are read often; one task meanwhile reads the file from front to back.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ringfile::{File, OpenOptions, Pool};

use crate::cli::{Cache, FileArgs, Route};
use crate::error::{Failure, library, usage};
use crate::interrupt::Interrupt;
use crate::memory_group::MemoryGroup;
use crate::progress::Progress;
use crate::random::Random;
use crate::report::output;
use crate::report::statistics::Spread;
use crate::report::table::Table;
use crate::shuffle::Shuffle;
use crate::sys;
use crate::terminal;
use crate::testfile::{DefaultPlace, Intent, TestFile, leftover};

/// Bytes of each read of the scan.
const SCAN: u64 = 128 << 10;

/// A quarter of it has room for the program too.
const SMALLEST: u64 = 256 << 20;

/// Who decides what is cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Caching {
    Adaptive,
    Buffered,
    Direct,
    /// The first once more.
    Again,
}

const ALL: [Caching; 3] = [Caching::Adaptive, Caching::Buffered, Caching::Direct];

/// What one run did.
struct Run {
    caching: Caching,
    /// Hot reads a second.
    iops: f64,
    /// Bytes of the scan a second.
    scanned: f64,
    /// CPU time for each hot read, with its share of the scan, in microseconds.
    cpu_us: f64,
    /// Bytes read from the device a second.
    from_device: Option<f64>,
    counted: ringfile::Metrics,
}

/// Carries out the command.
pub fn run(args: &FileArgs) -> Result<(), Failure> {
    check(args)?;
    leftover::tell(args.output.quiet);
    let interrupt = Interrupt::catch_signals()?;
    let intent = Intent {
        block: args.bs,
        writes: false,
        direct: false,
        verify: false,
        default_place: DefaultPlace::Disk,
    };
    let mut test_file = TestFile::open(&args.test_file, intent, &interrupt)?;
    let each = args.timing.warmup + args.timing.duration;
    let mut progress = Progress::new(each * args.timing.rounds * (ALL.len() as u32 + 1), args.output.quiet);
    test_file.notes.iter().for_each(|note| progress.warn(note));
    test_file.prepare(intent, &mut |_| progress.tick(&["preparing the file".into()]))?;
    test_file.settle(Cache::Mixed)?;
    let group = MemoryGroup::enter(test_file.size() / 4);
    if let Err(why) = &group {
        progress.warn(&format!("no control group, so all of the machine's memory counts: {why}"));
    }
    let mut runs = Vec::new();
    let measured = measure(args, &test_file, &interrupt, &mut progress, &mut runs);
    progress.finish();
    let width = terminal::width();
    let printed = output::print(&format!("{}\n{}", table(&runs).text_of_width(width), ratios(&runs)));
    measured.and(printed)
}

/// Refuses what this does not measure, or can't write.
fn check(args: &FileArgs) -> Result<(), Failure> {
    let alone = args.cache.as_ref().is_some_and(|list| list.values().len() == 1);
    if !alone || args.direct || args.verify || args.against.is_some() {
        return usage("--cache mixed stands alone: leave out other states, --direct, --verify and --against");
    }
    if args.output.json.is_some() || args.output.report.is_some() {
        return usage("--cache mixed prints its table only: leave out --json and --report");
    }
    if args.test_file.size < SMALLEST || args.bs > SCAN {
        return usage("--cache mixed needs --size 256m at least, and --bs 128k at most");
    }
    Ok(())
}

fn measure(
    args: &FileArgs,
    test_file: &TestFile,
    interrupt: &Interrupt,
    progress: &mut Progress,
    runs: &mut Vec<Run>,
) -> Result<(), Failure> {
    let mut order = ALL.to_vec();
    for _ in 0..args.timing.rounds {
        for &caching in order.iter().chain(&[Caching::Again]) {
            if interrupt.asked() {
                return Err(Failure::Interrupted);
            }
            progress.begin(args.timing.warmup + args.timing.duration);
            progress.tick(&[name(caching).into()]);
            test_file.settle(Cache::Mixed)?;
            runs.push(run_once(args, test_file, caching, interrupt)?);
        }
        order.rotate_left(1);
    }
    Ok(())
}

fn name(caching: Caching) -> &'static str {
    match caching {
        Caching::Adaptive => "adaptive",
        Caching::Buffered => "buffered",
        Caching::Direct => "direct",
        Caching::Again => "adaptive (A/A)",
    }
}

fn open(args: &FileArgs, path: &std::path::Path, caching: Caching) -> Result<File, Failure> {
    let route = args.route.as_ref().and_then(|list| list.values().first().copied());
    let mut options = OpenOptions::new();
    options.read(true).route(route.unwrap_or(Route::Auto).into());
    match caching {
        Caching::Adaptive | Caching::Again => options.adaptive(true),
        Caching::Buffered => &mut options,
        Caching::Direct => options.direct(true),
    };
    let file = options.open(path).map_err(|error| library(&error))?;
    let is_adaptive = matches!(caching, Caching::Adaptive | Caching::Again);
    if is_adaptive && !file.is_adaptive() {
        return Err(Failure::Io(format!("{} can't be read adaptively: see ringfile doctor", path.display())));
    }
    Ok(file)
}

/// What the tasks of a run share.
struct Shared {
    file: File,
    pool: Pool,
    block: u64,
    blocks: u64,
    until: Cell<Instant>,
    reads: Cell<u64>,
    scanned: Cell<u64>,
    failure: Cell<Option<Failure>>,
}

fn run_once(
    args: &FileArgs,
    test_file: &TestFile,
    caching: Caching,
    interrupt: &Interrupt,
) -> Result<Run, Failure> {
    let depth = args.iodepth.values().first().copied().unwrap_or(1);
    let capacity = (depth as u64 * args.bs.next_multiple_of(4096) * 2 + 4 * SCAN + (2 << 20)) as usize;
    let shared = Rc::new(Shared {
        file: open(args, &test_file.path, caching)?,
        pool: Pool::new(capacity),
        block: args.bs,
        blocks: test_file.size() / args.bs,
        until: Cell::new(Instant::now()),
        reads: Cell::new(0),
        scanned: Cell::new(0),
        failure: Cell::new(None),
    });
    // The warm-up, in which it shows what comes back.
    phase(&shared, depth, args.timing.warmup, interrupt);
    shared.reads.set(0);
    shared.scanned.set(0);
    let usage = || sys::own_usage().map(|usage| usage.cpu()).unwrap_or_default();
    let (cpu, device, counted, began) = (usage(), from_device(), ringfile::metrics(), Instant::now());
    phase(&shared, depth, args.timing.duration, interrupt);
    let seconds = began.elapsed().as_secs_f64();
    let reads = shared.reads.get().max(1) as f64;
    shared.failure.take().map_or(Ok(()), Err)?;
    Ok(Run {
        caching,
        iops: reads / seconds,
        scanned: shared.scanned.get() as f64 / seconds,
        cpu_us: (usage() - cpu).as_secs_f64() * 1e6 / reads,
        from_device: device.and_then(|before| Some(from_device()?.saturating_sub(before) as f64 / seconds)),
        counted: ringfile::metrics() - counted,
    })
}

/// Lets all tasks read for so long.
fn phase(shared: &Rc<Shared>, depth: usize, length: Duration, interrupt: &Interrupt) {
    shared.until.set(Instant::now() + length);
    ringfile::block_on(async {
        let scan = ringfile::spawn(scan(Rc::clone(shared), interrupt.clone()));
        let hot: Vec<_> =
            (0..depth).map(|task| ringfile::spawn(read_hot(Rc::clone(shared), task as u64 + 1))).collect();
        for task in hot.into_iter().chain([scan]) {
            // A task ends early by a panic alone, which is told then.
            let _ = task.await;
        }
    });
}

impl Shared {
    /// Reads, and tells whether to go on.
    async fn read(&self, offset: u64, len: u64) -> bool {
        let read = async {
            let buffer = self.pool.get_async(len as usize).await?;
            ringfile::Result::Ok(self.file.read_exact_at(buffer, offset).await?)
        };
        if let Err(error) = read.await {
            self.failure.set(Some(library(&error)));
            self.until.set(Instant::now());
        }
        Instant::now() < self.until.get()
    }
}

async fn read_hot(shared: Rc<Shared>, seed: u64) {
    let (mut random, places) = (Random::new(seed), Shuffle::new(shared.blocks));
    loop {
        // Zipf's law with the exponent 1: the logarithm of the rank is uniform.
        let uniform = random.bits() as f64 / u64::MAX as f64;
        let rank = ((shared.blocks as f64).powf(uniform) as u64).saturating_sub(1).min(shared.blocks - 1);
        let goes_on = shared.read(places.at(rank, 1) * shared.block, shared.block).await;
        shared.reads.set(shared.reads.get() + 1);
        if !goes_on {
            return;
        }
    }
}

async fn scan(shared: Rc<Shared>, interrupt: Interrupt) {
    let size = shared.blocks * shared.block;
    let mut offset = 0;
    while shared.read(offset, SCAN.min(size - offset)).await {
        shared.scanned.set(shared.scanned.get() + SCAN);
        offset = if offset + 2 * SCAN <= size { offset + SCAN } else { 0 };
        if interrupt.asked() {
            shared.until.set(Instant::now());
        }
    }
}

/// Bytes that this process had read from devices.
fn from_device() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.trim().parse().ok()
}

fn table(runs: &[Run]) -> Table {
    let mut table = Table::default().text("caching").end_keys();
    for title in
        ["hot IOPS", "scan MiB/s", "CPU µs", "device MiB/s", "hits", "misses", "admitted", "ahead used %"]
    {
        table = table.number(title);
    }
    for run in runs {
        let Run { iops, scanned, cpu_us, counted, .. } = run;
        let device = run.from_device.map(|bytes| format!("{:.0}", bytes / f64::from(1 << 20)));
        let ahead = counted.ahead_used + counted.ahead_unused;
        let used = (counted.ahead_used * 100).checked_div(ahead);
        table.row(vec![
            name(run.caching).into(),
            format!("{iops:.0}"),
            format!("{:.0}", scanned / f64::from(1 << 20)),
            format!("{cpu_us:.1}"),
            device.unwrap_or_default(),
            counted.cache_hits.to_string(),
            counted.cache_misses.to_string(),
            counted.cache_admitted.to_string(),
            used.map(|percent| percent.to_string()).unwrap_or_default(),
        ]);
    }
    table
}

/// The medians of adaptive reads over the better of the two others, and over themselves.
fn ratios(runs: &[Run]) -> String {
    let median = |caching, figure: fn(&Run) -> f64| {
        let figures = runs.iter().filter(|run| run.caching == caching).map(figure);
        Spread::of(figures).map(|spread| spread.median)
    };
    let over = |figure: fn(&Run) -> f64| {
        let adaptive = median(Caching::Adaptive, figure)?;
        let best = median(Caching::Buffered, figure)?.max(median(Caching::Direct, figure)?);
        Some((adaptive / best, median(Caching::Again, figure)? / adaptive))
    };
    let (Some((hot, hot_again)), Some((scan, scan_again))) = (over(|run| run.iops), over(|run| run.scanned))
    else {
        return String::new();
    };
    format!(
        "adaptive over the better of the others: hot {hot:.2} (A/A {hot_again:.2}), scan {scan:.2} (A/A {scan_again:.2})\n"
    )
}
