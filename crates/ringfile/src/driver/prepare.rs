//! Entries for the submission queue: the one place where a pointer is handed to the kernel.
//!
//! The invariant that all of it rests on: an entry names only memory that its slot owns (`held`, and `parts`, which
//! lists addresses inside `held`), and a slot gives that memory up only when the operation is withdrawn or answered
//! ([`super::slot`]). A buffer's address does not change when the buffer moves (the contract of
//! [`IoBuf`](crate::IoBuf)).

use linux_raw_sys::io_uring as uapi;
use uapi::io_uring_op as op;

use super::Driver;
use super::slot::{Key, Kind, Parts, Slot, State};
use super::target::FileKind;
use crate::memory::{Held, Part};
use crate::ring::{Ring, Sqe};

/// Completions that nobody waits for: withdrawn entries, and cancellations. Generation 0 is no operation's.
pub(super) const IGNORED: u64 = 0;
/// The eventfd by which other threads wake this one.
pub(super) const BELL: u64 = 1;

/// One submission moves at most this much: the length field has 32 bits, and the kernel stops at 2 GiB less a page.
pub(crate) const MOST_AT_ONCE: usize = 1 << 30;
/// `IOV_MAX`: one vectored submission has at most this many parts.
const MOST_PARTS: usize = 1024;

impl Driver {
    /// Puts the operation's next submission into the queue; false where there is no room.
    #[inline]
    pub(super) fn push(&mut self, key: Key) -> bool {
        let began = self.began_at(key);
        let slot = self.slots.at(key.slot);
        let (Some(rings), Some(file)) = (self.rings.as_mut(), self.files.entry(slot.file)) else {
            return false;
        };
        let polled = file.target.polled && slot.kind.moves_data();
        let ring = match rings.polled.as_mut() {
            Some(ring) if polled => ring,
            _ => &mut rings.main,
        };
        // A linked operation goes to the kernel together with the one that waits for it, or not yet.
        if ring.space() <= u32::from(slot.linked) {
            return false;
        }
        let (fd, registered) = file.descriptor(ring);
        let index = if slot.kind.moves_data() { fixed_index(&slot.held, ring) } else { None };
        let usual = matches!(slot.kind, Kind::Read | Kind::Write);
        let has_vectored_fixed = !usual && ring.supports(op::IORING_OP_READV_FIXED as u8);
        let Some(sqe) = ring.vacant() else { return false };
        // Filled in place: an entry made on the stack and copied costs a failed store forwarding.
        *sqe = Sqe {
            fd,
            user_data: key.to_user_data(),
            offset: file.target.offset(slot.offset),
            ..Sqe::default()
        };
        sqe.op_flags = slot.op_flags;
        if slot.kind.moves_data() {
            sqe.op_flags |= file.target.cache_flags();
        }
        if registered {
            sqe.flags |= 1 << uapi::io_uring_sqe_flags_bit::IOSQE_FIXED_FILE_BIT as u8;
        }
        if slot.linked {
            sqe.flags |= 1 << uapi::io_uring_sqe_flags_bit::IOSQE_IO_LINK_BIT as u8;
        }
        if usual {
            plain(slot, began, index, sqe);
        } else {
            let index = index.filter(|_| has_vectored_fixed);
            less_usual(slot, began, index, &mut self.spare_parts, sqe);
        }
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
            opcode: op::IORING_OP_ASYNC_CANCEL as u8,
            fd: -1,
            addr: key.to_user_data(),
            user_data: IGNORED,
            ..Sqe::default()
        };
        // SAFETY: the entry names no memory.
        unsafe { ring.push(sqe) }.is_some()
    }

    /// Has the ring answer when another thread rings the bell.
    #[inline]
    pub(super) fn arm_bell(&mut self) {
        if let Some(rings) = self.rings.as_mut()
            && !rings.bell_armed
            && let Ok(eventfd) = self.shared.eventfd()
        {
            let sqe = Sqe {
                opcode: op::IORING_OP_POLL_ADD as u8,
                fd: eventfd,
                op_flags: libc::POLLIN as u32,
                len: if rings.bell_repeats { uapi::IORING_POLL_ADD_MULTI } else { 0 },
                user_data: BELL,
                ..Sqe::default()
            };
            // SAFETY: the entry names no memory.
            rings.bell_armed = unsafe { rings.main.push(sqe) }.is_some();
        }
    }

    /// Whether the operation is on the ring whose completions are polled.
    #[inline]
    pub(super) fn is_polled(&mut self, key: Key) -> bool {
        let slot = self.slots.at(key.slot);
        slot.kind.moves_data() && self.files.target(slot.file).is_some_and(|target| target.polled)
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
    let first = held.part(0)?.region?;
    let same = |part: Part<'_>| part.region.is_some_and(|region| std::ptr::eq(first, region));
    if held.count() > 1 && !held.parts().all(same) {
        return None;
    }
    ring.fixed_index(first)
}

