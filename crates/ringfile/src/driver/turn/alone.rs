//! A thread that has nothing else to do makes the plain call for its only sync or durable write.
//!
//! io_uring passes each of these to a kernel thread. A thread that would only sleep meanwhile makes the call itself,
//! which costs less. Only when the thread is about to sleep does it know that it has nothing else to do. Until then the
//! operation waits in [`Driver::waiting`](super::state::Driver), and is withdrawn or submitted from there like all
//! others.
//!
//! Invariants: such an operation is counted, remembered and ended by the same code as on the ring; nothing else of this
//! thread is in flight during the call.

use super::deferred::Deferred;
use super::state::{Driver, Unsubmitted, with};
use crate::driver::op::{OpResult, Request, plain};
use crate::driver::slots::key::Key;
use crate::driver::slots::slot::{Owner, Slot, State};
use crate::driver::target::Target;
use crate::driver::target::port_kind::PortKind;

/// Carries out the thread's only operation by a plain call, if it is a sync or a durable write that was not submitted.
/// Returns whether it made a call. Called by a thread that is about to sleep, and has no other task.
///
/// Messages of other threads wait until the call returns.
pub(crate) fn call_alone(deferred: &mut Deferred) -> bool {
    let called = with(|driver| driver.call_alone(deferred)) == Some(true);
    if called {
        deferred.settle();
    }
    called
}

/// Returns whether a thread with so many operations in flight may turn out to have nothing to do but this one, which is
/// one of them.
#[inline]
pub(super) fn may_be_alone(in_flight: usize, request: &Request) -> bool {
    in_flight == 1 && request.is_sync()
}

impl Driver {
    fn call_alone(&mut self, deferred: &mut Deferred) -> bool {
        let mut called = false;
        // A write may have its sync linked to it.
        while let Some(key) = self.operation_alone() {
            self.waiting.pop_front();
            self.call(key, deferred);
            called = true;
        }
        called
    }

    /// Returns the thread's only operation, or the first of a linked pair, if a plain call may carry it out.
    fn operation_alone(&mut self) -> Option<Key> {
        while let Some(&next) = self.waiting.front()
            && self.is_withdrawn(next)
        {
            self.waiting.pop_front();
        }
        let &Unsubmitted::Operation(key) = self.waiting.front()? else { return None };
        if self.in_flight != self.waiting.len() || self.has_something_else() {
            return None;
        }
        match self.waiting.get(1) {
            None => {}
            Some(&Unsubmitted::Operation(next)) if self.waiting.len() == 2 => {
                self.slots.get(next).filter(|slot| slot.behind_link)?;
            }
            Some(_) => return None,
        }
        let slot = self.slots.get(key)?;
        let is_here = slot.marks.owner() == Owner::Here && slot.ring == PortKind::Main;
        if slot.state != State::Waiting || slot.cancelled || !is_here {
            return None;
        }
        let target = self.files.target(slot.file)?;
        target.may_wait_inline(&slot.request).then_some(key)
    }

    /// Returns whether there is work besides the operations in flight.
    fn has_something_else(&self) -> bool {
        self.shared.is_inherited()
            || self.shared.has_remotes()
            || self.shared.sleep.is_notified()
            || self.ports.has_released()
    }

    fn call(&mut self, key: Key, deferred: &mut Deferred) {
        let slot = self.slots.at(key.slot());
        let Some(target) = self.files.target(slot.file) else { return };
        let ended = call_for(slot, target);
        self.counts.inline_ops += 1;
        let failed = slot.request.linked && (ended.errno != 0 || ended.done < slot.request.want);
        self.end(key, deferred);
        // The kernel, too, cancels an operation that is linked to a failed or short write.
        if failed && let Some(Unsubmitted::Operation(next)) = self.waiting.pop_front() {
            self.slots.at(next.slot()).errno = libc::ECANCELED as u16;
            self.end(next, deferred);
        }
    }
}

/// Carries out the operation of a slot by a plain call, which times itself. The slot then has its result.
pub(super) fn call_for(slot: &mut Slot, target: &Target) -> OpResult {
    debug_assert!(slot.ring.extra().is_none(), "its port would go on counting it");
    slot.marks.set_timed(false);
    let ended = plain::run(target, &slot.request, &mut slot.memory, || true);
    slot.progress.end(ended.done);
    (slot.errno, slot.fixed, slot.ring) = (ended.errno as u16, false, PortKind::Main);
    ended
}
