//! The one place that decides how an operation starts, and starts it: for futures, batches, queues and forked children.
//! Only reads in place start elsewhere ([`super::in_place`]), by the same rule ([`is_for_ring`]).
//!
//! Invariants: an operation that was started has either ended, or ends exactly once at its receiver; its buffer was
//! taken, unless it has ended at once or must be started again later. Called with no driver borrowed and no lock held,
//! since an operation may end, and wake a task, before its start returns.

use std::cell::Cell;
use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant};

use super::counts::count;
use super::kept::{Kept, Lend};
use super::key::{LocalHandler, Place, Started, SubmitHint};
use super::local::Numbered;
use super::op::plain::{self, Attempt};
use super::op::{Ended, Kind, Request};
use super::ports::PortKind;
use super::refused::{self, Refused};
use super::remote_operation::RemoteOperation;
use super::result::Handler;
use super::route::{Choice, Lanes, Limits, Route};
use super::shared::{RemoteRequest, Shared};
use super::state::with;
use super::target::Target;
use super::wake::{self, LocalOperation, Wake};
use super::{iothreads, switches, workers};
use crate::error::Error;
use crate::memory::Held;
use ringfile_buffer::internal::event;

/// The receiver of an operation's result.
pub(crate) trait Receiver {
    /// Represents an operation that another thread has.
    type Remote;

    /// Whether the receiver is a task, of which a loop may have many.
    const IS_A_TASK: bool;

    /// Returns whether the thread that starts the operation waits for it, and turns its driver meanwhile. If not, it
    /// has other tasks, which must not wait for a long series of plain calls.
    fn is_own(&self) -> bool;

    /// Returns a number that identifies the task on this thread, or [`NO_TASK`].
    fn task(&self) -> usize;

    /// Returns what this thread's driver does when the operation ends.
    fn wake(&self) -> Wake;

    /// Makes another thread carry the operation out. `send` takes the handler of the result and the operation's index
    /// for it, and returns the I/O thread that has the operation, if one has.
    fn send(&self, send: impl FnOnce(Arc<dyn Handler>, u32) -> Option<Arc<Shared>>) -> Self::Remote;
}

/// The task that is polled with this context.
impl Receiver for Context<'_> {
    type Remote = RemoteOperation;
    const IS_A_TASK: bool = true;

    fn is_own(&self) -> bool {
        false
    }

    #[inline]
    fn task(&self) -> usize {
        self.waker().data().addr()
    }

    #[inline]
    fn wake(&self) -> Wake {
        Wake::new(self.waker())
    }

    fn send(&self, send: impl FnOnce(Arc<dyn Handler>, u32) -> Option<Arc<Shared>>) -> RemoteOperation {
        RemoteOperation::new(self.waker(), |handler| send(handler, 0))
    }
}

/// A completion handler, which identifies its operations by an index.
pub(crate) struct HandlerOf<'a> {
    pub handler: &'a Arc<dyn Handler>,
    pub index: u32,
    /// The number that this thread's driver has for the handler, so that no shared count is touched.
    pub local: Option<LocalHandler>,
}

impl Receiver for HandlerOf<'_> {
    /// The driver of the I/O thread that has the operation.
    type Remote = Option<u64>;
    const IS_A_TASK: bool = false;

    fn is_own(&self) -> bool {
        self.local.is_some()
    }

    fn task(&self) -> usize {
        NO_TASK
    }

    #[inline]
    fn wake(&self) -> Wake {
        match self.local {
            Some(local) => Wake::Local(LocalOperation::new(local.0, self.index)),
            None => Wake::Handler(Arc::clone(self.handler), self.index),
        }
    }

    fn send(&self, send: impl FnOnce(Arc<dyn Handler>, u32) -> Option<Arc<Shared>>) -> Self::Remote {
        send(Arc::clone(self.handler), self.index).map(|carrier| carrier.id)
    }
}

/// If at least this many operations are submitted together, all go to the ring, even if each alone would be a plain
/// call that does not wait. With 2 to 4 operations, both ways took the same time.
pub(super) const MANY: usize = 8;

