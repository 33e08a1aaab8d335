//! Starting an order on its route, whatever thread this is.
//!
//! Decides as [`super::ticket`] does for a future. What always holds: an order that was dispatched ends by its sink,
//! perhaps before [`dispatch`] returns.

use std::sync::Arc;

use super::order::{Order, Sink};
use super::route::Choice;
use super::ticket::{Called, call};
use super::{Aftermath, Key, Request, Target, shared, with};
use crate::event;
use crate::memory::Held;

/// Where an order is, to cancel it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(super) driver: u64,
    pub(super) key: Key,
}

/// Whether this thread's ring takes an operation; `own` as for [`super::Driver::takes`].
pub(super) fn is_here(own: bool) -> bool {
    with(|driver| driver.takes(own) && driver.failed.is_none()) == Some(true)
}

/// Carries an operation out by plain calls, where its route is that. Called with no driver borrowed. `own` says that the
/// thread which made the operation waits for it, and turns its driver meanwhile.
#[inline]
pub(crate) fn try_calls(target: &Target, request: &Request, held: &mut Held, own: bool) -> Called {
    if target.lanes.goes_to_ring(request.kind) && is_here(own) {
        return Called::Left(Choice::Ring);
    }
    call(target, request, held)
}

/// Starts an order that plain calls left, and gives where this thread's ring has it; `None` where it has ended, or another
/// thread has it. Called with no driver borrowed and no lock held: the order may end at once. `after` is empty before and
/// after; who starts many brings one for all. `own` as for [`try_calls`].
pub(crate) fn dispatch(order: Order, choice: Choice, own: bool, after: &mut Aftermath) -> Option<Place> {
    if choice == Choice::Ring && is_here(own) {
        return start_here(order, own, after);
    }
    super::send(order, choice);
    event::emit_deferred();
    None
}

fn start_here(order: Order, own: bool, after: &mut Aftermath) -> Option<Place> {
    let mut order = Some(order);
    let key = with(|driver| {
        let key = driver.start_order(order.take()?, own, after)?;
        Some(Place { driver: driver.shared.id, key })
    });
    if after.may_wake_someone() {
        after.settle();
    }
    event::emit_deferred();
    if let Some(order) = order {
        // The driver is borrowed further up, which it never is here; any other thread will do.
        super::send(order, Choice::Ring);
    }
    key.flatten()
}

/// Gets the kernel to cancel an order that this thread's ring has, where it still can. It ends by its sink in any case.
pub(crate) fn cancel(place: Place) {
    let mut after = Aftermath::default();
    with(|driver| {
        if driver.shared.id == place.driver {
            driver.cancel_order(place.key, &mut after);
        }
    });
    after.settle();
}

/// Gets the kernel to cancel the orders of a sink on whatever ring they are, where it still can. Each ends by its sink in
/// any case. Called with no lock held.
pub(crate) fn cancel_all(sink: &Arc<dyn Sink>) {
    let mut after = Aftermath::default();
    let own = with(|driver| {
        driver.cancel_orders(sink, &mut after);
        driver.shared.id
    });
    after.settle();
    let others = shared::everyone().into_iter().filter(|shared| Some(shared.id) != own);
    others.for_each(|shared| shared.post_cancellation(Arc::clone(sink)));
}
