//! Reads and writes, of one piece of memory or of several.
//!
//! Most cannot be cancelled once the kernel has them: it cancels operations that wait for a pipe, a socket or a worker
//! thread; what a disk has begun runs to its end. The invariant behind all of it: an entry and a call name only memory
//! of `held`, and of `parts`, which lists addresses inside `held`. A buffer's address does not change when the buffer
//! moves (the contract of [`IoBuf`](crate::IoBuf)).

use std::cell::RefCell;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use linux_raw_sys::io_uring::io_uring_op as op;
use rustix::fs::{FileType, Mode, OFlags};

use super::parts::{Addresses, Bounds, MOST_AT_ONCE, last_errno};
use super::request::{Kind, Request};
use crate::driver::target::{FileKind, Target};
use crate::memory::Held;
use crate::ring::Sqe;

/// `IOV_MAX`: one vectored submission has at most this many parts.
const MOST_PARTS: usize = 1024;

/// Returns the entry of a read or write of one piece of memory, in its fixed form if the memory is registered.
#[inline(always)]
pub(super) fn entry(request: &Request, held: &Held, began: usize, index: Option<u16>, base: Sqe) -> Sqe {
    let start = match held {
        Held::Pooled(buffer) => buffer.as_ptr(),
        held => start_of(held),
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
pub(super) fn start_of(held: &Held) -> *const u8 {
    held.part(0).map_or(std::ptr::null(), |part| part.ptr.cast_const())
}

/// Fills the entry of a read or write of several pieces of memory, in its fixed form if all are parts of one registered
/// region. A single piece uses the form of [`entry`], which has a fixed form on more kernels, and costs the kernel no
/// list.
#[cold]
pub(super) fn fill_vectored(
    request: &Request,
    held: &Held,
    began: usize,
    index: Option<u16>,
    parts: &mut Addresses,
    sqe: &mut Sqe,
) {
    let is_read = request.kind.is_read();
    if held.count() == 1 {
        *sqe = entry(request, held, began, index, *sqe);
        return;
    }
    gather(held, is_read, request.start + began, MOST_AT_ONCE, parts);
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
    held: &Held,
    is_read: bool,
    mut skip: usize,
    mut room: usize,
) -> impl Iterator<Item = libc::iovec> + '_ {
    let taken = held.parts().map(move |part| {
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
pub(super) fn gather(held: &Held, is_read: bool, skip: usize, room: usize, parts: &mut Addresses) {
    parts.clear();
    parts.extend(taken(held, is_read, skip, room));
}

/// Returns the length in bytes of the part that [`taken`] returns.
pub(super) fn len(held: &Held, is_read: bool, skip: usize, room: usize) -> usize {
    taken(held, is_read, skip, room).map(|part| part.iov_len).sum()
}

thread_local! {
    /// The addresses of a vectored call's parts.
    static PARTS: RefCell<Addresses> = const { RefCell::new(Vec::new()) };
}

/// Makes one plain call, and returns the bytes that it moved, or the errno.
pub(super) fn call(
    target: &Target,
    request: &Request,
    held: &Held,
    began: usize,
    bounds: Bounds,
) -> Result<usize, i32> {
    let is_read = request.kind.is_read();
    let is_single = matches!(request.kind, Kind::Read | Kind::Write | Kind::WriteAtomic);
    if let (true, Some(part)) = (is_single, held.part(0)) {
        let start = part.ptr.wrapping_add(request.start + began);
        let len = (request.want - began).min(bounds.most);
        let part = [libc::iovec { iov_base: start.cast(), iov_len: len }];
        return call_on(target, request, began, bounds.nowait, &part);
    }
    let gather_and_call = |parts: &mut Addresses| {
        gather(held, is_read, request.start + began, bounds.most, parts);
        call_on(target, request, began, bounds.nowait, parts)
    };
    // A thread that is ending has no reusable list.
    let kept = PARTS.try_with(|parts| gather_and_call(&mut parts.borrow_mut()));
    kept.unwrap_or_else(|_| gather_and_call(&mut Vec::new()))
}

/// Makes the call on `parts`, which lie in memory that the caller's `held` owns.
fn call_on(
    target: &Target,
    request: &Request,
    began: usize,
    nowait: u32,
    parts: &[libc::iovec],
) -> Result<usize, i32> {
    #[cfg(feature = "sim")]
    if let Some(file) = target.simulated() {
        return simulated(target, file, request, began, parts);
    }
    let is_read = request.kind.is_read();
    let flags = (request.op_flags | target.cache_flags() | nowait).cast_signed();
    let offset = target.offset(request.offset + began as u64).cast_signed();
    let (fd, count) = (target.raw_fd(), parts.len() as i32);
    // SAFETY: the parts lie in memory that `held` owns, and the caller owns `held` during the call; reads write to it
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
        Err(libc::EOPNOTSUPP) if is_read && nowait != 0 && target.kind == FileKind::Other => {
            read_named_pipe(fd, parts).unwrap_or(Err(libc::EOPNOTSUPP))
        }
        moved => moved,
    }
}

/// Makes the call on a simulated file.
#[cfg(feature = "sim")]
#[cold]
fn simulated(
    target: &Target,
    file: crate::sim::OpenNumber,
    request: &Request,
    began: usize,
    parts: &[libc::iovec],
) -> Result<usize, i32> {
    use crate::sim::ask;
    let offset = request.offset.checked_add(began as u64).ok_or(libc::EINVAL)?;
    let len = parts.iter().map(|part| part.iov_len).sum();
    if let Some(direct) = target.direct() {
        let is_aligned = |part: &libc::iovec| {
            part.iov_len.is_multiple_of(direct.bytes) && part.iov_base.addr().is_multiple_of(direct.memory)
        };
        if !offset.is_multiple_of(direct.bytes as u64) || !parts.iter().all(is_aligned) {
            return Err(libc::EINVAL);
        }
    }
    let mut cursor = Cursor { parts, in_first: 0 };
    if request.kind.is_read() {
        // SAFETY: as in `call_on`; a read's memory has this capacity, and no page of the disk is in it.
        let take = |bytes: &[u8]| unsafe {
            cursor.go_on(bytes.len(), |at, to, len| to.copy_from_nonoverlapping(bytes.as_ptr().add(at), len));
        };
        return ask(|world| world.read(file, offset, len, take));
    }
    // SAFETY: as in `call_on`: a write's memory is initialised.
    let fill = |bytes: &mut [u8]| unsafe {
        cursor.go_on(bytes.len(), |at, from, len| {
            bytes.as_mut_ptr().add(at).copy_from_nonoverlapping(from, len)
        });
    };
    ask(|world| world.write(file, offset, len, request.op_flags.cast_signed(), fill))
}

/// A place in the memory of a call, from which copies go on.
#[cfg(feature = "sim")]
struct Cursor<'a> {
    parts: &'a [libc::iovec],
    /// How much of the first part is behind.
    in_first: usize,
}

#[cfg(feature = "sim")]
impl Cursor<'_> {
    /// Calls `copy` for each piece of the next `len` bytes, with where it begins among them, its address and its length.
    fn go_on(&mut self, len: usize, mut copy: impl FnMut(usize, *mut u8, usize)) {
        let mut done = 0;
        while let (Some(part), true) = (self.parts.first(), done < len) {
            let here = (part.iov_len - self.in_first).min(len - done);
            copy(done, part.iov_base.cast::<u8>().wrapping_add(self.in_first), here);
            done += here;
            self.in_first += here;
            if self.in_first == part.iov_len {
                (self.parts, self.in_first) = (&self.parts[1..], 0);
            }
        }
    }
}

/// Reads from a pipe that has a name, without waiting, which `RWF_NOWAIT` cannot do there: by another description of it
/// (another reader may take the data that `poll` has reported, so a call that waits could wait for ever). Returns `None` for
/// other files, and where the pipe cannot be opened again.
#[cold]
fn read_named_pipe(fd: RawFd, parts: &[libc::iovec]) -> Option<Result<usize, i32>> {
    // SAFETY: the descriptor belongs to the target, which the caller holds during this call.
    let pipe = unsafe { BorrowedFd::borrow_raw(fd) };
    let mode = rustix::fs::fstat(pipe).ok()?.st_mode;
    if FileType::from_raw_mode(mode) != FileType::Fifo {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let again = rustix::fs::open(format!("/proc/self/fd/{fd}"), flags, Mode::empty()).ok()?;
    // SAFETY: as in `call_on`.
    let read = unsafe { libc::readv(again.as_raw_fd(), parts.as_ptr(), parts.len() as i32) };
    Some(usize::try_from(read).map_err(|_| last_errno()))
}
