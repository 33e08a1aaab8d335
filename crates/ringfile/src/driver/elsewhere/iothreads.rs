//! I/O threads, each with a ring, for operations of threads without a ring: those of other executors, and batches.
//!
//! They start with the first such operation, or a later one if none can be started, and run until the process ends. Knows drivers and remote requests.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};

use super::own_threads::start_thread;
use super::rights::Rights;
use crate::caught::caught;
use crate::driver::mail::shared::{PostedCall, RemoteRequest, Shared};
use crate::driver::turn::deferred::Deferred;
use crate::driver::turn::forks;
use crate::error::Error;
use crate::lock::Lock;
use crate::ring::RingOptions;
use ringfile_buffer::internal::{event, fork};

/// The number of threads to start; 0 for the default.
static WANTED: AtomicUsize = AtomicUsize::new(0);

struct IoThreads {
    threads: Vec<Arc<Shared>>,
    next: AtomicUsize,
    process: fork::Mark,
    /// The rights of the threads when they last looked.
    rights: Lock<Option<Rights>>,
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

/// Returns the I/O threads, which start with the first call. `None` if none can be started now.
fn io_threads() -> Option<&'static IoThreads> {
    THREADS.get().or_else(make)
}

#[cold]
fn make() -> Option<&'static IoThreads> {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let making = forks::STARTING_IO_THREADS.lock();
    if let Some(made) = THREADS.get() {
        return Some(made);
    }
    let mut failed = None;
    let wanted = WANTED.load(Ordering::Relaxed).max(1);
    let started = (0..wanted).map_while(|index| start(index).map_err(|error| failed = Some(error)).ok());
    let threads: Vec<_> = started.collect();
    let made = (!threads.is_empty()).then(|| {
        let rights = Lock::new(Rights::of_this_thread());
        let process = fork::Mark::current();
        THREADS.get_or_init(|| IoThreads { threads, next: AtomicUsize::new(0), process, rights })
    });
    drop(making);
    if let Some(error) = failed
        && !WARNED.swap(true, Ordering::Relaxed)
    {
        event::emit(|| tracing::warn!(%error, "could not start an I/O thread"));
    }
    made
}

fn start(index: usize) -> io::Result<Arc<Shared>> {
    let (started, starts) = mpsc::sync_channel(1);
    let run = move || {
        IS_ONE.set(true);
        crate::memory::set_thread_must_not_block(true);
        let shared = crate::driver::enter(RingOptions::default());
        let _ = started.send(Arc::clone(&shared));
        let (mut deferred, mut calls) = (Deferred::default(), Vec::new());
        let mut may_sleep = true;
        loop {
            // The notification is cleared before checking for work; a thread that is notified afterwards does not
            // sleep.
            shared.sleep.take_notification();
            run_calls(&shared, &mut calls);
            // Work that a panic interrupted is completed before the thread sleeps.
            let turn = || crate::driver::turn(may_sleep, &mut deferred);
            may_sleep = caught("a waker or a buffer panicked on an I/O thread", turn).is_some();
        }
    };
    start_thread(format!("ringfile-io-{index}"), run)?;
    starts.recv().map_err(io::Error::other)
}

/// Runs the functions that were posted to this thread. Functions that they post run after the next turn.
fn run_calls(shared: &Shared, calls: &mut Vec<PostedCall>) {
    std::mem::swap(&mut shared.tasks().calls, calls);
    for call in calls.drain(..) {
        caught("the function that a batch calls at its end panicked on an I/O thread", call);
    }
}

/// Returns whether the calling thread is an I/O thread, which must not wait.
pub(crate) fn is_this_one() -> bool {
    IS_ONE.get()
}

/// Returns the next I/O thread, in rotation. `None` if none can be started, and in a forked child.
fn pick() -> Option<&'static Arc<Shared>> {
    let io = io_threads().filter(|io| io.process.is_current())?;
    Some(&io.threads[io.next.fetch_add(1, Ordering::Relaxed) % io.threads.len()])
}

/// Emits an event, the first time that `is_so`, with the next [deferred](event::emit_deferred) ones: an operation goes to an
/// I/O thread that its own thread could submit.
pub(crate) fn tell_of_first(what: &'static str, is_so: impl FnOnce() -> bool) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.load(Ordering::Relaxed) && is_so() && !TOLD.swap(true, Ordering::Relaxed) {
        event::defer(move || tracing::info!("{what}"));
    }
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
        None if THREADS.get().is_some() => Err(crate::driver::refused::after_fork()),
        None => {
            Err(Error::from_errno(libc::EAGAIN, "starting a batch").because("no I/O thread could be started"))
        }
    }
}

/// Returns the rights of the calling thread on paths if an I/O thread has them, too, so that it may use paths while it has them.
/// If not, it looks at its own again: `setuid` and its like in the C library change those of all threads.
pub(crate) fn rights_in_common(thread: &Shared) -> Option<Rights> {
    let own = Rights::of_this_thread()?;
    let is_noted = |io: &IoThreads| io.rights.lock().as_ref() == Some(&own);
    if is_this_one() || THREADS.get().is_some_and(is_noted) {
        return Some(own);
    }
    call(thread, Box::new(note_rights));
    None
}

/// Returns whether this I/O thread still has rights of [`rights_in_common`]. If not, it notes its own.
pub(crate) fn still_has(rights: &Rights) -> bool {
    let has_them = rights.are_of_this_thread();
    if !has_them {
        note_rights();
    }
    has_them
}

fn note_rights() {
    if let Some(io) = THREADS.get() {
        *io.rights.lock() = Rights::of_this_thread();
    }
}

/// Posts a function to an I/O thread, which runs it soon, with no driver borrowed and no lock held.
pub(crate) fn call(thread: &Shared, call: PostedCall) {
    thread.tasks().calls.push(call);
    thread.notify();
}
