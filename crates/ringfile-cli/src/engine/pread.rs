//! The plain loop that ringfile is compared with: threads that call pread and pwrite, one after the other.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use super::window::{Member, Until, Window};
use super::{Bench, Outcome};
use crate::error::{Failure, io_at, io_on, mismatch, short};
use crate::job::{Job, Task};
use crate::latency::Recorder;
use crate::memory::AlignedBytes;
use crate::sys;

/// Carries out a job of depth 1 with `numjobs` threads.
pub fn run(job: &Job, bench: &Bench<'_>, tick: &mut dyn FnMut()) -> Result<Outcome, Failure> {
    let file = open(job, bench.path)?;
    let window = &Window::new(job, job.setup.numjobs);
    let conducted = (job, bench.interrupt, tick);
    let (measured, threads) = window.run_threads("pread", job.setup.numjobs, conducted, |thread, member| {
        Worker { file: &file, path: bench.path, window, recorder: Recorder::new() }.run(job, thread, &member)
    });
    Ok(Outcome::of_threads(measured, threads))
}

/// The file, as a job wants it.
pub fn open(job: &Job, path: &Path) -> Result<File, Failure> {
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

struct Worker<'a> {
    file: &'a File,
    path: &'a Path,
    window: &'a Window,
    recorder: Recorder,
}

impl Worker<'_> {
    fn run(mut self, job: &Job, thread: usize, member: &Member) -> (Recorder, Instant) {
        let mut task = job.tasks(thread, self.window.share(thread)).remove(0);
        let mut memory = AlignedBytes::zeroed(job.setup.block as usize);
        task.fill(memory.as_mut_slice());
        self.operate(member.ready(), &mut task, memory.as_mut_slice());
        self.recorder = Recorder::new();
        let last = self.operate(member.warmed_up(), &mut task, memory.as_mut_slice());
        member.finished();
        (self.recorder, last)
    }

    /// Operates until the phase is over; gives the time of the last completion.
    fn operate(&mut self, until: Until, task: &mut Task, bytes: &mut [u8]) -> Instant {
        let mut now = Instant::now();
        let mut last = now;
        let mut over = until.stopped();
        while !over && let Some(operation) = task.next() {
            if task.verifies() {
                task.before(operation, bytes);
                now = Instant::now();
            }
            let done = if operation.write {
                self.file.write_at(bytes, operation.offset)
            } else {
                self.file.read_at(bytes, operation.offset)
            };
            last = Instant::now();
            let checked = match done {
                Ok(count) if count == bytes.len() => {
                    self.recorder.record(last - now);
                    task.after(operation, bytes)
                        .map_err(|wrong| mismatch(self.path, operation.offset, &wrong))
                }
                Ok(count) => Err(short(operation.verb(), self.path, operation.offset, count, bytes.len())),
                Err(error) => Err(io_at(operation.verb(), self.path, operation.offset, &error)),
            };
            if let Err(failure) = checked {
                self.window.fail(failure);
            }
            now = last;
            over = until.over(now);
        }
        last
    }
}
