//! The job carried out by this library in batches: blocking ones on plain threads, or awaited in tokio.
//!
//! Every batch in flight has buffers of its own, which go from batch to batch. What must hold: at both ends of the
//! window no batch is under way, so the library's counts for the process cover what was recorded; all of its threads
//! have published theirs by then, for each publishes before it hands a result over.

use std::sync::Arc;
use std::time::Instant;

use ringfile::{AnyBuffer, Batch, Buffer, Done, File, Pool};

use super::ringfile::{open_for, pool};
use super::window::{self, Measured, Until, Window};
use super::{Bench, EnterSizes, Outcome, RouteOps};
use crate::error::{Failure, library, short};
use crate::job::{Job, Offsets};
use crate::latency::Recorder;

/// Carries out a job with a plain thread for each batch in flight.
pub fn run_blocking(job: &Job, bench: &Bench<'_>, tick: &mut dyn FnMut()) -> Result<Outcome, Failure> {
    let (file, pool) = (open_for(job, bench)?, pool(job)?);
    let count = job.setup.numjobs * job.batches_in_flight();
    let window = &Window::new(job, count);
    let conducted = (job, bench.interrupt, tick);
    let (measured, threads) = window.run_threads("ringfile", count, conducted, |number, member| {
        let mut reader = Reader::new(job, number, &file, &pool, window);
        let until = member.ready();
        reader.read_all(&until);
        reader.recorder = Recorder::new();
        let until = member.warmed_up();
        reader.read_all(&until);
        member.finished();
        (reader.recorder, reader.last)
    });
    Ok(outcome(measured, threads))
}

/// Carries out a job with tasks of a multi-thread tokio runtime that has a worker for each thread asked for.
pub fn run_in_tokio(job: &Job, bench: &Bench<'_>, tick: &mut dyn FnMut()) -> Result<Outcome, Failure> {
    let (file, pool) = (open_for(job, bench)?, pool(job)?);
    // One thread stands for all: the runtime's own must not wait for each other.
    let window = &Window::new(job, 1);
    let conducted = (job, bench.interrupt, tick);
    let (measured, threads) = window.run_threads("tokio", 1, conducted, |_, member| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(job.setup.numjobs).build();
        let runtime = runtime.map_err(|error| window.fail(window::no_thread(&error))).ok()?;
        let count = job.setup.numjobs * job.batches_in_flight();
        let new = |number| Reader::new(job, number, &file, &pool, window);
        let readers = (0..count).map(new).collect();
        let mut readers = runtime.block_on(await_all(readers, &member.ready()));
        readers.iter_mut().for_each(|reader| reader.recorder = Recorder::new());
        let readers = runtime.block_on(await_all(readers, &member.warmed_up()));
        member.finished();
        Some(readers.into_iter().map(|reader| (reader.recorder, reader.last)).collect::<Vec<_>>())
    });
    Ok(outcome(measured, threads.into_iter().flatten().flatten().collect()))
}

async fn await_all(readers: Vec<Reader>, until: &Until) -> Vec<Reader> {
    let spawn = |reader: Reader| tokio::spawn(reader.await_batches(until.clone()));
    let handles: Vec<_> = readers.into_iter().map(spawn).collect();
    let mut readers = Vec::with_capacity(handles.len());
    for handle in handles {
        // Nothing ends a task early but a panic.
        let joined = handle.await.map_err(tokio::task::JoinError::into_panic);
        readers.push(joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    }
    readers
}

/// The outcome of threads whose operations the library counted for the process.
pub fn outcome(measured: Measured, threads: Vec<(Recorder, Instant)>) -> Outcome {
    let counted = measured.counted;
    Outcome {
        enters: Some(counted.enters),
        fixed_ops: Some(counted.fixed_ops),
        route_ops: Some(RouteOps::of(&counted)),
        enter_sizes: Some(EnterSizes::of(&counted)),
        ..Outcome::of_threads(measured, threads)
    }
}

/// What has one batch in flight.
struct Reader {
    file: File,
    block: usize,
    offsets: Offsets,
    /// Those of the batch that is under way.
    asked: Vec<u64>,
    buffers: Vec<Buffer>,
    window: Arc<Window>,
    recorder: Recorder,
    last: Instant,
}

impl Reader {
    fn new(job: &Job, number: usize, file: &File, pool: &Pool, window: &Arc<Window>) -> Reader {
        let block = job.setup.block as usize;
        let buffers = (0..job.batch_size()).map(|_| pool.get(block)).collect::<Result<_, _>>();
        let buffers = buffers.unwrap_or_else(|error| {
            window.fail(library(&error.into()));
            Vec::new()
        });
        Reader {
            file: file.clone(),
            block,
            offsets: job.offsets(number, window.share(number / job.batches_in_flight())),
            asked: Vec::with_capacity(job.batch_size()),
            buffers,
            window: Arc::clone(window),
            recorder: Recorder::new(),
            last: Instant::now(),
        }
    }

    fn read_all(&mut self, until: &Until) {
        self.last = Instant::now();
        let mut over = until.stopped();
        while !over && let Some(batch) = self.next_batch() {
            let began = self.last;
            let results = batch.run();
            self.finish(began, results);
            over = until.over(self.last);
        }
    }

    async fn await_batches(mut self, until: Until) -> Reader {
        self.last = Instant::now();
        let mut over = until.stopped();
        while !over && let Some(batch) = self.next_batch() {
            let began = self.last;
            let results = batch.await;
            self.finish(began, results);
            over = until.over(self.last);
        }
        self
    }

    /// The next batch, smaller where there is not so much left to do; `None` where there is nothing.
    fn next_batch(&mut self) -> Option<Batch> {
        self.offsets.take(self.buffers.len(), &mut self.asked);
        let count = self.asked.len();
        let mut batch = Batch::with_capacity(count).in_flight(count);
        let rest = self.buffers.len() - count;
        for (buffer, &offset) in self.buffers.drain(rest..).zip(&self.asked) {
            batch.read(&self.file, buffer, offset);
        }
        (count > 0).then_some(batch)
    }

    /// Takes the results, and the buffers back.
    fn finish(&mut self, began: Instant, results: Vec<Done>) {
        self.last = Instant::now();
        let mut whole = 0;
        for (done, &offset) in results.into_iter().zip(&self.asked) {
            self.buffers.extend(done.buffer.and_then(AnyBuffer::into_pooled));
            match done.result {
                Ok(count) if count == self.block => whole += 1,
                Ok(count) => {
                    let path = self.file.path().unwrap_or_else(|| std::path::Path::new(""));
                    self.window.fail(short("read", path, offset, count, self.block));
                }
                Err(error) => self.window.fail(library(&error)),
            }
        }
        self.recorder.record_many(self.last - began, whole);
    }
}
