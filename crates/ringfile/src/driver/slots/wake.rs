//! Which task to wake when an operation ends.
//!
//! A task of this thread's own loop is woken by its number, which the loop puts back into its queue: cloning, waking
//! and dropping a `Waker` are three atomic operations and more, of the 40 ns that an operation may cost over a
//! hand-written loop. Any other future is woken by its `Waker`.

use std::cell::Cell;
use std::sync::Arc;
use std::task::{RawWakerVTable, Waker};

use super::handler::Handler;

/// The number of a task in the loop of its thread.
pub(crate) type TaskNumber = u32;

thread_local! {
    /// The task that is being polled, and the identity of its waker. The vtable counts too: a waker that wraps the
    /// task's may share its address and do something else.
    static POLLED: Cell<(TaskNumber, usize, *const RawWakerVTable)> = const { Cell::new((0, 0, std::ptr::null())) };
}

/// Sets the task that is being polled, and its waker. The waker must live until the next call, so that no other can
/// have its address.
#[inline]
pub(crate) fn polling(task: TaskNumber, waker: &Waker) {
    POLLED.set((task, waker.data().addr(), waker.vtable()));
}

/// Returns the task that is being polled.
#[inline]
pub(crate) fn polled_task() -> TaskNumber {
    POLLED.get().0
}

/// Returns whether a loop's main future is being polled: the loop may end as soon as that is ready.
pub(crate) fn is_main_polled() -> bool {
    let (task, _, functions) = POLLED.get();
    task == 0 && !functions.is_null()
}

/// Notes that no task is being polled.
#[inline]
pub(crate) fn polled() {
    POLLED.set((0, 0, std::ptr::null()));
}

/// Returns the task that is being polled, if `waker` is its waker.
#[inline]
fn task_of(waker: &Waker) -> Option<TaskNumber> {
    let (task, address, functions) = POLLED.get();
    (address == waker.data().addr() && std::ptr::eq(functions, waker.vtable())).then_some(task)
}

/// A handler's number and the index of its operation, as one number: if two halves are stored and then loaded as one,
/// the load waits until the stores have reached the cache.
#[derive(Clone, Copy)]
pub(crate) struct LocalOperation(u64);

impl LocalOperation {
    #[inline]
    pub(crate) fn new(handler: u32, index: u32) -> Self {
        Self(u64::from(handler) << 32 | u64::from(index))
    }

    #[inline]
    pub(crate) fn handler(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    pub(crate) fn index(self) -> u32 {
        self.0 as u32
    }
}

#[derive(Default)]
pub(crate) enum Wake {
    #[default]
    None,
    Task(TaskNumber),
    Waker(Waker),
    /// A remote request: the result goes to this handler, with this index.
    Handler(Arc<dyn Handler>, u32),
    /// An operation of a handler that the driver knows by a number, see [`super::handler::LocalHandlers`].
    Local(LocalOperation),
}

impl Wake {
    /// Creates the wake-up for a waker. Called with no driver borrowed and no lock held: cloning a waker may run user
    /// code.
    #[inline]
    pub(crate) fn new(waker: &Waker) -> Self {
        task_of(waker).map_or_else(|| Self::Waker(waker.clone()), Self::Task)
    }

    /// Returns whether `waker` wakes this task.
    #[inline]
    pub(crate) fn wakes(&self, waker: &Waker) -> bool {
        match self {
            Self::Task(task) => task_of(waker) == Some(*task),
            Self::Waker(known) => known.will_wake(waker),
            Self::None | Self::Handler(..) | Self::Local(..) => false,
        }
    }
}
