//! The base for comparing batches: rings driven by hand-written code, as in a database that uses no library for it.
//!
//! Both ways are those of RocksDB: a blocking read of many blocks, which submits and waits in one call, and reads that
//! are submitted one by one without waiting and polled later. Each has its own ring with 256 entries and RocksDB's
//! flags.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use io_uring::IoUring;

use super::bench::Bench;
use super::hand_ring::{self, HandRing};
use super::outcome::Outcome;
use super::pread;
use super::window::{self, Member, Until, Window};
use crate::error::Failure;
use crate::job::{Job, Operation, Task};
use crate::latency::Recorder;
use crate::memory::zeroed;
use crate::model::Buffers;

/// Entries of each ring, and the most operations in flight on it.
const ENTRIES: u32 = 256;

/// How the rings are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingUse {
    /// Submits all reads without waiting, then waits for them one by one.
    SubmitOnly,
    /// Submits half of the reads one by one on one ring, submits the other half on another ring and waits for it, then
    /// waits for the first half.
    TwoRings,
}

/// Carries out a job; each thread reads one batch after the other.
pub fn run(way: RingUse, job: &Job, bench: &Bench<'_>, tick: &mut dyn FnMut()) -> Result<Outcome, Failure> {
    let file = &pread::open(job, bench)?;
    let count = job.setup.numjobs;
    let (measured, threads) = Window::run_threads((job, bench, tick), "by-hand", count, |thread, member| {
        let failed = |failure| {
            member.window().fail(failure);
            (Recorder::new(), Instant::now())
        };
        work(way, job, (thread, &member), file, bench.path).unwrap_or_else(failed)
    });
    match measured.failure {
        // Nothing was read, so this machine has no usable ring.
        Some(failure) if measured.errors > 0 && threads.iter().all(|(seen, _)| seen.count() == 0) => {
            Err(failure)
        }
        failure => Ok(Outcome::of_threads(window::MeasuredWindow { failure, ..measured }, threads)),
    }
}

/// One thread.
struct Worker<'a> {
    batch: usize,
    reads: Task,
    /// The offsets of the batch in flight.
    asked: Vec<u64>,
    way: RingUse,
    blocking: Reads<'a>,
    /// The second ring of [`RingUse::TwoRings`].
    asynchronous: Option<Reads<'a>>,
}

fn work(
    way: RingUse,
    job: &Job,
    (thread, member): (usize, &Member),
    file: &File,
    path: &Path,
) -> Result<(Recorder, Instant), Failure> {
    let make = || hand_ring::make_ring(None, ENTRIES);
    let failed = |error| hand_ring::failed("setting up", &error);
    let mut blocking = make().map_err(failed)?;
    let mut asynchronous = (way == RingUse::TwoRings).then(make).transpose().map_err(failed)?;
    let (window, batch) = (member.window(), job.batch_size());
    let reads = |ring| Reads::new(ring, file, path, job.setup.block as usize, batch.min(ENTRIES as usize));
    let mut worker = Worker {
        batch,
        reads: job.reads(thread, window.share(thread)),
        asked: Vec::with_capacity(batch),
        way,
        blocking: reads(&mut blocking),
        asynchronous: asynchronous.as_mut().map(reads),
    };
    Ok(member.phases(|until, recorder| worker.operate(window, until, recorder)))
}

impl Worker<'_> {
    /// Reads batches until the phase is over; returns the time of the last completion.
    fn operate(&mut self, window: &Window, until: &Until, recorder: &mut Recorder) -> Instant {
        let mut now = Instant::now();
        let mut over = until.stopped();
        while !over {
            self.reads.take(self.batch, &mut self.asked);
            if self.asked.is_empty() {
                break;
            }
            let done = self.read_batch();
            let end = Instant::now();
            match done {
                Ok(()) => recorder.record_many(end - now, self.asked.len() as u64),
                Err(failure) => window.fail(failure),
            }
            now = end;
            over = until.over(now);
        }
        now
    }

    fn read_batch(&mut self) -> Result<(), Failure> {
        match (self.way, &mut self.asynchronous) {
            (RingUse::TwoRings, Some(asynchronous)) => {
                let mut parts = self.asked.chunks(2 * ENTRIES as usize);
                parts.try_for_each(|part| both(asynchronous, &mut self.blocking, part))
            }
            (RingUse::SubmitOnly | RingUse::TwoRings, _) => {
                let mut parts = self.asked.chunks(ENTRIES as usize);
                parts.try_for_each(|part| {
                    part.iter().try_for_each(|&offset| self.blocking.queue(offset))?;
                    self.blocking.submit(0)?;
                    self.blocking.wait_one_by_one()
                })
            }
        }
    }
}

