//! The entry, the plain call and the answer of any operation: each goes to its family's file.

use std::ffi::CStr;

use super::parts::{Bounds, PartsOf};
use super::request::{Family, Kind, Request};
use super::{copy, transfer};
use crate::driver::target::Target;
use crate::memory::IoMemory;
use crate::ring::Sqe;

/// Writes the submission entry of the operation from byte `began` on. `base` has its descriptor, user data, offset and
/// flags; `index` is the registered index of the buffer's memory, if the ring has a fixed form of the operation.
///
/// The entry names memory that `memory` or `parts` owns.
#[inline(always)]
pub(crate) fn fill(
    request: &Request,
    memory: &IoMemory,
    began: usize,
    index: Option<u16>,
    parts: PartsOf<'_>,
    base: Sqe,
    sqe: &mut Sqe,
) {
    if let Kind::Read | Kind::Write = request.kind {
        // Each field is written once: an entry made on the stack and copied costs a failed store forwarding.
        *sqe = transfer::entry(request, memory, began, index, base);
        return;
    }
    *sqe = base;
    if request.kind.moves_data() {
        transfer::fill_vectored(request, memory, began, index, &mut parts.get().addresses, sqe);
    } else {
        fill_without_data(request, memory, sqe);
    }
}

/// Does what [`fill`] does, for an operation that moves no data to or from memory. Not inlined with it, since the kinds
/// of these families make a long table of jumps.
#[cold]
fn fill_without_data(request: &Request, memory: &IoMemory, sqe: &mut Sqe) {
    match request.kind.family() {
        Family::Control(kind) => kind.fill(request.op_flags, request.want, sqe),
        Family::Path(kind) => kind.fill(memory, sqe),
        // Reads and writes do not come here, and no ring has copies.
        Family::Read | Family::Write | Family::Copy => {}
    }
}

/// Makes one plain call for the operation from byte `began` on. Returns what the ring would answer: the number of bytes
/// moved, the descriptor opened, or the errno.
pub(super) fn call(
    target: &Target,
    request: &Request,
    memory: &mut IoMemory,
    began: usize,
    bounds: Bounds,
) -> Result<usize, i32> {
    if request.kind.moves_data() {
        transfer::call(target, request, memory, began, bounds)
    } else {
        call_without_data(target, request, memory, began)
    }
}

/// Does what [`call`] does, for an operation that moves no data to or from memory.
#[inline(never)]
fn call_without_data(
    target: &Target,
    request: &Request,
    memory: &mut IoMemory,
    began: usize,
) -> Result<usize, i32> {
    if let IoMemory::Paths(paths) = memory
        && paths.to().is_some_and(CStr::is_empty)
    {
        // As in a ring, which looks at both paths before it follows one.
        return Err(libc::ENOENT);
    }
    if let Some(file) = target.simulated() {
        return crate::sim::call(file, request, memory, began);
    }
    match request.kind.family() {
        Family::Control(kind) => {
            kind.call(target.as_fd(), request.op_flags, request.offset, request.want).map(|()| 0)
        }
        Family::Path(kind) => kind.call(request.op_flags, memory),
        Family::Copy => copy::call(target, request, memory, began),
        // Reads and writes do not come here.
        Family::Read | Family::Write => Err(libc::EINVAL),
    }
}

/// Keeps the descriptor of an opened file in `memory`: dropping `memory` closes it.
///
/// # Safety
/// `answer` is the ring's answer to `request` with `memory`, and is passed here only once.
pub(crate) unsafe fn keep_opened(request: &Request, memory: &mut IoMemory, answer: Result<usize, i32>) {
    if let Family::Path(kind) = request.kind.family() {
        // SAFETY: as the caller promises.
        unsafe { kind.keep_opened(memory, answer) };
    }
}
