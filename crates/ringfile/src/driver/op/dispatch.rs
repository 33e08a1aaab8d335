//! The entry and the plain call of any operation.

use super::parts::{Bounds, PartsOf};
use super::request::{Family, Kind, Request};
use super::{control, copy, path, transfer};
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
    match request.kind.family() {
        Family::Read | Family::Write => {
            transfer::fill_vectored(request, held, began, index, &mut parts.get().addresses, sqe);
        }
        Family::Control => control::fill(request, sqe),
        Family::Path => path::fill(request, held, sqe),
        // No ring supports it.
        Family::Copy => {}
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
    if target.namespace().is_some() {
        return Err(libc::EOPNOTSUPP);
    }
    match request.kind.family() {
        Family::Read | Family::Write => transfer::call(target, request, held, began, bounds),
        Family::Control => control::call(target, request).map(|()| 0),
        Family::Path => path::call(request, held),
        Family::Copy => copy::call(target, request, held, began),
    }
}
