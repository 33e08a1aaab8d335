//! Threads, one per core, each with its own loop.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle as Thread;
use std::time::Duration;

use super::executor::{self, Command, Loop};
use super::task::{self, JoinHandle};
use crate::caught::caught;
use crate::driver::Shared;
use crate::error::{Error, Result};
use crate::ring::{RingOptions, TaskRun};
use ringfile_buffer::internal::fork;

/// A set of threads that run tasks and their I/O.
///
/// A task stays on its thread. [`shutdown`](Self::shutdown) waits for the tasks; dropping the runtime drops them, waits
/// until the kernel has finished with their buffers, and ends the threads.
///
/// A forked child does not have the threads of its parent's runtime: tasks spawned there are
/// [cancelled](crate::runtime::JoinError::Cancelled) at once, and shutting it down or dropping it waits for nothing.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let runtime = ringfile::Runtime::builder().threads(2).build()?;
/// let handle = runtime.spawn(async { 6 * 7 });
/// assert_eq!(handle.join().unwrap(), 42);
/// runtime.shutdown();
/// # Ok(())
/// # }
/// ```
pub struct Runtime {
    workers: Vec<Worker>,
    next: AtomicUsize,
    /// The process that has the threads.
    process: fork::Mark,
}

struct Worker {
    shared: Arc<Shared>,
    thread: Option<Thread<()>>,
}

/// Settings of a [`Runtime`].
#[derive(Clone, Debug)]
pub struct RuntimeBuilder {
    threads: usize,
    pin: bool,
    options: RingOptions,
}

impl RuntimeBuilder {
    /// Sets the number of threads; by default one for each core that the process may use.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Pins each thread to a core of its own, in the order of the cores that the process may use. Off by default.
    #[must_use]
    pub fn pin(self, pin: bool) -> Self {
        Self { pin, ..self }
    }

    /// Sets the number of submission queue entries of each thread's ring: 256 by default, rounded up to a power of two.
    /// More operations may be in flight; they are submitted in several steps.
    #[must_use]
    pub fn entries(self, entries: u32) -> Self {
        Self { options: RingOptions { entries, ..self.options }, ..self }
    }

    /// Makes a kernel thread submit (SQPOLL); it sleeps after being idle for this long. Saves system calls and costs a
    /// core. Off by default.
    #[must_use]
    pub fn sqpoll(self, idle: Option<Duration>) -> Self {
        let sqpoll_idle = idle.map(|idle| u32::try_from(idle.as_millis()).unwrap_or(u32::MAX));
        Self { options: RingOptions { sqpoll_idle, ..self.options }, ..self }
    }

    /// Sets when the kernel finishes a thread's operations: [`Deferred`](TaskRun::Deferred) by default. The others
    /// exist to measure what they cost. No effect with [`sqpoll`](Self::sqpoll).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use ringfile::runtime::TaskRun;
    /// use ringfile::Runtime;
    /// let runtime = Runtime::builder().threads(1).task_run(TaskRun::Cooperative).build()?;
    /// # runtime.shutdown();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn task_run(self, task_run: TaskRun) -> Self {
        Self { options: RingOptions { task_run, ..self.options }, ..self }
    }

    /// Sets whether waiting for I/O is left out of the system's iowait figure (Linux 6.15). Off by default.
    #[must_use]
    pub fn no_iowait(self, no_iowait: bool) -> Self {
        Self { options: RingOptions { no_iowait, ..self.options }, ..self }
    }

    /// Starts the threads. Each has the signal mask, affinity, scheduling class and nice value of the calling thread, since it
    /// runs the program's own tasks; [`pin`](Self::pin) changes the affinity.
    ///
    /// # Errors
    /// For 0 threads, or if a thread cannot be started or pinned.
    pub fn build(self) -> Result<Runtime> {
        if self.threads == 0 {
            return Err(Error::new(std::io::ErrorKind::InvalidInput, "creating a runtime")
                .because("a runtime needs at least one thread"));
        }
        if crate::sim::is_here() {
            return Err(Error::new(std::io::ErrorKind::Unsupported, "creating a runtime")
                .because("its threads would do real I/O beside the simulation: use ringfile::spawn"));
        }
        let cores = if self.pin { cores()? } else { Vec::new() };
        let process = fork::Mark::current();
        let mut runtime = Runtime { workers: Vec::new(), next: AtomicUsize::new(0), process };
        for index in 0..self.threads {
            let core = (!cores.is_empty()).then(|| cores[index % cores.len()]);
            runtime.workers.push(Worker::start(index, core, self.options)?);
        }
        Ok(runtime)
    }
}

