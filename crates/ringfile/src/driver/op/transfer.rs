//! Reads and writes, of one piece of memory or of several.
//!
//! Most cannot be cancelled once the kernel has them: it cancels operations that wait for a pipe, a socket or a worker
//! thread; what a disk has begun runs to its end. The invariant behind all of it: an entry and a call name only memory
//! of `memory`, and of `parts`, which lists addresses inside `memory`. A buffer's address does not change when the buffer
//! moves (the contract of [`IoBuf`](crate::IoBuf)).

use std::cell::RefCell;
use std::os::fd::{AsRawFd, BorrowedFd};

use linux_raw_sys::io_uring::{IORING_FSYNC_DATASYNC, io_uring_op as op};
use rustix::fs::{FileType, OFlags};

use super::control::ControlKind;
use super::parts::{Addresses, Bounds, MOST_AT_ONCE, is_refused, last_errno};
use super::request::{Kind, Request};
use crate::descriptor::{open_again, status};
use crate::driver::target::{FileKind, Target};
use crate::memory::IoMemory;
use crate::ring::Sqe;

/// `IOV_MAX`: one vectored submission has at most this many parts.
const MOST_PARTS: usize = 1024;

/// Returns the entry of a read or write of one piece of memory, in its fixed form if the memory is registered.
#[inline(always)]
pub(super) fn entry(
    request: &Request,
    memory: &IoMemory,
    began: usize,
    index: Option<u16>,
    base: Sqe,
) -> Sqe {
    let start = match memory {
        IoMemory::Pooled(buffer) => buffer.as_ptr(),
        memory => start_of(memory),
    };
    let base = Sqe { offset: base.offset.saturating_add(began as u64), ..base };
    let start = start.wrapping_add(request.start + began);
    piece(request.kind.is_read(), start, request.want - began, index, base)
}

/// Returns the entry for one piece of memory.
#[inline(always)]
pub(crate) fn piece(is_read: bool, start: *const u8, len: usize, index: Option<u16>, base: Sqe) -> Sqe {
    let opcodes = match is_read {
        true => [op::IORING_OP_READ as u8, op::IORING_OP_READ_FIXED as u8],
        false => [op::IORING_OP_WRITE as u8, op::IORING_OP_WRITE_FIXED as u8],
    };
    Sqe {
        opcode: opcodes[usize::from(index.is_some())],
        addr: start.expose_provenance() as u64,
        len: len.min(MOST_AT_ONCE) as u32,
        buf_index: index.unwrap_or(0),
        ..base
    }
}

/// Returns the address of the memory of an operation on one piece.
// Not inlined, since `entry` would then not be inlined itself.
#[inline(never)]
pub(super) fn start_of(memory: &IoMemory) -> *const u8 {
    memory.part(0).map_or(std::ptr::null(), |part| part.ptr.cast_const())
}

/// Fills the entry of a read or write of several pieces of memory, in its fixed form if all are parts of one registered
/// region. A single piece uses the form of [`entry`], which has a fixed form on more kernels, and costs the kernel no
/// list.
#[cold]
pub(super) fn fill_vectored(
    request: &Request,
    memory: &IoMemory,
    began: usize,
    index: Option<u16>,
    parts: &mut Addresses,
    sqe: &mut Sqe,
) {
    let is_read = request.kind.is_read();
    if memory.count() == 1 {
        *sqe = entry(request, memory, began, index, *sqe);
        return;
    }
    gather(memory, is_read, request.start + began, MOST_AT_ONCE, parts);
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
}

/// Returns the part of several pieces of memory that one submission or call moves: from byte `skip` on, at most `room`
/// bytes.
fn taken(
    memory: &IoMemory,
    is_read: bool,
    mut skip: usize,
    mut room: usize,
) -> impl Iterator<Item = libc::iovec> + '_ {
    let taken = memory.parts().map(move |part| {
        let len = if is_read { part.capacity } else { part.len };
        let skipped = skip.min(len);
        skip -= skipped;
        let take = (len - skipped).min(room);
        room -= take;
        libc::iovec { iov_base: part.ptr.wrapping_add(skipped).cast(), iov_len: take }
    });
    taken.filter(|part| part.iov_len > 0).take(MOST_PARTS)
}

