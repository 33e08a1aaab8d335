//! The one place that decides how an operation starts, and starts it: for futures, batches, queues and forked children.
//! Only reads in place start elsewhere ([`super::turn::in_place`]), by the same rule ([`is_for_ring`](super::target::route::Lanes::is_for_ring)).
//!
//! Invariants: an operation that was started has either ended, or ends exactly once at its receiver; its buffer was
//! taken, unless it has ended at once or must be started again later. Called with no driver borrowed and no lock held,
//! since an operation may end, and wake a task, before its start returns.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use super::elsewhere::remote_operation::RemoteOperation;
use super::elsewhere::{iothreads, workers};
use super::mail::shared::{RemoteRequest, Shared};
use super::op::plain::{self, CallOutcome};
use super::op::transfer;
use super::op::{Kind, OpResult, Request};
use super::refused::{self, Refused};
use super::slots::handler::Handler;
use super::slots::key::{LocalHandler, OperationId, Started, SubmitHint};
use super::slots::loan::Lend;
use super::slots::wake::{LocalOperation, Wake};
use super::target::Target;
use super::target::port_kind::PortKind;
use super::target::route::{Choice, Limits, MANY, Route, SettledCall};
use super::time_slice::{self, NO_TASK};
use super::turn;
use super::turn::counts::count;
use super::turn::state::{Others, with};
use crate::error::Error;
use crate::memory::IoMemory;
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

/// Starts an operation on its route.
///
/// # Errors
/// If the route asks for a ring and there is none, or if a forked child would need its parent's ring or threads. The
/// buffer then stays in place.
#[inline(always)]
pub(crate) fn start<R: Receiver>(
    target: &Arc<Target>,
    request: &Request,
    memory: &mut impl Lend,
    receiver: &R,
    hint: SubmitHint,
) -> Result<Started<R::Remote>, Error> {
    if target.failed_sync() != 0 && request.is_sync() {
        // The kernel would report success now, although data of the failed sync may be lost.
        return Ok(Started::Done(OpResult { done: 0, errno: target.failed_sync() }));
    }
    if target.simulated().is_none() && crate::sim::is_here() {
        // A file that was opened elsewhere: the simulation refuses it.
        return Ok(Started::Elsewhere(hand_over(target, request, memory, receiver, Choice::Workers)));
    }
    let lanes = &target.lanes;
    // Without a driver, the thread has nothing in flight either.
    if hint.waits_for_one && target.may_wait_inline(request) && with(|driver| driver.is_idle()) != Some(false)
    {
        return Ok(Started::Done(call_and_wait(target, request, memory.own())));
    }
    let mut is_alone = false;
    let are_many = || {
        hint.together >= MANY
            || R::IS_A_TASK && {
                let others = turn::other_tasks();
                is_alone = others == Others::None;
                others == Others::Many
            }
    };
    if lanes.is_for_ring(request.kind, are_many) {
        match queue(target, request, memory, receiver) {
            Ok(place) => return Ok(Started::Queued(place)),
            Err(refused) => refused.or_another_route(lanes.insists(request.kind))?,
        }
    }
    start_otherwise(target, request, memory, receiver, is_alone)
}

/// If the lane is settled (its last operations were single plain calls), makes that call again without asking
/// [`Target::choose`]. True: all is done. False: start it as usual. Pending: other tasks run first. The operation must fit. `waits`:
/// whether the thread only waits for it.
#[inline(always)]
pub(crate) fn call_settled(
    target: &Target,
    request: &Request,
    memory: &mut IoMemory,
    context: &Context<'_>,
    waits: bool,
) -> Poll<bool> {
    let lane = target.lanes.lane(request.kind);
    let Some(call) = lane.settled_call(|| time_slice::number_of(request)) else { return Poll::Ready(false) };
    let is_simple = matches!(request.kind, Kind::Read | Kind::Write) && request.op_flags == 0;
    if !is_simple || crate::sim::is_here() {
        return Poll::Ready(false);
    }
    let must_not_wait = match call {
        SettledCall::Any => false,
        SettledCall::Cached if waits => false,
        SettledCall::Cached => match turn::other_tasks() {
            Others::None => false,
            Others::Some => true,
            Others::Many => return Poll::Ready(false),
        },
    };
    if !time_slice::goes_on(context.task(), request) && !waits {
        return Poll::Pending;
    }
    if !transfer::call_for_all(target, request, memory, must_not_wait) {
        return Poll::Ready(false);
    }
    let ended = OpResult { done: request.want, errno: 0 };
    if request.kind.is_read() {
        // SAFETY: the kernel has written that many bytes from `start` on; what comes before was there already.
        unsafe { memory.filled(request.start + ended.done) };
    }
    time_slice::has_copied(ended.done);
    count(|counts| &mut counts.inline_ops, request, ended);
    Poll::Ready(true)
}

