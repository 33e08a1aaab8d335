//! The state of one thread's driver, and the only way to it.
//!
//! Invariant: it is borrowed by [`with`] alone, and no user code runs meanwhile.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::counters::Metrics;
use crate::driver::mail::shared::{self, RemoteRequest, Shared};
use crate::driver::op::Request;
use crate::driver::ports::Ports;
use crate::driver::slots::files::{FileInUse, FilesInUse};
use crate::driver::slots::handler::LocalHandlers;
use crate::driver::slots::key::Key;
use crate::driver::slots::slot::Slots;
use crate::driver::slots::wake::{TaskNumber, Wake};
use crate::driver::target::Target;
use crate::driver::target::route::MANY;
use crate::driver::target::timing::Timed;
use crate::memory::IoMemory;
use crate::ring::{RingOptions, thread_end};
use ringfile_buffer::internal::panics;

/// What waits for room in the submission queue, or for the next turn.
#[derive(Clone, Copy)]
pub(super) enum Unsubmitted {
    Operation(Key),
    Cancellation(Key),
}

/// The number of tasks of the loop that start operations which are cheaper together on the ring.
#[derive(Default)]
pub(super) struct ActiveTasks {
    pub(super) last: Option<TaskNumber>,
    /// The number in this turn; `before` is that of the turn before.
    pub(super) tasks: usize,
    pub(super) before: usize,
}

/// How many other tasks of this thread's loop start operations that may be plain calls.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    /// So many that all send them through the ring together: 16 tasks that read cached blocks had 1.2 times the IOPS
    /// through the ring that they had by calls.
    Many,
    /// Some, or this thread is in no loop, so that others are unknown.
    Some,
    /// None, and no operation is in flight.
    None,
}

thread_local! {
    /// Never destroyed, so that it can be used by the destructors of other locals, and of pthread keys.
    pub(super) static DRIVER: ManuallyDrop<RefCell<Option<Box<Driver>>>> =
        const { ManuallyDrop::new(RefCell::new(None)) };
    /// Drops the driver when the thread ends.
    static AT_THE_END: AtTheEnd = const { AtTheEnd };
}

struct AtTheEnd;

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        drop_driver();
        thread_end::cancel();
    }
}

/// Drops the driver while the cell is not borrowed: operations in flight end in callbacks, which may call the driver.
pub(super) fn drop_driver() {
    let _delayed = thread_end::Delayed::new();
    let taken = DRIVER.with(|cell| cell.try_borrow_mut().ok()?.take());
    drop(taken);
}

/// Returns whether the thread is ending and has dropped its driver: code that creates another one releases it when
/// done, see [`leave`](super::leave::leave). Otherwise the driver is dropped when the thread ends.
pub(super) fn is_ending() -> bool {
    AT_THE_END.try_with(|_| ()).is_err()
}

/// Runs `f` on this thread's driver; `None` if there is none, or if it is borrowed further up the stack.
#[inline]
pub(crate) fn with<T>(f: impl FnOnce(&mut Driver) -> T) -> Option<T> {
    DRIVER.with(|cell| cell.try_borrow_mut().ok()?.as_deref_mut().map(f))
}

/// The values of a cancelled operation, to be dropped while the driver is not borrowed.
pub(super) type Remainder = (IoMemory, Wake, Option<Box<Target>>);

pub(crate) struct Driver {
    pub(super) ports: Ports,
    pub(super) slots: Slots,
    pub(super) files: FilesInUse,
    pub(super) waiting: VecDeque<Unsubmitted>,
    pub(super) asked: CancelledStreams,
    pub(super) answers: Answers,
    /// Operations that have a slot and no answer yet, including those that wait for room.
    pub(super) in_flight: usize,
    /// Whether an operation in flight is on a pipe or a socket, where it may wait for the submission of another
    /// operation, or for a message of another thread.
    pub(super) on_streams: bool,
    pub(super) spare_remotes: Vec<RemoteRequest>,
    pub(super) local_handlers: LocalHandlers,
    pub(super) counts: Metrics,
    /// Whether the thread is in its loop.
    pub(super) in_loop: bool,
    /// The number of operations when the thread entered its last loop.
    pub(super) ops_at_entry: u64,
    /// How many nested waits for its own operations the thread is in: see [`crate::driver::turn::thread_ring`].
    pub(super) guards: u32,
    pub(super) active_tasks: ActiveTasks,
    /// The number of operations when counters were last published.
    pub(super) published_ops: u64,
    /// The id of `shared`, kept here for quick access.
    pub(super) id: u64,
    pub(super) shared: Arc<Shared>,
}

