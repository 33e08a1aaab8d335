//! Starting an order on its route, whatever thread this is.
//!
//! Decides as [`super::ticket`] does for a future. What always holds: an order that was dispatched ends by its sink,
//! perhaps before [`dispatch`] returns; only one that is given back ([`Dispatched::Later`]) was not begun.

use std::sync::Arc;

use super::order::{Order, Sink};
use super::route::Choice;
use super::ticket::{Called, call};
use super::{Aftermath, Key, Request, Target, shared, with};
use crate::memory::Held;

/// What became of an order.
pub(crate) enum Dispatched {
    /// It is on this thread's ring.
    Here(Place),
    /// It has ended, or another thread has it.
    Away,
    /// It was not begun: many inline calls were made in a row, and others are to have their turn first.
    Later(Order),
}

/// Where an order is, to cancel it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    driver: u64,
    key: Key,
}

fn is_here() -> bool {
    with(|driver| driver.active && driver.failed.is_none()) == Some(true)
}

/// Carries an operation out by plain calls, where its route is that. Called with no driver borrowed.
#[inline]
pub(crate) fn try_calls(target: &Target, request: &Request, held: &mut Held) -> Called {
    if target.lanes.goes_to_ring(request.kind) && is_here() {
        return Called::Left(Choice::Ring);
    }
    call(target, request, held)
}

/// Starts an order on its route. Called with no driver borrowed and no lock held: the order may end at once.
pub(crate) fn dispatch(mut order: Order) -> Dispatched {
    match try_calls(&order.target, &order.request, &mut order.held) {
        Called::Over(ended) => {
            order.end(ended);
            Dispatched::Away
        }
        Called::Later => Dispatched::Later(order),
        Called::Left(choice) => dispatch_on(order, choice),
    }
}

/// Starts an order that plain calls left.
pub(crate) fn dispatch_on(order: Order, choice: Choice) -> Dispatched {
    if choice == Choice::Ring && is_here() {
        return start_here(order);
    }
    super::send(order, choice);
    Dispatched::Away
}

fn start_here(order: Order) -> Dispatched {
    let (mut order, mut after) = (Some(order), Aftermath::default());
    let key = with(|driver| {
        let key = driver.start_order(order.take()?, &mut after)?;
        Some(Place { driver: driver.shared.id, key })
    });
    after.settle();
    if let Some(order) = order {
        // The driver is borrowed further up, which it never is here; any other thread will do.
        super::send(order, Choice::Ring);
    }
    key.flatten().map_or(Dispatched::Away, Dispatched::Here)
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
