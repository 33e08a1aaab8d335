//! Completion: a turn of the driver, and what each answer of the kernel does to its operation.
//!
//! Invariants: an operation ends exactly once, in [`Driver::end`].

use std::time::Instant;

use super::counts::count_end;
use super::deferred::Deferred;
use super::state::{ActiveTasks, Driver};
use crate::counters::Metrics;
use crate::driver::op::{NO_THREAD, OpResult, Step, keep_opened, plain};
use crate::driver::ports::answer;
use crate::driver::ports::entry::index;
use crate::driver::slots::key::{Key, LocalHandler};
use crate::driver::slots::slot::{Marks, Owner, State};
use crate::driver::slots::wake::Wake;
use crate::driver::target::port_kind::PortKind;
use crate::ring::Cqe;
use ringfile_buffer::internal::event;

impl Driver {
    /// Runs one turn: see [`crate::driver::turn`](crate::driver::turn()).
    pub(super) fn turn(
        &mut self,
        may_sleep: bool,
        deadline: Option<Instant>,
        wanted: u32,
        deferred: &mut Deferred,
    ) {
        self.ports.may_pause = may_sleep;
        self.active_tasks = ActiveTasks { last: None, tasks: 0, before: self.active_tasks.tasks };
        if !self.shared.is_inherited() {
            self.cancel_again();
            self.submit_waiting();
            let can_sleep = self.can_sleep_in_ring();
            if can_sleep {
                self.ports.arm_wakeup(PortKind::Main);
            }
            let wanted = if may_sleep && can_sleep { wanted } else { 0 };
            self.enter(wanted, deadline, deferred);
            self.collect(deferred);
        } else {
            self.disown(deferred);
        }
        self.read_mail(deferred);
        self.publish_counts();
    }

    /// Publishes the counters, outside a loop only if operations have ended since the last time: a thread that waits
    /// there turns many times for each operation, and most turns end none.
    #[inline]
    pub(super) fn publish_counts(&mut self) {
        if self.in_loop || self.published_ops != self.counts.ops {
            self.published_ops = self.counts.ops;
            self.shared.counters.publish(self.current_counts());
        }
    }

    fn collect(&mut self, deferred: &mut Deferred) {
        while let Some(cqe) = self.ports.complete() {
            self.completed(cqe, deferred);
        }
        while let Some((kind, cqe)) = self.ports.complete_extra() {
            self.completed_extra(kind, cqe, deferred);
        }
        self.ports.forget_released();
    }

    /// Handles a completion of AIO, or of a ring other than the main one.
    #[inline(never)]
    fn completed_extra(&mut self, kind: PortKind, cqe: Cqe, deferred: &mut Deferred) {
        if !kind.takes_commands() {
            return self.completed(cqe, deferred);
        }
        let key = Key::from_user_data(cqe.user_data);
        let Some(slot) = self.slots.get(key).filter(|slot| slot.state == State::InFlight) else {
            return self.not_an_operation(kind, cqe);
        };
        let answer = self.files.target(slot.file).and_then(|target| answer(slot, target, cqe.result));
        if answer.is_some_and(|answer| self.is_over(key, answer)) {
            self.counts.passthrough_ops += 1;
            self.end(key, deferred);
        }
    }

    // Inlined in the loop over the main ring's completions, which saves 20 instructions for each.
    #[inline(always)]
    fn completed(&mut self, cqe: Cqe, deferred: &mut Deferred) {
        let key = Key::from_user_data(cqe.user_data);
        let Some(slot) = self.slots.get(key).filter(|slot| slot.state == State::InFlight) else {
            if let Some(index) = index(cqe.user_data)
                && self.answered_in_place(index, cqe.result)
            {
                return;
            }
            return self.not_an_operation(PortKind::Main, cqe);
        };
        let all_at_once =
            slot.progress.done() == 0 && cqe.result > 0 && cqe.result as usize == slot.request.want;
        if all_at_once && slot.request.kind.is_read() {
            slot.progress.end(slot.request.want);
        } else {
            if all_at_once && slot.request.kind.is_write() {
                slot.progress.end(slot.request.want);
            } else if !self.is_over(key, usize::try_from(cqe.result).map_err(|_| -cqe.result)) {
                return;
            }
            if self.slots.at(key.slot()).request.is_sync() {
                self.settle_sync(key);
            }
        }
        self.end(key, deferred);
    }

    /// Makes the file remember a failed sync.
    #[cold]
    fn settle_sync(&mut self, key: Key) {
        let slot = self.slots.at(key.slot());
        if let Some(target) = self.files.target(slot.file) {
            let errno = slot.errno.into();
            slot.errno =
                plain::settle_sync(target, &slot.request, &mut slot.memory, slot.progress, errno) as u16;
        }
    }

    #[cold]
    fn not_an_operation(&mut self, kind: PortKind, cqe: Cqe) {
        if self.ports.answered(kind, cqe) {
            return;
        }
        self.counts.stray += 1;
        event::defer(move || {
            tracing::error!(
                user_data = cqe.user_data,
                result = cqe.result,
                "a completion belongs to no operation: please report this defect of ringfile"
            );
        });
    }