/// A read or write of one piece of memory, in its fixed form where the memory is registered.
#[inline]
fn plain(slot: &mut Slot, began: usize, index: Option<u16>, sqe: &mut Sqe) {
    let start = match &slot.held {
        Held::Pooled(buffer) => buffer.as_ptr(),
        held => held.part(0).map_or(std::ptr::null(), |part| part.ptr.cast_const()),
    };
    sqe.offset = sqe.offset.saturating_add(began as u64);
    sqe.addr = start.wrapping_add(slot.start + began).expose_provenance() as u64;
    sqe.len = (slot.want - began).min(MOST_AT_ONCE) as u32;
    sqe.buf_index = index.unwrap_or(0);
    sqe.opcode = match (slot.kind, index) {
        (Kind::Read, None) => op::IORING_OP_READ,
        (Kind::Read, Some(_)) => op::IORING_OP_READ_FIXED,
        (_, None) => op::IORING_OP_WRITE,
        (_, Some(_)) => op::IORING_OP_WRITE_FIXED,
    } as u8;
    slot.fixed &= index.is_some();
}

/// What is neither a plain read nor a plain write.
#[cold]
fn less_usual(
    slot: &mut Slot,
    began: usize,
    index: Option<u16>,
    spare_parts: &mut Vec<Parts>,
    sqe: &mut Sqe,
) {
    match slot.kind {
        Kind::Read | Kind::Write => plain(slot, began, index, sqe),
        Kind::ReadVectored | Kind::WriteVectored => {
            if slot.parts.is_none() {
                slot.parts = Some(spare_parts.pop().unwrap_or_default());
            }
            vectored(slot, began, index, sqe);
        }
        Kind::Sync => sqe.opcode = op::IORING_OP_FSYNC as u8,
        Kind::Allocate => {
            sqe.opcode = op::IORING_OP_FALLOCATE as u8;
            sqe.addr = slot.want as u64;
            sqe.len = std::mem::take(&mut sqe.op_flags);
        }
        Kind::Truncate => sqe.opcode = op::IORING_OP_FTRUNCATE as u8,
        Kind::Advise => {
            sqe.opcode = op::IORING_OP_FADVISE as u8;
            match u32::try_from(slot.want) {
                Ok(len) => sqe.len = len,
                // Linux 6.12 reads a 64-bit length here; before, 0 in `len` means to the end, which is the same
                // for advice on what is longer than 4 GiB but for its tail.
                Err(_) => sqe.addr = slot.want as u64,
            }
        }
    }
    slot.fixed &= slot.kind.moves_data();
}

/// A read or write of several pieces of memory, in its fixed form where all are parts of one registered region.
fn vectored(slot: &mut Slot, began: usize, index: Option<u16>, sqe: &mut Sqe) {
    let is_read = slot.kind.is_read();
    let Some(parts) = slot.parts.as_mut() else { return };
    gather(&slot.held, is_read, slot.start + began, parts);
    sqe.opcode = match (is_read, index) {
        (true, None) => op::IORING_OP_READV,
        (true, Some(_)) => op::IORING_OP_READV_FIXED,
        (false, None) => op::IORING_OP_WRITEV,
        (false, Some(_)) => op::IORING_OP_WRITEV_FIXED,
    } as u8;
    sqe.offset = sqe.offset.saturating_add(began as u64);
    sqe.addr = parts.as_ptr().expose_provenance() as u64;
    sqe.len = parts.len() as u32;
    sqe.buf_index = index.unwrap_or(0);
    slot.fixed &= index.is_some();
}

/// The addresses of what one submission or call moves of several pieces of memory, from byte `skip` on.
pub(super) fn gather(held: &Held, is_read: bool, mut skip: usize, parts: &mut Vec<libc::iovec>) {
    parts.clear();
    let mut room = MOST_AT_ONCE;
    for part in held.parts() {
        let len = if is_read { part.capacity } else { part.len };
        let skipped = skip.min(len);
        skip -= skipped;
        let take = (len - skipped).min(room);
        if take == 0 {
            continue;
        }
        if parts.len() == MOST_PARTS {
            break;
        }
        room -= take;
        parts.push(libc::iovec { iov_base: part.ptr.wrapping_add(skipped).cast(), iov_len: take });
    }
}
