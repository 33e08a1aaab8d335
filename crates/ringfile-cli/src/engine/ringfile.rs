//! Carries out a job with this library: a thread for each job, with the library's own executor, and a task for each
//! operation in flight.
//!
//! `normal` and `fixed` differ only in whether the pool's memory is registered. Each task keeps one buffer for its
//! whole life; one reading of the clock ends an operation and begins the task's next.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use ringfile::runtime::{RuntimeBuilder, TaskRun};
use ringfile::{Buffer, File, OpenOptions, Pool, Runtime};

use super::bench::Bench;
use super::memory::{self, OperationMemory};
use super::outcome::{Counted, Counts, Outcome, whole};
use super::window::{self, Member, Until, Window, raise};
use crate::error::{Failure, library, mismatch};
use crate::job::{Job, Operation, Task};
use crate::latency::Recorder;
use crate::model::{Buffers, RingFlags, Route, Setup};
use crate::sys;
use crate::values;

/// Carries out a job.
pub fn run(job: &Job, bench: &Bench<'_>, tick: &mut dyn FnMut()) -> Result<Outcome, Failure> {
    match job.setup.buffers {
        Buffers::Normal | Buffers::Fixed => run_with::<Buffer>(job, bench, tick),
        Buffers::Vectored | Buffers::VectoredFixed => run_with::<Vec<Buffer>>(job, bench, tick),
    }
}

fn run_with<M: OperationMemory>(
    job: &Job,
    bench: &Bench<'_>,
    tick: &mut dyn FnMut(),
) -> Result<Outcome, Failure> {
    let file = open_for(job, bench)?;
    let pool = pool(job)?;
    // The ring is only as large as the depth, because rings count against RLIMIT_MEMLOCK too.
    let entries = job.setup.iodepth.next_power_of_two().clamp(64, 4096) as u32;
    let runtime =
        runtime(job.setup.ring_flags).threads(job.setup.numjobs).entries(entries).pin(job.pinned).build();
    let runtime = runtime.map_err(|error| not_built(&error))?;
    let window = Window::of(job, job.setup.numjobs);
    let start = |thread| {
        let (job, file, pool) = (job.clone(), file.clone(), pool.clone());
        let member = window.member();
        runtime.spawn_on(thread, move || run_thread::<M>(job, thread, file, pool, member))
    };
    let handles: Vec<_> = (0..job.setup.numjobs).map(start).collect();
    let measured = window.conduct(bench.interrupt, tick);
    let counts = handles.into_iter().map(|handle| handle.join().unwrap_or_else(|error| raise(error)));
    let mut total = Counts::of_all(counts, measured.start);
    runtime.shutdown();
    // Only workers do not count on the runtime's threads.
    total.counted.routes.workers = measured.counted.worker_ops;
    Ok(total.outcome(measured))
}

/// Returns a runtime whose rings have these flags, if the kernel supports them.
fn runtime(flags: Option<RingFlags>) -> RuntimeBuilder {
    let builder = Runtime::builder();
    match flags {
        None => builder,
        Some(RingFlags::None) => builder.task_run(TaskRun::Interrupt),
        Some(RingFlags::Coop) => builder.task_run(TaskRun::Cooperative),
        Some(RingFlags::Defer) => builder.task_run(TaskRun::Deferred),
        Some(RingFlags::Sqpoll) => builder.sqpoll(Some(RingFlags::SQPOLL_IDLE)),
    }
}

/// Fails the run if the thread's ring has other flags than requested: the library continues without flags that the
/// kernel does not support. On other routes there may be no ring.
fn check_flags(job: &Job, window: &Window) {
    let Some(asked) = job.setup.ring_flags.filter(|_| job.route() == Route::Ring) else { return };
    match ringfile::metrics::ring_features() {
        Ok(features) if RingFlags::among(&features) == asked => {}
        Ok(features) => window.fail(Failure::Io(format!(
            "--ring-flags {}: the library's ring has {} instead",
            values::name(&asked),
            values::name(&RingFlags::among(&features))
        ))),
        Err(error) => window.fail(library(&error)),
    }
}

/// Returns the failure to make a runtime; a lack of threads has the same message everywhere.
fn not_built(error: &ringfile::Error) -> Failure {
    match error.errno() {
        Some(libc::EAGAIN) => window::no_thread(&std::io::Error::from_raw_os_error(libc::EAGAIN)),
        _ => library(error),
    }
}

/// Opens the file as a setup requires.
pub fn open(setup: &Setup, path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    options.read(true).write(setup.rw.writes()).direct(setup.direct).adaptive(setup.adaptive);
    options.route(setup.route.unwrap_or(Route::Auto).into());
    // A namespace that is written to was requested with --overwrite.
    options.allow_raw_nvme_writes(true);
    let file = options.open_blocking(path).map_err(|error| library(&error))?;
    if setup.adaptive && !file.is_adaptive() {
        let path = path.display();
        return Err(Failure::Io(format!("{path} can't be read adaptively: see ringfile doctor")));
    }
    Ok(file)
}