/// Starts an operation on its route.
///
/// # Errors
/// If the route asks for a ring and there is none, or if a forked child would need its parent's ring or threads. The
/// buffer then stays in place.
#[inline(always)]
pub(crate) fn start<R: Receiver>(
    target: &Arc<Target>,
    request: &Request,
    held: &mut impl Lend,
    receiver: &R,
    hint: SubmitHint,
) -> Result<Started<R::Remote>, Error> {
    if target.failed_sync() != 0 && request.is_sync() {
        // The kernel would report success now, although data of the failed sync may be lost.
        return Ok(Started::Done(Ended { done: 0, errno: target.failed_sync() }));
    }
    #[cfg(feature = "sim")]
    if target.simulated().is_none() && crate::sim::is_here() {
        // A file that was opened elsewhere: the simulation refuses it.
        return Ok(Started::Elsewhere(hand_over(target, request, held, receiver, Choice::Workers)));
    }
    let lanes = &target.lanes;
    if hint.waits_for_one && target.may_wait_inline(request) && with(|driver| driver.is_idle()) == Some(true)
    {
        return Ok(Started::Done(call_and_wait(target, request, held.own())));
    }
    let mut is_alone = false;
    let are_many = || {
        hint.together >= MANY
            || R::IS_A_TASK && {
                let others = other_tasks();
                is_alone = others == Others::None;
                others == Others::Many
            }
    };
    if is_for_ring(lanes, request.kind, are_many) {
        match queue(target, request, held, receiver) {
            Ok(place) => return Ok(Started::Queued(place)),
            Err(refused) => refused.or_another_route(lanes.insists(request.kind))?,
        }
    }
    start_otherwise(target, request, held, receiver, is_alone)
}

/// Returns whether an operation goes to this thread's ring; `are_many`: whether others are submitted with it.
#[inline(always)]
pub(super) fn is_for_ring(lanes: &Lanes, kind: Kind, are_many: impl FnOnce() -> bool) -> bool {
    lanes.goes_to_ring(kind) || lanes.goes_together(kind) && are_many()
}

/// Puts an operation on this thread's ring.
#[inline(always)]
fn queue<R: Receiver>(
    target: &Arc<Target>,
    request: &Request,
    held: &mut impl Lend,
    receiver: &R,
) -> Result<Place, Refused> {
    // Created before the driver is borrowed, because cloning a waker may run user code.
    let mut wake = receiver.wake();
    let mut refused = Refused::Outside;
    let place = with(|driver| {
        // As `may_start`, which would return its result in memory.
        let own = receiver.is_own();
        let ready = driver.ready(target, request, own);
        let prepare = || driver.prepare(target, request, own).map_err(|why| refused = why).ok();
        let ring = ready.or_else(prepare)?;
        Some(Place { driver: driver.id, key: driver.queue(target, request, held, ring, &mut wake) })
    });
    event::emit_deferred();
    let Some(place) = place.flatten() else { return Err(refused) };
    // The slot has taken it: there is nothing to drop.
    std::mem::forget(wake);
    Ok(place)
}

