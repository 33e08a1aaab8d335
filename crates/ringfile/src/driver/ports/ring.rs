//! A ring as a port: its entries for operations, and what each kind of ring takes.
//!
//! Invariant: the properties of a kind are decided by matches without a wildcard, so that a new kind of ring does not compile
//! before each has an answer.

use linux_raw_sys::io_uring as uapi;
use uapi::io_uring_op as uop;

use super::commands;
use super::entry::{FIXED_FILE, IGNORED, LINK, WAKEUP};
use super::entry::{base, begin, fixed_index};
use crate::driver::op::{self, PartsOf, Request};
use crate::driver::slots::files::FileInUse;
use crate::driver::slots::key::Key;
use crate::driver::slots::slot::{Slot, State};
use crate::driver::target::port_kind::PortKind;
use crate::ring::{Cqe, Ring, Sqe};

/// See the module.
pub(crate) struct RingPort {
    pub(crate) ring: Ring,
    pub(super) kind: PortKind,
    /// Operations in flight here; not counted on the main ring.
    pub(super) in_flight: usize,
    /// Whether it polls the wake-up descriptor, so that other threads can wake one that sleeps here.
    pub(crate) wakeup_armed: bool,
    /// Whether such a poll goes on after it has answered.
    wakeup_repeats: bool,
}

impl RingPort {
    pub(super) fn new(ring: Ring, kind: PortKind) -> Self {
        Self { ring, kind, in_flight: 0, wakeup_armed: false, wakeup_repeats: true }
    }

    /// Puts an operation's next submission, from byte `began` on, into the queue; returns false if the queue is full. The
    /// ring takes no commands.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        file: &mut FileInUse,
        key: Key,
        slot: &mut Slot,
        mut parts: PartsOf<'_>,
        began: usize,
    ) -> bool {
        let ring = &mut self.ring;
        let request = &slot.request;
        // A linked operation must be submitted together with the one that waits for it, or later.
        if request.linked && ring.space() < 2 {
            return false;
        }
        let has_fixed_form = request.kind.has_fixed_form();
        let index = if has_fixed_form { fixed_index(&slot.memory, ring) } else { None };
        let (fd, registered) = file.descriptor(slot.ring, ring);
        let Some(sqe) = ring.vacant() else { return false };
        let extra = if file.target.has_extra() {
            begin(file, request, slot.progress, &mut slot.marks, parts.reborrow())
        } else {
            0
        };
        let flags = if registered { FIXED_FILE } else { 0 } | if request.linked { LINK } else { 0 } | extra;
        let base = Sqe { flags, ..base(&file.target, key, request, fd) };
        op::fill(request, &slot.memory, began, index, parts, base, sqe);
        slot.fixed &= index.is_some();
        // SAFETY: the entry was filled above, and names memory of the slot, see the module `ports`.
        slot.position = unsafe { ring.commit() };
        slot.state = State::InFlight;
        true
    }

    /// Does what [`push`](Self::push) does, on a ring of any kind.
    pub(super) fn push_any(
        &mut self,
        file: &mut FileInUse,
        key: Key,
        slot: &mut Slot,
        parts: PartsOf<'_>,
    ) -> bool {
        if self.kind.takes_commands() {
            commands::push(&mut self.ring, file, key, slot, parts)
        } else {
            let began = slot.progress.began(&slot.request, &*file.target);
            self.push(file, key, slot, parts, began)
        }
    }

    /// Asks the kernel to cancel an operation; returns false if the queue is full.
    pub(super) fn cancel(&mut self, key: Key) -> bool {
        let sqe = Sqe {
            opcode: uop::IORING_OP_ASYNC_CANCEL as u8,
            fd: -1,
            addr: key.to_user_data(),
            user_data: IGNORED,
            ..Sqe::default()
        };
        // SAFETY: the entry names no memory.
        unsafe { self.ring.push(sqe) }.is_some()
    }

    /// Polls a descriptor; returns false if the queue is full.
    pub(super) fn poll(&mut self, fd: i32, len: u32, user_data: u64) -> bool {
        let sqe = Sqe {
            opcode: uop::IORING_OP_POLL_ADD as u8,
            fd,
            op_flags: libc::POLLIN as u32,
            len,
            user_data,
            ..Sqe::default()
        };
        // SAFETY: the entry names no memory.
        unsafe { self.ring.push(sqe) }.is_some()
    }

    /// Makes the ring answer when another thread writes to the wake-up descriptor.
    pub(super) fn arm_wakeup(&mut self, wakeup: i32) {
        let len = if self.wakeup_repeats { uapi::IORING_POLL_ADD_MULTI } else { 0 };
        self.wakeup_armed = self.poll(wakeup, len, WAKEUP);
    }

    /// Takes an answer to the poll of the wake-up descriptor. Returns whether the poll has ended.
    pub(super) fn wakeup_answered(&mut self, cqe: Cqe) -> bool {
        let ends = cqe.flags & uapi::IORING_CQE_F_MORE == 0;
        if ends {
            self.wakeup_armed = false;
            self.wakeup_repeats &= cqe.result >= 0;
        }
        ends
    }

    /// Returns whether an operation whose port this is can be submitted now; on the main ring one that moves no data.
    pub(super) fn takes(&self, request: &Request) -> bool {
        match self.kind {
            PortKind::Main => {
                request.kind.opcode().is_some_and(|code| self.ring.supports(code)) && request.fits_an_entry()
            }
            PortKind::Polled | PortKind::Commands | PortKind::PolledCommands | PortKind::Aio => true,
        }
    }
}
