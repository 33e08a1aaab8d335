//! One driver per thread: operations in flight, their buffers, retries, cancellation.
//!
//! Knows files as [`Target`]s and buffers as [`Held`]; knows nothing of futures' types, nor of tasks. What always
//! holds:
//!
//! - a slot owns its buffer from [`start`] until the completion was seen, whoever was dropped meanwhile;
//! - each operation gets its own result, with its errno and how many bytes were done; a completion that matches no
//!   operation is counted and never used;
//! - wakers are called, and buffers of others dropped, only while the driver is not borrowed: both may come back here;
//! - when the thread leaves its loop ([`leave`]) nothing is in flight.

mod aio;
mod cancel;
mod commands;
mod complete;
mod copy_time;
mod deferred;
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
mod sync;
mod target;
#[cfg(test)]
mod tests;
mod thread_ring;
mod ticket;
mod wake;
mod workers;

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Instant;

use crate::error::Error;
use crate::memory::Held;
use crate::metrics::{CacheEvent, Counters, Metrics};
use crate::ring::{Ring, RingOptions, thread_end};

pub(crate) use cancel::{cancel, cancel_all};
pub(crate) use deferred::Deferred;
pub(crate) use iothreads::set_wanted as set_io_threads;
pub(crate) use iothreads::{call as call_on, choose as choose_io_thread, is_this_one as is_io_thread};
pub(crate) use kept::{Kept, Lend};
pub(crate) use leave::leave;
pub(crate) use namespace::{Access, Namespace, Status, errno_of, look as look_for_namespace};
pub(crate) use op::cached_pages;
pub(crate) use op::command::DISCARD;
pub(crate) use op::{Ended, Kind, MOST_AT_ONCE, RWF_ATOMIC, Request};
pub(crate) use refused::{aio_is_for_direct_io, why_refused};
pub(crate) use remote::{Handler, RemoteOperation, RemoteRequest};
pub(crate) use route::{FileSystem, Lanes, default_route};
pub use route::{Route, set_default_route};
pub(crate) use shared::{Call, Shared};
pub(crate) use slot::Key;
pub(crate) use start::{
    HandlerOf, LocalHandler, Place, Started, SubmitHint, add_local, can_link, remove_local, start,
};
pub use target::AtomicLimits;
pub(crate) use target::{FileKind, Multiples, Target};
pub(crate) use thread_ring::{CompletionSignals, ThreadRing, completion_signals};
pub(crate) use ticket::{Ticket, disown};
pub(crate) use wake::{TaskNumber, polled, polling};
pub(crate) use workers::{set_most as set_worker_threads, withdraw};

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

/// What the poll of an operation found.
enum Polled {
    Over(Ended),
    /// The task is woken when it is over.
    Pending,
    /// The waker is to be cloned, which is not done while the driver is borrowed: it may run anybody's code.
    NeedsWaker,
    /// This is a forked child, and the operation its parent's: it is to be disowned.
    Inherited,
}

/// What waits for room in the submission queue.
enum Waiting {
    Operation(Key),
    Cancellation(Key),
}

/// See the module.
struct Driver {
    /// Rings come with the first operation.
    rings: Option<Rings>,
    failed: Option<(Instant, i32)>,
    /// What stands in for them where none can be had.
    context: aio::Context,
    /// Since when the kernel takes no operations for want of something.
    refused_since: Option<Instant>,
    slots: Slots,
    files: Files,
    waiting: VecDeque<Waiting>,
    /// Operations that have a slot and no answer yet, those that wait for room included.
    in_flight: usize,
    /// Some of what is in flight is on a pipe or a socket, where the end of one operation may wait for the next submission of
    /// another, or for another thread's word.
    on_streams: bool,
    spare_remotes: Vec<RemoteRequest>,
    local_handlers: LocalHandlers,
    counts: Metrics,
    /// Whether the thread is in its loop.
    in_loop: bool,
    /// How many times, one inside the other, the thread waits for operations of its own: see [`thread_ring`].
    guards: u32,
    active_tasks: ActiveTasks,
    /// How many operations there were when counts were published last.
    published_ops: u64,
    options: RingOptions,
    /// That of `shared`.
    id: u64,
    shared: Arc<Shared>,
}