#[inline(never)]
fn start_otherwise<R: Receiver>(
    target: &Arc<Target>,
    request: &Request,
    held: &mut impl Lend,
    receiver: &R,
    is_alone: bool,
) -> Result<Started<R::Remote>, Error> {
    let (mut choice, would_wait) = loop {
        let called = call(target, request, held.own(), is_alone, receiver.task());
        event::emit_deferred();
        match called {
            Called::Over(ended) => return Ok(Started::Done(ended)),
            Called::Later if !receiver.is_own() => return Ok(Started::Yield),
            Called::Later => {}
            Called::Left(choice, would_wait) => break (choice, would_wait),
        }
    };
    if super::forks::is_forked_child() {
        return in_forked_child(target, request, held.own()).map(Started::Done);
    }
    if target.lanes.route == Route::Aio && request.kind.moves_data() && target.direct().is_none() {
        return Err(refused::aio_is_for_direct_io());
    }
    if choice == Choice::Ring && is_here(receiver.is_own()) {
        match queue(target, request, held, receiver) {
            Ok(place) => {
                if would_wait {
                    target.lanes.lane(request.kind).would_wait();
                }
                return Ok(Started::Queued(place));
            }
            Err(Refused::NoRing(lack)) if !target.lanes.insists(request.kind) => {
                refused::warn_of_no_ring(lack);
                event::emit_deferred();
            }
            Err(Refused::Outside) => {}
            Err(Refused::Unsupported) => choice = Choice::Workers,
            Err(Refused::Forked) => return Err(refused::after_fork()),
            Err(Refused::NoRing(lack) | Refused::Finally(lack)) => return Err(lack.into_error()),
        }
    }
    if choice == Choice::Ring && is_for_kernel_thread(target, request) && workers::have_room() {
        choice = Choice::Workers;
    }
    Ok(Started::Elsewhere(hand_over(target, request, held, receiver, choice)))
}

/// Makes another thread carry an operation out.
fn hand_over<R: Receiver>(
    target: &Arc<Target>,
    request: &Request,
    held: &mut impl Lend,
    receiver: &R,
    choice: Choice,
) -> R::Remote {
    let remote = receiver.send(|handler, index| {
        let remote = RemoteRequest::new(target, request, held.lend(), handler, index);
        send(remote, choice, R::IS_A_TASK)
    });
    event::emit_deferred();
    remote
}

/// Returns whether an I/O thread's ring would only hand an operation on to a thread of the kernel, so that a worker is
/// the shorter way: 16 tasks in tokio had 1.4 times as many syncs that way, and one task 1.3 times.
fn is_for_kernel_thread(target: &Target, request: &Request) -> bool {
    target.lanes.route == Route::Auto
        && target.ring == PortKind::Main
        && request.is_sync()
        && !(request.kind.moves_data() && target.direct().is_some())
}

/// Starts an operation in a forked child, which has neither its parent's rings nor its threads. Plain calls that do not
/// wait for another process work, everything else is an error. Operations on paths use a plain call, and so do the syncs
/// and truncations that are steps of some, also of a directory.
#[cold]
fn in_forked_child(target: &Target, request: &Request, held: &mut Held) -> Result<Ended, Error> {
    let is_step = matches!(request.kind, Kind::Sync | Kind::Truncate)
        && target.lanes.route == Route::Auto
        && target.ring == PortKind::Main;
    if request.kind.names_paths() || is_step || target.may_wait_inline(request) {
        Ok(call_and_wait(target, request, held))
    } else {
        Err(refused::after_fork())
    }
}

/// Returns whether this thread has a usable ring, may create one, or has AIO in its place.
fn is_here(own: bool) -> bool {
    with(|driver| driver.takes(own) && driver.ports.are_usable()) == Some(true)
}

/// How many other tasks of this thread's loop start operations that may be plain calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    /// So many that all send them through the ring together: 16 tasks that read cached blocks had 1.2 times the IOPS
    /// through the ring that they had by calls.
    Many,
    /// Some, or this thread is in no loop, so that others are unknown.
    Some,
    /// None, and no operation is in flight.
    None,
}

/// Counts the polled task among those of this turn. Returns how many other tasks started such operations in the turn
/// before.
#[inline]
fn other_tasks() -> Others {
    let task = wake::polled_task();
    let others = with(|driver| {
        let active_tasks = &mut driver.active_tasks;
        if active_tasks.last != Some(task) {
            active_tasks.last = Some(task);
            active_tasks.tasks += 1;
        }
        if !driver.in_loop {
            Others::Some
        } else if active_tasks.before >= MANY {
            Others::Many
        } else if active_tasks.before <= 1 && active_tasks.tasks == 1 && driver.in_flight == 0 {
            Others::None
        } else {
            Others::Some
        }
    });
    others.unwrap_or(Others::Some)
}

