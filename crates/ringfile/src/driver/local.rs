//! Operations whose results go to the thread that began them, on its own ring: no reference count is touched for one, and
//! no lock taken.
//!
//! The driver knows their sink by a number. Where the thread turns its driver for that sink, the results lie in the
//! [`Aftermath`] of the turn; where for another, they are handed to the sink. What always holds: a number stands for its sink
//! until all operations with it have ended.

use std::sync::Arc;

use super::dispatch::Place;
use super::order::Sink;
use super::route::Choice;
use super::ticket::{Called, call, call_and_wait};
use super::wake::Wake;
use super::{Aftermath, Driver, Ended, Key, Request, Target, with};
use crate::event;
use crate::memory::Held;

/// A sink that the driver of this thread knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalSink(Option<u32>);

/// What became of an operation.
pub(crate) enum Begun {
    /// It is on this thread's ring.
    Here(Place),
    /// It is over.
    Over(Ended),
    /// It goes this way, by other threads.
    Left(Choice),
}

/// With how many others an operation is started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Company {
    /// None, and the thread does nothing until it has ended.
    Alone,
    Few,
    /// So many that the ring may be cheaper than plain calls which don't wait.
    Many,
}

/// The sinks that a driver knows.
#[derive(Default)]
pub(super) struct LocalSinks(Vec<Option<Arc<dyn Sink>>>);

/// Gets this thread's driver to know a sink, which takes its results from `after` in its own turns.
pub(crate) fn add_local(sink: Arc<dyn Sink>, after: &mut Aftermath) -> LocalSink {
    after.own = with(|driver| {
        let sinks = &mut driver.local_sinks.0;
        let number = sinks.iter().position(Option::is_none).unwrap_or_else(|| {
            sinks.push(None);
            sinks.len() - 1
        });
        sinks[number] = Some(sink);
        number as u32
    });
    LocalSink(after.own)
}

/// Forgets a sink whose operations are over.
pub(crate) fn remove_local(sink: LocalSink) {
    let sink = with(|driver| driver.local_sinks.0.get_mut(sink.0? as usize)?.take());
    // Outside of the driver.
    drop(sink);
}

/// Starts an operation: by plain calls, where its route is that, else on this thread's ring, where it has one. Takes the
/// buffer where that has it. Called with no driver borrowed.
#[inline]
pub(crate) fn start_own(
    sink: LocalSink,
    index: u32,
    target: &Arc<Target>,
    request: &Request,
    held: &mut Held,
    company: Company,
) -> Begun {
    let lanes = &target.lanes;
    let here = |held: &mut Held| {
        let place = with(|driver| driver.start_local(sink, index, target, request, held)).flatten();
        event::emit_deferred();
        place
    };
    let many = company == Company::Many && lanes.goes_together(request.kind);
    if lanes.goes_to_ring(request.kind) || many {
        if company == Company::Alone && lanes.may_wait_inline(target, request) && is_idle() {
            return Begun::Over(call_and_wait(target, request, held));
        }
        if let Some(place) = here(held) {
            return Begun::Here(place);
        }
    }
    loop {
        match call(target, request, held) {
            Called::Over(ended) => return Begun::Over(ended),
            // Nobody else has a turn on this thread, which waits for these operations alone.
            Called::Later => {}
            Called::Left(Choice::Ring) => {
                return here(held).map_or(Begun::Left(Choice::Ring), Begun::Here);
            }
            Called::Left(choice) => return Begun::Left(choice),
        }
    }
}

/// Carries an operation out by plain calls, in a forked child whose ring and threads are the parent's: what needs those is
/// refused, for the reason that [`super::why_refused`] gives. Called with no driver borrowed.
#[cold]
pub(crate) fn in_forked_child(target: &Target, request: &Request, held: &mut Held) -> Ended {
    loop {
        match call(target, request, held) {
            Called::Over(ended) => return ended,
            Called::Later => {}
            Called::Left(_) if target.lanes.may_wait_inline(target, request) => {
                return call_and_wait(target, request, held);
            }
            Called::Left(_) => return Ended { done: 0, errno: libc::EOPNOTSUPP },
        }
    }
}

/// Whether this thread's ring has nothing that would wait for the thread.
fn is_idle() -> bool {
    with(|driver| driver.in_flight == 0 && driver.waiting.is_empty()) == Some(true)
}

impl Driver {
    #[inline]
    fn start_local(
        &mut self,
        sink: LocalSink,
        index: u32,
        target: &Arc<Target>,
        request: &Request,
        held: &mut Held,
    ) -> Option<Place> {
        if self.failed.is_some() {
            return None;
        }
        let sink = sink.0?;
        self.may_start(target, true).ok()?;
        self.files.enter(target, self.shared.id);
        let key = self.slots.insert(request, held, target.number, Wake::Local(sink, index));
        self.submit(key);
        Some(Place { driver: self.shared.id, key })
    }

    #[inline]
    pub(super) fn end_local(&mut self, key: Key, sink: u32, index: u32, after: &mut Aftermath) {
        let finished = self.take_finished(key.slot);
        if after.own == Some(sink) {
            after.own_results.push((index, finished));
        } else if let Some(Some(sink)) = self.local_sinks.0.get(sink as usize) {
            after.ended.push((Arc::clone(sink), index, finished));
        } else {
            after.buffers.push(finished.held);
        }
    }
}