fn both(asynchronous: &mut Reads<'_>, blocking: &mut Reads<'_>, offsets: &[u64]) -> Result<(), Failure> {
    let (early, late) = offsets.split_at(offsets.len() / 2);
    for &offset in early {
        asynchronous.queue(offset)?;
        asynchronous.submit(0)?;
    }
    late.iter().try_for_each(|&offset| blocking.queue(offset))?;
    blocking.submit(late.len())?;
    blocking.wait_one_by_one()?;
    asynchronous.wait_one_by_one()
}

/// A ring, and the reads of one block each that are in flight on it.
struct Reads<'a> {
    ring: HandRing<'a>,
    /// The offset of each read in flight.
    offsets: Vec<u64>,
    /// Reads queued since the last time that none was in flight; also the slot of the next one.
    queued: usize,
    path: &'a Path,
    block: usize,
}

impl<'a> Reads<'a> {
    fn new(ring: &'a mut IoUring, file: &'a File, path: &'a Path, block: usize, most: usize) -> Reads<'a> {
        let ring = HandRing::new(ring, file, zeroed(block * most), Buffers::Normal, (block, 1));
        Reads { ring, offsets: vec![0; most], queued: 0, path, block }
    }

    /// Queues a read of one block; at most as many as there are blocks of memory.
    fn queue(&mut self, offset: u64) -> Result<(), Failure> {
        self.offsets[self.queued] = offset;
        // SAFETY: no other read in flight has this slot, for `queued` only goes back to 0 when nothing is in flight.
        unsafe { self.ring.push(self.queued, offset, false) }.map_err(hand_ring::full)?;
        self.queued += 1;
        Ok(())
    }

    /// Submits the queued reads, and waits for this many completions.
    fn submit(&mut self, wait_for: usize) -> Result<(), Failure> {
        self.ring.enter(wait_for).map_err(|error| hand_ring::failed("entering", &error))
    }

    /// Collects completions, and waits for one more at a time, until nothing is in flight. Returns the first failure,
    /// or short read.
    fn wait_one_by_one(&mut self) -> Result<(), Failure> {
        let mut first = Ok(());
        self.ring.look();
        loop {
            while let Some((slot, result)) = self.ring.completed() {
                let read = Operation { offset: self.offsets[slot], write: false };
                first = first.and(hand_ring::check(result, read, self.block, self.path));
            }
            if self.ring.in_flight() == 0 {
                self.queued = 0;
                return first;
            }
            self.submit(1)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn blocks(count: u64) -> File {
        let mut file = tempfile::tempfile().expect("temporary file");
        for block in 0..count {
            file.write_all(&[block as u8; 512]).expect("write");
        }
        file
    }

    #[test]
    fn a_ring_reads_blocks_and_reports_those_beyond_the_end() {
        let file = blocks(4);
        let Ok(mut ring) = hand_ring::make_ring(None, ENTRIES) else {
            eprintln!("asserts nothing: no ring can be made here");
            return;
        };
        let mut ring = Reads::new(&mut ring, &file, Path::new("data.bin"), 512, 4);
        for block in [3, 1] {
            ring.queue(block * 512).expect("room");
            ring.submit(0).expect("submitted");
        }
        ring.wait_one_by_one().expect("read");
        // SAFETY: nothing is in flight.
        assert_eq!([0, 1].map(|slot| unsafe { ring.ring.block(slot) }[0]), [3, 1]);

        for block in [0, 9, 2] {
            ring.queue(block * 512).expect("room");
        }
        ring.submit(3).expect("submitted");
        let text = ring.wait_one_by_one().expect_err("beyond the end").to_string();
        assert!(text.contains("offset 4608 of data.bin") && text.contains("moved 0 of 512"), "{text}");
        assert_eq!((ring.queued, ring.ring.in_flight()), (0, 0), "usable again");
    }

    #[test]
    fn dropping_waits_for_what_is_in_flight() {
        let file = blocks(4);
        if let Ok(mut ring) = hand_ring::make_ring(None, ENTRIES) {
            let mut ring = Reads::new(&mut ring, &file, Path::new("data.bin"), 512, 4);
            ring.queue(0).expect("room");
            ring.submit(0).expect("submitted");
        }
    }
}
