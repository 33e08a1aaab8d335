//! I/O threads, each with a ring, for operations of threads without a ring: those of other executors, and batches.
//!
//! They start with the first such operation, and run until the process ends. Knows drivers and remote requests.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};

use super::deferred::Deferred;
use super::forks;
use super::shared::{Call, RemoteRequest, Shared};
use crate::caught::caught;
use crate::error::Error;
use crate::ring::RingOptions;
use ringfile_buffer::internal::{event, fork};

/// The number of threads to start; 0 for the default.
static WANTED: AtomicUsize = AtomicUsize::new(0);

struct IoThreads {
    threads: Vec<Arc<Shared>>,
    next: AtomicUsize,
    process: fork::Mark,
}

/// Sets how many I/O threads carry out the operations of other executors' threads, which have no ring. One by default.
/// Has no effect after the first such operation, which starts them.
pub fn set_io_threads(threads: usize) {
    WANTED.store(threads, Ordering::Relaxed);
}

thread_local! {
    static IS_ONE: Cell<bool> = const { Cell::new(false) };
}

static THREADS: OnceLock<IoThreads> = OnceLock::new();

fn io_threads() -> &'static IoThreads {
    THREADS.get().unwrap_or_else(make)
}

#[cold]
fn make() -> &'static IoThreads {
    let making = forks::STARTING_IO_THREADS.lock();
    let mut failed = None;
    let threads = THREADS.get_or_init(|| {
        let wanted = WANTED.load(Ordering::Relaxed).max(1);
        let started = (0..wanted).map_while(|index| start(index).map_err(|error| failed = Some(error)).ok());
        let threads = started.collect();
        IoThreads { threads, next: AtomicUsize::new(0), process: fork::Mark::current() }
    });
    drop(making);
    if let Some(error) = failed {
        event::emit(|| tracing::warn!(%error, "could not start an I/O thread"));
    }
    threads
}

fn start(index: usize) -> io::Result<Arc<Shared>> {
    let (started, starts) = mpsc::sync_channel(1);
    let run = move || {
        IS_ONE.set(true);
        crate::memory::set_thread_must_not_block(true);
        let shared = super::enter(RingOptions::default());
        let _ = started.send(Arc::clone(&shared));
        let (mut deferred, mut calls) = (Deferred::default(), Vec::new());
        let mut may_sleep = true;
        loop {
            // The notification is cleared before checking for work; a thread that is notified afterwards does not
            // sleep.
            shared.sleep.take_notification();
            run_calls(&shared, &mut calls);
            // Work that a panic interrupted is completed before the thread sleeps.
            let turn = || super::turn(may_sleep, &mut deferred);
            may_sleep = caught("a waker or a buffer panicked on an I/O thread", turn).is_some();
        }
    };
    std::thread::Builder::new().name(format!("ringfile-io-{index}")).spawn(run)?;
    starts.recv().map_err(io::Error::other)
}

/// Runs the functions that were posted to this thread. Functions that they post run after the next turn.
fn run_calls(shared: &Shared, calls: &mut Vec<Call>) {
    std::mem::swap(&mut shared.tasks().calls, calls);
    for call in calls.drain(..) {
        caught("the function that a batch calls at its end panicked on an I/O thread", call);
    }
}

/// Returns whether the calling thread is an I/O thread, which must not wait.
pub(crate) fn is_this_one() -> bool {
    IS_ONE.get()
}

/// Returns the next I/O thread, in rotation. `None` if there is none, as in a forked child.
fn pick() -> Option<&'static Arc<Shared>> {
    let io = io_threads();
    if io.threads.is_empty() || !io.process.is_current() {
        return None;
    }
    Some(&io.threads[io.next.fetch_add(1, Ordering::Relaxed) % io.threads.len()])
}

/// Gives a remote request to an I/O thread, and returns that thread. Returns the request if there is none, as in a
/// forked child.
pub(crate) fn send(remote: RemoteRequest) -> Result<Arc<Shared>, RemoteRequest> {
    let Some(thread) = pick() else { return Err(remote) };
    // The thread never leaves its loop, so it reads the message.
    thread.lock().remotes.push(remote);
    thread.sleep.mail_came();
    thread.notify();
    Ok(Arc::clone(thread))
}

/// Returns an I/O thread to which [`call`] can post functions.
///
/// # Errors
/// In a forked child of a process that had I/O threads, and if no thread can be started.
pub(crate) fn choose() -> Result<Arc<Shared>, Error> {
    match pick() {
        Some(thread) => Ok(Arc::clone(thread)),
        None if !io_threads().process.is_current() => Err(super::refused::after_fork()),
        None => {
            Err(Error::from_errno(libc::EAGAIN, "starting a batch").because("no I/O thread could be started"))
        }
    }
}

/// Posts a function to an I/O thread, which runs it soon, with no driver borrowed and no lock held.
pub(crate) fn call(thread: &Shared, call: Call) {
    thread.tasks().calls.push(call);
    thread.notify();
}