/// How many tasks of a loop start operations that the ring may do cheaper together.
#[derive(Default)]
struct ActiveTasks {
    last: Option<TaskNumber>,
    /// Since the last turn, and between the two before.
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

fn drop_driver() {
    drop(take_driver());
}

/// Whether the thread ends, and has dropped its driver: who makes another gives it up when done, see [`leave`]. Where not,
/// the driver is dropped when the thread ends.
fn is_ending() -> bool {
    AT_THE_END.try_with(|_| ()).is_err()
}

/// To be dropped while the cell is not borrowed: what is in flight ends in callbacks, which may come back here.
fn take_driver() -> Option<Box<Driver>> {
    DRIVER.with(|cell| cell.try_borrow_mut().ok()?.take())
}

/// Runs `f` on this thread's driver; `None` where there is none, or where it is borrowed further up the stack.
#[inline]
fn with<T>(f: impl FnOnce(&mut Driver) -> T) -> Option<T> {
    DRIVER.with(|cell| cell.try_borrow_mut().ok()?.as_deref_mut().map(f))
}

fn send_to_workers(remote: RemoteRequest) {
    if let Err(remote) = workers::send(remote) {
        remote.refuse(libc::EOPNOTSUPP);
    }
}

/// Has a remote request carried out by another thread: on a ring where there is one. Gives the I/O thread that has it.
fn send(mut remote: RemoteRequest, choice: route::Choice) -> Option<Arc<Shared>> {
    // A queue's operations go on without the loop, as they do on its ring.
    let outlives_loops = remote.handler.as_ref().is_some_and(|handler| handler.outlives_loops());
    remote.hold = if outlives_loops { None } else { owner().map(Hold::on) };
    let sent = match choice {
        route::Choice::Ring => iothreads::send(remote),
        _ => Err(remote),
    };
    sent.map_err(send_to_workers).ok()
}

/// The calling thread, where it is in its loop.
fn owner() -> Option<Arc<Shared>> {
    with(|driver| driver.in_loop.then(|| Arc::clone(&driver.shared))).flatten()
}

/// Counts an operation that this thread carried out by itself.
fn count(taken: route::Taken, request: &Request, ended: Ended) {
    add_to_counts(|counts| {
        counts.ops += 1;
        counts.failed += u64::from(ended.errno != 0);
        match taken {
            route::Taken::Inline => counts.inline_ops += 1,
            route::Taken::Workers => counts.worker_ops += 1,
        }
        if request.kind.is_read() {
            counts.bytes_read += ended.done as u64;
        } else if request.kind.is_write() {
            counts.bytes_written += ended.done as u64;
        }
    });
}

/// Counts a remote request that was dropped before this thread began it.
fn count_cancelled() {
    add_to_counts(|counts| counts.cancelled += 1);
}

/// Makes this thread's counts everybody's now: a loop does so with each turn only, and what its plain calls gave may be in
/// other hands before.
pub(crate) fn publish_counts() {
    DRIVER.with(|cell| {
        if let Ok(Some(driver)) = cell.try_borrow().as_deref().map(Option::as_deref) {
            driver.shared.counters.publish(&driver.current_counts());
        }
    });
}

#[inline]
fn add_to_counts(add: impl FnOnce(&mut Metrics)) {
    let late = DRIVER.with(|cell| {
        let mut driver = cell.try_borrow_mut().ok()?;
        let is_late = driver.is_none() && is_ending();
        let own = driver.get_or_insert_with(|| Driver::new(RingOptions::default()));
        add(&mut own.counts);
        if !own.in_loop && own.guards == 0 {
            own.shared.counters.publish(&own.current_counts());
        }
        if is_late { driver.take() } else { None }
    });
    drop(late);
}

/// Counts what became of reads of adaptive files, on this thread.
pub(crate) fn count_cache(event: CacheEvent, more: u64) {
    // Gives the thread a driver where it has none.
    add_to_counts(|_| {});
    with(|driver| driver.shared.counters.count_cache(event, more));
}

/// What a cancelled operation leaves to drop while the driver is not borrowed.
type Rest = (Held, Wake, Option<ClosedFile>);

impl Driver {
    fn new(options: RingOptions) -> Box<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        crate::ring::fork::hold_over_forks(hold_locks);
        // The first call for a thread sees to it that the driver is dropped when it ends, if it still will.
        if !is_ending() {
            thread_end::ask(drop_driver);
        }
        let shared = Arc::new(Shared::new(NEXT.fetch_add(1, Ordering::Relaxed)));
        shared::register(&shared);
        Box::new(Self {
            rings: None,
            failed: None,
            context: aio::Context::default(),
            refused_since: None,
            slots: Slots::new(),
            files: Files::default(),
            waiting: VecDeque::new(),
            in_flight: 0,
            on_streams: false,
            spare_remotes: Vec::new(),
            local_handlers: LocalHandlers::default(),
            counts: Metrics::default(),
            in_loop: false,
            guards: 0,
            active_tasks: ActiveTasks::default(),
            published_ops: 0,
            options,
            id: shared.id,
            shared,
        })
    }

    /// Begins the loop of the thread.
    fn activate(&mut self) {
        self.in_loop = true;
        self.shared.lock().in_loop = true;
    }

    /// Whether an operation can be started here that somebody will submit and collect: the thread's loop, or, for an
    /// operation that the thread itself waits for (`own`), the thread while it has a guard. A future that a waker polls
    /// meanwhile is another matter: the guard may be dropped at once, so its operations go to another thread.
    #[inline]
    fn takes(&self, own: bool) -> bool {
        self.in_loop || own && self.guards > 0
    }

    /// Takes the result if it is there; else makes sure that `waker`'s task is woken. `wake` is made of `waker` if an
    /// earlier call said that it is needed, and is what was there before after the call.
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

