//! An operation as its future holds it: polled and dropped on its own thread, or, at the price of a message, elsewhere.
//!
//! What always holds: a result is taken once, by whoever polls; a ticket that is dropped before has its operation
//! cancelled, wherever that is.

use std::cell::Cell;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::dispatch::is_here;
use super::plain::{self, Attempt};
use super::refused::Refused;
use super::route::{self, Choice, Taken};
use super::shared::{self, Mail};
use super::wake::Wake;
use super::{Ended, Errand, Finished, Key, Polled, Request, Route, Target, with};
use crate::error::Error;
use crate::event;
use crate::memory::Held;

/// An operation that was started. Dropping it cancels the operation; its buffer is dropped when the kernel is done.
pub(crate) struct Ticket {
    driver: u64,
    key: Key,
}

/// What became of an operation that was started.
pub(crate) enum Started {
    /// It is on this thread's ring.
    Here(Ticket),
    /// Another thread has it.
    Elsewhere(Errand),
    /// It is over.
    Over(Ended),
    /// It was not begun: the task yields to others first, and was woken.
    Later,
}

/// Starts an operation on its route, and takes the buffer unless it is over or put off.
///
/// # Errors
/// Leaves the buffer where the operation can't be carried out: in a forked child, or where a ring was asked for and can't
/// be had.
#[inline]
pub(crate) fn start(
    target: &Arc<Target>,
    request: &Request,
    held: &mut Held,
    context: &Context<'_>,
) -> Result<Started, Error> {
    if target.lanes.goes_to_ring(request.kind) || request.linked {
        match start_here(target, request, held, context) {
            Ok(ticket) => return Ok(Started::Here(ticket)),
            Err(Refused::Finally(error)) => return Err(error),
            Err(Refused::NoRing(error)) if target.lanes.route() == Route::Ring => return Err(error),
            Err(_) => {}
        }
    }
    start_by_route(target, request, held, context)
}

#[inline]
fn start_here(
    target: &Arc<Target>,
    request: &Request,
    held: &mut Held,
    context: &Context<'_>,
) -> Result<Ticket, Refused> {
    let mut wake = Wake::new(context.waker());
    let started = with(|driver| {
        driver.may_start(target, false)?;
        driver.files.enter(target, driver.shared.id);
        let key = driver.slots.insert(request, held, target.number, std::mem::take(&mut wake));
        driver.submit(key);
        Ok(Ticket { driver: driver.shared.id, key })
    });
    event::emit_deferred();
    started.unwrap_or(Err(Refused::Outside))
}

/// Whether an operation that is linked to the next can be started on this thread: both go to one ring, which can tell
/// where the kernel cuts a link ([`Ring::take_cut_off`](crate::ring::Ring::take_cut_off)).
pub(crate) fn can_link(target: &Target) -> bool {
    matches!(target.lanes.route(), Route::Auto | Route::Ring)
        && with(|driver| {
            driver.may_start(target, false).is_ok()
                && driver.rings.as_ref().is_some_and(|rings| !rings.main.is_sqpoll())
        }) == Some(true)
}

/// So many short inline operations in a row, a task yields to others once. To yield costs 0.2 µs, a quarter of a small
/// cached read; and so rarely that of 100 operations, at most one waits for the other tasks' turns.
const INLINE_IN_A_ROW: u32 = 128;
/// Against an operation this long a yield is little, and other tasks have their turn after each.
const LONG: Duration = Duration::from_micros(8);
/// What is copied in about that time.
const LONG_COPY: usize = 32 << 10;

thread_local! {
    static INLINE: Cell<u32> = const { Cell::new(0) };
}

#[inline(never)]
fn start_by_route(
    target: &Arc<Target>,
    request: &Request,
    held: &mut Held,
    context: &Context<'_>,
) -> Result<Started, Error> {
    let choice = match call(target, request, held) {
        Called::Over(ended) => return Ok(Started::Over(ended)),
        Called::Later => {
            context.waker().wake_by_ref();
            return Ok(Started::Later);
        }
        Called::Left(choice) => choice,
    };
    let mut here = is_here(false);
    if choice == Choice::Ring && here {
        match start_here(target, request, held, context) {
            Ok(ticket) => return Ok(Started::Here(ticket)),
            Err(Refused::NoRing(error)) if target.lanes.route() != Route::Ring => {
                super::refused::warn_of_no_ring(&error);
                event::emit_deferred();
                here = false;
            }
            Err(Refused::Outside) => here = false,
            Err(refused) => return Err(refused.into_error()),
        }
    }
    debug_assert!(!here || choice == Choice::Workers);
    let (mut errand, order) = Errand::new(target, request, held, context.waker());
    errand.carried_by(super::send(order, choice));
    event::emit_deferred();
    Ok(Started::Elsewhere(errand))
}

/// What plain calls on this thread came to.
pub(crate) enum Called {
    Over(Ended),
    /// None was made: there were many in a row.
    Later,
    /// None is to be made, or it would have waited: the operation goes this way.
    Left(Choice),
}

/// Carries an operation out by plain calls, where its route is that. Called with no driver borrowed and no lock held.
pub(super) fn call(target: &Target, request: &Request, held: &mut Held) -> Called {
    let called = call_in_a_row(target, request, held);
    event::emit_deferred();
    called
}