fn cores() -> Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)
        .map_err(|errno| Error::from_errno(errno.raw_os_error(), "reading which cores may be used"))?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

fn pin_to(core: usize) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|errno| Error::from_errno(errno.raw_os_error(), format!("pinning a thread to core {core}")))
}

impl Worker {
    fn start(index: usize, core: Option<usize>, options: RingOptions) -> Result<Self> {
        let (started, starts) = mpsc::sync_channel(1);
        let run = move || {
            if let Err(error) = core.map_or(Ok(()), pin_to) {
                let _ = started.send(Err(error));
                return;
            }
            if let Some(mut thread) = Loop::enter(options) {
                let _ = started.send(Ok(Arc::clone(&thread.shared)));
                // The thread's other tasks continue.
                const PANICKED: &str = "a waker or a buffer panicked on a thread of a runtime";
                while caught(PANICKED, || thread.run_commands()).is_none() {}
            }
        };
        let ended =
            || Error::new(std::io::ErrorKind::Other, "starting a thread").because("the thread ended at once");
        let thread = std::thread::Builder::new()
            .name(format!("ringfile-{index}"))
            .spawn(run)
            .map_err(|error| Error::from_io(&error, "starting a thread"))?;
        let shared = starts.recv().map_err(|_| ended())??;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Runtime {
    /// Starts a runtime with one thread for each core that the process may use.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn new() -> Result<Self> {
        Self::builder().build()
    }

    /// Returns a builder with default settings.
    #[must_use]
    pub fn builder() -> RuntimeBuilder {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        RuntimeBuilder { threads, pin: false, options: RingOptions::default() }
    }

    /// Returns the number of threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len()
    }

    /// Starts a task on one of the threads, each in turn. Allocates the task; does not block.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        self.spawn_on(index, move || future)
    }

    /// Starts a task on thread `index` (modulo the number of threads). `make` runs there, so that its future need not
    /// be `Send`.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use std::rc::Rc;
    /// let runtime = ringfile::Runtime::builder().threads(1).build()?;
    /// let handle = runtime.spawn_on(0, || {
    ///     let counter = Rc::new(1);
    ///     async move { *counter + 1 }
    /// });
    /// assert_eq!(handle.join().unwrap(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn spawn_on<M, F>(&self, index: usize, make: M) -> JoinHandle<F::Output>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        task::spawn_there(make, &self.workers[index % self.workers.len()].shared)
    }

    /// Waits until every task has ended, then ends the threads. Blocks. If one of its own tasks calls it, it waits for
    /// the other threads; the task's own thread ends after the task.
    pub fn shutdown(mut self) {
        self.end(Command::Finish);
    }

    fn end(&mut self, command: Command) {
        self.workers.iter().for_each(|worker| executor::command(&worker.shared, command));
        let own = std::thread::current().id();
        for thread in self.workers.iter_mut().filter_map(|worker| worker.thread.take()) {
            if !self.process.is_current() {
                // Joining or detaching a thread that this process does not have is undefined in the C library, which
                // may have given its stack to another thread.
                std::mem::forget(thread);
            } else if thread.thread().id() != own {
                // A thread cannot wait for itself: if a task of the runtime drops its last handle, that task's thread
                // ends after the task. A thread does not panic: its tasks' panics are their results.
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.end(Command::Stop);
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("threads", &self.threads()).finish()
    }
}
