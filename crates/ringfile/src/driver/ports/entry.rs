//! What the entries of all ports have in common: the fields that do not depend on the kind of operation, and the registered
//! memory.

use linux_raw_sys::io_uring::io_uring_op as uop;

use crate::driver::files::FileInUse;
use crate::driver::key::Key;
use crate::driver::marks::ASYNC;
use crate::driver::op::{self, PartsOf, Progress, Request};
use crate::driver::slot::{Marks, Slot};
use crate::driver::target::Target;
use crate::memory::{Held, Part};
use crate::ring::{Ring, Sqe};

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
    op::fill(request, &slot.held, began, None, parts, base, &mut sqe);
    sqe
}

/// Returns the index of the registered region that contains all parts of a buffer.
#[inline(always)]
pub(super) fn fixed_index(held: &Held, ring: &mut Ring) -> Option<u16> {
    if let Held::Pooled(buffer) = held
        && let Some(index) = ring.buffers.recent_index_of(buffer.as_ptr(), buffer.capacity())
    {
        return Some(index);
    }
    found_index(held, ring)
}

/// As `fixed_index`, for memory other than a buffer in the last operation's region.
#[inline(never)]
fn found_index(held: &Held, ring: &mut Ring) -> Option<u16> {
    if held.count() > 1 && !ring.supports(uop::IORING_OP_READV_FIXED as u8) {
        return None;
    }
    match held {
        Held::Bytes(bytes) => return ring.buffers.index_of_bytes(std::slice::from_ref(bytes)),
        Held::ManyBytes(all) => return ring.buffers.index_of_bytes(all),
        Held::None | Held::Pooled(_) | Held::Vec(_) | Held::Buffers(_) | Held::Vecs(_) => {}
        Held::Other(_) | Held::Paths(_) | Held::Destination(_) => {}
    }
    let first = held.part(0)?.region?;
    let same = |part: Part<'_>| part.region.is_some_and(|region| std::ptr::eq(first, region));
    if held.count() > 1 && !held.parts().all(same) {
        return None;
    }
    ring.buffers.index_of(first)
}
