//! The state of one thread: its queues, and the queue for blocking operations.
//!
//! Invariants: only the thread that made a handle uses it, and other threads can distinguish it from a closed one; what
//! a thread leaves open is closed at its end, which waits for the kernel.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use ringfile::queue::{Canceller, ReadRequest, WriteRequest};
use ringfile::{Completion, Queue, Token};

use crate::cancel::Delayed;
use crate::error::{Fault, Result};
use crate::fork::Lock;
use crate::log;
use crate::path::Room;
use crate::recent::Recent;
use crate::table::Table;

/// The queues of all threads, which any thread may cancel operations of.
static QUEUES: Table<Canceller> = Table::new("ringfile_queue", 11, Lock::Queues, || QUEUES.hold());

/// A queue of this thread.
pub(crate) struct Own {
    handle: *const (),
    pub(crate) queue: Queue,
    pub(crate) recent: Arc<Recent>,
    /// Whether operations have used memory that `recent` has kept.
    pub(crate) uses_memory: bool,
    /// Where to write results that are more than a number, by operation token.
    pub(crate) rooms: HashMap<u64, Room>,
    /// Results on their way to the caller; empty between calls.
    pub(crate) taken: Vec<Completion>,
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = QUEUES.remove(self.handle);
    }
}

/// A thread-local that is dropped at the thread's end, where a cancellation would end the process: dropping a queue waits
/// for the kernel.
pub(crate) struct Ending<T: Default>(pub(crate) RefCell<T>);

impl<T: Default> Drop for Ending<T> {
    fn drop(&mut self) {
        let _delayed = Delayed::new();
        drop(std::mem::take(self.0.get_mut()));
    }
}

thread_local! {
    static OWN: Ending<Vec<Own>> = const { Ending(RefCell::new(Vec::new())) };
    static BLOCKING: Ending<Option<Blocking>> = const { Ending(RefCell::new(None)) };
    /// Why this thread must not wait; `None` if it may.
    static MUST_NOT_WAIT: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Accesses this thread's queues. Fails while the thread is ending, and inside another call.
#[inline]
fn own<R>(look: impl FnOnce(&mut Vec<Own>) -> Result<R>) -> Result<R> {
    let looked = OWN.try_with(|list| look(&mut *list.0.try_borrow_mut().map_err(|_| inside())?));
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

/// Returns an error if the calling thread must not wait: in a batch's callback, in the function for messages, and in a
/// loop of ringfile's. A wait would end at once there, while the operation still uses the caller's memory.
pub(crate) fn may_wait() -> Result<()> {
    match MUST_NOT_WAIT.get() {
        None if log::is_inside() => Err(log::inside()),
        None => Ok(()),
        Some(why) => Err(Fault::new(libc::EDEADLK, why)),
    }
}

/// Makes calls of this thread that would wait fail, until it is dropped.
struct NoWaits {
    before: Option<&'static str>,
}

impl NoWaits {
    fn new(why: &'static str) -> Self {
        Self { before: MUST_NOT_WAIT.replace(Some(why)) }
    }
}

impl Drop for NoWaits {
    fn drop(&mut self) {
        MUST_NOT_WAIT.set(self.before);
    }
}

/// Calls a batch's callback, on a thread of the library.
pub(crate) fn report(call: impl FnOnce()) {
    let _no_waits = NoWaits::new(
        "a batch's callback must not block: it runs on a thread of the library, and other I/O would wait too",
    );
    call();
}

/// Runs a future to its end.
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output> {
    may_wait()?;
    let _no_waits = NoWaits::new("the call was made inside another call of this thread, which runs a loop");
    Ok(ringfile::block_on(future))
}

/// Adds a queue to those of this thread.
pub(crate) fn add<H>(queue: Queue) -> Result<*mut H> {
    let handle: *mut H = QUEUES.add(queue.canceller())?;
    let (recent, rooms, taken) = (Recent::new(), HashMap::new(), Vec::new());
    let added = Own { handle: handle.cast_const().cast(), queue, recent, uses_memory: false, rooms, taken };
    own(|list| {
        list.push(added);
        Ok(handle)
    })
}

/// Uses a queue of this thread.
#[inline]
pub(crate) fn with<H, R>(handle: *const H, act: impl FnOnce(&mut Own) -> Result<R>) -> Result<R> {
    own(|list| {
        // Most threads have one queue.
        let is_first = list.first().is_some_and(|own| own.handle == handle.cast());
        let found =
            if is_first { list.first_mut() } else { list.iter_mut().find(|own| own.handle == handle.cast()) };
        match found {
            Some(own) => act(own),
            None => Err(elsewhere(handle)),
        }
    })
}

#[cold]
fn elsewhere<H>(handle: *const H) -> Fault {
    match QUEUES.get(handle) {
        Err(closed) => closed,
        Ok(_) => Fault::new(
            libc::EPERM,
            "the handle belongs to another thread: use it there, or create one on this thread",
        ),
    }
}

/// Returns what cancels the operations of another thread's queue; `None` if it is one of this thread.
pub(crate) fn canceller<H>(handle: *const H) -> Result<Option<Canceller>> {
    let is_own = own(|list| Ok(list.iter().any(|own| own.handle == handle.cast())))?;
    if is_own { Ok(None) } else { QUEUES.get(handle).map(Some) }
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
    /// The requests of [`Queue::write_many`]; empty between calls.
    writes: Vec<WriteRequest>,
}

/// Runs `act` on the queue for this thread's blocking operations.
pub(crate) fn blocking<R>(act: impl FnOnce(&mut Queue) -> Result<R>) -> Result<R> {
    blocking_with_requests(|queue, _, _| act(queue))
}

/// As [`blocking`], with empty lists of requests. All are empty before and after each call. The thread keeps them, so
/// its ring is created once, and registers memory and files once. A thread that is ending creates them for each call.
pub(crate) fn blocking_with_requests<R>(
    act: impl FnOnce(&mut Queue, &mut Vec<ReadRequest>, &mut Vec<WriteRequest>) -> Result<R>,
) -> Result<R> {
    may_wait()?;
    let mut act = Some(act);
    let mut act = |Blocking { queue, reads, writes }: &mut Blocking| match act.take() {
        Some(act) => act(queue, reads, writes),
        None => Err(ends()),
    };
    let used = BLOCKING.try_with(|kept| {
        let mut kept = kept.0.try_borrow_mut().map_err(|_| inside())?;
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

/// Waits for the only operation of a queue, and takes its result.
pub(crate) fn wait_for(queue: &mut Queue, token: Token) -> Result<Completion> {
    queue.wait_for(token).map_err(|_| {
        Fault::new(
            libc::EOPNOTSUPP,
            "cannot wait for the operation: this is a forked child, or the thread is ending",
        )
    })
}

/// Drops the queue of blocking operations, and what the thread's ring keeps.
pub(crate) fn rest() -> Result<()> {
    let queue = BLOCKING
        .try_with(|queue| queue.0.try_borrow_mut().map(|mut queue| queue.take()).map_err(|_| inside()));
    // A thread that is ending has already dropped the queue.
    drop(queue.unwrap_or(Ok(None))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::done;

    #[test]
    fn a_call_inside_a_loop_does_not_wait() {
        let waits = || done(|| blocking(|_| Ok(())));
        let (inside, nested) = block_on(async { (waits(), done(|| block_on(async {}))) }).unwrap_or_default();
        assert_eq!((inside, nested, waits()), (-libc::EDEADLK, -libc::EDEADLK, 0));
    }
}
