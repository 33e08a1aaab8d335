//! Checks for operations that the kernel would refuse with a bare errno, and explains failures.
//!
//! Knows targets and requests; shared by single futures and batches.

use std::borrow::Cow;
use std::io::ErrorKind;

use crate::driver::{self, Alignment, AtomicLimits, FileKind, Kind, OpResult, Request, Target};
use crate::error::Error;
use crate::memory::IoMemory;
use ringfile_buffer::internal::fork;

/// Why an operation was cancelled although its caller did not cancel it.
const CANCELLED: &str = "it was cancelled, or the thread that was carrying it out has left its loop";
const FORKED: &str = "the operation was in flight before a fork, and belongs to the parent process";

/// The explanation of a failed sync.
const LOST: &str = "this sync of the file or an earlier one has failed, so data may be lost although a later sync would \
    succeed; open the file again, and check or rewrite what was written since the last successful sync";
/// The explanation of a durable write that was refused.
const NO_ROOM: &str = "the write was refused, and no sync has failed: write again once there is room";
const TOO_LONG: &str = "the file would be longer than RLIMIT_FSIZE (ulimit -f) or the file system allows";

/// The meaning of `EAGAIN` for an operation that does not wait for another process.
const NO_THREAD: &str = "the kernel lacks a resource for it, such as a thread of io_uring: see RLIMIT_NPROC, and pids.max \
    of the control group, or open with Route::Workers";

/// Returns why an operation did not do all that was requested.
#[cold]
pub(crate) fn failure(
    file: &Target,
    request: &Request,
    memory: &IoMemory,
    OpResult { done, errno }: OpResult,
) -> Error {
    let moves_data = request.kind.moves_data();
    if moves_data && errno == 0 {
        return moved_less(file, request, done);
    }
    let error = match driver::why_refused(errno) {
        Some(refused) if moves_data => return refused.at(request.offset).on(file.path()),
        Some(refused) => refused,
        None => Error::from_errno(driver::errno_of(errno), what(file, request)),
    };
    let error = error.on(file.path()).after(done);
    let error = if moves_data { error.at(request.offset) } else { error };
    let is_parents = errno == libc::ECANCELED && fork::is_child();
    let error = if is_parents { error.of_kind(ErrorKind::Unsupported) } else { error };
    match reason(file, request, memory, errno) {
        Some(reason) => error.because(reason),
        None => error,
    }
}

/// Returns why a read or a write that has not failed moved less than was requested.
fn moved_less(file: &Target, request: &Request, done: usize) -> Error {
    let gave_less = done > 0 && file.kind == FileKind::Other;
    let (kind, why) = match request.kind.is_read() {
        true if gave_less => (ErrorKind::UnexpectedEof, "one read gave less; read on with read_at"),
        true => (ErrorKind::UnexpectedEof, "the file is too short"),
        false if request.is_atomic() => {
            (ErrorKind::WriteZero, "the kernel wrote only a part of an atomic write")
        }
        false => (ErrorKind::WriteZero, "the file accepts no more bytes"),
    };
    error(file, request, why).of_kind(kind).after(done)
}

/// Returns what an errno means for this operation, and what to do about it, if it means more than its name says.
fn reason(file: &Target, request: &Request, memory: &IoMemory, errno: i32) -> Option<Cow<'static, str>> {
    let (kind, is_command) = (request.kind, file.namespace().is_some());
    let status = driver::Status::of_errno(errno).map(|status| status.to_string());
    // None of the errnos below, but perhaps a drive's status.
    let is_lost = request.is_sync() && file.failed_sync() == errno;
    if is_lost || status.is_some() {
        let both = status.into_iter().chain(is_lost.then(|| LOST.to_owned()));
        return Some(both.collect::<Vec<_>>().join("; ").into());
    }
    let why = match errno {
        libc::ECANCELED if fork::is_child() => FORKED,
        libc::ECANCELED if kind == Kind::Copy && !is_command => {
            "it was cancelled; what was copied before stays"
        }
        libc::ECANCELED => CANCELLED,
        libc::EFBIG if kind.is_write() => TOO_LONG,
        libc::ENOSPC | libc::EDQUOT if kind.is_write() && request.is_sync() => NO_ROOM,
        libc::EBADF if kind.is_read() => "the file was not opened for reading",
        libc::EBADF if kind.is_write() || is_command => "the file was not opened for writing",
        libc::EBADF if kind == Kind::Copy => {
            "the file was not opened for reading, or the other one not for writing at an offset"
        }
        libc::EOPNOTSUPP if request.is_atomic() => return Some(atomic_advice(file).into()),
        libc::EOPNOTSUPP if is_command => "NVMe namespaces, or this drive, do not support this operation",
        libc::EOPNOTSUPP if kind.moves_data() && !file.ring.announces() => {
            "the file system can't poll for completions; open without poll"
        }
        libc::EINVAL if is_command && !kind.moves_data() => {
            let block = file.alignment().bytes;
            let multiples = format!("on a namespace, offset and length must be multiples of {block} bytes");
            return Some(format!("{multiples}, and the length not 0").into());
        }
        libc::EACCES if is_command => "before Linux 6.2, NVMe commands need CAP_SYS_ADMIN",
        _ if is_command => return None,
        libc::EINVAL if request.is_atomic() => return Some(atomic_advice(file).into()),
        libc::EINVAL if kind.moves_data() && file.direct().is_some() => {
            "the file system refuses direct I/O here; open without direct, or with buffered_fallback(true)"
        }
        libc::EINVAL if kind == Kind::Copy => {
            "the ranges overlap in one file, or do not fit the alignment of direct I/O"
        }
        libc::EAGAIN if !kind.moves_data() || file.kind != FileKind::Other => NO_THREAD,
        _ => return other_path(request, memory).map(Into::into),
    };
    Some(why.into())
}