/// Collects the addresses of the part that [`taken`] returns.
pub(super) fn gather(memory: &IoMemory, is_read: bool, skip: usize, room: usize, parts: &mut Addresses) {
    parts.clear();
    parts.extend(taken(memory, is_read, skip, room));
}

/// Returns the length in bytes of the part that [`taken`] returns.
pub(super) fn len(memory: &IoMemory, is_read: bool, skip: usize, room: usize) -> usize {
    taken(memory, is_read, skip, room).map(|part| part.iov_len).sum()
}

thread_local! {
    /// The addresses of a vectored call's parts.
    static PARTS: RefCell<Addresses> = const { RefCell::new(Vec::new()) };
}

/// Makes one plain call, and returns the bytes that it moved, or the errno.
pub(super) fn call(
    target: &Target,
    request: &Request,
    memory: &IoMemory,
    began: usize,
    bounds: Bounds,
) -> Result<usize, i32> {
    let is_read = request.kind.is_read();
    let is_single = matches!(request.kind, Kind::Read | Kind::Write | Kind::WriteAtomic);
    if let (true, Some(part)) = (is_single, memory.part(0)) {
        let start = part.ptr.wrapping_add(request.start + began);
        let len = (request.want - began).min(bounds.most);
        let part = [libc::iovec { iov_base: start.cast(), iov_len: len }];
        return call_on(target, request, began, bounds.nowait, &part);
    }
    let gather_and_call = |parts: &mut Addresses| {
        gather(memory, is_read, request.start + began, bounds.most, parts);
        call_on(target, request, began, bounds.nowait, parts)
    };
    // A thread that is ending has no reusable list.
    let kept = PARTS.try_with(|parts| gather_and_call(&mut parts.borrow_mut()));
    kept.unwrap_or_else(|_| gather_and_call(&mut Vec::new()))
}

/// Makes the one plain call that a read or a write of one piece of memory mostly is; with `nowait`, it must not wait. Returns
/// whether it has moved all. If not, [`call`] tells why.
#[inline(always)]
pub(crate) fn call_for_all(target: &Target, request: &Request, memory: &IoMemory, nowait: bool) -> bool {
    let start = match memory {
        IoMemory::Pooled(buffer) => buffer.as_ptr(),
        memory => start_of(memory),
    };
    let start = start.wrapping_add(request.start).cast_mut().cast();
    let (fd, offset, len) = (target.raw_fd(), request.offset.cast_signed(), request.want);
    let part = libc::iovec { iov_base: start, iov_len: len };
    // SAFETY: an operation begins only if its bytes lie within `memory`, which the caller owns during the call.
    let moved = unsafe {
        match (request.kind.is_read(), nowait) {
            (true, false) => libc::pread64(fd, start, len, offset),
            (false, false) => libc::pwrite64(fd, start, len, offset),
            (true, true) => libc::preadv2(fd, &raw const part, 1, offset, libc::RWF_NOWAIT),
            (false, true) => libc::pwritev2(fd, &raw const part, 1, offset, libc::RWF_NOWAIT),
        }
    };
    moved.cast_unsigned() == len
}

