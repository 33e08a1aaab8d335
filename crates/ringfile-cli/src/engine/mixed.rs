//! Repeated reads during a scan of the file: tasks read blocks by Zipf's law, so that a few are read often; meanwhile one
//! task reads the file from front to back.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use fastrand::Rng;
use ringfile::{File, Pool};

use super::bench::Bench;
use super::outcome::Outcome;
use super::ringfile::open;
use super::window::{Until, Window};
use crate::error::{Failure, library};
use crate::job::Job;
use crate::latency::Recorder;
use crate::machine;
use crate::model::MixedRun;
use crate::shuffle::Shuffle;

/// Bytes of each of the scan's reads.
pub const SCAN: u64 = 128 << 10;

/// Carries out a job on one thread.
pub fn run(job: &Job, bench: &Bench<'_>, tick: &mut dyn FnMut()) -> Result<Outcome, Failure> {
    let file = &open(&job.setup, bench.path)?;
    let (depth, block) = (job.setup.iodepth, job.setup.block);
    let buffers = depth as u64 * block.next_multiple_of(4096);
    let pool = &Pool::new((buffers * 2 + 4 * SCAN + (2 << 20)) as usize);
    let window = Window::of(job, 1);
    let (measured, mut threads) = window.run_threads((bench.interrupt, tick), "mixed", |_, member| {
        let read = |until| {
            let (file, pool, window) = (file.clone(), pool.clone(), member.window().clone());
            let tasks = Rc::new(MixedTasks {
                file,
                pool,
                block,
                blocks: job.blocks,
                until,
                window,
                recorder: RefCell::new(Recorder::new()),
                last: Cell::new(Instant::now()),
                scanned: Cell::new(0),
            });
            ringfile::block_on(tasks.clone().read_all(depth));
            tasks
        };
        // The warm-up shows the library which blocks are read repeatedly.
        read(member.ready());
        let until = member.warmed_up();
        let (device, counted) = (from_device(), ringfile::metrics());
        let tasks = read(until);
        let (device, counted) = (device.zip(from_device()), ringfile::metrics() - counted);
        member.finished();
        let recorder = tasks.recorder.replace(Recorder::new());
        let mixed = MixedRun {
            scan_bw_bytes: tasks.scanned.get() as f64,
            device_bw_bytes: device.map(|(before, after)| after.saturating_sub(before) as f64),
            cache_hits: counted.cache_hits,
            cache_misses: counted.cache_misses,
            cache_admitted: counted.cache_admitted,
            ahead_used: counted.ahead_used,
            ahead_unused: counted.ahead_unused,
        };
        (mixed, (recorder, tasks.last.get()))
    });
    let (mixed, thread) = threads.pop().unzip();
    let outcome = Outcome::of_threads(measured, thread.into_iter().collect());
    let seconds = outcome.duration.as_secs_f64();
    let mixed = mixed.map(|mixed| MixedRun {
        scan_bw_bytes: mixed.scan_bw_bytes / seconds,
        device_bw_bytes: mixed.device_bw_bytes.map(|bytes| bytes / seconds),
        ..mixed
    });
    Ok(Outcome { mixed, ..outcome })
}

/// What the tasks of a phase share.
struct MixedTasks {
    file: File,
    pool: Pool,
    block: u64,
    blocks: u64,
    until: Until,
    window: Arc<Window>,
    recorder: RefCell<Recorder>,
    last: Cell<Instant>,
    scanned: Cell<u64>,
}

impl MixedTasks {
    /// Lets all tasks read until the phase is over.
    async fn read_all(self: Rc<Self>, depth: usize) {
        let scan = ringfile::spawn(self.clone().scan());
        let hot = (0..depth).map(|task| ringfile::spawn(self.clone().read_hot(task as u64 + 1)));
        for task in hot.collect::<Vec<_>>().into_iter().chain([scan]) {
            // A task fails only by panicking, and the panic is already reported.
            let _ = task.await;
        }
    }

    /// Reads a range, and returns whether to continue.
    async fn read(&self, offset: u64, len: u64) -> bool {
        let read = async {
            let buffer = self.pool.get_async(len as usize).await?;
            ringfile::Result::Ok(self.file.read_exact_at(buffer, offset).await?)
        };
        if let Err(error) = read.await {
            self.window.fail(library(&error));
        }
        self.last.set(Instant::now());
        !self.until.over(self.last.get())
    }

    async fn read_hot(self: Rc<Self>, seed: u64) {
        let (mut random, places) = (Rng::with_seed(seed), Shuffle::new(self.blocks));
        let mut goes_on = true;
        while goes_on {
            // Zipf's law with the exponent 1: the logarithm of the rank is uniform.
            let rank =
                ((self.blocks as f64).powf(random.f64()) as u64).saturating_sub(1).min(self.blocks - 1);
            let began = Instant::now();
            goes_on = self.read(places.at(rank, 1) * self.block, self.block).await;
            self.recorder.borrow_mut().record(self.last.get() - began);
        }
    }

    async fn scan(self: Rc<Self>) {
        let size = self.blocks * self.block;
        let mut offset = 0;
        while self.read(offset, SCAN.min(size - offset)).await {
            self.scanned.set(self.scanned.get() + SCAN);
            offset = if offset + 2 * SCAN <= size { offset + SCAN } else { 0 };
        }
    }
}

/// Returns the bytes that this process has read from devices.
fn from_device() -> Option<u64> {
    machine::field(&machine::text("/proc/self/io")?, "read_bytes")?.parse().ok()
}