/// Starts a write, and a sync that the kernel begins when the write has ended, and cancels if it failed or was short.
/// `None`, and nothing was started, if this thread's ring cannot link the two, or cannot tell where the kernel cuts a
/// link ([`Ring::take_cut_off`](crate::ring::Ring::take_cut_off)).
///
/// A link delays one entry until another on the same ring has ended, so it cannot connect two rings; and an NVMe
/// command that fails does not break it. It connects an entry with whichever comes next, so both are queued under one
/// borrow of the driver: between two borrows, a waker or the receiver of an event could start another operation.
pub(crate) fn start_linked(
    target: &Arc<Target>,
    write: (&Request, &mut Kept),
    sync: (&Request, &mut Kept),
    context: &Context<'_>,
) -> Option<[Place; 2]> {
    if !matches!(target.lanes.route, Route::Auto | Route::Ring)
        || target.is_misplaced_by_rings(write.0.kind)
        || target.failed_sync() != 0
    {
        return None;
    }
    let request = Request { linked: true, ..*write.0 };
    let mut wakes = [Wake::new(context.waker()), Wake::new(context.waker())];
    let places = with(|driver| {
        for request in [sync.0, &request] {
            driver.may_start(target, request, false).ok().filter(|ring| *ring == PortKind::Main)?;
        }
        driver.ports.main.as_ref().filter(|main| !main.ring.is_sqpoll())?;
        let [write_wake, sync_wake] = &mut wakes;
        let write = driver.queue(target, &request, write.1, PortKind::Main, write_wake);
        let sync = driver.queue(target, sync.0, sync.1, PortKind::Main, sync_wake);
        driver.slots.at(sync.slot()).behind_link = true;
        Some([write, sync].map(|key| Place { driver: driver.id, key }))
    });
    event::emit_deferred();
    places.flatten()
}

/// How long a task may continue with operations that end at once, before the thread's other tasks run. With 16 tasks in
/// tokio that read cached blocks of 4 KiB, 99 of 100 reads take less than 40 µs; with 14 µs it was 170, at the same rate.
/// Yielding costs 0.2 µs.
const TURN: Duration = Duration::from_nanos(2500);
/// A task that comes back after its turn seems to be alone: each of its turns is twice as long as the one before, up to
/// this many times (0.16 ms). Yielding may cost it much: where the executor has several threads, another thread takes
/// the task over, and must be woken. In tokio, that took a third of the time of a lone task that read cached blocks.
const MOST_DOUBLED: u32 = 6;
/// The same for a thread in no loop, which yields only to other threads, from time to time.
const TURN_OF_THREAD: Duration = Duration::from_micros(14);
/// The clock is read only once for this many operations: reading it costs 25 ns, and the shortest operation takes 500.
const LOOK_AT_CLOCK: u32 = 4;
/// Compared with an operation this long, a yield costs little, so other tasks run after each.
const LONG: Duration = Duration::from_micros(8);
/// The number of bytes that a thread copies in about that time.
const LONG_COPY: usize = 32 << 10;

/// The number of a task that is not known.
const NO_TASK: usize = 0;

/// The inline operations since this thread's last yield.
#[derive(Clone, Copy)]
struct Turn {
    operations: u32,
    /// The inline operations of this thread, in all turns.
    total: u32,
    began: Option<Instant>,
    /// Whether the next operation waits for the other tasks.
    is_over: bool,
    /// The task of the last operation, and how many of its turns have ended in a row, up to [`MOST_DOUBLED`].
    task: usize,
    alone: u32,
}

impl Turn {
    const NEW: Self = Self { operations: 0, total: 0, began: None, is_over: false, task: NO_TASK, alone: 0 };

    /// Counts an operation. Returns false if the other tasks must run first; the next turn then begins.
    #[inline]
    fn goes_on(&mut self, task: usize) -> bool {
        self.operations += 1;
        self.total = self.total.wrapping_add(1);
        if self.task != task {
            (self.task, self.alone) = (task, 0);
        }
        let looks = self.operations.is_multiple_of(LOOK_AT_CLOCK) || self.is_over;
        let is_time = looks && self.began.get_or_insert_with(Instant::now).elapsed() >= self.length();
        if self.operations == 1 {
            self.began = Some(Instant::now());
        }
        let goes_on = !(is_time || (self.is_over && self.alone == 0));
        if !goes_on {
            let alone = if task == NO_TASK { 0 } else { (self.alone + 1).min(MOST_DOUBLED) };
            *self = Self { total: self.total, task, alone, ..Self::NEW };
        }
        goes_on
    }