    /// Returns whether the kernel's answer ends the operation. If not, submits the rest of it, or all of it again.
    #[cold]
    fn is_over(&mut self, key: Key, answer: Result<usize, i32>) -> bool {
        let slot = self.slots.at(key.slot());
        // SAFETY: this is the kernel's answer to the entry of this request.
        unsafe { keep_opened(&slot.request, &mut slot.memory, answer) };
        let Some(target) = self.files.target(slot.file) else { return true };
        let wanted = slot.marks.owner() != Owner::None && !slot.cancelled;
        let answer = match answer {
            // The operation was not cancelled: the ring could not create a thread for it, or the thread that had submitted
            // it has ended.
            Err(libc::ECANCELED)
                if wanted
                    && !slot.behind_link
                    && (self.ports.options.is_shared || !target.may_wait_forever(slot.request.kind)) =>
            {
                Err(NO_THREAD)
            }
            // The thread that had submitted it has ended, and the kernel does not finish its reads that wait for a page.
            Err(libc::EFAULT)
                if wanted && self.ports.options.is_shared && slot.progress.may_lack_a_thread() =>
            {
                Err(NO_THREAD)
            }
            answer => answer,
        };
        match slot.progress.answered(&slot.request, target, answer, || wanted) {
            Step::Done(errno) => {
                slot.errno = errno as u16;
                if !slot.request.kind.moves_data() {
                    target.may_be_shorter();
                }
                true
            }
            Step::GoOn => {
                self.counts.resubmitted += 1;
                slot.state = State::Waiting;
                (slot.request.linked, slot.behind_link) = (false, false);
                self.submit_again(key);
                false
            }
        }
    }

    /// Ends an operation. Nothing else does; only an operation whose future was dropped before the kernel had it is
    /// withdrawn without an end.
    #[inline(always)]
    pub(super) fn end(&mut self, key: Key, deferred: &mut Deferred) {
        self.in_flight -= 1;
        let slot = self.slots.at(key.slot());
        let (file, marks, ring) = (slot.file, slot.marks, slot.ring);
        let ended = OpResult { done: slot.progress.done(), errno: slot.errno.into() };
        count_end(&mut self.counts, slot.request.kind, ended);
        self.counts.fixed_ops += u64::from(slot.fixed);
        slot.state = State::Done;
        if slot.request.kind.is_read() {
            // SAFETY: the kernel has written `done` bytes from `start` on; what comes before was there already, since
            // only the library's own reads begin past 0, and they fill memory in order.
            unsafe { slot.memory.filled(slot.request.start + ended.done) };
        }
        match slot.wake {
            Wake::Task(task) => {
                slot.wake = Wake::None;
                deferred.tasks.push(task);
            }
            Wake::Local(own) => {
                slot.wake = Wake::None;
                self.end_local(key, own.handler(), own.index(), deferred);
            }
            Wake::None => {}
            Wake::Waker(_) | Wake::Handler(..) => self.end_for_others(key, deferred),
        }
        let is_unusual = marks != Marks::NONE || ring != PortKind::Main;
        if is_unusual {
            self.end_unusual(key, marks, ring);
        }
        // Before another thread can have the result, and drop the last handle.
        if let Some(unused) = self.leave_file(file) {
            deferred.files.push(*unused);
        }
        if is_unusual {
            self.end_elsewhere(key, marks.owner(), deferred);
        }
    }

    /// Counts an operation that is timed, or not on the main ring.
    #[cold]
    #[inline(never)]
    fn end_unusual(&mut self, key: Key, marks: Marks, ring: PortKind) {
        self.ports.count(ring, false);
        self.counts.aio_ops += u64::from(ring == PortKind::Aio);
        if marks.is_timed() {
            // The operation no longer counts as in flight.
            let in_flight = self.in_flight + 1;
            // The slot may be free by now; what it had is still there.
            let (slot, parts) = self.slots.with_parts(key.slot());
            if let Some(target) = self.files.target(slot.file)
                && let Some(timed) = parts.get().timed.take()
            {
                let ended = OpResult { done: slot.progress.done(), errno: slot.errno.into() };
                target.end_timed(timed, &slot.request, ended, in_flight);
            }
        }
    }

    /// Ends an operation whose handler the driver knows by number. If the thread turns its driver for that handler, the
    /// result stays in the deferred work; otherwise it is delivered.
    #[inline(always)]
    fn end_local(&mut self, key: Key, handler: u32, index: u32, deferred: &mut Deferred) {
        if deferred.own == Some(LocalHandler(handler)) {
            return self.slots.take_to(key.slot(), deferred.add_own_result(index));
        }
        let finished = self.slots.take(key.slot());
        if let Some(handler) = self.local_handlers.at_end(handler) {
            deferred.ended.push((handler, index, finished));
        } else {
            deferred.buffers.push(finished.memory);
        }
    }

    #[inline(never)]
    fn end_for_others(&mut self, key: Key, deferred: &mut Deferred) {
        match std::mem::take(&mut self.slots.at(key.slot()).wake) {
            Wake::Handler(handler, index) => {
                let finished = self.slots.take(key.slot());
                deferred.ended.push((handler, index, finished));
            }
            wake => deferred.wake(wake),
        }
    }

    #[inline]
    pub(super) fn current_counts(&self) -> Metrics {
        let mut counts = self.counts;
        self.ports.add_counts(&mut counts);
        counts
    }
}