/// Names the other path of an operation that names two.
fn other_path(request: &Request, memory: &IoMemory) -> Option<String> {
    let IoMemory::Paths(paths) = memory else { return None };
    let what = if request.kind == Kind::Symlink { "it would point to" } else { "the new path is" };
    Some(format!("{what} {}", paths.to()?.to_string_lossy()))
}

/// Returns whether an operation can be submitted as it is; false for a direct read that must go through aligned memory.
/// Fails if the kernel would refuse it without giving a reason, and if it reaches beyond its memory: there, the kernel would
/// follow the request.
#[inline(always)]
pub(crate) fn fits(file: &Target, request: &Request, memory: &IoMemory) -> Result<bool, Error> {
    if fits_as_it_is(file, request, memory) { Ok(true) } else { fits_otherwise(file, request, memory) }
}

/// Returns whether [`fits`] returns `Ok(true)`, as for most operations. May return false for one that moves no bytes.
#[inline(always)]
pub(crate) fn fits_as_it_is(file: &Target, request: &Request, memory: &IoMemory) -> bool {
    lies_within(request, memory)
        && range_ends_in_a_file(request.offset, request.want)
        && file.direct().is_none_or(|direct| direct.fits(request, memory))
}

#[cold]
fn fits_otherwise(file: &Target, request: &Request, memory: &IoMemory) -> Result<bool, Error> {
    if !lies_within(request, memory) {
        return Err(beyond_memory(file, request, memory));
    }
    if !range_ends_in_a_file(request.offset, request.want) {
        return Err(error(file, request, BEYOND));
    }
    match file.direct() {
        Some(direct) if request.want > 0 => does_not_fit(file, request, direct),
        _ => Ok(true),
    }
}

/// Returns how an operation that moves no bytes ends.
#[cold]
pub(crate) fn moves_nothing(file: &Target, request: &Request, memory: &IoMemory) -> Result<OpResult, Error> {
    if request.kind.is_read() && matches!(memory, IoMemory::Bytes(_)) {
        let why = "cannot read into shared bytes; read into a buffer of a Pool or a vector";
        return Err(error(file, request, why));
    }
    Ok(OpResult { done: 0, errno: 0 })
}

#[cold]
fn beyond_memory(file: &Target, request: &Request, memory: &IoMemory) -> Error {
    let (start, is_read) = (request.start, request.kind.is_read());
    let (room, len) = (room(memory, is_read), room(memory, false));
    let why = match start.checked_add(request.want) {
        _ if is_read && start > len => {
            format!("the part starts at byte {start}, behind the {len} bytes that the buffer has")
        }
        Some(end) => format!("the part {start}..{end} does not lie within the buffer's {room} bytes"),
        None => format!("the part ends before it starts, at byte {start} of the buffer's {room}"),
    };
    let what = request.kind.verb(request.op_flags);
    Error::new(ErrorKind::InvalidInput, what).at(request.offset).on(file.path()).because(why)
}

/// Returns whether an operation on one piece of memory lies within it. With several, the submission goes no further than
/// they do.
#[inline(always)]
fn lies_within(request: &Request, memory: &IoMemory) -> bool {
    let room = match memory {
        IoMemory::Pooled(buffer) if request.kind.is_read() => buffer.capacity(),
        IoMemory::Pooled(buffer) => buffer.len(),
        memory => room(memory, request.kind.is_read()),
    };
    request.start <= room && request.want <= room - request.start
}

#[inline(never)]
fn room(memory: &IoMemory, is_read: bool) -> usize {
    match memory.part(0) {
        Some(_) if memory.count() > 1 => usize::MAX,
        Some(part) if is_read => part.capacity,
        Some(part) => part.len,
        None => 0,
    }
}

