//! A write and its sync, which the kernel starts in order.

use std::sync::Arc;
use std::task::Context;

use super::state::with;
use crate::driver::op::Request;
use crate::driver::slots::key::OperationId;
use crate::driver::slots::loan::Loan;
use crate::driver::slots::wake::Wake;
use crate::driver::target::Target;
use crate::driver::target::port_kind::PortKind;
use crate::driver::target::route::Route;
use ringfile_buffer::internal::event;

/// Starts a write, and a sync that the kernel begins when the write has ended, and cancels if it failed or was short.
/// `None`, and nothing was started, if this thread's ring cannot link the two, or cannot tell where the kernel cuts a
/// link ([`Ring::take_cut_off`](crate::ring::Ring::take_cut_off)).
///
/// A link delays one entry until another on the same ring has ended, so it cannot connect two rings; and an NVMe
/// command that fails does not break it. It connects an entry with whichever comes next, so both are queued under one
/// borrow of the driver: between two borrows, a waker or the receiver of an event could start another operation.
pub(crate) fn start_linked(
    target: &Arc<Target>,
    write: (&Request, &mut Loan),
    sync: (&Request, &mut Loan),
    context: &Context<'_>,
) -> Option<[OperationId; 2]> {
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
        Some([write, sync].map(|key| OperationId { driver: driver.id, key }))
    });
    event::emit_deferred();
    places.flatten()
}
