//! `ringfile perf pool`: producers and consumers at a fixed rate, with each kind of memory in turn.
//!
//! Invariants: everything that can be refused is refused before the first byte is written; results are printed and
//! saved however the command ends; nothing is left in the folder.

mod consumer;
mod ledger;
mod memory;
mod messages;
mod notes;
mod outcome;
mod pace;
mod producer;
mod run;
mod segments;
mod shared;

use std::fs::File;
use std::io::Write;
use std::path::Path;

use super::check::check_memory;
use super::outputs::{self, Outputs};
use super::plan::in_rounds;
use crate::cli::PoolArgs;
use crate::error::{Failure, io_on, refuse, usage};
use crate::interrupt::Interrupt;
use crate::model::{Cache, Kind, Machine, Memory, Params, Results, Route, Run, Rw, distinct};
use crate::progress::Progress;
use crate::testfile::{self, DefaultPlace};
use crate::values::{self, Bytes};
use shared::PoolJob;

/// The size of a segment, if there is room for two for each producer. Small, so that a small `--size` is written once by
/// the end of the warm-up: after that a batch took 0.4 ms (90th percentile, ext4 on a virtio disk), but 2.7 ms on blocks
/// that were never written before, because the file system has to record that they are now.
const SEGMENT: u64 = 8 << 20;

/// The smallest unit of any direct I/O.
const SECTOR: u64 = 512;

/// Room for a message's label.
const SMALLEST_MESSAGE: u64 = 32;

/// A few writes of the appender.
const LARGEST_MESSAGE: u64 = 1 << 20;

/// Carries out the command.
pub fn run(args: &PoolArgs) -> Result<(), Failure> {
    let folder = args.folder.clone().unwrap_or_else(|| DefaultPlace::Disk.folder());
    let job = job(args, &folder)?;
    check_folder(args, &job)?;
    let output = &args.output;
    let outputs = Outputs::check(output, None)?;
    let interrupt = Interrupt::catch_signals()?;
    let steps = in_rounds(args.kinds(), args.timing.rounds);
    let length = job.warmup + job.duration;
    let mut progress = Progress::new(length * steps.len() as u32, output.quiet);
    let mut runs = Vec::new();
    let ended = steps.into_iter().try_for_each(|(memory, role, round)| {
        if interrupt.asked() {
            return Err(Failure::Interrupted);
        }
        progress.begin(length);
        let label = [values::name(&memory), format!("round {round}")];
        settle(&job.folder);
        let outcome = run::run(&job, memory, &interrupt, &mut || progress.tick(&label))?;
        // An interrupted run is kept as far as it got.
        if [&outcome.producers, &outcome.consumers].iter().any(|ledger| ledger.latency.count() > 0) {
            runs.extend(outcome::runs(&job, memory, (round, role), &outcome));
        }
        match outcome.measured.failure {
            Some(failure) => Err(failure),
            None if interrupt.asked() => Err(Failure::Interrupted),
            None => Ok(()),
        }
    });
    progress.finish();
    let results = results(args, &job, runs, matches!(ended, Err(Failure::Interrupted)));
    outputs::conclude(ended, output, &outputs, &results)
}

/// Returns the requested job, if its parts fit together.
fn job(args: &PoolArgs, folder: &Path) -> Result<PoolJob, Failure> {
    let kinds = args.kinds();
    if let Some(size) = args.message_size {
        if !(SMALLEST_MESSAGE..=LARGEST_MESSAGE).contains(&size) {
            return usage(format!(
                "--message-size {size}: a message is from {SMALLEST_MESSAGE} bytes to {} here, as in 1000",
                Bytes(LARGEST_MESSAGE)
            ));
        }
        if kinds.contains(&Memory::Malloc) {
            return usage(
                "--message-size: messages that are no whole blocks are written past the page cache by the pool alone; use \
                 --memory pool,pool-buffered,vec,vec-uncached",
            );
        }
    } else if !args.bs.is_multiple_of(SECTOR) {
        return usage(format!("--bs {}: blocks here are multiples of {SECTOR} bytes; use --bs 64k", args.bs));
    }
    let (producers, consumers) = (u64::from(args.producers), u64::from(args.consumers));
    let block = args.message_size.unwrap_or(args.bs);
    let batch = block.saturating_mul(u64::from(args.batch));
    let memory = batch.saturating_mul(producers + consumers);
    check_memory(memory, "", "fewer producers and consumers, a smaller --batch or smaller blocks")?;
    // Two segments for each producer: it fills one while the other is read.
    let segment = (args.size / (2 * producers)).min(SEGMENT) / batch * batch;
    if segment == 0 {
        return usage(format!(
            "--size {} is too small: {producers} producers need room for two batches of {} each; use --size {} or more",
            Bytes(args.size),
            Bytes(batch),
            Bytes(batch.saturating_mul(2 * producers))
        ));
    }
    let sides = 1 + u64::from(args.consumers > 0);
    let job = PoolJob {
        folder: folder.to_path_buf(),
        size: args.size,
        segment,
        block,
        messages: args.message_size.is_some(),
        sync: args.sync,
        batch: args.batch,
        producers: args.producers,
        consumers: args.consumers,
        // What is written is read once, so both sides have the same rate.
        rate: args.rate_limit.map(|rate| rate.div_ceil(sides)),
        warmup: args.timing.warmup,
        duration: args.timing.duration,
    };
    check_rate(&job)?;
    Ok(job)
}

