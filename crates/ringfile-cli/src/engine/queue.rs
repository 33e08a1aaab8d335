//! Carries out a job with this library's [`Queue`]: one loop for each thread that adds, submits and collects, as fio's
//! does.
//!
//! Invariants: each read in flight has its own buffer; at most the job's depth is in flight, and nothing when the loop
//! returns.

use std::sync::Arc;
use std::time::Instant;

use ringfile::{AnyBuffer, Buffer, Completion, File, Pool, Queue};

use super::batches::{outcome, read_whole};
use super::bench::Bench;
use super::outcome::Outcome;
use super::ringfile::{open_for, pool};
use super::window::{Until, Window};
use crate::error::{Failure, library};
use crate::job::{Job, Operation, Task};
use crate::latency::Recorder;

/// Carries out a job with a queue for each thread.
pub fn run(job: &Job, bench: &Bench<'_>, tick: &mut dyn FnMut()) -> Result<Outcome, Failure> {
    let (file, pool) = (open_for(job, bench)?, pool(job)?);
    let window = Window::of(job, job.setup.numjobs);
    let (measured, threads) = window.run_threads((bench.interrupt, tick), "queue", |thread, member| {
        let mut reader = QueueReader::new(job, thread, &file, &pool, member.window());
        member.phases(|until, recorder| reader.read_all(until, recorder))
    });
    Ok(outcome(measured, threads))
}

/// One thread's loop.
struct QueueReader {
    queue: Queue,
    file: File,
    block: usize,
    reads: Task,
    /// Slots without a read in flight, each with its buffer.
    free: Vec<(usize, Buffer)>,
    /// When the read in each slot was added, and its offset.
    begun: Vec<(Instant, u64)>,
    window: Arc<Window>,
    last: Instant,
}

impl QueueReader {
    fn new(job: &Job, thread: usize, file: &File, pool: &Pool, window: &Arc<Window>) -> QueueReader {
        let block = job.setup.block as usize;
        let buffers =
            (0..job.setup.iodepth).map(|slot| Ok((slot, pool.get(block)?))).collect::<Result<_, _>>();
        let free = buffers.unwrap_or_else(|error: ringfile::buf::PoolError| {
            window.fail(library(&error.into()));
            Vec::new()
        });
        let last = Instant::now();
        QueueReader {
            queue: Queue::with_capacity(job.setup.iodepth),
            file: file.clone(),
            block,
            reads: job.reads(thread, window.share(thread)),
            free,
            begun: vec![(last, 0); job.setup.iodepth],
            window: Arc::clone(window),
            last,
        }
    }

    /// Reads until the phase is over and nothing is in flight.
    fn read_all(&mut self, until: &Until, recorder: &mut Recorder) -> Instant {
        self.last = Instant::now();
        let mut over = until.stopped();
        let mut completions = Vec::with_capacity(self.begun.len());
        loop {
            if !over {
                over = !self.fill();
            }
            if self.queue.is_empty() {
                return self.last;
            }
            // Waits for a completion, then takes all that have arrived.
            self.queue.wait(1..=usize::MAX, None, &mut completions);
            self.last = Instant::now();
            completions.drain(..).for_each(|completion| self.finish(completion, recorder));
            over |= until.over(self.last);
        }
    }

    /// Adds a read for each free buffer; the next wait submits them. Returns false at the end of the work.
    fn fill(&mut self) -> bool {
        while let Some((slot, buffer)) = self.free.pop() {
            let Some(Operation { offset, .. }) = self.reads.next() else {
                self.free.push((slot, buffer));
                return false;
            };
            self.begun[slot] = (self.last, offset);
            self.queue.add(self.file.read_at(buffer, offset), slot as u64);
        }
        true
    }

    fn finish(&mut self, done: Completion, recorder: &mut Recorder) {
        let slot = done.user_data as usize;
        let (began, offset) = self.begun[slot];
        if let Some(buffer) = done.buffer.and_then(AnyBuffer::into_pooled) {
            self.free.push((slot, buffer));
        }
        match read_whole(&self.file, offset, done.result, self.block) {
            Ok(()) => recorder.record(self.last - began),
            Err(failure) => self.window.fail(failure),
        }
    }
}
