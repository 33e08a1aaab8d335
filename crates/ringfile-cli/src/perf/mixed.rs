//! `ringfile perf file --cache mixed`: repeated reads during a scan of the file, with memory for a quarter of the file if
//! the process may make a control group.
//!
//! Compares policies for what stays in memory: the library's (adaptive), the kernel's (buffered) and none (direct).
//! Tasks read blocks by Zipf's law, so that a few are read often; meanwhile one task reads the file from front to back.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ringfile::{File, Pool};

use super::notes;
use super::outputs::{self, Outputs};
use super::plan::{Depth, Grid, Step, Timing};
use crate::cli::FileArgs;
use crate::engine::rated;
use crate::engine::ringfile::open;
use crate::error::{Failure, errno_text, library, refuse, usage};
use crate::interrupt::Interrupt;
use crate::machine;
use crate::memory_group::MemoryGroup;
use crate::model::{Buffers, Cache, Kind, Machine, MixedRun, Open, Params, Results, Route, Run};
use crate::progress::Progress;
use crate::shuffle::Shuffle;
use crate::sys;
use crate::testfile::{DefaultPlace, Intent, TestFile};
use crate::values;
use fastrand::Rng;

/// Bytes of each of the scan's reads.
const SCAN: u64 = 128 << 10;

/// The smallest file: a quarter of it also holds the program.
const SMALLEST: u64 = 256 << 20;

/// The ways to open the file that are compared, in this order.
const COMPARED: [Open; 3] = [Open::Adaptive, Open::Buffered, Open::Direct];

/// Carries out the command.
pub fn run(args: &FileArgs) -> Result<(), Failure> {
    check(args)?;
    let outputs = Outputs::check(&args.run.output, args.run.test_file.file.as_deref())?;
    let interrupt = Interrupt::catch_signals()?;
    let intent = Intent {
        block: args.bs,
        writes: false,
        direct: false,
        verify: false,
        default_place: DefaultPlace::Disk,
    };
    let mut test_file = TestFile::open(&args.run.test_file, intent, &interrupt)?;
    if test_file.size() < SMALLEST {
        let why = "has less than 256 MiB for --cache mixed: name a --file that is larger, or a new one";
        return refuse(&test_file.path, why);
    }
    let timing = Timing::of(&args.run.timing);
    let steps = grid(args).steps();
    let total = (timing.warmup + timing.duration) * steps.len() as u32;
    let mut progress = Progress::new(total, args.run.output.quiet);
    test_file.notes.iter().for_each(|note| progress.warn(note));
    test_file.prepare(intent, &mut |_| progress.tick(&["preparing the file".into()]))?;
    test_file.settle(Cache::Mixed)?;
    let group = MemoryGroup::enter(test_file.size() / 4);
    let memory = match &group {
        Ok(_) => "a quarter of it as memory".into(),
        Err(why) => format!("memory was not limited, for want of a control group: {}", errno_text(why)),
    };
    if group.is_err() {
        progress.warn(&memory);
    }
    let mut runs = Vec::new();
    let ended = steps.into_iter().try_for_each(|Step { setup, role, round, .. }| {
        if interrupt.asked() {
            return Err(Failure::Interrupted);
        }
        progress.begin(timing.warmup + timing.duration);
        progress.tick(&[values::name(&setup.open()), format!("round {round}")]);
        test_file.settle(Cache::Mixed)?;
        runs.push(run_once(Run::new(setup, round, role), timing, &test_file, &interrupt)?);
        Ok(())
    });
    progress.finish();
    let results = results(args, &test_file, &memory, runs, matches!(ended, Err(Failure::Interrupted)));
    outputs::conclude(ended, &args.run.output, &outputs, &results)
}

/// Refuses options that do not apply.
fn check(args: &FileArgs) -> Result<(), Failure> {
    let alone = args.cache.as_ref().is_some_and(|list| list.values().len() == 1);
    if !alone {
        return usage("--cache mixed stands alone: leave out other states");
    }
    let given = [
        ("--numjobs", args.numjobs.is_some()),
        ("--rw", args.rw.is_some()),
        ("--buffers", args.buffers.is_some()),
        ("--direct", args.direct),
        ("--open", args.open.is_some()),
        ("--against", args.against.is_some()),
        ("--verify", args.verify),
    ];
    if let Some((option, _)) = given.iter().find(|(_, given)| *given) {
        return usage(format!("--cache mixed is one fixed mix of reads: leave out {option}"));
    }
    if args.run.test_file.size() < SMALLEST || args.bs > SCAN {
        return usage("--cache mixed needs --size 256m at least, and --bs 128k at most");
    }
    Ok(())
}

/// Returns the runs to make.
fn grid(args: &FileArgs) -> Grid {
    let route = args.route.as_ref().map_or(Route::Auto, |list| list.values()[0]);
    Grid {
        cache: vec![Cache::Mixed],
        blocks: vec![args.bs],
        depths: vec![Depth::of(args.iodepth.values()[0])],
        open: COMPARED.to_vec(),
        ways: vec![(route, Buffers::Normal)],
        rounds: args.run.timing.rounds,
        ..Grid::plain()
    }
}