    fn length(&self) -> Duration {
        if self.task == NO_TASK { TURN_OF_THREAD } else { TURN * (1 << self.alone) }
    }

    /// Returns the number by which an operation is sampled. It differs by offset and by time, so that reads of several
    /// files in turn, or of the same few blocks over and over, are sampled too.
    #[inline]
    fn number_of(self, request: &Request) -> u64 {
        request.offset.wrapping_add(self.total.into())
    }
}

thread_local! {
    static INLINE: Cell<Turn> = const { Cell::new(Turn::NEW) };
}

/// The result of plain calls on this thread.
enum Called {
    Over(Ended),
    /// No plain call was made, since other tasks must run first.
    Later,
    /// No plain call has carried it out, and it goes this way. True if a call was tried, and would have had to wait.
    Left(Choice, bool),
}

/// Carries an operation out by plain calls, if its route says so. `is_alone`: the thread does nothing else meanwhile.
#[inline]
fn call(target: &Target, request: &Request, held: &mut Held, is_alone: bool, task: usize) -> Called {
    let mut choice = target.choose(request);
    if is_alone && choice == Choice::Attempt {
        let number = INLINE.get().number_of(request);
        if target.lanes.lane(request.kind).is_found_cached(number) {
            choice = Choice::Inline;
        }
    }
    while matches!(choice, Choice::Attempt | Choice::Inline) {
        let before = INLINE.get();
        let mut turn = before;
        let goes_on = turn.goes_on(task);
        INLINE.set(turn);
        if !goes_on {
            if !request.kind.is_read() {
                switches::let_others_run(before.length());
            }
            return Called::Later;
        }
        match inline(target, request, held, choice) {
            Attempt::Over(ended) => {
                if ended.done >= LONG_COPY {
                    yield_next();
                }
                count(|counts| &mut counts.inline_ops, request, ended);
                return Called::Over(ended);
            }
            Attempt::WouldWait => return Called::Left(Choice::Ring, true),
            // The attempt has shown what kind of file it is.
            Attempt::NotOffered => choice = target.choose(request),
        }
    }
    Called::Left(choice, false)
}

/// Carries an operation out by a plain call, however long that takes.
#[cold]
fn call_and_wait(target: &Target, request: &Request, held: &mut Held) -> Ended {
    let ended = plain::run(target, request, held, || true);
    count(|counts| &mut counts.inline_ops, request, ended);
    event::emit_deferred();
    ended
}

/// Carries an operation out on this thread, and notes what its duration shows about the file.
fn inline(target: &Target, request: &Request, held: &mut Held, choice: Choice) -> Attempt {
    let lane = target.lanes.lane(request.kind);
    if choice == Choice::Attempt {
        let attempt = plain::attempt(target, request, held);
        match attempt {
            Attempt::NotOffered => lane.is_not_offered(target.lanes.file_system),
            Attempt::Over(ended) if ended.errno != 0 => {}
            Attempt::Over(_) => {
                lane.is_offered(target.direct().is_some());
                lane.did_not_wait();
            }
            Attempt::WouldWait => {
                lane.is_offered(target.direct().is_some());
                lane.was_not_cached();
            }
        }
        return attempt;
    }
    if target.lanes.route != Route::Auto || !lane.is_timed(request.kind, INLINE.get().number_of(request)) {
        return Attempt::Over(plain::run(target, request, held, || true));
    }
    let began = Instant::now();
    let ended = plain::run(target, request, held, || true);
    let took = began.elapsed();
    let limits = Limits::of(request.kind, target.direct().is_some(), ended.done);
    if !limits.is_slow(took) || !switches::was_only_preempted() {
        lane.note(took, limits);
    }
    if took >= LONG {
        yield_next();
    }
    Attempt::Over(ended)
}

