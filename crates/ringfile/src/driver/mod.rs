//! One driver per thread: operations in flight, their buffers, retries, cancellation.
//!
//! Knows files as [`Target`]s and buffers as [`Held`]; knows nothing of futures' types, nor of tasks. Invariants:
//!
//! - a slot owns its buffer from [`start`] until the completion was seen, whatever was dropped meanwhile;
//! - each operation gets its own result, with its errno and how many bytes were done; a completion that matches no
//!   operation is counted and never used;
//! - wakers are called, and users' buffers dropped, only while the driver is not borrowed: both may call the driver;
//! - when the thread leaves its loop ([`leave`]) nothing is in flight.

mod aio;
mod alone;
mod cancel;
mod commands;
mod complete;
mod copy_time;
mod deferred;
pub(crate) mod filler;
mod in_place;
mod iothreads;
mod kept;
mod leave;
mod mail;
mod namespace;
mod op;
mod refused;
mod remote;
mod rings;
mod route;
mod shared;
mod sleep;
mod slot;
mod start;
mod submit;
mod switches;
mod sync;
mod target;
#[cfg(test)]
mod tests;
mod thread_ring;
mod ticket;
pub(crate) mod timer;
mod wake;
mod workers;

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Instant;

use crate::error::Error;
use crate::event;
use crate::memory::Held;
use crate::metrics::{CacheEvent, Metrics};
use crate::panics;
use crate::ring::{Ring, RingOptions, fork, thread_end};

pub(crate) use alone::call_alone;
pub(crate) use cancel::{cancel, cancel_on_rings};
pub(crate) use deferred::Deferred;
pub(crate) use in_place::{InPlace, Place as PlaceOfRead, Targets, read as read_in_place};
pub use iothreads::set_io_threads;
pub(crate) use iothreads::{call as call_on, choose as choose_io_thread, is_this_one as is_io_thread};
pub(crate) use kept::{Kept, Lend};
pub(crate) use leave::leave;
pub(crate) use namespace::{Access, Namespace, Status, errno_of, look as look_for_namespace};
pub(crate) use op::cached_pages;
pub(crate) use op::command::DISCARD;
pub(crate) use op::{Ended, Kind, MOST_AT_ONCE, RWF_ATOMIC, Request};
pub(crate) use refused::{TOO_MANY_FILES, aio_is_for_direct_io, why_refused};
pub(crate) use remote::{Handler, RemoteOperation, RemoteRequest};
pub(crate) use route::{FileSystem, Lanes, default_route};
pub use route::{Route, set_default_route};
pub(crate) use shared::{Call, Shared, for_each_driver};
pub(crate) use slot::Key;
pub(crate) use start::{
    HandlerOf, LocalHandler, Place, Started, SubmitHint, add_local, remove_local, start, start_linked,
};
pub use target::{Alignment, AtomicLimits};
pub(crate) use target::{FileKind, Target};
pub(crate) use thread_ring::{CompletionSignals, RingGuard, ThreadRing, completion_signals};
pub(crate) use ticket::{Ticket, disown};
pub(crate) use wake::{TaskNumber, is_main_polled, polled, polling};
pub use workers::set_worker_threads;
pub(crate) use workers::withdraw;

use refused::{set_up_errno, set_up_failed};
use remote::Hold;
pub(crate) use rings::RingKind;
use rings::Rings;
use shared::Mail;
use slot::{Owner, Slots, State};
use start::LocalHandlers;
use target::{ClosedFile, Files};
use wake::Wake;

/// How an operation ended, and its buffer.
pub(crate) struct Finished {
    pub held: Held,
    pub ended: Ended,
}

impl Finished {
    pub(crate) const NOTHING: Self = Self { held: Held::None, ended: Ended { done: 0, errno: 0 } };
}

