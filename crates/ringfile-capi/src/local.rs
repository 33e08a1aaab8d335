//! What belongs to one thread: reads, queues, and the queue that blocking operations pass through.
//!
//! What always holds: a handle is used by the thread that made it, and by any other told apart from one that was closed;
//! what a thread leaves open is closed with it, which waits for the kernel.

use std::cell::RefCell;

use ringfile::{AsyncReads, Queue};

use crate::error::{Fault, Result};
use crate::fork::Guard;
use crate::table::Table;

static READS: Table<()> = Table::new("ringfile_reads", 9);
static QUEUES: Table<()> = Table::new("ringfile_queue", 11);

/// Locks the handles, while the process forks.
pub(crate) fn hold() -> [Guard; 2] {
    [READS.hold(), QUEUES.hold()]
}

/// A value of this thread's.
pub(crate) struct Own<T: Local> {
    handle: *const (),
    value: T,
}

impl<T: Local> Drop for Own<T> {
    fn drop(&mut self) {
        let _ = T::owners().remove(self.handle);
    }
}

type List<T> = RefCell<Vec<Own<T>>>;

thread_local! {
    static OWN_READS: List<AsyncReads> = const { RefCell::new(Vec::new()) };
    static OWN_QUEUES: List<Queue> = const { RefCell::new(Vec::new()) };
    static BLOCKING: RefCell<Option<Queue>> = const { RefCell::new(None) };
}

/// A type whose values belong to a thread.
pub(crate) trait Local: Sized + 'static {
    /// The handles of all threads.
    fn owners() -> &'static Table<()>;

    /// Those of this thread. `None` while the thread ends.
    fn own<R>(look: impl FnOnce(&List<Self>) -> R) -> Option<R>;
}

impl Local for AsyncReads {
    fn owners() -> &'static Table<()> {
        &READS
    }

    fn own<R>(look: impl FnOnce(&List<Self>) -> R) -> Option<R> {
        OWN_READS.try_with(look).ok()
    }
}

impl Local for Queue {
    fn owners() -> &'static Table<()> {
        &QUEUES
    }

    fn own<R>(look: impl FnOnce(&List<Self>) -> R) -> Option<R> {
        OWN_QUEUES.try_with(look).ok()
    }
}

fn ends() -> Fault {
    Fault::new(libc::EPERM, "the thread ends: what it left open is closed, and nothing new is begun")
}

fn inside() -> Fault {
    Fault::new(libc::EDEADLK, "the call came from inside of another call of this thread")
}

/// Makes a value this thread's own.
pub(crate) fn add<T: Local, H>(value: T) -> Result<*mut H> {
    let handle: *mut H = T::owners().add(())?;
    let own = Own { handle: handle.cast_const().cast(), value };
    let added = T::own(|list| list.try_borrow_mut().map(|mut list| list.push(own)).map_err(|_| inside()));
    added.unwrap_or_else(|| Err(ends())).map(|()| handle)
}

/// Uses a value of this thread's.
#[inline]
pub(crate) fn with<T: Local, H, R>(handle: *const H, act: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
    let used = T::own(|list| {
        let mut list = list.try_borrow_mut().map_err(|_| inside())?;
        match list.iter_mut().find(|own| own.handle == handle.cast()) {
            Some(own) => act(&mut own.value),
            None => Err(elsewhere::<T, H>(handle)),
        }
    });
    used.unwrap_or_else(|| Err(ends()))
}

#[cold]
fn elsewhere<T: Local, H>(handle: *const H) -> Fault {
    match T::owners().get(handle) {
        Err(closed) => closed,
        Ok(_) => Fault::new(
            libc::EPERM,
            "the handle belongs to another thread: use it there, and one of your own here",
        ),
    }
}

/// Closes a value of this thread's: whoever drops what is given waits for the kernel.
pub(crate) fn remove<T: Local, H>(handle: *const H) -> Result<Own<T>> {
    let removed = T::own(|list| {
        let mut list = list.try_borrow_mut().map_err(|_| inside())?;
        match list.iter().position(|own| own.handle == handle.cast()) {
            Some(at) => Ok(list.swap_remove(at)),
            None => Err(elsewhere::<T, H>(handle)),
        }
    });
    removed.unwrap_or_else(|| Err(ends()))
}

/// The queue that blocking operations of this thread pass through: empty before and after. Its ring stays, so that it is
/// made and told of memory and files once. A thread that ends has one for each operation.
pub(crate) fn blocking<R>(act: impl FnOnce(&mut Queue) -> Result<R>) -> Result<R> {
    let mut act = Some(act);
    let mut act = |queue: &mut Queue| act.take().map_or_else(|| Err(ends()), |act| act(queue));
    let used = BLOCKING.try_with(|queue| {
        let mut queue = queue.try_borrow_mut().map_err(|_| inside())?;
        let mut whole = queue.take().unwrap_or_default();
        // Where that panics, the queue goes, which waits for what is in flight.
        let result = act(&mut whole);
        // What is in flight after an error has memory of the caller's: the queue goes, which waits for it.
        if whole.is_empty() {
            *queue = Some(whole);
        }
        result
    });
    used.unwrap_or_else(|_| act(&mut Queue::new()))
}

/// Gives up the queue of blocking operations, and with it what the thread's ring keeps.
pub(crate) fn rest() -> Result<()> {
    let queue =
        BLOCKING.try_with(|queue| queue.try_borrow_mut().map(|mut queue| queue.take()).map_err(|_| inside()));
    // A thread that ends has given it up already.
    drop(queue.unwrap_or(Ok(None))?);
    Ok(())
}
