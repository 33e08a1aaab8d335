//! The plain loop that ringfile is compared with: threads that call pread and pwrite, one after the other.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use super::window::{self, Member, Until, Window};
use super::{Bench, Outcome};
use crate::error::{Failure, io_at, io_on, mismatch, short};
use crate::job::{Job, Task};
use crate::latency::Recorder;
use crate::memory::AlignedBytes;
use crate::sys;

/// Carries out a job with `numjobs` threads at depth 1.
pub fn run(job: &Job, bench: &Bench<'_>, tick: &mut dyn FnMut()) -> Result<Outcome, Failure> {
    let job = &Job { iodepth: 1, ..job.clone() };
    let file = open(job, bench.path)?;
    let window = &Window::new(job.numjobs);
    let (measured, threads) = std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for thread in 0..job.numjobs {
            let member = window.member();
            let file = &file;
            let path = bench.path;
            let work =
                move || Worker { file, path, window, recorder: Recorder::new() }.run(job, thread, &member);
            // A thread that does not start drops its member, so the others do not wait for it.
            match std::thread::Builder::new().name(format!("pread-{thread}")).spawn_scoped(scope, work) {
                Ok(handle) => handles.push(handle),
                Err(error) => window.fail(window::no_thread(&error)),
            }
        }
        let measured = window.conduct(job, bench.interrupt, tick);
        let threads: Vec<_> = handles.into_iter().map(|handle| handle.join()).collect();
        (measured, threads)
    });
    let mut total = Recorder::new();
    let mut end = measured.start;
    for thread in threads {
        let (recorder, last) = thread.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        total.merge(&recorder);
        end = end.max(last);
    }
    Ok(Outcome {
        ops: total.count(),
        errors: measured.errors,
        duration: end.saturating_duration_since(measured.start).max(Duration::from_nanos(1)),
        latency: total.summary(),
        cpu: measured.cpu,
        enters: None,
        fixed_ops: None,
        route_ops: None,
        failure: measured.failure,
    })
}

fn open(job: &Job, path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    options.read(true).write(job.rw.writes());
    if job.direct {
        options.custom_flags(libc::O_DIRECT);
    }
    let file = options.open(path).map_err(|error| io_on("can't open", path, &error))?;
    sys::advise_order(&file, job.rw.random())
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
        let mut task = job.tasks(thread).remove(0);
        let mut memory = AlignedBytes::zeroed(job.block as usize);
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
        while !over {
            let operation = task.next();
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
