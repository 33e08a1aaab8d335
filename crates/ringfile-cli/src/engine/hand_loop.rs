//! The base of `perf buffers`: a hand-written loop over a ring, with the same buffers and the same flags.
//!
//! In each turn, every completed operation is followed by its slot's next one, then one system call submits all of
//! these and waits for a completion. File and ring are registered. Invariants: memory that the kernel may write to is
//! not freed: it is leaked if an operation is still in flight at the end.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

use bytes::BytesMut;
use io_uring::{IoUring, opcode, squeue, types};

use super::window::{Member, Until, Window};
use super::{Bench, Counted, Counts, Outcome, RouteOps, by_hand, pread};
use crate::error::Failure;
use crate::job::{Job, Operation, Task};
use crate::latency::Recorder;
use crate::memory::zeroed;
use crate::model::Buffers;

/// Carries out a job; returns the outcome and all latencies.
pub fn run(job: &Job, bench: &Bench<'_>, tick: &mut dyn FnMut()) -> Result<(Outcome, Recorder), Failure> {
    let file = &pread::open(job, bench)?;
    let count = job.setup.numjobs;
    let (measured, threads) = Window::run_threads((job, bench, tick), "by-hand", count, |thread, member| {
        let window = member.window();
        let made = LoopRing::new(job, file, bench.path, window);
        made.map(|ring| ring.run(job, thread, &member)).map_err(|failure| window.fail(failure)).ok()
    });
    Ok(Counts::of_all(threads.into_iter().flatten(), measured.start).outcome(measured))
}

/// The memory that the operations of a ring use.
struct Slots {
    memory: BytesMut,
    /// Each slot's parts, in reverse order, so that the kernel can't join them.
    vectors: Vec<libc::iovec>,
    buffers: Buffers,
    block: usize,
    parts: usize,
}

impl Slots {
    fn new(job: &Job) -> Slots {
        let (block, parts) = (job.setup.block as usize, job.parts);
        let mut memory = zeroed(block * job.setup.iodepth);
        let chunks = memory.chunks_mut(block / parts);
        let mut vectors: Vec<libc::iovec> = chunks
            .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() })
            .collect();
        vectors.chunks_mut(parts).for_each(<[_]>::reverse);
        Slots { memory, vectors, buffers: job.setup.buffers, block, parts }
    }

    fn memory_of(&mut self, slot: usize) -> &mut [u8] {
        &mut self.memory[slot * self.block..][..self.block]
    }

    /// Returns the submission entry of an operation on the slot's memory.
    fn entry(&mut self, slot: usize, operation: Operation) -> squeue::Entry {
        let file = types::Fixed(0);
        let (length, parts, offset) = (self.block as u32, self.parts as u32, operation.offset);
        let start = self.memory_of(slot).as_mut_ptr();
        let vector = self.vectors[slot * self.parts..].as_ptr();
        let entry = match (self.buffers, operation.write) {
            (Buffers::Normal, false) => opcode::Read::new(file, start, length).offset(offset).build(),
            (Buffers::Normal, true) => opcode::Write::new(file, start, length).offset(offset).build(),
            (Buffers::Fixed, false) => opcode::ReadFixed::new(file, start, length, 0).offset(offset).build(),
            (Buffers::Fixed, true) => opcode::WriteFixed::new(file, start, length, 0).offset(offset).build(),
            (Buffers::Vectored, false) => opcode::Readv::new(file, vector, parts).offset(offset).build(),
            (Buffers::Vectored, true) => opcode::Writev::new(file, vector, parts).offset(offset).build(),
            (Buffers::VectoredFixed, false) => {
                opcode::ReadvFixed::new(file, vector, parts, 0).offset(offset).build()
            }
            (Buffers::VectoredFixed, true) => {
                opcode::WritevFixed::new(file, vector, parts, 0).offset(offset).build()
            }
        };
        entry.user_data(slot as u64)
    }
}

/// A ring, and its operations in flight.
struct LoopRing<'a> {
    ring: IoUring,
    slots: Option<Slots>,
    in_flight: usize,
    enters: u64,
    last: Instant,
    window: &'a Window,
    path: &'a Path,
}

/// An operation in flight, and when it was submitted.
type Begun = (Operation, Instant);

