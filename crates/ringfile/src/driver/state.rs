//! The state of one thread's driver, and the only way to it.
//!
//! Invariant: it is borrowed by [`with`] alone, and no user code runs meanwhile.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::files::{ClosedFile, FilesInUse};
use super::kept::Kept;
use super::key::Key;
use super::local::LocalHandlers;
use super::op::{Ended, Request};
use super::ports::Ports;
use super::shared::{self, RemoteRequest, Shared};
use super::slot::{Owner, Slots, State};
use super::target::Target;
use super::timing::Timed;
use super::wake::{TaskNumber, Wake};
use crate::memory::Held;
use crate::metrics::Metrics;
use crate::ring::{RingOptions, thread_end};
use ringfile_buffer::internal::panics;

/// The result of polling an operation.
pub(super) enum Polled {
    Over(Ended),
    /// The task will be woken when the operation has ended.
    Pending,
    /// The waker must be cloned, which may run user code, so it is not done while the driver is borrowed.
    NeedsWaker,
    /// This is a forked child, and the operation belongs to its parent: the caller must disown it.
    Inherited,
}

/// What waits for room in the submission queue, or for the next turn.
#[derive(Clone, Copy)]
pub(super) enum Waiting {
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

thread_local! {
    /// Never destroyed, so that it can be used by the destructors of other locals, and of pthread keys.
    pub(super) static DRIVER: ManuallyDrop<RefCell<Option<Box<Driver>>>> =
        const { ManuallyDrop::new(RefCell::new(None)) };
    /// Drops the driver when the thread ends.
    static AT_THE_END: AtTheEnd = const { AtTheEnd };
}

pub(super) struct AtTheEnd;

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
pub(super) fn with<T>(f: impl FnOnce(&mut Driver) -> T) -> Option<T> {
    DRIVER.with(|cell| cell.try_borrow_mut().ok()?.as_deref_mut().map(f))
}

/// The values of a cancelled operation, to be dropped while the driver is not borrowed.
pub(super) type Rest = (Held, Wake, Option<ClosedFile>);

pub(super) struct Driver {
    pub(super) ports: Ports,
    pub(super) slots: Slots,
    pub(super) files: FilesInUse,
    pub(super) waiting: VecDeque<Waiting>,
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
    /// How many nested waits for its own operations the thread is in: see [`super::thread_ring`].
    pub(super) guards: u32,
    pub(super) active_tasks: ActiveTasks,
    /// The number of operations when counters were last published.
    pub(super) published_ops: u64,
    /// The id of `shared`, kept here for quick access.
    pub(super) id: u64,
    pub(super) shared: Arc<Shared>,
}

impl Driver {
    pub(super) fn new(options: RingOptions) -> Box<Self> {
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

    /// Returns whether an operation that is started here will be submitted and collected: by the thread's loop, or, if
    /// the thread itself waits for it (`own`), by the thread while it has a guard. Operations of a future that a waker
    /// polls meanwhile go to another thread, since the guard may be dropped at once.
    #[inline]
    pub(super) fn takes(&self, own: bool) -> bool {
        self.in_loop || own && self.guards > 0
    }

    /// Takes the result if there is one; otherwise ensures that `waker`'s task is woken. `wake` holds a clone of
    /// `waker` if an earlier call asked for it; after the call it holds the previous value.
    #[inline]
    pub(super) fn poll(
        &mut self,
        key: Key,
        waker: &Waker,
        held: &mut Kept,
        wake: &mut Wake,
    ) -> Option<Polled> {
        let slot = self.slots.get(key)?;
        if slot.marks.owner() == Owner::Afar {
            return None;
        }
        if slot.state == State::Done {
            held.put_from(&mut slot.held);
            return Some(Polled::Over(self.slots.free(key.slot())));
        }
        if self.shared.is_inherited() {
            return Some(Polled::Inherited);
        }
        if slot.wake.wakes(waker) {
            return Some(Polled::Pending);
        }
        if matches!(wake, Wake::Nobody) {
            return Some(Polled::NeedsWaker);
        }
        std::mem::swap(&mut slot.wake, wake);
        Some(Polled::Pending)
    }

    /// Notes that an operation no longer uses its file; a file closed meanwhile is released.
    #[inline]
    pub(super) fn leave_file(&mut self, file: u32) -> Option<ClosedFile> {
        let closed = self.files.leave(file)?;
        self.unregister(&closed);
        Some(closed)
    }

    /// Releases a file whose last handle was dropped, unless an operation still uses it.
    pub(super) fn close_file(&mut self, file: u32) -> Option<ClosedFile> {
        let closed = self.files.close(file)?;
        self.unregister(&closed);
        Some(closed)
    }

    #[cold]
    pub(super) fn unregister(&mut self, closed: &ClosedFile) {
        if let Some(mut users) = closed.target.lock_users() {
            users.retain(|&user| user != self.id);
        }
        if let Some(number) = closed.registered {
            self.ports.unregister(closed.target.ring, number);
        }
    }

    /// Returns whether nothing is in flight, and no cancellation waits for room.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
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
