//! The plain loop that ringfile is compared with: threads that make one pread or pwrite call after the other.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use super::bench::Bench;
use super::outcome::{Outcome, whole};
use super::window::{Until, Window};
use crate::error::{Failure, io_at, io_on, mismatch};
use crate::job::{Job, Task};
use crate::latency::Recorder;
use crate::memory::zeroed;
use crate::sys;

/// Carries out a job of depth 1 with `numjobs` threads.
pub fn run(job: &Job, bench: &Bench<'_>, tick: &mut dyn FnMut()) -> Result<Outcome, Failure> {
    let file = open(job, bench)?;
    let window = &Window::of(job, job.setup.numjobs);
    let (measured, threads) = window.run_threads((bench.interrupt, tick), "pread", |thread, member| {
        let mut task = job.tasks(thread, window.share(thread)).remove(0);
        let mut memory = zeroed(job.setup.block as usize);
        task.fill(&mut memory);
        member.phases(|until, recorder| {
            operate((&file, bench.path), window, until, recorder, &mut task, &mut memory)
        })
    });
    Ok(Outcome::of_threads(measured, threads))
}

/// Opens the file as a job requires.
pub fn open(job: &Job, bench: &Bench<'_>) -> Result<File, Failure> {
    let path = bench.path;
    let mut options = OpenOptions::new();
    options.read(true).write(job.setup.rw.writes());
    if job.setup.direct {
        options.custom_flags(libc::O_DIRECT);
    }
    let file = options.open(path).map_err(|error| io_on("can't open", path, &error))?;
    sys::advise_order(&file, job.setup.rw.random())
        .map_err(|error| io_on("can't set read-ahead of", path, &error))?;
    Ok(file)
}

/// Operates until the phase is over; returns the time of the last completion.
fn operate(
    (file, path): (&File, &Path),
    window: &Window,
    until: &Until,
    recorder: &mut Recorder,
    task: &mut Task,
    bytes: &mut [u8],
) -> Instant {
    let mut now = Instant::now();
    let mut last = now;
    let mut over = until.stopped();
    while !over && let Some(operation) = task.next() {
        if task.verifies() {
            task.before(operation, bytes);
            now = Instant::now();
        }
        let done = if operation.write {
            file.write_at(bytes, operation.offset)
        } else {
            file.read_at(bytes, operation.offset)
        };
        last = Instant::now();
        let moved = done.map_err(|error| io_at(operation.verb(), path, operation.offset, &error));
        let checked = whole(operation, moved, bytes.len(), path).and_then(|()| {
            recorder.record(last - now);
            task.after(operation, bytes).map_err(|wrong| mismatch(path, operation.offset, &wrong))
        });
        if let Err(failure) = checked {
            window.fail(failure);
        }
        now = last;
        over = until.over(now);
    }
    last
}
