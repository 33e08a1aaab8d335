//! The base for comparing batches: rings driven by hand-written code, as in a database that uses no library for it.
//!
//! Both ways are those of RocksDB: a blocking read of many blocks, which submits and waits in one call, and reads that
//! are submitted one by one without waiting and polled later. Each has its own ring with 256 entries and RocksDB's
//! flags. Invariants: memory that the kernel may write to is not freed, whatever fails (see [`HandRing`]).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

use bytes::BytesMut;
use io_uring::{IoUring, opcode, types};

use super::pread;
use super::window::{self, Until, Window};
use super::{Bench, Outcome};
use crate::error::{Failure, errno_text, io_at};
use crate::job::{Job, Operation, Task};
use crate::latency::Recorder;
use crate::memory::zeroed;
use crate::model::RingFlags;

/// Entries of each ring, and the most operations in flight on it.
const ENTRIES: u32 = 256;

/// How the rings are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Submits all reads without waiting, then waits for them one by one.
    SubmitOnly,
    /// Submits half of the reads one by one on one ring, submits the other half on another ring and waits for it, then
    /// waits for the first half.
    TwoRings,
}

/// Carries out a job; each thread reads one batch after the other.
pub fn run(way: Way, job: &Job, bench: &Bench<'_>, tick: &mut dyn FnMut()) -> Result<Outcome, Failure> {
    let file = &pread::open(job, bench)?;
    let count = job.setup.numjobs;
    let (measured, threads) = Window::run_threads((job, bench, tick), "by-hand", count, |thread, member| {
        let window = member.window();
        match Worker::new(way, job, (thread, window), file, bench.path) {
            Ok(mut worker) => member.phases(|until, recorder| worker.operate(window, until, recorder)),
            Err(failure) => {
                window.fail(failure);
                (Recorder::new(), Instant::now())
            }
        }
    });
    match measured.failure {
        // Nothing was read, so this machine has no usable ring.
        Some(failure) if measured.errors > 0 && threads.iter().all(|(seen, _)| seen.count() == 0) => {
            Err(failure)
        }
        failure => Ok(Outcome::of_threads(window::Measured { failure, ..measured }, threads)),
    }
}

/// One thread.
struct Worker<'a> {
    batch: usize,
    reads: Task,
    /// The offsets of the batch in flight.
    asked: Vec<u64>,
    way: Way,
    blocking: HandRing<'a>,
    /// The second ring of [`Way::TwoRings`].
    asynchronous: Option<HandRing<'a>>,
}

impl<'a> Worker<'a> {
    fn new(
        way: Way,
        job: &Job,
        (thread, window): (usize, &Window),
        file: &'a File,
        path: &'a Path,
    ) -> Result<Worker<'a>, Failure> {
        let ring = || {
            let most = job.batch_size().min(ENTRIES as usize);
            HandRing::new(file, path, job.setup.block as usize, most)
        };
        Ok(Worker {
            batch: job.batch_size(),
            reads: job.reads(thread, window.share(thread)),
            asked: Vec::with_capacity(job.batch_size()),
            way,
            blocking: ring()?,
            asynchronous: (way == Way::TwoRings).then(ring).transpose()?,
        })
    }

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
            (Way::TwoRings, Some(asynchronous)) => {
                let mut parts = self.asked.chunks(2 * ENTRIES as usize);
                parts.try_for_each(|part| both(asynchronous, &mut self.blocking, part))
            }
            (Way::SubmitOnly | Way::TwoRings, _) => {
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

fn both(
    asynchronous: &mut HandRing<'_>,
    blocking: &mut HandRing<'_>,
    offsets: &[u64],
) -> Result<(), Failure> {
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

/// Makes a ring with exactly these flags. Without any, makes one with those of RocksDB's flags that this kernel
/// supports:
/// `SINGLE_ISSUER` (Linux 6.0) and `DEFER_TASKRUN` (6.1). Only the thread that makes the ring uses it.
pub fn make_ring(flags: Option<RingFlags>, entries: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    match flags {
        None => {
            return step_down(|single_issuer, defer_taskrun| {
                let mut builder = IoUring::builder();
                if single_issuer {
                    builder.setup_single_issuer();
                }
                if defer_taskrun {
                    builder.setup_defer_taskrun();
                }
                builder.build(entries)
            });
        }
        Some(RingFlags::None) => &mut builder,
        Some(RingFlags::Coop) => builder.setup_coop_taskrun().setup_taskrun_flag(),
        Some(RingFlags::Defer) => builder.setup_single_issuer().setup_defer_taskrun(),
        Some(RingFlags::Sqpoll) => builder.setup_sqpoll(RingFlags::SQPOLL_IDLE.as_millis() as u32),
    };
    builder.build(entries)
}

/// Calls `make` with both flags, and with one less after each EINVAL.
fn step_down<T>(mut make: impl FnMut(bool, bool) -> io::Result<T>) -> io::Result<T> {
    let less = [(true, false), (false, false)].into_iter();
    less.fold(make(true, true), |made, (single_issuer, defer_taskrun)| match made {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => make(single_issuer, defer_taskrun),
        other => other,
    })
}

/// A ring, and the memory that its reads go to, a block for each read in flight.
///
/// Invariants: entries refer only to blocks of `memory`, which neither moves nor is freed while `queued` is not 0:
/// dropping waits for the operations in flight, and leaks the memory if it cannot.
struct HandRing<'a> {
    ring: IoUring,
    memory: BytesMut,
    /// The offset of each read in flight.
    offsets: Vec<u64>,
    /// Reads queued since the last time that none was in flight; also the block of the next one.
    queued: usize,
    /// Completions of those.
    done: usize,
    file: &'a File,
    path: &'a Path,
    block: usize,
}

impl<'a> HandRing<'a> {
    fn new(file: &'a File, path: &'a Path, block: usize, most: usize) -> Result<HandRing<'a>, Failure> {
        let ring = make_ring(None, ENTRIES).map_err(|error| failed("setting up", &error))?;
        let memory = zeroed(block * most);
        Ok(HandRing { ring, memory, offsets: vec![0; most], queued: 0, done: 0, file, path, block })
    }

    /// Queues a read of one block; at most as many as there are blocks of memory.
    fn queue(&mut self, offset: u64) -> Result<(), Failure> {
        let index = self.queued;
        self.offsets[index] = offset;
        let memory = &mut self.memory[index * self.block..][..self.block];
        let read =
            opcode::Read::new(types::Fd(self.file.as_raw_fd()), memory.as_mut_ptr(), self.block as u32)
                .offset(offset)
                .build()
                .user_data(index as u64);
        // SAFETY: the file is borrowed for longer than the ring lives. The memory is a block of `self.memory` that no
        // other read in flight has, for `queued` only goes back to 0 when nothing is in flight; it lives until then by
        // the invariant of this type.
        let pushed = unsafe { self.ring.submission().push(&read) };
        pushed.map_err(|_| Failure::Io("a ring by hand is full".into()))?;
        self.queued += 1;
        Ok(())
    }

    /// Submits the queued reads, and waits for this many completions.
    fn submit(&mut self, wait_for: usize) -> Result<(), Failure> {
        loop {
            match self.ring.submit_and_wait(wait_for) {
                // Also if the completion queue is full: there is something to collect.
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed("entering", &error)),
            }
        }
    }

    /// Collects completions, and waits for one more at a time, until nothing is in flight.
    fn wait_one_by_one(&mut self) -> Result<(), Failure> {
        let mut first = Ok(());
        loop {
            let collected = self.collect();
            first = first.and(collected);
            if self.done == self.queued {
                (self.queued, self.done) = (0, 0);
                return first;
            }
            self.submit(1)?;
        }
    }

    /// Takes all completions; returns the first failure, or short read.
    fn collect(&mut self) -> Result<(), Failure> {
        let mut first = Ok(());
        for completion in self.ring.completion() {
            self.done += 1;
            let read = Operation { offset: self.offsets[completion.user_data() as usize], write: false };
            let checked = check(completion.result(), read, self.block, self.path);
            first = first.and(checked);
        }
        first
    }
}

