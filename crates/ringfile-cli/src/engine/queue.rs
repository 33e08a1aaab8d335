//! Carries out a job with this library's [`Queue`]: one loop for each thread that adds, submits and collects, as fio's
//! does.
//!
//! Invariants: each read in flight has its own buffer; at most the job's depth is in flight, and nothing when the loop
//! returns. The settings have the same meaning as in fio's loop: after how many added reads it submits, for how many
//! completions it waits, and at how many reads in flight it adds more.

use std::sync::Arc;
use std::time::Instant;

use ringfile::{AnyBuffer, Buffer, Done, File, Pool, Queue};

use super::batches::{outcome, read_whole};
use super::ringfile::{open_for, pool};
use super::window::{Until, Window};
use super::{Bench, Outcome};
use crate::error::{Failure, library};
use crate::job::{Job, Operation, Task};
use crate::latency::Recorder;

/// Carries out a job with a queue for each thread.
pub fn run(job: &Job, bench: &Bench<'_>, tick: &mut dyn FnMut()) -> Result<Outcome, Failure> {
    let (file, pool) = (open_for(job, bench)?, pool(job)?);
    let count = job.setup.numjobs;
    let (measured, threads) = Window::run_threads((job, bench, tick), "queue", count, |thread, member| {
        let mut reader = Reader::new(job, thread, &file, &pool, member.window());
        member.phases(|until, recorder| reader.read_all(until, recorder))
    });
    Ok(outcome(measured, threads))
}

/// One thread's loop.
struct Reader {
    queue: Queue,
    file: File,
    block: usize,
    reads: Task,
    /// Slots without a read in flight, each with its buffer.
    free: Vec<(usize, Buffer)>,
    /// When the read in each slot was added, and its offset.
    begun: Vec<(Instant, u64)>,
    /// Reads submitted together.
    submit: usize,
    /// Completions to wait for.
    complete: usize,
    /// Reads are added again when at most this many are in flight.
    low: usize,
    window: Arc<Window>,
    last: Instant,
}

impl Reader {
    fn new(job: &Job, thread: usize, file: &File, pool: &Pool, window: &Arc<Window>) -> Reader {
        let block = job.setup.block as usize;
        let buffers =
            (0..job.setup.iodepth).map(|slot| Ok((slot, pool.get(block)?))).collect::<Result<_, _>>();
        let free = buffers.unwrap_or_else(|error: ringfile::PoolError| {
            window.fail(library(&error.into()));
            Vec::new()
        });
        let (settings, last) = (job.settings, Instant::now());
        Reader {
            queue: Queue::with_capacity(job.setup.iodepth),
            file: file.clone(),
            block,
            reads: job.reads(thread, window.share(thread)),
            free,
            begun: vec![(last, 0); job.setup.iodepth],
            submit: settings.submit.unwrap_or(job.setup.iodepth),
            complete: settings.complete.unwrap_or(1),
            low: settings.low.unwrap_or(job.setup.iodepth),
            window: Arc::clone(window),
            last,
        }
    }

    /// Reads until the phase is over and nothing is in flight.
    fn read_all(&mut self, until: &Until, recorder: &mut Recorder) -> Instant {
        self.last = Instant::now();
        let mut over = until.stopped();
        loop {
            if !over {
                over = !self.fill();
            }
            if self.queue.is_empty() {
                return self.last;
            }
            self.collect(recorder);
            while self.queue.len() > self.low {
                self.collect(recorder);
            }
            over |= until.over(self.last);
        }
    }

    /// Adds a read for each free buffer, and submits as often as the settings require. The next wait submits the rest.
    /// Returns false at the end of the work.
    fn fill(&mut self) -> bool {
        let mut added = 0;
        while let Some((slot, buffer)) = self.free.pop() {
            let Some(Operation { offset, .. }) = self.reads.next() else {
                self.free.push((slot, buffer));
                return false;
            };
            self.begun[slot] = (self.last, offset);
            self.queue.add(self.file.read_at(buffer, offset), slot as u64);
            added += 1;
            if added == self.submit {
                self.queue.submit();
                added = 0;
            }
        }
        true
    }

    /// Waits for as many completions as the settings require, then takes all that have arrived.
    fn collect(&mut self, recorder: &mut Recorder) {
        self.queue.wait(self.complete.min(self.queue.len()), None);
        self.last = Instant::now();
        while let Some((slot, done)) = self.queue.take() {
            self.finish(slot as usize, done, recorder);
        }
    }

    fn finish(&mut self, slot: usize, done: Done, recorder: &mut Recorder) {
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
