//! Carries out a job with this library's batches: blocking ones on plain threads, or awaited ones in tokio.
//!
//! Each batch in flight has its own buffers, which the next batch uses again. Invariants: at both ends of the window no
//! batch is in flight, so the library's counts for the process cover exactly the recorded operations. Every thread has
//! published its counts by then, because it does so before it hands over a result.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ringfile::{AnyBuffer, Batch, Buffer, Completion, File, Pool};

use super::bench::Bench;
use super::outcome::{Counted, Outcome, whole};
use super::ringfile::{open_for, pool};
use super::window::{self, MeasuredWindow, Until, Window, join_all};
use crate::error::{Failure, library};
use crate::job::{Job, Operation, Task};
use crate::latency::Recorder;

/// Carries out a job with a plain thread for each batch in flight.
pub fn run_blocking(job: &Job, bench: &Bench<'_>, tick: &mut dyn FnMut()) -> Result<Outcome, Failure> {
    let (file, pool) = (open_for(job, bench)?, pool(job)?);
    let count = job.setup.numjobs * job.batches_in_flight();
    let window = Window::of(job, count);
    let (measured, threads) = window.run_threads((bench.interrupt, tick), "ringfile", |number, member| {
        let mut reader = BatchReader::new(job, number, &file, &pool, member.window());
        member.phases(|until, recorder| reader.read_all(until, recorder))
    });
    Ok(outcome(measured, threads))
}

/// Carries out a job with tasks of a multi-thread tokio runtime that has a worker for each requested thread.
pub fn run_in_tokio(job: &Job, bench: &Bench<'_>, tick: &mut dyn FnMut()) -> Result<Outcome, Failure> {
    let (file, pool) = (open_for(job, bench)?, pool(job)?);
    // One member for all threads: those of the runtime must not wait for each other.
    let window = &Window::of(job, 1);
    let (measured, threads) = window.run_threads((bench.interrupt, tick), "tokio", |_, member| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(job.setup.numjobs).build();
        let runtime = runtime.map_err(|error| window.fail(window::no_thread(&error))).ok()?;
        let count = job.setup.numjobs * job.batches_in_flight();
        let new = |number| (BatchReader::new(job, number, &file, &pool, window), Recorder::new());
        let readers = (0..count).map(new).collect();
        let mut readers = runtime.block_on(await_all(readers, &member.ready()));
        readers.iter_mut().for_each(|(_, recorder)| *recorder = Recorder::new());
        let readers = runtime.block_on(await_all(readers, &member.warmed_up()));
        member.finished();
        Some(readers.into_iter().map(|(reader, recorder)| (recorder, reader.last)).collect::<Vec<_>>())
    });
    Ok(outcome(measured, threads.into_iter().flatten().flatten().collect()))
}

async fn await_all(readers: Vec<(BatchReader, Recorder)>, until: &Until) -> Vec<(BatchReader, Recorder)> {
    let spawn = |(reader, recorder): (BatchReader, Recorder)| {
        tokio::spawn(reader.await_batches(recorder, until.clone()))
    };
    join_all(readers.into_iter().map(spawn).collect()).await
}

/// Returns the outcome of threads whose operations the library counted for the process.
pub fn outcome(measured: MeasuredWindow, threads: Vec<(Recorder, Instant)>) -> Outcome {
    let counted = Some(Counted::of(&measured.counted));
    Outcome { counted, ..Outcome::of_threads(measured, threads) }
}

/// Returns whether a read moved the whole block.
pub fn read_whole(
    file: &File,
    offset: u64,
    moved: Result<usize, ringfile::Error>,
    block: usize,
) -> Result<(), Failure> {
    let path = file.path().unwrap_or_else(|| Path::new(""));
    let moved = moved.map_err(|error| library(&error));
    whole(Operation { offset, write: false }, moved, block, path)
}

/// A thread or task with one batch in flight.
struct BatchReader {
    file: File,
    block: usize,
    reads: Task,
    /// The offsets of the batch in flight.
    asked: Vec<u64>,
    buffers: Vec<Buffer>,
    window: Arc<Window>,
    last: Instant,
}

impl BatchReader {
    fn new(job: &Job, number: usize, file: &File, pool: &Pool, window: &Arc<Window>) -> BatchReader {
        let block = job.setup.block as usize;
        let buffers = (0..job.batch_size()).map(|_| pool.get(block)).collect::<Result<_, _>>();
        let buffers = buffers.unwrap_or_else(|error| {
            window.fail(library(&error.into()));
            Vec::new()
        });
        BatchReader {
            file: file.clone(),
            block,
            reads: job.reads(number, window.share(number / job.batches_in_flight())),
            asked: Vec::with_capacity(job.batch_size()),
            buffers,
            window: Arc::clone(window),
            last: Instant::now(),
        }
    }

    fn read_all(&mut self, until: &Until, recorder: &mut Recorder) -> Instant {
        self.last = Instant::now();
        let mut over = until.stopped();
        while !over && let Some(batch) = self.next_batch() {
            let results = batch.run();
            self.finish(results, recorder);
            over = until.over(self.last);
        }
        self.last
    }

    async fn await_batches(mut self, mut recorder: Recorder, until: Until) -> (BatchReader, Recorder) {
        self.last = Instant::now();
        let mut over = until.stopped();
        while !over && let Some(batch) = self.next_batch() {
            let results = batch.await;
            self.finish(results, &mut recorder);
            over = until.over(self.last);
        }
        (self, recorder)
    }

    /// Returns the next batch, which is smaller if little is left to do; `None` if nothing is.
    fn next_batch(&mut self) -> Option<Batch> {
        self.reads.take(self.buffers.len(), &mut self.asked);
        let count = self.asked.len();
        let mut batch = Batch::with_capacity(count).depth(count);
        let rest = self.buffers.len() - count;
        for (buffer, &offset) in self.buffers.drain(rest..).zip(&self.asked) {
            batch.add(self.file.read_at(buffer, offset));
        }
        (count > 0).then_some(batch)
    }

    /// Records the results, and keeps the buffers for the next batch.
    fn finish(&mut self, results: Vec<Completion>, recorder: &mut Recorder) {
        let began = std::mem::replace(&mut self.last, Instant::now());
        let mut whole = 0;
        for (done, &offset) in results.into_iter().zip(&self.asked) {
            self.buffers.extend(done.buffer.and_then(AnyBuffer::into_pooled));
            match read_whole(&self.file, offset, done.result, self.block) {
                Ok(()) => whole += 1,
                Err(failure) => self.window.fail(failure),
            }
        }
        recorder.record_many(self.last - began, whole);
    }
}