/// Refuses a rate that does not give every producer a batch.
fn check_rate(job: &PoolJob) -> Result<(), Failure> {
    let Some(rate) = job.rate else { return Ok(()) };
    let wanted = u128::from(job.batch_bytes()) * u128::from(job.producers);
    if u128::from(rate) * job.duration.as_nanos() >= wanted * 1_000_000_000 {
        return Ok(());
    }
    usage(format!(
        "--rate-limit: {} a second for each side is less than one batch of {} for each of {} threads within {}: raise \
         it, or use a longer --duration, a smaller --batch or fewer producers",
        Bytes(rate),
        Bytes(job.batch_bytes()),
        job.producers,
        humantime::format_duration(job.duration)
    ))
}

/// Refuses a folder that can't be used for this job.
fn check_folder(args: &PoolArgs, job: &PoolJob) -> Result<(), Failure> {
    let (folder, mut alignment) = (&job.folder, 1);
    for memory in args.kinds() {
        alignment = alignment.max(segments::check_folder(folder, memory)?);
    }
    if !job.messages && !job.block.is_multiple_of(alignment) {
        let (block, folder) = (job.block, folder.display());
        return usage(format!(
            "--bs {block}: direct I/O in {folder} needs multiples of {alignment}; change --bs, or measure --memory vec alone"
        ));
    }
    let room = testfile::room_for(&folder.join("segment"))
        .map_err(|error| io_on("can't look at", folder, &error))?;
    if job.size > room {
        let (room, size) = (Bytes(room), Bytes(job.size));
        let why = format!("has room for {room}, not {size}: use a smaller --size or another --folder");
        return refuse(folder, why);
    }
    Ok(())
}

/// Makes the file system finish the work that the last run left to its journal: the end of its segments, and data in
/// the page cache. Otherwise it would slow the next run.
fn settle(folder: &Path) {
    // An error here also occurs in the run, which reports it.
    let _ = tempfile::tempfile_in(folder).and_then(|mut file| {
        file.write_all(b"settled")?;
        file.sync_all()
    });
}

fn results(args: &PoolArgs, job: &PoolJob, runs: Vec<Run>, interrupted: bool) -> Results {
    let filesystem = File::open(&job.folder)
        .map_or_else(|_| "unknown".into(), |folder| testfile::filesystem(&job.folder, &folder));
    let sides = [(job.producers, Rw::Write), (job.consumers, Rw::Read)];
    let sides = || sides.into_iter().filter(|&(threads, _)| threads > 0);
    let params = Params {
        file: job.folder.to_string_lossy().into_owned(),
        file_created: true,
        size_bytes: job.size,
        block_size_bytes: job.block,
        block_sizes_bytes: vec![job.block],
        rate_limit_bytes: job.rate,
        duration_s: job.duration.as_secs_f64(),
        warmup_s: job.warmup.as_secs_f64(),
        numjobs: distinct(sides().map(|(threads, _)| threads as usize)),
        iodepth: vec![job.batch as usize],
        batch: vec![job.batch as usize],
        inflight: vec![1],
        rw: sides().map(|(_, rw)| rw).collect(),
        buffers: distinct(args.kinds().into_iter().map(Memory::buffers)),
        direct: args.kinds().into_iter().any(Memory::is_direct),
        cache: vec![Cache::Keep],
        route: vec![Route::Auto],
        rounds: args.timing.rounds,
        verify: true,
        ..Params::default()
    };
    let machine = Machine::here(filesystem);
    let mut results = Results::new(Kind::Pool, outputs::command_line(), machine, params, runs);
    results.interrupted = interrupted;
    results.notes = notes::of(args, job, &results);
    results
}