impl Driver {
    pub(crate) fn new(options: RingOptions) -> Box<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // The first call on a thread arranges that the driver is dropped when the thread ends, if that is still
        // possible.
        if !is_ending() {
            thread_end::ask(drop_driver);
        }
        let shared = Arc::new(Shared::new(NEXT.fetch_add(1, Ordering::Relaxed)));
        shared::register(&shared);
        Box::new(Self {
            ports: Ports::new(options, Arc::clone(&shared)),
            slots: Slots::new(),
            files: FilesInUse::default(),
            waiting: VecDeque::new(),
            asked: CancelledStreams::default(),
            answers: Answers::default(),
            in_flight: 0,
            on_streams: false,
            spare_remotes: Vec::new(),
            local_handlers: LocalHandlers::default(),
            counts: Metrics::default(),
            in_loop: false,
            ops_at_entry: 0,
            guards: 0,
            active_tasks: ActiveTasks::default(),
            published_ops: 0,
            id: shared.id,
            shared,
        })
    }

    #[cfg(test)]
    pub(crate) fn ports(&mut self) -> &mut Ports {
        &mut self.ports
    }

    /// Returns whether an operation that is started here will be submitted and collected: by the thread's loop, or, if
    /// the thread itself waits for it (`own`), by the thread while it has a guard. Operations of a future that a waker
    /// polls meanwhile go to another thread, since the guard may be dropped at once.
    #[inline]
    pub(super) fn takes(&self, own: bool) -> bool {
        self.in_loop || own && self.guards > 0
    }

    /// Counts the polled task among those of this turn. Returns how many other tasks started such operations in the turn
    /// before.
    #[inline]
    pub(super) fn other_tasks(&mut self, polled: TaskNumber) -> Others {
        let ActiveTasks { last, tasks, before } = &mut self.active_tasks;
        if *last != Some(polled) {
            *last = Some(polled);
            *tasks += 1;
        }
        if !self.in_loop {
            Others::Some
        } else if *before >= MANY {
            Others::Many
        } else if *before <= 1 && *tasks == 1 && self.in_flight == 0 {
            Others::None
        } else {
            Others::Some
        }
    }

    /// Notes that an operation no longer uses its file. Returns the file if nothing else does: dropping it, while the driver
    /// is not borrowed, closes it.
    #[inline]
    pub(super) fn leave_file(&mut self, file: u32) -> Option<Box<Target>> {
        let unused = self.files.leave(file)?;
        self.give_up_file(unused)
    }

    #[inline(never)]
    fn give_up_file(&mut self, FileInUse { target, registered, .. }: FileInUse) -> Option<Box<Target>> {
        if let Some(kind) = registered {
            // Before the number can be another file's.
            self.ports.unregister(kind, target.number);
        }
        Arc::into_inner(target).map(Box::new)
    }

    /// Returns whether nothing is in flight, and no cancellation waits for room.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.waiting.is_empty()
    }

    /// Notes that an operation has ended.
    #[inline]
    pub(super) fn no_longer_in_flight(&mut self, key: Key) {
        self.in_flight -= 1;
        let kind = self.slots.at(key.slot()).ring;
        self.ports.count(kind, false);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.ports.is_some() && self.shared.is_inherited() {
            // A forked child ends: the operations and their memory belong to the parent.
            self.ports.disown();
            return;
        }
        // The kernel must have finished with all memory before it is freed, whatever a user's waker does.
        while panics::catch(|| self.drain()).is_err() {}
        self.shared.counters.publish(self.current_counts());
        self.shared.lock().closed = true;
        shared::retire(&self.shared);
    }
}

/// The time after which the kernel is asked again to cancel an operation that may wait forever. Before about
/// Linux 5.17 (and on Debian's 5.10) a cancellation has no effect if it reaches the kernel's thread just as that begins
/// the operation.
pub(super) const AGAIN: Duration = Duration::from_millis(100);

/// Operations that may wait forever, which the kernel was asked to cancel.
#[derive(Default)]
pub(super) struct CancelledStreams {
    pub(super) keys: Vec<Key>,
    /// When the kernel was last asked to cancel them.
    pub(super) last: Option<Instant>,
}

impl CancelledStreams {
    /// Returns the deadline of a wait, before which the kernel must be asked again.
    #[inline]
    pub(super) fn limit(&self, deadline: Option<Instant>) -> Option<Instant> {
        if self.keys.is_empty() {
            return deadline;
        }
        let again = self.last.map(|last| last + AGAIN);
        deadline.into_iter().chain(again).min()
    }
}

/// The answers to all reads in place of a thread. If user code makes a call within a turn of another call, the inner
/// call appends its answers, and removes them before the outer one continues.
#[derive(Default)]
pub(super) struct Answers {
    pub(super) list: Vec<Answer>,
    pub(super) calls: Vec<CallInPlace>,
    /// The reads that are timed, by the index of their answer, with the number of their file. Grows when first needed.
    pub(super) timed: Vec<Option<(Timed, u32, Request)>>,
}

impl Answers {
    /// Notes when a read began, if it is timed.
    #[cold]
    pub(super) fn begin(&mut self, at: usize, target: &Target, in_flight: u32, read: Request) {
        let Some(timed) = target.begin_timed(&read, in_flight) else { return };
        if self.timed.len() <= at {
            self.timed.resize_with(self.list.len(), || None);
        }
        self.timed[at] = Some((timed, target.number, read));
        self.list[at].number = Answer::TIMED;
    }
}

pub(super) struct CallInPlace {
    /// The index of its first answer.
    pub(super) first: usize,
    /// The number of its reads that the kernel has not answered.
    pub(super) open: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) number: i32,
    pub(super) is_fixed: bool,
}

impl Answer {
    pub(super) const NOT_BEGUN: Self = Self { number: i32::MIN, is_fixed: false };
    pub(super) const IN_FLIGHT: i32 = i32::MIN + 1;
    /// In flight, and timed.
    pub(super) const TIMED: i32 = i32::MIN + 2;
}