/// Makes the call on `parts`, which lie in memory that the caller's `memory` owns.
fn call_on(
    target: &Target,
    request: &Request,
    began: usize,
    nowait: u32,
    parts: &[libc::iovec],
) -> Result<usize, i32> {
    if let Some(file) = target.simulated() {
        return crate::sim::transfer(target, file, request, began, parts);
    }
    let is_read = request.kind.is_read();
    let flags = (request.op_flags | target.cache_flags() | nowait).cast_signed();
    let offset = target.offset(request.offset + began as u64).cast_signed();
    let (fd, count) = (target.raw_fd(), parts.len() as i32);
    // SAFETY: the parts lie in memory that `memory` owns, and the caller owns `memory` during the call; reads write to it
    // no further than its capacity.
    let moved = unsafe {
        match parts {
            // With the simpler calls, the kernel need not read the list.
            [part] if flags == 0 && offset >= 0 && is_read => {
                libc::pread64(fd, part.iov_base, part.iov_len, offset)
            }
            [part] if flags == 0 && offset >= 0 => libc::pwrite64(fd, part.iov_base, part.iov_len, offset),
            _ if is_read => libc::preadv2(fd, parts.as_ptr(), count, offset, flags),
            _ => libc::pwritev2(fd, parts.as_ptr(), count, offset, flags),
        }
    };
    match usize::try_from(moved).map_err(|_| last_errno()) {
        Err(errno @ (libc::EOPNOTSUPP | libc::EPERM | libc::ENOSYS)) => {
            match call_instead(target.as_fd(), is_read, offset, flags, parts).unwrap_or(Err(errno)) {
                Err(libc::EOPNOTSUPP) if is_read && nowait != 0 && target.kind == FileKind::Other => {
                    read_named_pipe(target.as_fd(), parts).unwrap_or(Err(libc::EOPNOTSUPP))
                }
                moved => moved,
            }
        }
        moved => moved,
    }
}

/// Makes the calls that stand in for the one that [`call_on`] has made, if that is refused or missing. `None` if it is not, and
/// for an atomic write. A call that must not wait is not offered then: `EOPNOTSUPP`.
#[cold]
fn call_instead(
    fd: BorrowedFd<'_>,
    is_read: bool,
    offset: i64,
    flags: i32,
    parts: &[libc::iovec],
) -> Option<Result<usize, i32>> {
    let call = match (is_read, flags == 0 && offset >= 0 && parts.len() == 1) {
        (true, true) => libc::SYS_pread64,
        (true, false) => libc::SYS_preadv2,
        (false, true) => libc::SYS_pwrite64,
        (false, false) => libc::SYS_pwritev2,
    };
    if flags & libc::RWF_ATOMIC != 0 || !is_refused(call, flags) {
        return None;
    }
    if flags & libc::RWF_NOWAIT != 0 {
        return Some(Err(libc::EOPNOTSUPP));
    }
    let (raw, list, count) = (fd.as_raw_fd(), parts.as_ptr(), parts.len() as i32);
    // SAFETY: as in `call_on`.
    let moved = unsafe {
        match (is_read, offset >= 0) {
            (true, true) => libc::preadv(raw, list, count, offset),
            (true, false) => libc::readv(raw, list, count),
            (false, true) => libc::pwritev(raw, list, count, offset),
            (false, false) => libc::writev(raw, list, count),
        }
    };
    let moved = usize::try_from(moved).map_err(|_| last_errno());
    if flags & libc::RWF_DSYNC == 0 || moved.is_err() {
        return Some(moved);
    }
    let synced = ControlKind::Sync.call(fd, IORING_FSYNC_DATASYNC, 0, 0);
    Some(synced.and(moved))
}

/// Reads from a pipe that has a name, without waiting, which `RWF_NOWAIT` cannot do there: by another description of it
/// (another reader may take the data that `poll` has reported, so a call that waits could wait for ever). Returns `None` for
/// other files, and where the pipe cannot be opened again.
#[cold]
fn read_named_pipe(pipe: BorrowedFd<'_>, parts: &[libc::iovec]) -> Option<Result<usize, i32>> {
    let mode = status(pipe).ok()?.st_mode;
    if FileType::from_raw_mode(mode) != FileType::Fifo {
        return None;
    }
    let again = open_again(pipe, OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
    // SAFETY: as in `call_on`.
    let read = unsafe { libc::readv(again.as_raw_fd(), parts.as_ptr(), parts.len() as i32) };
    Some(usize::try_from(read).map_err(|_| last_errno()))
}