/// The result of polling an operation.
enum Polled {
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
enum Waiting {
    Operation(Key),
    Cancellation(Key),
}

struct Driver {
    /// Rings are created with the first operation.
    rings: Option<Rings>,
    failed: Option<(Instant, i32)>,
    /// What completions of the main ring signal, if a descriptor was asked for before there was a ring.
    signal: Option<Arc<OwnedFd>>,
    /// The wake-up descriptor, if it was created.
    wakeup: Option<Arc<OwnedFd>>,
    /// The AIO context, used if there are no rings.
    context: aio::Context,
    /// The kernel refuses operations for lack of a resource.
    refusals: Option<submit::Refusals>,
    /// Whether the thread has nothing else to do in this turn, and may pause before it asks again.
    may_pause: bool,
    slots: Slots,
    files: Files,
    waiting: VecDeque<Waiting>,
    asked: cancel::Asked,
    answers: in_place::Answers,
    /// Operations that have a slot and no answer yet, including those that wait for room.
    in_flight: usize,
    /// Whether an operation in flight is on a pipe or a socket, where it may wait for the submission of another
    /// operation, or for a message of another thread.
    on_streams: bool,
    spare_remotes: Vec<RemoteRequest>,
    local_handlers: LocalHandlers,
    counts: Metrics,
    /// Whether the thread is in its loop.
    in_loop: bool,
    /// The number of operations when the thread entered its last loop.
    ops_at_entry: u64,
    /// How many nested waits for its own operations the thread is in: see [`thread_ring`].
    guards: u32,
    active_tasks: ActiveTasks,
    /// The number of operations when counters were last published.
    published_ops: u64,
    options: RingOptions,
    /// The id of `shared`, kept here for quick access.
    id: u64,
    shared: Arc<Shared>,
}

/// The number of tasks of the loop that start operations which are cheaper together on the ring.
#[derive(Default)]
struct ActiveTasks {
    last: Option<TaskNumber>,
    /// The number since the last turn, and the number in the turn before.
    tasks: usize,
    before: usize,
}

thread_local! {
    /// Never destroyed, so that it can be used by the destructors of other locals, and of pthread keys.
    static DRIVER: ManuallyDrop<RefCell<Option<Box<Driver>>>> =
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
fn drop_driver() {
    let _delayed = thread_end::Delayed::new();
    let taken = DRIVER.with(|cell| cell.try_borrow_mut().ok()?.take());
    drop(taken);
}

/// Returns whether the thread is ending and has dropped its driver: code that creates another one releases it when
/// done, see [`leave`]. Otherwise the driver is dropped when the thread ends.
fn is_ending() -> bool {
    AT_THE_END.try_with(|_| ()).is_err()
}

/// Runs `f` on this thread's driver; `None` if there is none, or if it is borrowed further up the stack.
#[inline]
fn with<T>(f: impl FnOnce(&mut Driver) -> T) -> Option<T> {
    DRIVER.with(|cell| cell.try_borrow_mut().ok()?.as_deref_mut().map(f))
}

/// Gives a remote request to another thread: to an I/O thread if there is one with a ring. Returns that I/O thread.
fn send(mut remote: RemoteRequest, choice: route::Choice) -> Option<Arc<Shared>> {
    // A queue's operations continue without the loop, as they do on its ring.
    let outlives_loops = remote.handler.as_ref().is_some_and(|handler| handler.outlives_loops());
    if !outlives_loops {
        let owner = with(|driver| driver.in_loop.then(|| Arc::clone(&driver.shared)));
        remote.hold = owner.flatten().map(Hold::on);
    }
    let sent = match choice {
        route::Choice::Ring => iothreads::send(remote),
        _ => Err(remote),
    };
    sent.map_err(workers::send).ok()
}

/// Counts an operation that has ended.
#[inline(always)]
fn count_end(counts: &mut Metrics, kind: Kind, ended: Ended) {
    counts.ops += 1;
    counts.failed += u64::from(ended.errno != 0);
    if kind.is_read() {
        counts.bytes_read += ended.done as u64;
    } else if kind.is_write() {
        counts.bytes_written += ended.done as u64;
    }
}

/// Counts an operation that this thread carried out with a plain call, also in the count of its route.
fn count(of_route: impl FnOnce(&mut Metrics) -> &mut u64, request: &Request, ended: Ended) {
    add_to_counts(|counts| {
        count_end(counts, request.kind, ended);
        *of_route(counts) += 1;
    });
}

/// Publishes this thread's counters now. A loop does so only with each turn, but other threads may see the results of
/// its plain calls before.
pub(crate) fn publish_counts() {
    with(|driver| driver.shared.counters.publish(driver.current_counts()));
}

#[inline]
fn add_to_counts(add: impl FnOnce(&mut Metrics)) {
    let late = DRIVER.with(|cell| {
        let mut driver = cell.try_borrow_mut().ok()?;
        let is_late = driver.is_none() && is_ending();
        let own = driver.get_or_insert_with(|| Driver::new(RingOptions::default()));
        add(&mut own.counts);
        if !own.in_loop && own.guards == 0 {
            own.shared.counters.publish(own.current_counts());
        }
        if is_late { driver.take() } else { None }
    });
    drop(late);
}

/// Counts hits, misses and read-ahead of adaptive files, on this thread.
pub(crate) fn count_cache(event: CacheEvent, more: u64) {
    // This creates the thread's driver if it has none.
    add_to_counts(|_| {});
    with(|driver| driver.shared.counters.count_cache(event, more));
}

/// The values of a cancelled operation, to be dropped while the driver is not borrowed.
type Rest = (Held, Wake, Option<ClosedFile>);

impl Driver {
    fn new(options: RingOptions) -> Box<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        fork::hold_over_forks(&fork::DRIVER, hold_locks);
        // The first call on a thread arranges that the driver is dropped when the thread ends, if that is still
        // possible.
        if !is_ending() {
            thread_end::ask(drop_driver);
        }
        let shared = Arc::new(Shared::new(NEXT.fetch_add(1, Ordering::Relaxed)));
        shared::register(&shared);
        Box::new(Self {
            rings: None,
            failed: None,
            signal: None,
            wakeup: None,
            context: aio::Context::default(),
            refusals: None,
            may_pause: false,
            slots: Slots::new(),
            files: Files::default(),
            waiting: VecDeque::new(),
            asked: cancel::Asked::default(),
            answers: in_place::Answers::default(),
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
            options,
            id: shared.id,
            shared,
        })
    }

    /// Returns whether an operation that is started here will be submitted and collected: by the thread's loop, or, if
    /// the thread itself waits for it (`own`), by the thread while it has a guard. Operations of a future that a waker
    /// polls meanwhile go to another thread, since the guard may be dropped at once.
    #[inline]
    fn takes(&self, own: bool) -> bool {
        self.in_loop || own && self.guards > 0
    }

    /// Takes the result if there is one; otherwise ensures that `waker`'s task is woken. `wake` holds a clone of
    /// `waker` if an earlier call asked for it; after the call it holds the previous value.
    #[inline]
    fn poll(&mut self, key: Key, waker: &Waker, held: &mut Kept, wake: &mut Wake) -> Option<Polled> {
        let slot = self.slots.get(key)?;
        if slot.owner == Owner::Afar {
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
    fn leave_file(&mut self, file: u32) -> Option<ClosedFile> {
        let closed = self.files.leave(file)?;
        self.unregister(&closed);
        Some(closed)
    }

    /// Releases a file whose last handle was dropped, unless an operation still uses it.
    fn close_file(&mut self, file: u32) -> Option<ClosedFile> {
        let closed = self.files.close(file)?;
        self.unregister(&closed);
        Some(closed)
    }

    #[cold]
    fn unregister(&mut self, closed: &ClosedFile) {
        if let Some(mut users) = closed.target.lock_users() {
            users.retain(|&user| user != self.id);
        }
        // A forked child's registered files belong to the parent's ring.
        if let Some(rings) = self.rings.as_mut().filter(|rings| rings.are_ours())
            && let Some(slot) = closed.registered
            && let Some(ring) = rings.get(closed.target.ring)
        {
            ring.set_file(slot, None);
        }
    }

    /// Returns whether nothing is in flight, and no cancellation waits for room.
    #[inline]
    fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.waiting.is_empty()
    }

    /// Notes that an operation has ended.
    #[inline]
    fn no_longer_in_flight(&mut self, key: Key) {
        self.in_flight -= 1;
        let kind = self.slots.at(key.slot()).ring;
        if kind != RingKind::Main
            && let Some(rings) = self.rings.as_mut()
        {
            rings.in_flight(kind).into_iter().for_each(|count| *count -= 1);
        }
    }
}

/// Begins the loop of this thread. `options` apply only if the thread has no ring yet.
pub(crate) fn enter(options: RingOptions) -> Arc<Shared> {
    let shared = own_shared(options);
    with(|driver| {
        driver.in_loop = true;
        driver.ops_at_entry = driver.counts.ops;
        driver.shared.lock().in_loop = true;
    });
    shared
}

/// Returns the calling thread, after creating its driver if needed. A thread that is ending has it until it
/// [leaves](leave).
fn own_shared(options: RingOptions) -> Arc<Shared> {
    DRIVER.with(|cell| {
        let mut driver = cell.borrow_mut();
        Arc::clone(&driver.get_or_insert_with(|| Driver::new(options)).shared)
    })
}

/// Submits started operations and collects completions; with `may_sleep`, sleeps until there is one, or the thread is
/// notified. Wakes tasks.
pub(crate) fn turn(may_sleep: bool, deferred: &mut Deferred) {
    turn_with(may_sleep, None, 1, deferred);
}

/// As [`turn`], sleeping at most until the deadline, and until there are `wanted` completions.
#[inline]
fn turn_with(may_sleep: bool, deadline: Option<Instant>, wanted: u32, deferred: &mut Deferred) {
    let need_not_park = with(|driver| {
        driver.turn(may_sleep, deadline, wanted, deferred);
        // A subscriber may wake a task of this thread, which is not notified.
        driver.can_sleep_in_ring() || deferred.may_wake_someone() || event::are_deferred()
    });
    deferred.settle();
    if may_sleep
        && need_not_park == Some(false)
        && let Some(shared) = with(|driver| Arc::clone(&driver.shared))
    {
        shared.park(deadline);
    }
}

/// Makes every driver that uses a file release it, after its last handle was dropped.
pub(crate) fn close(target: &Arc<Target>) {
    target.is_to_close();
    for user in target.users() {
        let own = with(|driver| (driver.id == user).then(|| driver.close_file(target.number)));
        if own.flatten().is_none()
            && let Some(shared) = shared::find(user)
            // A forked child does not have the thread, which may hold its lock.
            && !shared.is_inherited()
        {
            shared.post(Mail::Close(target.number));
        }
    }
}

/// Takes the locks of the whole process, for [`crate::ring::fork`]. A driver that retires may drop files, so the files'
/// lock comes last. One-time initialisations are completed before a fork: a child would wait forever for the thread
/// that had begun one.
fn hold_locks() -> Box<dyn Any> {
    let (workers, making) = (workers::hold(), iothreads::hold());
    let (timers, filler) = (timer::hold(), filler::hold());
    let (all, drivers) = shared::hold(with(|driver| driver.id).unwrap_or_default());
    Box::new((
        workers,
        making,
        timers,
        filler,
        drivers,
        all,
        target::numbers(),
        crate::ring::registry::holder(),
    ))
}

/// Returns the counters of the calling thread, exact at this moment; all 0 if it did no I/O yet.
#[must_use]
pub fn thread_metrics() -> Metrics {
    with(|driver| driver.shared.counters.with_counts_in_place(driver.current_counts())).unwrap_or_default()
}

/// Returns what a ring of this process can do: set-up flags, kinds of registration, number of entries.
///
/// Describes the calling thread's ring, or a temporary one if the thread has none.
///
/// # Errors
/// If no ring can be created; the error says why.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// println!("{}", ringfile::ring_features()?.join(" "));
/// # Ok(())
/// # }
/// ```
pub fn ring_features() -> Result<Vec<String>, Error> {
    if let Some(Some(features)) = with(|driver| driver.rings.as_ref().map(|rings| rings.main.features())) {
        return Ok(features);
    }
    let ring = Ring::new(&RingOptions::default(), Waker::noop().clone())
        .map_err(|error| set_up_failed(set_up_errno(&error)))?;
    Ok(ring.features())
}

impl Drop for Driver {
    fn drop(&mut self) {
        let has_rings = self.rings.is_some() || self.context.aio.is_some();
        if has_rings && self.shared.is_inherited() {
            // A forked child ends: the operations and their memory belong to the parent.
            std::mem::forget(std::mem::take(&mut self.rings));
            std::mem::forget(std::mem::take(&mut self.context));
            return;
        }
        // The kernel must have finished with all memory before it is freed, whatever a user's waker does.
        while panics::catch(|| self.drain()).is_err() {}
        self.shared.counters.publish(self.current_counts());
        self.shared.lock().closed = true;
        shared::retire(&self.shared);
    }
}
