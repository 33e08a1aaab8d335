//! Entries for the submission queue: the one place where a pointer is handed to the kernel.
//!
//! The invariant that all of it rests on: an entry names only memory that its slot owns (`held`, and `parts`, which
//! lists addresses inside `held`), and a slot gives that memory up only when the operation is withdrawn or answered
//! ([`super::slot`]). A buffer's address does not change when the buffer moves (the contract of
//! [`IoBuf`](crate::IoBuf)).

use linux_raw_sys::io_uring as uapi;
use uapi::io_uring_op as uop;

use super::slot::{Key, State};
use super::target::FileKind;
use super::{Driver, op};
use crate::memory::{Held, Part};
use crate::ring::{Ring, Sqe};

/// Completions that nobody waits for: withdrawn entries, and cancellations. Generation 0 is no operation's.
pub(super) const IGNORED: u64 = 0;
/// The eventfd by which other threads wake this one.
pub(super) const WAKEUP: u64 = 1;

impl Driver {
    /// Puts the operation's next submission into the queue; false where there is no room.
    #[inline]
    pub(super) fn push(&mut self, key: Key) -> bool {
        let (slot, parts) = self.slots.with_parts(key.slot);
        let (Some(rings), Some(file)) = (self.rings.as_mut(), self.files.entry(slot.file)) else {
            return false;
        };
        let request = &slot.request;
        let moves_data = request.kind.moves_data();
        let polled = file.target.polled && moves_data;
        let ring = match rings.polled.as_mut() {
            Some(ring) if polled => ring,
            _ => &mut rings.main,
        };
        // A linked operation goes to the kernel together with the one that waits for it, or not yet.
        if ring.space() <= u32::from(request.linked) {
            return false;
        }
        let (fd, registered) = file.descriptor(ring);
        let index = if moves_data { fixed_index(&slot.held, ring) } else { None };
        let began = slot.progress.began(request, &*file.target);
        let Some(sqe) = ring.vacant() else { return false };
        // Filled in place: an entry made on the stack and copied costs a failed store forwarding.
        *sqe = Sqe {
            fd,
            user_data: key.to_user_data(),
            offset: file.target.offset(request.offset),
            ..Sqe::default()
        };
        sqe.op_flags = request.op_flags;
        if moves_data {
            sqe.op_flags |= file.target.cache_flags();
        }
        if registered {
            sqe.flags |= 1 << uapi::io_uring_sqe_flags_bit::IOSQE_FIXED_FILE_BIT as u8;
        }
        if request.linked {
            sqe.flags |= 1 << uapi::io_uring_sqe_flags_bit::IOSQE_IO_LINK_BIT as u8;
        }
        slot.fixed &= op::fill(request, &slot.held, began, index, parts, sqe);
        // SAFETY: the entry was filled above, and names memory of the slot's, see the module.
        slot.position = unsafe { ring.commit() };
        slot.state = State::InFlight;
        self.in_flight += 1;
        self.on_streams |= file.target.kind == FileKind::Other;
        rings.polled_in_flight += usize::from(polled);
        true
    }

    /// Asks the kernel to cancel an operation that is on its way. Most are beyond that, and simply finish.
    pub(super) fn push_cancellation(&mut self, key: Key) -> bool {
        if self.slots.get(key).is_none() {
            return true;
        }
        let polled = self.is_polled(key);
        let Some(rings) = self.rings.as_mut() else { return true };
        let ring = match rings.polled.as_mut() {
            Some(ring) if polled => ring,
            _ => &mut rings.main,
        };
        let sqe = Sqe {
            opcode: uop::IORING_OP_ASYNC_CANCEL as u8,
            fd: -1,
            addr: key.to_user_data(),
            user_data: IGNORED,
            ..Sqe::default()
        };
        // SAFETY: the entry names no memory.
        unsafe { ring.push(sqe) }.is_some()
    }

    /// Has the ring answer when another thread rings the wake-up descriptor.
    #[inline]
    pub(super) fn arm_wakeup(&mut self) {
        if let Some(rings) = self.rings.as_mut()
            && !rings.wakeup_armed
            && let Ok(eventfd) = self.shared.eventfd()
        {
            let sqe = Sqe {
                opcode: uop::IORING_OP_POLL_ADD as u8,
                fd: eventfd,
                op_flags: libc::POLLIN as u32,
                len: if rings.wakeup_repeats { uapi::IORING_POLL_ADD_MULTI } else { 0 },
                user_data: WAKEUP,
                ..Sqe::default()
            };
            // SAFETY: the entry names no memory.
            rings.wakeup_armed = unsafe { rings.main.push(sqe) }.is_some();
        }
    }

    /// Whether the operation is on the ring whose completions are polled.
    #[inline]
    pub(super) fn is_polled(&mut self, key: Key) -> bool {
        let slot = self.slots.at(key.slot);
        slot.request.kind.moves_data() && self.files.target(slot.file).is_some_and(|target| target.polled)
    }
}

/// The index of the registered region that all parts of a buffer lie in.
#[inline]
fn fixed_index(held: &Held, ring: &mut Ring) -> Option<u16> {
    if let Held::Pooled(buffer) = held
        && let Some(index) = ring.recent_fixed_index(buffer.as_ptr(), buffer.capacity())
    {
        return Some(index);
    }
    if held.count() > 1 && !ring.supports(uop::IORING_OP_READV_FIXED as u8) {
        return None;
    }
    match held {
        Held::Bytes(bytes) => return ring.fixed_index_of_bytes(std::slice::from_ref(bytes)),
        Held::ManyBytes(all) => return ring.fixed_index_of_bytes(all),
        Held::None | Held::Pooled(_) | Held::Vec(_) | Held::Buffers(_) | Held::Vecs(_) | Held::Other(_) => {}
    }
    let first = held.part(0)?.region?;
    let same = |part: Part<'_>| part.region.is_some_and(|region| std::ptr::eq(first, region));
    if held.count() > 1 && !held.parts().all(same) {
        return None;
    }
    ring.fixed_index(first)
}