    /// Frees the slot of an operation that is done, or never began.
    #[inline]
    fn take_finished(&mut self, index: u32) -> Finished {
        let (held, ended) = self.slots.take(index);
        Finished { held, ended }
    }

    /// Notes that an operation is not using its file any more; a file closed meanwhile is given up.
    #[inline]
    fn leave_file(&mut self, file: u32) -> Option<ClosedFile> {
        let closed = self.files.leave(file)?;
        self.unregister(&closed);
        Some(closed)
    }

    #[cold]
    fn unregister(&mut self, closed: &ClosedFile) {
        closed.forget_user(self.id);
        // A forked child's file slots are those of the parent's ring.
        if let Some(rings) = self.rings.as_mut().filter(|rings| rings.are_ours())
            && let Some(slot) = closed.registered
            && let Some(ring) = rings.get(closed.target.ring)
        {
            ring.set_file(slot, None);
        }
    }

    /// Whether nothing is in flight, and no cancellation waits for room.
    #[inline]
    fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.waiting.is_empty()
    }

    /// Notes that an operation is over.
    #[inline]
    fn no_longer_in_flight(&mut self, key: Key) {
        self.in_flight -= 1;
        let kind = self.slots.at(key.slot()).ring;
        if kind != RingKind::Main
            && let Some(rings) = self.rings.as_mut()
        {
            rings.count_off_beside(kind);
        }
    }
}

/// Begins the loop of this thread. `options` count where the thread has no ring yet.
pub(crate) fn enter(options: RingOptions) -> Arc<Shared> {
    let shared = own_shared(options);
    with(Driver::activate);
    shared
}

/// The calling thread, which gets a driver where it has none. One that ends gets it until it [leaves](leave).
fn own_shared(options: RingOptions) -> Arc<Shared> {
    DRIVER.with(|cell| {
        let mut driver = cell.borrow_mut();
        Arc::clone(&driver.get_or_insert_with(|| Driver::new(options)).shared)
    })
}

/// Hands over what was started and collects what has completed; with `may_sleep`, sleeps until there is something,
/// or the thread is notified. Wakes tasks.
pub(crate) fn turn(may_sleep: bool, deferred: &mut Deferred) {
    turn_with(may_sleep, None, 1, deferred);
}

/// A turn that may sleep, until the deadline at most, or until there are so many completions.
fn turn_until(deadline: Option<Instant>, wanted: u32, deferred: &mut Deferred) {
    turn_with(true, deadline, wanted, deferred);
}

#[inline]
fn turn_with(may_sleep: bool, deadline: Option<Instant>, wanted: u32, deferred: &mut Deferred) {
    let need_not_park = with(|driver| {
        driver.turn(may_sleep, deadline, wanted, deferred);
        driver.can_sleep_in_ring() || deferred.may_wake_someone()
    });
    deferred.settle();
    if may_sleep
        && need_not_park == Some(false)
        && let Some(shared) = with(|driver| Arc::clone(&driver.shared))
    {
        shared.park(deadline);
    }
}

/// The last handle of a file is gone: gets every driver that uses it to give it up.
pub(crate) fn close(target: &Arc<Target>) {
    target.is_to_close();
    for user in target.users() {
        let own = with(|driver| {
            (driver.id == user).then(|| {
                let closed = driver.files.close(target.number);
                if let Some(closed) = &closed {
                    driver.unregister(closed);
                }
                closed
            })
        });
        if own.flatten().is_none()
            && let Some(shared) = shared::find(user)
            // A forked child has not the thread, which may hold its lock.
            && !shared.is_inherited()
        {
            shared.post(Mail::Close(target.number));
        }
    }
}

/// The locks of the whole process, for [`crate::ring::fork`]. A driver that retires may drop files, so theirs comes after.
/// What is made once, by whoever comes first, is made before: a child would wait for ever for the thread that was at it.
fn hold_locks() -> Box<dyn Any> {
    route::prepare_clock();
    let (workers, making) = (workers::hold(), iothreads::hold());
    let (all, drivers) = shared::hold(with(|driver| driver.id).unwrap_or_default());
    Box::new((workers, making, drivers, all, target::numbers(), crate::ring::registry::holder()))
}

/// Looks at the counts of every thread, then does `last`; no thread's counts are retired meanwhile.
pub(crate) fn for_each_driver(look: &mut dyn FnMut(&Counters), last: impl FnOnce()) {
    shared::for_each(&mut |shared| look(&shared.counters), last);
}

/// The counts of this thread.
pub(crate) fn thread_counts() -> Metrics {
    with(|driver| driver.shared.counters.with_counts_in_place(driver.current_counts())).unwrap_or_default()
}

/// What this thread's ring was made with; makes one to look at where it has none.
pub(crate) fn features() -> Result<Vec<String>, Error> {
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
            // A forked child ends: the operations and their memory are the parent's.
            std::mem::forget(std::mem::take(&mut self.rings));
            std::mem::forget(std::mem::take(&mut self.context));
            return;
        }
        self.drain();
        self.shared.counters.publish(&self.current_counts());
        self.shared.lock().closed = true;
        shared::retire(&self.shared);
    }
}