#[inline]
fn call_in_a_row(target: &Target, request: &Request, held: &mut Held) -> Called {
    let mut choice = target.lanes.choose(target, request);
    while matches!(choice, Choice::Attempt | Choice::Inline) {
        let row = INLINE.get() + 1;
        INLINE.set(row % INLINE_IN_A_ROW);
        if row == INLINE_IN_A_ROW {
            return Called::Later;
        }
        match inline(target, request, held, choice) {
            Attempt::Over(ended) => {
                if ended.done >= LONG_COPY {
                    yield_next();
                }
                super::count(Taken::Inline, request, ended);
                return Called::Over(ended);
            }
            Attempt::WouldWait => choice = Choice::Ring,
            // Now it is known what the file is.
            Attempt::NotOffered => choice = target.lanes.choose(target, request),
        }
    }
    Called::Left(choice)
}

/// Carries an operation out by a plain call, however long that takes.
#[cold]
pub(super) fn call_and_wait(target: &Target, request: &Request, held: &mut Held) -> Ended {
    let ended = plain::run(target, request, held, || true);
    super::count(Taken::Inline, request, ended);
    ended
}

/// Carries an operation out on this thread, and notes what that tells of the file.
fn inline(target: &Target, request: &Request, held: &mut Held, choice: Choice) -> Attempt {
    let lane = target.lanes.lane(request.kind);
    if choice == Choice::Attempt {
        let attempt = plain::attempt(target, request, held);
        match attempt {
            Attempt::NotOffered => lane.is_not_offered(target.lanes.in_memory()),
            Attempt::Over(ended) if ended.errno != 0 => {}
            _ => lane.is_offered(target.direct().is_some()),
        }
        return attempt;
    }
    if target.lanes.route() != Route::Auto || !lane.is_timed() {
        return Attempt::Over(plain::run(target, request, held, || true));
    }
    let began = Instant::now();
    let ended = plain::run(target, request, held, || true);
    let took = began.elapsed();
    lane.note(took, ended.done, route::quick(request.kind, target.direct().is_some()));
    if took >= LONG {
        yield_next();
    }
    Attempt::Over(ended)
}

/// Has the thread's next inline operation wait for the other tasks.
fn yield_next() {
    INLINE.set(INLINE_IN_A_ROW - 1);
}

impl Ticket {
    /// The result, once it is there, with the buffer put into `held`; until then the task is woken when it is.
    #[inline]
    pub(crate) fn poll(&mut self, context: &Context<'_>, held: &mut Held) -> Poll<Ended> {
        // What was to be woken before is in it after, and dropped while the driver is not borrowed.
        let mut wake = Wake::Nobody;
        loop {
            let polled = with(|driver| {
                if driver.shared.id != self.driver {
                    return None;
                }
                driver.poll(self.key, context.waker(), held, &mut wake)
            });
            match polled.flatten() {
                Some(Polled::Over(ended)) => {
                    self.key.generation = 0;
                    return Poll::Ready(ended);
                }
                Some(Polled::Pending) => return Poll::Pending,
                // It may be over once that is cloned: the clone may have turned the driver.
                Some(Polled::NeedsWaker) => wake = Wake::new(context.waker()),
                None => break,
            }
        }
        self.poll_from_afar(context).map(|finished| {
            *held = finished.held;
            finished.ended
        })
    }

    #[cold]
    fn poll_from_afar(&mut self, context: &Context<'_>) -> Poll<Finished> {
        let Some(shared) = shared::find(self.driver) else { return Poll::Ready(lost()) };
        // Wakers may run anybody's code and own anything, so none is cloned or dropped under the lock.
        let mut clone = Some(context.waker().clone());
        let mut inner = shared.lock();
        if let Some(finished) = inner.finished.remove(&self.key) {
            let waker = inner.wakers.remove(&self.key);
            drop(inner);
            drop(waker);
            self.key.generation = 0;
            shared::retire(&shared);
            return Poll::Ready(finished);
        }
        if !inner.in_loop {
            return Poll::Ready(lost());
        }
        let before = clone.take().and_then(|waker| inner.wakers.insert(self.key, waker));
        if before.is_none() {
            shared.post_locked(&mut inner, Mail::Watch(self.key));
        }
        drop(inner);
        drop(before);
        Poll::Pending
    }

    #[cold]
    fn drop_from_afar(&self) {
        let Some(shared) = shared::find(self.driver) else { return };
        let mut inner = shared.lock();
        let waker = inner.wakers.remove(&self.key);
        let finished = inner.finished.remove(&self.key);
        if finished.is_none() {
            shared.post_locked(&mut inner, Mail::Cancel(self.key));
        }
        drop(inner);
        drop((finished, waker));
        shared::retire(&shared);
    }

    #[cold]
    fn cancel(&self) {
        let cancelled =
            with(|driver| (driver.shared.id == self.driver).then(|| driver.cancel(self.key)).flatten());
        match cancelled.flatten() {
            Some(rest) => drop(rest),
            None => self.drop_from_afar(),
        }
    }
}

/// What can only be seen by a future that is polled in a forked child: its result came in the parent.
fn lost() -> Finished {
    Finished { held: Held::None, ended: Ended { done: 0, errno: libc::ECANCELED } }
}

impl Drop for Ticket {
    #[inline]
    fn drop(&mut self) {
        // Generation 0: the result was taken.
        if self.key.generation != 0 {
            self.cancel();
        }
    }
}