impl<'a> LoopRing<'a> {
    fn new(job: &Job, file: &File, path: &'a Path, window: &'a Window) -> Result<LoopRing<'a>, Failure> {
        let failed = |what: &'static str| move |error: io::Error| by_hand::failed(what, &error);
        // The kernel's submission thread frees entries only after their operations have completed: room for both.
        let entries = 2 * job.setup.iodepth.next_power_of_two() as u32;
        let ring = by_hand::make_ring(job.setup.ring_flags, entries).map_err(failed("setting up"))?;
        let mut slots = Slots::new(job);
        let submitter = ring.submitter();
        submitter.register_files(&[file.as_raw_fd()]).map_err(failed("registering the file of"))?;
        if job.setup.buffers.registered() {
            let memory = &mut slots.memory;
            let all = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
            // SAFETY: the kernel holds the pages themselves, and nothing uses the registration once the memory is
            // freed.
            let registered = unsafe { submitter.register_buffers(&[all]) };
            registered.map_err(failed("registering the memory of"))?;
        }
        Ok(LoopRing { ring, slots: Some(slots), in_flight: 0, enters: 0, last: Instant::now(), window, path })
    }

    /// Runs one thread's part.
    fn run(mut self, job: &Job, thread: usize, member: &Member) -> Counts {
        let mut tasks = job.tasks(thread, self.window.share(thread));
        if let Some(slots) = &mut self.slots {
            tasks.iter_mut().enumerate().for_each(|(slot, task)| task.fill(slots.memory_of(slot)));
        }
        let (recorder, last) = member.phases(|until, recorder| self.phase(&mut tasks, until, recorder));
        let ops = recorder.count();
        let fixed_ops = if job.setup.buffers.registered() { ops } else { 0 };
        let routes = RouteOps { ring: ops, ..RouteOps::default() };
        Counts { recorder, last, counted: Counted { enters: self.enters, fixed_ops, routes } }
    }

    /// Operates until the phase is over and nothing is in flight; a failure ends the run.
    fn phase(&mut self, tasks: &mut [Task], until: &Until, recorder: &mut Recorder) -> Instant {
        self.enters = 0;
        let Some(mut slots) = self.slots.take() else { return self.last };
        let ended = self.operate(&mut slots, tasks, until, recorder);
        if self.in_flight > 0 {
            std::mem::forget(slots);
        } else {
            self.slots = Some(slots);
        }
        if let Err(failure) = ended {
            self.window.fail(failure);
        }
        self.last
    }

    fn operate(
        &mut self,
        slots: &mut Slots,
        tasks: &mut [Task],
        until: &Until,
        recorder: &mut Recorder,
    ) -> Result<(), Failure> {
        let (mut submitter, mut submissions, mut completions) = self.ring.split();
        // Fails before Linux 5.18; the plain descriptor is used then.
        let _ = submitter.register_ring_fd();
        let mut begun: Vec<Option<Begun>> = vec![None; tasks.len()];
        let mut first = Ok(());
        let mut free: Vec<usize> = (0..tasks.len()).collect();
        let mut now = Instant::now();
        let mut over = until.stopped();
        loop {
            while !over && let Some(slot) = free.pop() {
                let Some(operation) = tasks[slot].next() else { continue };
                // SAFETY: the file is registered. The slot's memory and vectors belong to `slots`, which `phase` gives
                // up rather than free while something is in flight, and no other operation in flight has this slot.
                let pushed = unsafe { submissions.push(&slots.entry(slot, operation)) };
                pushed.map_err(|_| Failure::Io("a ring by hand is full".into()))?;
                begun[slot] = Some((operation, now));
                self.in_flight += 1;
            }
            if self.in_flight == 0 {
                return first;
            }
            submissions.sync();
            self.enters += 1;
            match submitter.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(by_hand::failed("entering", &error)),
            }
            submissions.sync();
            completions.sync();
            for completion in &mut completions {
                self.in_flight -= 1;
                now = Instant::now();
                self.last = now;
                let slot = completion.user_data() as usize;
                free.push(slot);
                let Some((operation, since)) = begun[slot].take() else { continue };
                match by_hand::check(completion.result(), operation, slots.block, self.path) {
                    Ok(()) => recorder.record(now - since),
                    Err(failure) => first = first.and(Err(failure)),
                }
            }
            completions.sync();
            over = until.over(now) || first.is_err();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt::Interrupt;
    use crate::job::tests::job;
    use crate::model::{RingFlags, Rw, Setup};
    use std::io::Write;
    use std::time::Duration;

    use crate::testfile::identity::Identity;

    fn bench<'a>(file: &'a tempfile::NamedTempFile, interrupt: &'a Interrupt) -> Bench<'a> {
        let identity = Identity::at(file.path()).expect("it is there");
        Bench { path: file.path(), identity, namespace: false, interrupt, fio: None }
    }

    #[test]
    fn every_form_moves_whole_blocks_whatever_the_flags() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(&[7; 64 * 512]).expect("write");
        let all = [Buffers::Normal, Buffers::Fixed, Buffers::Vectored, Buffers::VectoredFixed];
        let flags = [None, Some(RingFlags::None), Some(RingFlags::Coop), Some(RingFlags::Defer)];
        for (buffers, ring_flags) in
            all.into_iter().zip(flags).chain([(Buffers::Fixed, Some(RingFlags::Sqpoll))])
        {
            let parts = if buffers.vectored() { 4 } else { 1 };
            let duration = Duration::from_millis(5);
            let rw = if parts == 1 { Rw::RandRw } else { Rw::RandRead };
            let job = job(rw, 1, 8, 64, false);
            let setup = Setup { buffers, ring_flags, ..job.setup };
            let job = Job { setup, parts, duration, ..job };
            let (outcome, latencies) =
                run(&job, &bench(&file, &Interrupt::default()), &mut || {}).expect("a run");
            match outcome.failure {
                None => {
                    assert!(outcome.ops > 0 && latencies.count() == outcome.ops, "{buffers:?} {ring_flags:?}")
                }
                Some(refused) => eprintln!("asserts nothing for {buffers:?} {ring_flags:?}: {refused}"),
            }
        }
    }

    #[test]
    fn what_is_not_there_is_an_error_and_not_a_figure() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let job = Job { duration: Duration::from_millis(5), ..job(Rw::RandRead, 1, 2, 8, false) };
        let (outcome, _) = run(&job, &bench(&file, &Interrupt::default()), &mut || {}).expect("a run");
        let failure = outcome.failure.expect("the file is empty").to_string();
        assert!(
            outcome.ops == 0 && (failure.contains("moved 0 of 512") || failure.contains("by hand")),
            "{failure}"
        );
    }
}