impl Drop for HandRing<'_> {
    fn drop(&mut self) {
        while self.done < self.queued {
            // Nobody needs these results any more.
            let _ = self.collect();
            if self.done < self.queued && self.submit(1).is_err() {
                // Leaked rather than freed under the kernel.
                std::mem::forget(std::mem::take(&mut self.memory));
                return;
            }
        }
    }
}

/// Returns an error unless the kernel moved the whole block.
pub fn check(result: i32, operation: Operation, block: usize, path: &Path) -> Result<(), Failure> {
    let failed = |_| io_at(operation.verb(), path, operation.offset, &io::Error::from_raw_os_error(-result));
    super::whole(operation, usize::try_from(result).map_err(failed), block, path)
}

/// Returns the failure of a hand-driven ring.
pub fn failed(what: &str, error: &io::Error) -> Failure {
    Failure::Io(format!("{what} a ring by hand failed: {}", errno_text(error)))
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
        let Ok(mut ring) = HandRing::new(&file, Path::new("data.bin"), 512, 4) else {
            eprintln!("asserts nothing: no ring can be made here");
            return;
        };
        for block in [3, 1] {
            ring.queue(block * 512).expect("room");
            ring.submit(0).expect("submitted");
        }
        ring.wait_one_by_one().expect("read");
        assert_eq!((ring.memory[0], ring.memory[512]), (3, 1));

        for block in [0, 9, 2] {
            ring.queue(block * 512).expect("room");
        }
        ring.submit(3).expect("submitted");
        let text = ring.wait_one_by_one().expect_err("beyond the end").to_string();
        assert!(text.contains("offset 4608 of data.bin") && text.contains("moved 0 of 512"), "{text}");
        assert_eq!((ring.queued, ring.done), (0, 0), "usable again");
    }

    #[test]
    fn flags_that_the_kernel_does_not_support_are_dropped_one_by_one() {
        let kernel = |single: bool, defer: bool| {
            move |single_issuer, defer_taskrun| match (single_issuer && !single, defer_taskrun && !defer) {
                (false, false) => Ok((single_issuer, defer_taskrun)),
                _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            }
        };
        assert_eq!(step_down(kernel(true, true)).expect("made"), (true, true));
        assert_eq!(step_down(kernel(true, false)).expect("made"), (true, false));
        assert_eq!(step_down(kernel(false, false)).expect("made"), (false, false));
        let mut tries = 0;
        let refused = step_down(|_, _| -> io::Result<()> {
            tries += 1;
            Err(io::Error::from_raw_os_error(libc::EPERM))
        });
        assert_eq!((refused.map_err(|error| error.raw_os_error()), tries), (Err(Some(libc::EPERM)), 1));
        if let (Ok(ring), Ok(features)) = (make_ring(None, ENTRIES), ringfile::ring_features()) {
            let knows = features.iter().any(|name| name == "single_issuer");
            assert_eq!(ring.params().is_setup_single_issuer(), knows);
        }
    }

    #[test]
    fn dropping_waits_for_what_is_in_flight() {
        let file = blocks(4);
        if let Ok(mut ring) = HandRing::new(&file, Path::new("data.bin"), 512, 4) {
            ring.queue(0).expect("room");
            ring.submit(0).expect("submitted");
        }
    }
}