/// Makes the thread's next inline operation wait for the other tasks.
fn yield_next() {
    INLINE.set(Turn { is_over: true, ..INLINE.get() });
}

/// Adds a handler to this thread's driver; `None` if the thread has no driver.
pub(crate) fn add_local(handler: Arc<dyn Handler>) -> Option<LocalHandler> {
    with(|driver| {
        let handlers = &mut driver.local_handlers.0;
        let number = handlers.iter().position(Option::is_none).unwrap_or_else(|| {
            handlers.push(None);
            handlers.len() - 1
        });
        handlers[number] = Some(Numbered { handler, left: 0 });
        LocalHandler(number as u32)
    })
}

/// Removes a handler from the list: at once if none of its operations is in flight, otherwise when the last one has
/// ended. Does nothing if the number belongs to another handler by now, because the driver was created anew since.
pub(crate) fn remove_local(number: LocalHandler, handler: &Arc<dyn Handler>) {
    let removed = with(|driver| {
        let left = if driver.in_flight == 0 { 0 } else { driver.slots.unanswered_of(number.0) };
        let place = driver.local_handlers.0.get_mut(number.0 as usize)?;
        let numbered = place.as_mut().filter(|numbered| Arc::ptr_eq(&numbered.handler, handler))?;
        numbered.left = left;
        if left == 0 { place.take() } else { None }
    });
    // Dropped while the driver is not borrowed.
    drop(removed);
}

/// Gives a remote request to the ring of this thread's runtime, or to another thread: to an I/O thread if there is one
/// with a ring. Returns the driver that has it. `at_once`: whether no others are sent together with it.
fn send(remote: RemoteRequest, choice: Choice, at_once: bool) -> Option<Arc<Shared>> {
    #[cfg(feature = "sim")]
    let Err(remote) = super::simulated::take(remote) else { return None };
    let mut remote = remote;
    // A queue's operations continue without the loop, as they do on its ring.
    let outlives_loops = remote.handler.as_ref().is_some_and(|handler| handler.outlives_loops());
    if !outlives_loops {
        let owner = with(|driver| driver.in_loop.then(|| Arc::clone(&driver.shared)));
        remote.hold = owner.flatten().map(Shared::hold);
    }
    let sent = match choice {
        Choice::Ring => send_to_runtime(remote, at_once).or_else(iothreads::send),
        _ => Err(remote),
    };
    sent.map_err(workers::send).ok()
}

#[cfg(feature = "tokio")]
use super::in_tokio::send as send_to_runtime;

/// Stands in for the feature `tokio`.
#[cfg(not(feature = "tokio"))]
fn send_to_runtime(remote: RemoteRequest, _at_once: bool) -> Result<Arc<Shared>, RemoteRequest> {
    Err(remote)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_grow_while_the_same_task_comes_back() {
        let mut turn = Turn::NEW;
        let mut end = |task| {
            // The turn has used up its time.
            turn.began = Instant::now().checked_sub(Duration::from_secs(1));
            turn.operations = LOOK_AT_CLOCK - 1;
            assert!(!turn.goes_on(task));
            turn.length().as_micros() as u64
        };
        assert_eq!([1, 1, 1, 1, 1, 1, 1, 2, 1, 1].map(&mut end), [5, 10, 20, 40, 80, 160, 160, 5, 5, 10]);
        assert_eq!([NO_TASK, NO_TASK].map(end), [14, 14], "of any task");
    }

    #[test]
    fn a_long_operation_ends_the_turn_of_a_task_unless_it_seems_to_be_alone() {
        let mut turn = Turn { began: Some(Instant::now()), operations: 1, is_over: true, ..Turn::NEW };
        assert!(!turn.goes_on(1));
        turn = Turn { began: Instant::now().checked_add(Duration::from_secs(1)), is_over: true, ..turn };
        assert!(turn.goes_on(1), "it came back");
        assert!(!turn.goes_on(2));
    }
}
