//! Cancelling: entries that were not submitted are withdrawn; the kernel is asked to cancel the others. Most operations
//! simply finish.
//!
//! Invariant: a slot keeps its buffer as long as the kernel may write to it, even if its operation was dropped.

use std::sync::Arc;
use std::time::Instant;

use super::deferred::Deferred;
use super::state::{AGAIN, CancelledStreams, Driver, Remainder, Unsubmitted, with};
use crate::driver::mail::shared;
use crate::driver::slots::handler::Handler;
use crate::driver::slots::key::{Key, OperationId};
use crate::driver::slots::slot::{Owner, State};
use crate::driver::slots::wake::Wake;
use crate::memory::IoMemory;

/// Cancels an operation on this thread's ring, if the kernel still can. Its handler receives a result in any case.
pub(crate) fn cancel(place: OperationId) {
    let mut deferred = Deferred::default();
    with(|driver| {
        if driver.id == place.driver {
            driver.cancel_queued(place.key, &mut deferred);
        }
    });
    deferred.settle();
}

/// Cancels a handler's operations whose results it no longer wants, on the rings of `drivers`, if the kernel still can.
/// The handler receives a result for each in any case. Called with no lock held.
pub(crate) fn cancel_on_rings(handler: &Arc<dyn Handler>, drivers: &[u64]) {
    let mut deferred = Deferred::default();
    let own = with(|driver| {
        driver.cancel_handler(handler, &mut deferred);
        driver.id
    });
    deferred.settle();
    let others = drivers.iter().filter(|&&id| Some(id) != own).filter_map(|&id| shared::find(id));
    others.for_each(|shared| shared.post_cancellation(Arc::clone(handler)));
}

impl Driver {
    /// Withdraws the operation of a dropped future, or asks the kernel to cancel it. `None` if its result is not in a
    /// slot of this driver any more, or goes to another thread.
    pub(super) fn cancel(&mut self, key: Key) -> Option<Remainder> {
        let slot = self.slots.get(key)?;
        if slot.marks.owner() == Owner::Remote {
            return None;
        }
        if slot.state == State::Done {
            return Some((self.slots.take(key.slot()).memory, Wake::None, None));
        }
        self.counts.cancelled += 1;
        let (state, position, file, kind) = (slot.state, slot.position, slot.file, slot.ring);
        if self.shared.is_inherited() {
            // A forked child: the operation belongs to the parent, and no code waits for its end here.
            slot.marks.set_owner(Owner::None);
            return Some((IoMemory::None, std::mem::take(&mut slot.wake), None));
        }
        let withdrawn = state == State::Waiting || self.ports.withdraw(kind, key, position);
        if withdrawn {
            self.no_longer_in_flight(key);
            let wake = std::mem::take(&mut self.slots.at(key.slot()).wake);
            let memory = self.slots.take(key.slot()).memory;
            return Some((memory, wake, self.leave_file(file)));
        }
        let slot = self.slots.at(key.slot());
        slot.marks.set_owner(Owner::None);
        let wake = std::mem::take(&mut slot.wake);
        self.ask_to_cancel(key);
        Some((IoMemory::None, wake, None))
    }

    /// Asks the kernel to cancel an operation that it has.
    fn ask_to_cancel(&mut self, key: Key) {
        if self.may_wait_forever(key) {
            self.asked.keys.push(key);
            self.asked.last = Some(Instant::now());
        }
        self.waiting.push_back(Unsubmitted::Cancellation(key));
        self.submit_waiting();
    }

    /// Asks the kernel again, from time to time, to cancel what has not ended.
    #[inline]
    pub(super) fn cancel_again(&mut self) {
        if !self.asked.keys.is_empty() {
            self.cancel_what_is_left();
        }
    }

    #[cold]
    fn cancel_what_is_left(&mut self) {
        let CancelledStreams { keys, last } = &mut self.asked;
        keys.retain(|&key| self.slots.get(key).is_some_and(|slot| slot.state == State::InFlight));
        if last.is_some_and(|last| last.elapsed() >= AGAIN) {
            *last = Some(Instant::now());
            self.waiting.extend(keys.iter().map(|&key| Unsubmitted::Cancellation(key)));
        }
    }

    /// Withdraws a remote request, or asks the kernel to cancel it; either way its handler receives a result.
    pub(super) fn cancel_queued(&mut self, key: Key, deferred: &mut Deferred) {
        let Some(slot) = self.slots.get(key) else { return };
        let (state, position, kind) = (slot.state, slot.position, slot.ring);
        if self.shared.is_inherited() {
            return;
        }
        match state {
            State::Free | State::Done => return,
            State::Waiting | State::InFlight => slot.cancelled = true,
        }
        self.counts.cancelled += 1;
        if state == State::InFlight && !self.ports.withdraw(kind, key, position) {
            return self.ask_to_cancel(key);
        }
        self.slots.at(key.slot()).errno = libc::ECANCELED as u16;
        self.end(key, deferred);
    }

    /// Cancels operations that wait for another process or a person, which would keep the thread from leaving its loop:
    /// each ends as if the kernel had cancelled it. The next call cancels operations that are started as a result.
    pub(super) fn cancel_on_streams(&mut self, deferred: &mut Deferred) {
        if !self.on_streams && self.waiting.is_empty() {
            return;
        }
        let open: Vec<Key> = self.slots.of_loop(&self.local_handlers).collect();
        open.into_iter().for_each(|key| self.cancel_on_stream(key, deferred));
    }

    pub(super) fn cancel_on_stream(&mut self, key: Key, deferred: &mut Deferred) {
        let slot = self.slots.at(key.slot());
        if !slot.cancelled && slot.marks.owner() != Owner::None && self.may_wait_forever(key) {
            self.cancel_queued(key, deferred);
        }
    }

    /// Returns whether an operation may wait for another process or a person.
    fn may_wait_forever(&mut self, key: Key) -> bool {
        let slot = self.slots.at(key.slot());
        let kind = slot.request.kind;
        self.files.target(slot.file).is_some_and(|target| target.may_wait_forever(kind))
    }

    /// Cancels each remote request whose result `handler` no longer wants.
    pub(super) fn cancel_handler(&mut self, handler: &Arc<dyn Handler>, deferred: &mut Deferred) {
        for key in self.slots.unwanted_of(handler) {
            self.cancel_queued(key, deferred);
        }
    }
}