/// Puts an operation on this thread's ring.
#[inline(always)]
fn queue<R: Receiver>(
    target: &Arc<Target>,
    request: &Request,
    memory: &mut impl Lend,
    receiver: &R,
) -> Result<OperationId, Refused> {
    // Created before the driver is borrowed, because cloning a waker may run user code.
    let mut wake = receiver.wake();
    let mut refused = Refused::Outside;
    let place =
        with(|driver| driver.start(target, request, memory, receiver.is_own(), &mut wake, &mut refused));
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
    memory: &mut impl Lend,
    receiver: &R,
    is_alone: bool,
) -> Result<Started<R::Remote>, Error> {
    let (mut choice, would_wait) = loop {
        let called = call(target, request, memory.own(), is_alone, receiver.task());
        event::emit_deferred();
        match called {
            Called::Done(ended) => return Ok(Started::Done(ended)),
            Called::Later if !receiver.is_own() => return Ok(Started::Yield),
            Called::Later => {}
            Called::Left(choice, would_wait) => break (choice, would_wait),
        }
    };
    if super::turn::forks::is_forked_child() {
        return in_forked_child(target, request, memory.own()).map(Started::Done);
    }
    if target.lanes.route == Route::Aio && request.kind.moves_data() && target.direct().is_none() {
        return Err(refused::aio_is_for_direct_io());
    }
    if choice == Choice::Ring && is_here(receiver.is_own()) {
        match queue(target, request, memory, receiver) {
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
    Ok(Started::Elsewhere(hand_over(target, request, memory, receiver, choice)))
}

/// Makes another thread carry an operation out.
fn hand_over<R: Receiver>(
    target: &Arc<Target>,
    request: &Request,
    memory: &mut impl Lend,
    receiver: &R,
    choice: Choice,
) -> R::Remote {
    let remote = receiver.send(|handler, index| {
        let remote = RemoteRequest::new(target, request, memory.lend(), handler, index);
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
fn in_forked_child(target: &Target, request: &Request, memory: &mut IoMemory) -> Result<OpResult, Error> {
    let is_step = matches!(request.kind, Kind::Sync | Kind::Truncate)
        && target.lanes.route == Route::Auto
        && target.ring == PortKind::Main;
    if request.kind.names_paths() || is_step || target.may_wait_inline(request) {
        Ok(call_and_wait(target, request, memory))
    } else {
        Err(refused::after_fork())
    }
}

/// Returns whether this thread has a usable ring, may create one, or has AIO in its place.
fn is_here(own: bool) -> bool {
    with(|driver| driver.has_usable_port(own)) == Some(true)
}

/// The result of plain calls on this thread.
enum Called {
    Done(OpResult),
    /// No plain call was made, since other tasks must run first.
    Later,
    /// No plain call has carried it out, and it goes this way. True if a call was tried, and would have had to wait.
    Left(Choice, bool),
}

/// Carries an operation out by plain calls, if its route says so. `is_alone`: the thread does nothing else meanwhile.
#[inline]
fn call(target: &Target, request: &Request, memory: &mut IoMemory, is_alone: bool, task: usize) -> Called {
    let (mut choice, number) = (target.choose(request), time_slice::number_of(request));
    if is_alone && choice == Choice::Attempt && target.lanes.lane(request.kind).is_found_cached(number) {
        choice = Choice::Inline;
    }
    while matches!(choice, Choice::Attempt | Choice::Inline) {
        if !time_slice::goes_on(task, request) {
            return Called::Later;
        }
        let outcome = inline(target, request, memory, choice, number);
        target.lanes.lane(request.kind).settle(request.kind, target.is_simple());
        match outcome {
            CallOutcome::Done(ended) => {
                time_slice::has_copied(ended.done);
                count(|counts| &mut counts.inline_ops, request, ended);
                return Called::Done(ended);
            }
            CallOutcome::WouldWait => return Called::Left(Choice::Ring, true),
            // The attempt has shown what kind of file it is.
            CallOutcome::NotOffered => choice = target.choose(request),
        }
    }
    Called::Left(choice, false)
}

/// Carries an operation out by a plain call, however long that takes.
#[cold]
fn call_and_wait(target: &Target, request: &Request, memory: &mut IoMemory) -> OpResult {
    let ended = plain::run(target, request, memory, || true);
    count(|counts| &mut counts.inline_ops, request, ended);
    event::emit_deferred();
    ended
}

/// Carries an operation out on this thread, and notes what that shows about the file.
fn inline(
    target: &Target,
    request: &Request,
    memory: &mut IoMemory,
    choice: Choice,
    number: u64,
) -> CallOutcome {
    let lane = target.lanes.lane(request.kind);
    if choice == Choice::Attempt {
        let attempt = plain::attempt(target, request, memory);
        match attempt {
            CallOutcome::NotOffered => lane.is_not_offered(target.lanes.file_system),
            CallOutcome::Done(ended) if ended.errno != 0 => {}
            CallOutcome::Done(_) => {
                lane.is_offered(target.direct().is_some());
                lane.did_not_wait();
            }
            CallOutcome::WouldWait => {
                lane.is_offered(target.direct().is_some());
                lane.was_not_cached();
            }
        }
        return attempt;
    }
    if target.lanes.route != Route::Auto || !lane.is_timed(request.kind, number) {
        return CallOutcome::Done(plain::run(target, request, memory, || true));
    }
    let began = Instant::now();
    let ended = plain::run(target, request, memory, || true);
    let took = began.elapsed();
    let limits = Limits::of(request.kind, target.direct().is_some(), ended.done);
    if !limits.is_slow(took) || !time_slice::was_only_preempted() {
        lane.note(took, limits);
    }
    time_slice::has_taken(took);
    CallOutcome::Done(ended)
}

/// Gives a remote request to the ring of this thread's runtime, or to another thread: to an I/O thread if there is one
/// with a ring, unless it names paths, for which that thread may have other [rights](super::elsewhere::rights). Returns the driver
/// that has it. `at_once`: whether no others are sent together with it.
fn send(remote: RemoteRequest, choice: Choice, at_once: bool) -> Option<Arc<Shared>> {
    let Err(remote) = crate::sim::take(remote) else { return None };
    let mut remote = remote;
    // A queue's operations continue without the loop, as they do on its ring.
    let outlives_loops = remote.handler.as_ref().is_some_and(|handler| handler.outlives_loops());
    if !outlives_loops {
        remote.loop_guard = turn::own_loop().map(Shared::guard_loop);
    }
    let sent = match choice {
        Choice::Ring if !remote.request.kind.names_paths() => {
            send_to_runtime(remote, at_once).or_else(iothreads::send)
        }
        _ => Err(remote),
    };
    sent.map_err(workers::send).ok()
}

#[cfg(feature = "tokio")]
use super::shared::tokio::send as send_to_runtime;

/// Stands in for the feature `tokio`, without which no runtime is recognized.
#[cfg(not(feature = "tokio"))]
fn send_to_runtime(remote: RemoteRequest, _at_once: bool) -> Result<Arc<Shared>, RemoteRequest> {
    let what = "an operation of a thread without a ring goes to an I/O thread: in tokio, `attach_to_tokio` \
        (feature `tokio`) lets the runtime's threads submit it themselves, which takes less CPU time";
    iothreads::tell_of_first(what, || true);
    Err(remote)
}
