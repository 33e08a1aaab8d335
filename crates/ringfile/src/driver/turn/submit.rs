//! Submission: what a driver gives to its ports, and what becomes of operations that they could not submit.

use std::sync::Arc;
use std::time::Instant;

use super::alone::{call_for, may_be_alone};
use super::deferred::Deferred;
use super::state::{Driver, Unsubmitted};
use crate::driver::op::Request;
use crate::driver::ports::entry::{SLICE, index};
use crate::driver::ports::{EnterArgs, Rejected};
use crate::driver::refused::Refused;
use crate::driver::slots::key::{Key, OperationId};
use crate::driver::slots::loan::Lend;
use crate::driver::slots::slot::State;
use crate::driver::slots::wake::Wake;
use crate::driver::target::Target;
use crate::driver::target::port_kind::PortKind;

impl Driver {
    /// Ensures that an operation on `target` can be submitted, and returns the port that takes it. For `own` see
    /// [`takes`](Self::takes).
    pub(super) fn may_start(
        &mut self,
        target: &Target,
        request: &Request,
        own: bool,
    ) -> Result<PortKind, Refused> {
        self.ready(target, request, own).map_or_else(|| self.prepare(target, request, own), Ok)
    }

    /// Returns what [`may_start`](Self::may_start) returns, if nothing has to be prepared.
    #[inline(always)]
    fn ready(&self, target: &Target, request: &Request, own: bool) -> Option<PortKind> {
        if self.takes(own) { self.ports.ready(target, request) } else { None }
    }

    fn prepare(&mut self, target: &Target, request: &Request, own: bool) -> Result<PortKind, Refused> {
        if self.takes(own) { self.ports.prepare(target, request) } else { Err(Refused::Outside) }
    }

    /// Starts an operation on one of this thread's ports, and takes `wake`. `None` if it cannot; `refused` then says why. For
    /// `own` see [`takes`](Self::takes).
    #[inline(always)]
    pub(crate) fn start(
        &mut self,
        target: &Arc<Target>,
        request: &Request,
        memory: &mut impl Lend,
        own: bool,
        wake: &mut Wake,
        refused: &mut Refused,
    ) -> Option<OperationId> {
        // As `may_start`, which would return its result in memory.
        let ready = self.ready(target, request, own);
        let prepare = || self.prepare(target, request, own).map_err(|why| *refused = why).ok();
        let port = ready.or_else(prepare)?;
        Some(OperationId { driver: self.id, key: self.queue(target, request, memory, port, wake) })
    }

    /// Returns whether this thread has a usable ring, may create one, or has AIO in its place. For `own` see
    /// [`takes`](Self::takes).
    pub(crate) fn has_usable_port(&self, own: bool) -> bool {
        self.takes(own) && self.ports.are_usable()
    }

    /// Gives an operation a slot, which owns its buffer from here on, and submits it. [`may_start`](Self::may_start)
    /// has allowed it, and returned the ring.
    #[inline(always)]
    pub(super) fn queue(
        &mut self,
        target: &Arc<Target>,
        request: &Request,
        memory: &mut impl Lend,
        ring: PortKind,
        wake: &mut Wake,
    ) -> Key {
        let number = target.number;
        self.in_flight += 1;
        let file = self.files.enter(target);
        let key = {
            let (key, slot, parts) = self.slots.insert(request, memory, number, ring, wake);
            self.on_streams |= file.is_stream;
            if ring == PortKind::Main
                && self.waiting.is_empty()
                && !may_be_alone(self.in_flight, request)
                && let Some(main) = &mut self.ports.main
                && main.push(file, key, slot, parts, 0)
            {
                return key;
            }
            key
        };
        self.queue_otherwise(key, ring, request);
        key
    }

    /// Submits an operation for another ring, or one that found the main ring full, or, with the next turn, one that the
    /// thread may carry out itself ([`super::alone`]).
    #[cold]
    fn queue_otherwise(&mut self, key: Key, ring: PortKind, request: &Request) {
        if ring == PortKind::Main && may_be_alone(self.in_flight, request) {
            return self.waiting.push_back(Unsubmitted::Operation(key));
        }
        if ring != PortKind::Main {
            self.ports.count(ring, true);
        }
        // If there is no room, the operation waits; each of the next turns submits some of those that wait.
        self.submit_again(key);
    }

    /// Submits the rest of an operation.
    pub(super) fn submit_again(&mut self, key: Key) {
        if !self.waiting.is_empty() || !self.push(key) {
            self.waiting.push_back(Unsubmitted::Operation(key));
        }
    }