/// Returns whether a read into this memory can be submitted as it is, and with one entry.
#[inline]
pub(crate) fn fits_in_place(file: &Target, offset: u64, start: *mut u8, len: usize) -> bool {
    (1..=driver::MOST_AT_ONCE).contains(&len)
        && range_ends_in_a_file(offset, len)
        && file.direct().is_none_or(|direct| direct.fits_piece(offset, start, len))
}

/// Returns whether a range ends within the largest size of a file.
#[inline(always)]
pub(super) fn range_ends_in_a_file(offset: u64, len: usize) -> bool {
    offset.checked_add(len as u64).is_some_and(|end| end <= i64::MAX as u64)
}

pub(super) const BEYOND: &str = "the end would be beyond 2^63 bytes";

/// Checks an operation that moves no data. Routes would treat a long range to sync differently: a ring's entry has 32 bits
/// for the length, so a longer range would become one that extends to the end of the file.
#[cold]
pub(crate) fn fits_without_data(file: &Target, request: &Request, memory: &IoMemory) -> Result<(), Error> {
    if request.kind.names_paths() && !matches!(memory, IoMemory::Paths(_)) {
        let refused = Error::new(ErrorKind::InvalidInput, what(file, request)).on(file.path());
        return Err(refused.because("a path contains a NUL byte"));
    }
    if let IoMemory::Destination(to) = memory
        && !range_ends_in_a_file(to.offset, request.want)
    {
        return Err(error(file, request, BEYOND).at(to.offset));
    }
    if !matches!(request.kind, Kind::SyncRange | Kind::Copy)
        || file.namespace().is_some()
        || range_ends_in_a_file(request.offset, request.want)
    {
        return Ok(());
    }
    Err(error(file, request, BEYOND))
}

#[cold]
fn does_not_fit(file: &Target, request: &Request, direct: Alignment) -> Result<bool, Error> {
    if request.is_atomic() {
        return Err(error(file, request, atomic_advice(file)));
    }
    if !request.kind.is_read() {
        return Err(error(file, request, advice(request, direct)));
    }
    // The kernel would refuse such blocks with the errno that means a file without direct I/O.
    let blocks_end = (request.offset + request.want as u64).next_multiple_of(direct.bytes as u64);
    if blocks_end > i64::MAX as u64 {
        return Err(error(file, request, "the last block would end beyond 2^63 bytes"));
    }
    Ok(false)
}

#[cold]
fn advice(request: &Request, Alignment { bytes: block, memory, .. }: Alignment) -> String {
    let are_blocks = request.offset.is_multiple_of(block as u64) && request.want.is_multiple_of(block);
    match request.start.is_multiple_of(memory) {
        _ if !are_blocks => format!(
            "offset and length must be multiples of {block} bytes; write whole blocks, or open without direct"
        ),
        false => {
            format!("a part must start at a multiple of {memory} bytes in its buffer, or open without direct")
        }
        true => format!(
            "the memory must be aligned to {memory} bytes; write from buffers of a Pool, or open without direct"
        ),
    }
}

/// Describes which atomic writes the file supports, and what to do about it.
#[cold]
fn atomic_advice(file: &Target) -> String {
    match file.direct() {
        None => "atomic writes need direct I/O; open with direct(true)".into(),
        Some(Alignment { atomic: None, .. }) => "this file does not support atomic writes (XFS with reflinks does \
            since Linux 6.16, ext4 and block devices if the device does); write a copy elsewhere first, and sync it"
            .into(),
        Some(Alignment { memory, atomic: Some(AtomicLimits { min, max, .. }), .. }) => format!(
            "atomic writes of this file have {min} to {max} bytes: write a power of two, at a multiple of it, from \
             memory aligned to {memory} bytes"
        ),
    }
}

/// Says what was being done.
fn what(file: &Target, request: &Request) -> Cow<'static, str> {
    let verb = request.kind.verb(request.op_flags);
    if !request.kind.moves_data() {
        return verb.into();
    }
    let direct = if file.direct().is_some() { "direct " } else { "" };
    format!("{direct}{verb} of {} bytes", request.want).into()
}

/// Returns the error of an operation: that it is invalid, unless [`Error::of_kind`] says otherwise.
#[cold]
pub(crate) fn error(file: &Target, request: &Request, why: impl Into<Cow<'static, str>>) -> Error {
    let error = Error::new(ErrorKind::InvalidInput, what(file, request));
    error.at(request.offset).on(file.path()).because(why)
}

/// Returns whether an operation must be repeated with buffered I/O: direct I/O turned out to be refused, and the user
/// allowed buffered I/O instead. Another operation may have found that out while this one was in flight.
#[cold]
pub(crate) fn falls_back(file: &Target, request: &Request, ended: OpResult) -> bool {
    // An atomic write is refused for other reasons, and no buffered one is atomic.
    request.kind.moves_data()
        && !request.is_atomic()
        && ended.done == 0
        && file.falls_back
        && (file.direct().is_none() || file.turn_buffered().is_ok())
}