/// Opens the file, and advises the kernel whether reads are sequential.
pub fn open_for(job: &Job, bench: &Bench<'_>) -> Result<File, Failure> {
    let file = open(&job.setup, bench.path)?;
    sys::advise_order(&file, job.setup.rw.random())
        .map_err(|error| crate::error::io_on("can't set read-ahead of", bench.path, &error))?;
    Ok(file)
}

/// Returns a pool with one buffer for each task, so that registering it fits under a small RLIMIT_MEMLOCK.
pub fn pool(job: &Job) -> Result<Pool, Failure> {
    let tasks = job.setup.numjobs * job.setup.iodepth;
    let capacity = capacity_of(tasks as u64, job.setup.block);
    let registered = job.setup.buffers.registered();
    let pool = Pool::builder().capacity(capacity).registered(registered).build();
    pool.map_err(|error| library(&error.into()))
}

/// Returns the capacity of a pool for so many buffers of a length in bytes.
pub fn capacity_of(buffers: u64, length: u64) -> usize {
    // A buffer may take a quarter more than its length, a small one a whole page. The rest rounds up to whole regions.
    let each = length.div_ceil(4).saturating_mul(5).next_multiple_of(4096);
    usize::try_from(buffers.saturating_mul(each).saturating_add(2 << 20)).unwrap_or(usize::MAX)
}

/// What the tasks of a thread share.
struct Thread {
    file: File,
    path: std::path::PathBuf,
    block: usize,
    window: Arc<Window>,
    recorder: RefCell<Recorder>,
    last: Cell<Instant>,
}

async fn run_thread<M: OperationMemory>(
    job: Job,
    thread: usize,
    file: File,
    pool: Pool,
    member: Member,
) -> Counts {
    let window = member.window().clone();
    let path = file.path().map(Into::into).unwrap_or_default();
    let shared = Rc::new(Thread {
        file,
        path,
        block: job.setup.block as usize,
        window: window.clone(),
        recorder: RefCell::new(Recorder::new()),
        last: Cell::new(Instant::now()),
    });
    let workers: Vec<(Task, M)> = memory::of_tasks(&job, thread, &pool, &window);
    let workers = shared.operate_all(workers, member.ready()).await;
    check_flags(&job, &window);
    shared.recorder.replace(Recorder::new());
    let until = member.warmed_up();
    let before = ringfile::thread_metrics();
    shared.operate_all(workers, until).await;
    let counted = ringfile::thread_metrics() - before;
    member.finished();
    let recorder = shared.recorder.replace(Recorder::new());
    Counts { recorder, last: shared.last.get(), counted: Counted::of(&counted) }
}

impl Thread {
    /// Lets all tasks operate until the phase is over and nothing is in flight.
    async fn operate_all<M: OperationMemory>(
        self: &Rc<Self>,
        workers: Vec<(Task, M)>,
        until: Until,
    ) -> Vec<(Task, M)> {
        let tasks =
            workers.into_iter().map(|(task, memory)| self.clone().operate(task, memory, until.clone()));
        let handles: Vec<_> = tasks.map(ringfile::spawn).collect();
        let mut workers = Vec::with_capacity(handles.len());
        for handle in handles {
            workers.push(handle.await.unwrap_or_else(|error| raise(error)));
        }
        workers
    }

    async fn operate<M: OperationMemory>(
        self: Rc<Self>,
        mut task: Task,
        mut memory: M,
        until: Until,
    ) -> (Task, M) {
        let mut now = Instant::now();
        let mut over = until.stopped();
        while !over && let Some(operation) = task.next() {
            if task.verifies() {
                if let Some(bytes) = memory.whole() {
                    task.before(operation, bytes);
                }
                now = Instant::now();
            }
            let (done, back) = memory.transfer(&self.file, operation).await;
            memory = back;
            let end = Instant::now();
            self.last.set(end);
            let moved = done.map_err(|error| library(&error));
            let checked = whole(operation, moved, self.block, &self.path).and_then(|()| {
                self.recorder.borrow_mut().record(end - now);
                self.check(&task, operation, &mut memory)
            });
            if let Err(failure) = checked {
                self.window.fail(failure);
            }
            now = end;
            over = until.over(now);
        }
        (task, memory)
    }

    fn check(
        &self,
        task: &Task,
        operation: Operation,
        memory: &mut impl OperationMemory,
    ) -> Result<(), Failure> {
        let Some(bytes) = memory.whole() else { return Ok(()) };
        task.after(operation, bytes).map_err(|wrong| mismatch(&self.path, operation.offset, &wrong))
    }
}
