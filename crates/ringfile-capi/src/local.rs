//! The state of one thread: its queues, and the queue for blocking operations.
//!
//! Invariants: only the thread that made a handle uses it, and other threads can distinguish it from a closed one; what
//! a thread leaves open is closed at its end, which waits for the kernel.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use ringfile::{Queue, ReadRequest};

use crate::error::{Fault, Result};
use crate::file::ringfile_file;
use crate::fork::Guard;
use crate::path::ringfile_metadata;
use crate::table::Table;

/// The handles of all threads.
static QUEUES: Table<()> = Table::new("ringfile_queue", 11);

/// Locks the handles, while the process forks.
pub(crate) fn hold() -> Guard {
    QUEUES.hold()
}

/// A queue of this thread.
pub(crate) struct Own {
    handle: *const (),
    pub(crate) queue: Queue,
    /// Where to write results that are more than a number, by operation token.
    pub(crate) rooms: HashMap<u64, Room>,
}

/// Where the result of an operation on a path must be written.
pub(crate) enum Room {
    File(*mut *mut ringfile_file),
    Metadata(*mut ringfile_metadata),
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = QUEUES.remove(self.handle);
    }
}

thread_local! {
    static OWN: RefCell<Vec<Own>> = const { RefCell::new(Vec::new()) };
    static BLOCKING: RefCell<Option<Blocking>> = const { RefCell::new(None) };
    /// Set while this thread, which belongs to the library, reports the end of a batch.
    static REPORTS: Cell<bool> = const { Cell::new(false) };
}

/// Accesses this thread's queues. Fails while the thread is ending, and inside another call.
#[inline]
fn own<R>(look: impl FnOnce(&mut Vec<Own>) -> Result<R>) -> Result<R> {
    let looked = OWN.try_with(|list| look(&mut *list.try_borrow_mut().map_err(|_| inside())?));
    looked.unwrap_or_else(|_| Err(ends()))
}

fn ends() -> Fault {
    Fault::new(
        libc::EPERM,
        "the thread is ending: the library closes what it left open, and starts nothing new",
    )
}

fn inside() -> Fault {
    Fault::new(libc::EDEADLK, "the call was made inside another call of this thread")
}

/// Returns an error if the calling thread must not wait, as inside a batch's callback.
pub(crate) fn may_wait() -> Result<()> {
    if !REPORTS.try_with(Cell::get).unwrap_or(false) {
        return Ok(());
    }
    let why =
        "a batch's callback must not block: it runs on a thread of the library, and other I/O would wait too";
    Err(Fault::new(libc::EDEADLK, why))
}

/// Calls a batch's callback, during which calls must not wait.
pub(crate) fn report(call: impl FnOnce()) {
    let _ = REPORTS.try_with(|reports| reports.set(true));
    call();
    let _ = REPORTS.try_with(|reports| reports.set(false));
}

/// Runs a future to its end.
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output> {
    may_wait()?;
    Ok(ringfile::block_on(future))
}

/// Adds a queue to those of this thread.
pub(crate) fn add<H>(queue: Queue) -> Result<*mut H> {
    let handle: *mut H = QUEUES.add(())?;
    let added = Own { handle: handle.cast_const().cast(), queue, rooms: HashMap::new() };
    own(|list| {
        list.push(added);
        Ok(handle)
    })
}

/// Uses a queue of this thread.
#[inline]
pub(crate) fn with<H, R>(handle: *const H, act: impl FnOnce(&mut Queue) -> Result<R>) -> Result<R> {
    with_rooms(handle, |own| act(&mut own.queue))
}

/// Uses a queue of this thread, and the places for its results.
#[inline]
pub(crate) fn with_rooms<H, R>(handle: *const H, act: impl FnOnce(&mut Own) -> Result<R>) -> Result<R> {
    own(|list| match list.iter_mut().find(|own| own.handle == handle.cast()) {
        Some(own) => act(own),
        None => Err(elsewhere(handle)),
    })
}

#[cold]
fn elsewhere<H>(handle: *const H) -> Fault {
    match QUEUES.get(handle) {
        Err(closed) => closed,
        Ok(()) => Fault::new(
            libc::EPERM,
            "the handle belongs to another thread: use it there, or create one on this thread",
        ),
    }
}

/// Closes a queue of this thread. Dropping the returned value waits for the kernel.
pub(crate) fn remove<H>(handle: *const H) -> Result<Own> {
    own(|list| match list.iter().position(|own| own.handle == handle.cast()) {
        Some(at) => Ok(list.swap_remove(at)),
        None => Err(elsewhere(handle)),
    })
}

/// What a thread keeps for its blocking operations.
#[derive(Default)]
struct Blocking {
    queue: Queue,
    /// The requests of [`Queue::read_many`]; empty between calls.
    reads: Vec<ReadRequest>,
}

/// Runs `act` on the queue for this thread's blocking operations.
pub(crate) fn blocking<R>(act: impl FnOnce(&mut Queue) -> Result<R>) -> Result<R> {
    blocking_with_reads(|queue, _| act(queue))
}

/// As [`blocking`], with an empty list of requests. Both are empty before and after each call. The thread keeps them, so
/// its ring is created once, and registers memory and files once. A thread that is ending creates them for each call.
pub(crate) fn blocking_with_reads<R>(
    act: impl FnOnce(&mut Queue, &mut Vec<ReadRequest>) -> Result<R>,
) -> Result<R> {
    may_wait()?;
    let mut act = Some(act);
    let mut act = |Blocking { queue, reads }: &mut Blocking| match act.take() {
        Some(act) => act(queue, reads),
        None => Err(ends()),
    };
    let used = BLOCKING.try_with(|kept| {
        let mut kept = kept.try_borrow_mut().map_err(|_| inside())?;
        let mut whole = kept.take().unwrap_or_default();
        // If that panics, the queue is dropped, which waits for operations in flight.
        let result = act(&mut whole);
        // After an error, operations in flight use the caller's memory: dropping the queue waits for them.
        if whole.queue.is_empty() {
            *kept = Some(whole);
        }
        result
    });
    used.unwrap_or_else(|_| act(&mut Blocking::default()))
}

/// Drops the queue of blocking operations, and what the thread's ring keeps.
pub(crate) fn rest() -> Result<()> {
    let queue =
        BLOCKING.try_with(|queue| queue.try_borrow_mut().map(|mut queue| queue.take()).map_err(|_| inside()));
    // A thread that is ending has already dropped the queue.
    drop(queue.unwrap_or(Ok(None))?);
    Ok(())
}
