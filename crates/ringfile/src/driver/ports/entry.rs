//! What the entries of all ports have in common: the fields that do not depend on the kind of operation, the registered
//! memory, their flags, and the user data of those that belong to no operation with a slot.

use linux_raw_sys::io_uring::{io_uring_op as uop, io_uring_sqe_flags_bit as flags_bit};

use crate::driver::op::{self, PartsOf, Progress, Request};
use crate::driver::slots::files::FileInUse;
use crate::driver::slots::key::Key;
use crate::driver::slots::slot::{Marks, Slot};
use crate::driver::target::Target;
use crate::memory::{IoMemory, Part};
use crate::ring::{Ring, Sqe};

/// The user data of completions without an operation: withdrawn entries, and cancellations. No operation has generation
/// 0.
pub(super) const IGNORED: u64 = 0;

/// The user data of the eventfd with which other threads wake this one; the ring polls it.
pub(super) const WAKEUP: u64 = 1;

/// The user data of the same eventfd in the AIO context.
pub(super) const AIO_WAKEUP: u64 = 2;

/// The user data of the signal of the ring for commands.
pub(super) const COMMANDS: u64 = 3;

/// How many entries one `enter` submits at most on a thread with other tasks: a device takes about 3 µs for each, and
/// the tasks wait meanwhile. A thread that only waits for these operations submits all at once.
pub(crate) const SLICE: u32 = 128;

pub(crate) const FIXED_FILE: u8 = 1 << flags_bit::IOSQE_FIXED_FILE_BIT as u8;

pub(crate) const ASYNC: u8 = 1 << flags_bit::IOSQE_ASYNC_BIT as u8;

pub(super) const LINK: u8 = 1 << flags_bit::IOSQE_IO_LINK_BIT as u8;

/// The user data of the first read in place; the others follow. Their upper half is 0, a generation that no slot has.
pub(crate) const FIRST: u64 = 1 << 16;

/// Returns the index, among all answers, of the read in place with this user data; `None` if it belongs to none.
#[inline]
pub(crate) fn index(user_data: u64) -> Option<usize> {
    (FIRST..=u32::MAX.into()).contains(&user_data).then(|| (user_data - FIRST) as usize)
}

/// Notes when an operation began that was not submitted yet, if it is timed. Returns further flags for its entry.
#[cold]
#[inline(never)]
pub(super) fn begin(
    file: &FileInUse,
    request: &Request,
    progress: Progress,
    marks: &mut Marks,
    parts: PartsOf<'_>,
) -> u8 {
    if progress == Progress::default()
        && !marks.is_timed()
        && let Some(timed) = file.target.begin_timed(request, file.in_flight())
    {
        marks.set_timed(true);
        parts.get().timed = Some(timed);
    }
    if request.kind.has_fixed_form() && file.target.waits_in_submission() { ASYNC } else { 0 }
}

/// Fills the fields of an entry that do not depend on the kind of operation.
#[inline(always)]
pub(super) fn base(target: &Target, key: Key, request: &Request, fd: i32) -> Sqe {
    Sqe {
        fd,
        user_data: key.to_user_data(),
        offset: target.offset(request.offset),
        // Of the operations that move data, only atomic writes have no fixed form, and they do not use the cache.
        op_flags: request.op_flags | if request.kind.has_fixed_form() { target.cache_flags() } else { 0 },
        ..Sqe::default()
    }
}

/// Returns the entry of an operation's next submission, without registered memory. It names memory of the slot.
#[inline]
pub(super) fn plain_entry(target: &Target, key: Key, slot: &Slot, parts: PartsOf<'_>) -> Sqe {
    let request = &slot.request;
    let began = slot.progress.began(request, target);
    let mut sqe = Sqe::default();
    let base = base(target, key, request, target.raw_fd());
    op::fill(request, &slot.memory, began, None, parts, base, &mut sqe);
    sqe
}

/// Returns the index of the registered region that contains all parts of a buffer.
#[inline(always)]
pub(super) fn fixed_index(memory: &IoMemory, ring: &mut Ring) -> Option<u16> {
    if let IoMemory::Pooled(buffer) = memory
        && let Some(index) = ring.buffers.recent_index_of(buffer.as_ptr(), buffer.capacity())
    {
        return Some(index);
    }
    found_index(memory, ring)
}

/// As `fixed_index`, for memory other than a buffer in the last operation's region.
#[inline(never)]
fn found_index(memory: &IoMemory, ring: &mut Ring) -> Option<u16> {
    if memory.count() > 1 && !ring.supports(uop::IORING_OP_READV_FIXED as u8) {
        return None;
    }
    match memory {
        IoMemory::Bytes(bytes) => return ring.buffers.index_of_bytes(std::slice::from_ref(bytes)),
        IoMemory::ManyBytes(all) => return ring.buffers.index_of_bytes(all),
        IoMemory::None
        | IoMemory::Pooled(_)
        | IoMemory::Vec(_)
        | IoMemory::Buffers(_)
        | IoMemory::Vecs(_) => {}
        IoMemory::Other(_) | IoMemory::Paths(_) | IoMemory::Destination(_) => {}
    }
    let first = memory.part(0)?.region?;
    let same = |part: Part<'_>| part.region.is_some_and(|region| std::ptr::eq(first, region));
    if memory.count() > 1 && !memory.parts().all(same) {
        return None;
    }
    ring.buffers.index_of(first)
}