fn results(
    args: &FileArgs,
    test_file: &TestFile,
    memory: &str,
    runs: Vec<Run>,
    interrupted: bool,
) -> Results {
    let params = Params {
        file: test_file.path.to_string_lossy().into_owned(),
        file_created: test_file.created,
        size_bytes: test_file.size(),
        direct: false,
        duration_s: args.run.timing.duration.as_secs_f64(),
        warmup_s: args.run.timing.warmup.as_secs_f64(),
        ..grid(args).params()
    };
    let machine = Machine::here(test_file.filesystem.clone());
    let mut results = Results::new(Kind::Mixed, outputs::command_line(), machine, params, runs);
    results.interrupted = interrupted;
    results.notes = vec![
        format!("{}; {memory}", notes::file(test_file, &grid(args), false)),
        notes::timing(Timing::of(&args.run.timing), &results),
        notes::machine(),
        "IOPS of the reads that come back (Zipf); CPU µs for one of them, with its share of the scan; hits, misses and \
         admitted: blocks, as the library counts them"
            .into(),
    ];
    results.notes.extend(test_file.notes.iter().cloned());
    results
}

/// What the tasks of a run share.
struct MixedTasks {
    file: File,
    pool: Pool,
    block: u64,
    blocks: u64,
    until: Cell<Instant>,
    reads: Cell<u64>,
    scanned: Cell<u64>,
    failure: Cell<Option<Failure>>,
}

fn run_once(run: Run, timing: Timing, test_file: &TestFile, interrupt: &Interrupt) -> Result<Run, Failure> {
    let setup = run.setup;
    let (depth, block) = (setup.iodepth, setup.block);
    let capacity = (depth as u64 * block.next_multiple_of(4096) * 2 + 4 * SCAN + (2 << 20)) as usize;
    let shared = Rc::new(MixedTasks {
        file: open(&setup, &test_file.reopened)?,
        pool: Pool::new(capacity),
        block,
        blocks: test_file.size() / block,
        until: Cell::new(Instant::now()),
        reads: Cell::new(0),
        scanned: Cell::new(0),
        failure: Cell::new(None),
    });
    // The warm-up shows the library which blocks are read repeatedly.
    phase(&shared, depth, timing.warmup, interrupt);
    shared.reads.set(0);
    shared.scanned.set(0);
    let usage = || sys::own_usage().unwrap_or_default();
    let (before, device, counted, began) = (usage(), from_device(), ringfile::metrics(), Instant::now());
    phase(&shared, depth, timing.duration, interrupt);
    let took = began.elapsed();
    let a_second = |bytes: u64| bytes as f64 / took.as_secs_f64();
    shared.failure.take().map_or(Ok(()), Err)?;
    let counted = ringfile::metrics() - counted;
    let run = rated(run, shared.reads.get(), took, Some(&usage().since(&before)));
    let mixed = MixedRun {
        scan_bw_bytes: a_second(shared.scanned.get()),
        device_bw_bytes: device.and_then(|before| Some(a_second(from_device()?.saturating_sub(before)))),
        cache_hits: counted.cache_hits,
        cache_misses: counted.cache_misses,
        cache_admitted: counted.cache_admitted,
        ahead_used: counted.ahead_used,
        ahead_unused: counted.ahead_unused,
    };
    Ok(Run { mixed: Some(mixed), ..run })
}

/// Lets all tasks read for this long.
fn phase(shared: &Rc<MixedTasks>, depth: usize, length: Duration, interrupt: &Interrupt) {
    shared.until.set(Instant::now() + length);
    ringfile::block_on(async {
        let scan = ringfile::spawn(scan(Rc::clone(shared), interrupt.clone()));
        let hot: Vec<_> =
            (0..depth).map(|task| ringfile::spawn(read_hot(Rc::clone(shared), task as u64 + 1))).collect();
        for task in hot.into_iter().chain([scan]) {
            // A task fails only by panicking, and the panic is already reported.
            let _ = task.await;
        }
    });
}

impl MixedTasks {
    /// Reads a range, and returns whether to continue.
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

async fn read_hot(shared: Rc<MixedTasks>, seed: u64) {
    let (mut random, places) = (Rng::with_seed(seed), Shuffle::new(shared.blocks));
    loop {
        // Zipf's law with the exponent 1: the logarithm of the rank is uniform.
        let rank =
            ((shared.blocks as f64).powf(random.f64()) as u64).saturating_sub(1).min(shared.blocks - 1);
        let goes_on = shared.read(places.at(rank, 1) * shared.block, shared.block).await;
        shared.reads.set(shared.reads.get() + 1);
        if !goes_on {
            return;
        }
    }
}

async fn scan(shared: Rc<MixedTasks>, interrupt: Interrupt) {
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

/// Returns the bytes that this process has read from devices.
fn from_device() -> Option<u64> {
    machine::field(&machine::text("/proc/self/io")?, "read_bytes")?.parse().ok()
}
