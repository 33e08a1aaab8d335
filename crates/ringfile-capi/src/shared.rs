//! Queues that several threads use.
//!
//! Invariants: a forked child does not use its parent's; when the function that frees one returns, the kernel has finished
//! with all memory of its operations.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringfile::{Completion, SharedQueue};

use crate::error::{Fault, Result};
use crate::fork::{self, Lock};
use crate::op::ringfile_result;
use crate::path::{self, Room};
use crate::table::Table;

static QUEUES: Table<Arc<Shared>> = Table::new("ringfile_queue", 15, Lock::SharedQueues, || QUEUES.hold());

/// A queue that threads share.
pub(crate) struct Shared {
    pub(crate) queue: SharedQueue,
    /// Where to write results that are more than a number, by operation token. Locked while such an operation is added,
    /// so that its result finds its place, and otherwise not together with the queue.
    rooms: Mutex<HashMap<u64, Room>>,
    /// The process that made it, by [`fork::generation`].
    process: u32,
}

impl Shared {
    pub(crate) fn rooms(&self) -> MutexGuard<'_, HashMap<u64, Room>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes an operation's additional result to the memory that its caller named; returns the number of the result,
    /// or the negative errno.
    ///
    /// # Safety
    /// The memory that was named for the operation's result may be written to.
    pub(crate) unsafe fn deliver(&self, completion: &mut Completion) -> i64 {
        let room = self.rooms().remove(&completion.token.to_u64());
        // SAFETY: by this function's contract.
        unsafe { path::deliver(room, completion) }
    }

    /// Moves results that `take` takes, at most as many as there is room for, to the caller's. Returns how many.
    ///
    /// # Safety
    /// As [`deliver`](Self::deliver), for each operation of the queue.
    pub(crate) unsafe fn take(
        &self,
        results: &mut [ringfile_result],
        take: impl FnOnce(&SharedQueue, &mut Vec<Completion>),
    ) -> i64 {
        thread_local! {
            static TAKEN: Cell<Vec<Completion>> = const { Cell::new(Vec::new()) };
        }
        let mut taken = TAKEN.try_with(Cell::take).unwrap_or_default();
        take(&self.queue, &mut taken);
        let count = taken.len();
        for (to, mut completion) in results.iter_mut().zip(taken.drain(..)) {
            // SAFETY: by this function's contract.
            let result = unsafe { self.deliver(&mut completion) };
            *to = ringfile_result { user_data: completion.user_data, result };
        }
        let _ = TAKEN.try_with(|place| place.set(taken));
        count as i64
    }
}

/// Makes a shared queue, and returns its handle.
pub(crate) fn add<H>(depth: usize) -> Result<*mut H> {
    let (rooms, process) = (Mutex::default(), fork::generation());
    QUEUES.add(Arc::new(Shared { queue: SharedQueue::with_capacity(depth), rooms, process }))
}

/// Returns whether a handle is, or was, that of a shared queue.
#[inline]
pub(crate) fn is_one<H>(handle: *const H) -> bool {
    QUEUES.is_kind_of(handle)
}

pub(crate) fn get<H>(handle: *const H) -> Result<Arc<Shared>> {
    let shared = QUEUES.get(handle)?;
    if shared.process != fork::generation() {
        return Err(inherited());
    }
    Ok(shared)
}

#[cold]
pub(crate) fn inherited() -> Fault {
    Fault::new(
        libc::EOPNOTSUPP,
        "the queue belongs to the process that forked this one: make a new one in the child",
    )
}

/// Waits until no other thread is inside a call with this queue: it may have taken a result, and write to memory that the
/// operation's caller named. Nothing keeps it there, since no operation is open.
fn wait_for_calls(mut shared: Arc<Shared>) {
    while let Err(used) = Arc::try_unwrap(shared) {
        shared = used;
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Closes a shared queue, and waits for the kernel. Threads that wait for its operations find none.
pub(crate) fn remove<H>(handle: *const H) -> Result<()> {
    let shared = QUEUES.remove(handle)?;
    if shared.process == fork::generation() {
        shared.queue.cancel_all();
        let mut lost = Vec::new();
        while shared.queue.wait(1..=usize::MAX, None, &mut lost) > 0 {
            lost.clear();
        }
        wait_for_calls(shared);
    }
    Ok(())
}
