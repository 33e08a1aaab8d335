//! The entry, the plain call and the answer of any operation: each goes to its family's file.

use super::parts::{Bounds, PartsOf};
use super::request::{Family, Kind, Request};
use super::{copy, transfer};
use crate::driver::target::Target;
use crate::memory::Held;
use crate::ring::Sqe;

/// Writes the submission entry of the operation from byte `began` on. `base` has its descriptor, user data, offset and
/// flags; `index` is the registered index of the buffer's memory, if the ring has a fixed form of the operation.
///
/// The entry names memory that `held` or `parts` owns.
#[inline(always)]
pub(crate) fn fill(
    request: &Request,
    held: &Held,
    began: usize,
    index: Option<u16>,
    parts: PartsOf<'_>,
    base: Sqe,
    sqe: &mut Sqe,
) {
    if let Kind::Read | Kind::Write = request.kind {
        // Each field is written once: an entry made on the stack and copied costs a failed store forwarding.
        *sqe = transfer::entry(request, held, began, index, base);
        return;
    }
    *sqe = base;
    if request.kind.moves_data() {
        transfer::fill_vectored(request, held, began, index, &mut parts.get().addresses, sqe);
    } else {
        fill_without_data(request, held, sqe);
    }
}

/// Does what [`fill`] does, for an operation that moves no data to or from memory. Not inlined with it, since the kinds
/// of these families make a long table of jumps.
#[cold]
fn fill_without_data(request: &Request, held: &Held, sqe: &mut Sqe) {
    match request.kind.family() {
        Family::Control(kind) => kind.fill(request.op_flags, request.want, sqe),
        Family::Path(kind) => kind.fill(held, sqe),
        // Reads and writes do not come here, and no ring has copies.
        Family::Read | Family::Write | Family::Copy => {}
    }
}

/// Makes one plain call for the operation from byte `began` on. Returns what the ring would answer: the number of bytes
/// moved, the descriptor opened, or the errno.
pub(super) fn call(
    target: &Target,
    request: &Request,
    held: &mut Held,
    began: usize,
    bounds: Bounds,
) -> Result<usize, i32> {
    if request.kind.moves_data() {
        transfer::call(target, request, held, began, bounds)
    } else {
        call_without_data(target, request, held, began)
    }
}

/// Does what [`call`] does, for an operation that moves no data to or from memory.
#[inline(never)]
fn call_without_data(
    target: &Target,
    request: &Request,
    held: &mut Held,
    began: usize,
) -> Result<usize, i32> {
    #[cfg(feature = "sim")]
    if let Some(file) = target.simulated() {
        return super::simulated::call(file, request, held, began);
    }
    match request.kind.family() {
        Family::Control(kind) => {
            kind.call(target.as_fd(), request.op_flags, request.offset, request.want).map(|()| 0)
        }
        Family::Path(kind) => kind.call(request.op_flags, held),
        Family::Copy => copy::call(target, request, held, began),
        // Reads and writes do not come here.
        Family::Read | Family::Write => Err(libc::EINVAL),
    }
}

/// Keeps the descriptor of an opened file in `held`: dropping `held` closes it.
///
/// # Safety
/// `answer` is the ring's answer to `request` with `held`, and is passed here only once.
pub(crate) unsafe fn keep_opened(request: &Request, held: &mut Held, answer: Result<usize, i32>) {
    if let Family::Path(kind) = request.kind.family() {
        // SAFETY: as the caller promises.
        unsafe { kind.keep_opened(held, answer) };
    }
}