    /// Puts the operation's next submission into the queue; returns false if the queue is full.
    fn push(&mut self, key: Key) -> bool {
        let (slot, parts) = self.slots.with_parts(key.slot());
        let Some(file) = self.files.entry(slot.file) else { return false };
        self.ports.push(file, key, slot, parts)
    }

    /// Submits waiting operations, as far as there is room.
    pub(super) fn submit_waiting(&mut self) {
        while let Some(&next) = self.waiting.front() {
            let pushed = match next {
                _ if self.is_withdrawn(next) => true,
                Unsubmitted::Operation(key) => self.push(key),
                Unsubmitted::Cancellation(key) => {
                    self.slots.get(key).is_none_or(|slot| self.ports.cancel(key, slot))
                }
            };
            if !pushed {
                return;
            }
            self.waiting.pop_front();
        }
    }

    /// Returns whether an operation has ended or was withdrawn while it waited, so that nothing is left to submit.
    pub(super) fn is_withdrawn(&mut self, next: Unsubmitted) -> bool {
        match next {
            Unsubmitted::Operation(key) => {
                self.slots.get(key).is_none_or(|slot| slot.state != State::Waiting)
            }
            Unsubmitted::Cancellation(_) => false,
        }
    }

    /// Returns whether another turn has something to do that need not wait for the end of an operation: something to
    /// submit, for instance the rest of an operation that the kernel has done in part, or completions for which the queue
    /// had no room. Nothing announces either.
    pub(super) fn must_turn_again(&self) -> bool {
        !self.shared.is_inherited() && self.ports.must_turn_again(!self.waiting.is_empty())
    }

    /// Returns whether the thread may sleep in one of its ports.
    #[inline]
    pub(super) fn can_sleep_in_ring(&self) -> bool {
        self.ports.can_sleep(self.is_idle())
    }

    /// Makes the main ring wait for messages again, see [`Ports::listen`](crate::driver::ports::Ports::listen).
    #[inline]
    pub(super) fn listen(&mut self) {
        if self.can_sleep_in_ring() {
            self.ports.listen();
        }
    }

    /// Sleeps until there are `wanted` completions, if there are none yet. Does not sleep if `wanted` is 0.
    pub(super) fn enter(&mut self, wanted: u32, deadline: Option<Instant>, deferred: &mut Deferred) {
        self.on_streams &= self.in_flight > 0;
        self.ports.enter(EnterArgs {
            wanted: if self.on_streams { wanted.min(1) } else { wanted },
            most: if self.guards > 0 && !self.in_loop { u32::MAX } else { SLICE },
            deadline: self.asked.limit(deadline),
            in_flight: self.in_flight,
            has_waiting: !self.waiting.is_empty(),
        });
        if !self.ports.rejected.is_empty() {
            self.end_rejected(deferred);
        }
    }

    /// Ends the operations that the kernel did not take.
    #[cold]
    fn end_rejected(&mut self, deferred: &mut Deferred) {
        for Rejected { kind, user_data, errno } in std::mem::take(&mut self.ports.rejected) {
            let key = Key::from_user_data(user_data);
            if let Some(slot) = self.slots.get(key).filter(|slot| slot.state == State::InFlight) {
                slot.errno = errno as u16;
                if kind == PortKind::Aio && matches!(errno, libc::EPERM | libc::EACCES | libc::ENOSYS) {
                    self.call_instead(key, errno);
                }
                self.end(key, deferred);
            } else if let Some(index) = index(user_data) {
                // The caller of the read in place has to look at the answer, and nothing else wakes the thread.
                self.answered_in_place(index, -errno);
                self.shared.sleep.notify();
            }
        }
    }

    /// Carries out an operation that a seccomp filter seems to refuse with a plain call, unless its file insists on
    /// AIO. If the call gets another answer, there is a filter, and from then on operations are routed as if there were
    /// no AIO. The call blocks the thread, once for each operation that was queued when the filter was installed.
    #[cold]
    fn call_instead(&mut self, key: Key, errno: i32) {
        let slot = self.slots.at(key.slot());
        let Some(target) = self.files.target(slot.file) else { return };
        if target.lanes.insists(slot.request.kind) {
            return;
        }
        let ended = call_for(slot, target);
        self.counts.inline_ops += 1;
        if ended.errno != errno {
            self.ports.aio.refused = Some(errno);
        }
    }
}
