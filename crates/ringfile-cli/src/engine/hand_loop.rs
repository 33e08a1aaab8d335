//! The base of `perf buffers` and `perf multiread`: a hand-written loop over a ring, with the same buffers and flags.
//!
//! In each turn, every completed operation is followed by its slot's next one, then one system call submits all of
//! these and waits for a completion. In batches it waits for all of them. File and ring are registered.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use super::bench::Bench;
use super::hand_ring::{self, HandRing};
use super::outcome::{Counted, Counts, Outcome};
use super::pread;
use super::window::{MeasuredWindow, Member, Until, Window};
use crate::error::Failure;
use crate::job::{Job, Operation, Task};
use crate::latency::Recorder;
use crate::memory::zeroed;
use crate::model::RouteOps;
use crate::sys;

/// Carries out a job.
pub fn run(job: &Job, bench: &Bench<'_>, tick: &mut dyn FnMut()) -> Result<Outcome, Failure> {
    let file = &pread::open(job, bench)?;
    let window = Window::of(job, job.setup.numjobs);
    let (measured, threads) = window.run_threads((bench.interrupt, tick), "by-hand", |thread, member| {
        let counts = work(job, (thread, &member), file, bench.path);
        counts.map_err(|failure| member.window().fail(failure)).ok()
    });
    let counts = Counts::of_all(threads.into_iter().flatten(), measured.start);
    match measured.failure {
        // Nothing was read, so this machine has no usable ring.
        Some(failure) if counts.recorder.count() == 0 => Err(failure),
        failure => Ok(counts.outcome(MeasuredWindow { failure, ..measured })),
    }
}

/// Runs one thread's part; an error means that it could not begin.
fn work(job: &Job, (thread, member): (usize, &Member), file: &File, path: &Path) -> Result<Counts, Failure> {
    let failed = |what: &'static str| move |error| hand_ring::failed(what, &error);
    if job.pinned {
        sys::pin(thread).map_err(failed("pinning the thread of"))?;
    }
    // The kernel's submission thread frees entries only after their operations have completed: room for both.
    let entries = 2 * job.setup.iodepth.next_power_of_two() as u32;
    let mut ring = hand_ring::make_ring(job.setup.ring_flags, entries).map_err(failed("setting up"))?;
    let (window, buffers, block) = (member.window(), job.setup.buffers, job.setup.block as usize);
    let mut tasks = job.tasks(thread, window.share(thread));
    let mut memory = zeroed(block * job.setup.iodepth);
    tasks.iter_mut().zip(memory.chunks_mut(block)).for_each(|(task, memory)| task.fill(memory));
    let mut ring = HandRing::new(&mut ring, file, memory, buffers, (block, job.parts));
    ring.reverse_parts();
    ring.register_file().map_err(failed("registering the file of"))?;
    ring.register_memory().map_err(failed("registering the memory of"))?;
    let mut last = Instant::now();
    let (recorder, last) = member.phases(|until, recorder| {
        ring.enters = 0;
        // Slots are still in use if entering failed before.
        if ring.in_flight() == 0
            && let Err(failure) = operate(&mut ring, (job, path), &mut tasks, until, recorder, &mut last)
        {
            window.fail(failure);
        }
        last
    });
    let ops = recorder.count();
    let fixed_ops = if buffers.registered() { ops } else { 0 };
    let routes = RouteOps { ring: ops, ..RouteOps::default() };
    Ok(Counts { recorder, last, counted: Counted { enters: ring.enters, fixed_ops, routes } })
}

/// An operation in flight, and when it was submitted.
type Begun = (Operation, Instant);

/// Operates until the phase is over and nothing is in flight; a failure ends the run. `last` becomes the time of the
/// last completion.
fn operate(
    ring: &mut HandRing<'_>,
    (job, path): (&Job, &Path),
    tasks: &mut [Task],
    until: &Until,
    recorder: &mut Recorder,
    last: &mut Instant,
) -> Result<(), Failure> {
    let (block, in_batches) = (job.setup.block as usize, job.setup.batch.is_some());
    let mut begun: Vec<Option<Begun>> = vec![None; tasks.len()];
    let mut first = Ok(());
    let mut free: Vec<usize> = (0..tasks.len()).collect();
    let mut now = Instant::now();
    let mut over = until.stopped();
    loop {
        while !over && let Some(slot) = free.pop() {
            let Some(operation) = tasks[slot].next() else { continue };
            // SAFETY: no operation in flight has this slot, which was free.
            let pushed = unsafe { ring.push(slot, operation.offset, operation.write) };
            pushed.map_err(hand_ring::full)?;
            begun[slot] = Some((operation, now));
        }
        if ring.in_flight() == 0 {
            return first;
        }
        let wait_for = if in_batches { ring.in_flight() } else { 1 };
        ring.enter(wait_for).map_err(|error| hand_ring::failed("entering", &error))?;
        while let Some((slot, result)) = ring.completed() {
            now = Instant::now();
            *last = now;
            free.push(slot);
            let Some((operation, since)) = begun[slot].take() else { continue };
            match hand_ring::check(result, operation, block, path) {
                Ok(()) => recorder.record(now - since),
                Err(failure) => first = first.and(Err(failure)),
            }
        }
        over = until.over(now) || first.is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt::Interrupt;
    use crate::job::tests::job;
    use crate::model::{Buffers, RingFlags, Rw, Setup};
    use std::io::Write;
    use std::time::Duration;

    fn bench<'a>(file: &'a tempfile::NamedTempFile, interrupt: &'a Interrupt) -> Bench<'a> {
        Bench { path: file.path(), namespace: false, interrupt, fio: None }
    }

    #[test]
    fn every_form_moves_whole_blocks_whatever_the_flags() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(&[7; 64 * 512]).expect("write");
        let flags = [None, Some(RingFlags::None), Some(RingFlags::Coop), Some(RingFlags::Defer)];
        for (buffers, ring_flags) in
            Buffers::ALL.into_iter().zip(flags).chain([(Buffers::Fixed, Some(RingFlags::Sqpoll))])
        {
            let parts = if buffers.vectored() { 4 } else { 1 };
            let duration = Duration::from_millis(5);
            let rw = if parts == 1 { Rw::RandRw } else { Rw::RandRead };
            let job = job(rw, 1, 8, 64, false);
            let setup = Setup { buffers, ring_flags, ..job.setup };
            let job = Job { setup, parts, duration, ..job };
            match run(&job, &bench(&file, &Interrupt::default()), &mut || {}) {
                Ok(outcome) => {
                    assert!(outcome.ops > 0 && outcome.failure.is_none(), "{buffers:?} {ring_flags:?}")
                }
                Err(refused) => eprintln!("asserts nothing for {buffers:?} {ring_flags:?}: {refused}"),
            }
        }
    }

    #[test]
    fn missing_data_is_an_error_and_not_a_figure() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let job = Job { duration: Duration::from_millis(5), ..job(Rw::RandRead, 1, 2, 8, false) };
        let run = run(&job, &bench(&file, &Interrupt::default()), &mut || {});
        let failure = run.expect_err("the file is empty").to_string();
        assert!(failure.contains("moved 0 of 512") || failure.contains("by hand"), "{failure}");
    }
}
