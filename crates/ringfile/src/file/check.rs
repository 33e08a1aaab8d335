//! Checks for operations that the kernel would refuse with a bare errno, and explains failures.
//!
//! Knows targets and requests; shared by single futures and batches.

use std::borrow::Cow;
use std::io::ErrorKind;

use crate::driver::{self, Alignment, AtomicLimits, Ended, FileKind, Kind, Request, Target};
use crate::error::Error;
use crate::memory::Held;
use ringfile_buffer::internal::fork;

/// Explains why an operation was cancelled although its caller did not cancel it.
#[cold]
pub(crate) fn cancelled(error: Error) -> Error {
    if fork::is_child() {
        return error
            .of_kind(ErrorKind::Unsupported)
            .because("the operation was in flight before a fork, and belongs to the parent process");
    }
    error.because("it was cancelled, or the thread that was carrying it out has left its loop")
}

/// The explanation of a failed sync.
const LOST: &str = "an earlier sync of this file failed, so data may be lost although a later sync would succeed; \
    open the file again, and check or rewrite what was written since the last successful sync";

/// Returns whether an operation failed as all later syncs of the file do.
fn is_lost(file: &Target, request: &Request, errno: i32) -> bool {
    request.is_sync() && file.failed_sync() == errno
}

/// Returns why an operation that moves no data failed.
#[cold]
pub(crate) fn why_not_done(file: &Target, request: &Request, held: &Held, errno: i32) -> Error {
    let refused = driver::why_refused(errno);
    let what = || request.kind.verb(request.op_flags);
    let error = refused.unwrap_or_else(|| Error::from_errno(driver::errno_of(errno), what())).on(file.path());
    if file.namespace().is_some() {
        return explain_command(file, request, errno, error);
    }
    match errno {
        libc::ECANCELED if request.kind == Kind::Copy && !fork::is_child() => {
            error.because("it was cancelled; what was copied before stays")
        }
        libc::ECANCELED => cancelled(error),
        libc::EAGAIN => error.because(NO_THREAD),
        _ if is_lost(file, request, errno) => error.because(LOST),
        libc::EBADF if request.kind == Kind::Copy => error
            .because("the file was not opened for reading, or the other one not for writing at an offset"),
        libc::EINVAL if request.kind == Kind::Copy => {
            error.because("the ranges overlap in one file, or do not fit the alignment of direct I/O")
        }
        _ => with_other_path(request, held, error),
    }
}

/// Adds to a failed operation on an NVMe namespace why it failed.
#[cold]
fn explain_command(file: &Target, request: &Request, errno: i32, error: Error) -> Error {
    let status = driver::Status::of_errno(errno);
    if is_lost(file, request, errno) {
        let lost = |status| format!("{status}; {LOST}");
        return error.because(status.map_or(LOST.into(), lost));
    }
    let block = file.alignment().bytes;
    match (status, errno) {
        (Some(status), _) => error.because(status.to_string()),
        (None, libc::EBADF) if request.kind.is_read() => error.because(NOT_FOR_READING),
        (None, libc::EBADF) => error.because(NOT_FOR_WRITING),
        (None, libc::ECANCELED) => cancelled(error),
        (None, libc::EOPNOTSUPP) if request.is_atomic() => error.because(atomic_advice(file)),
        (None, libc::EOPNOTSUPP) => {
            error.because("NVMe namespaces, or this drive, do not support this operation")
        }
        (None, libc::EINVAL) if !request.kind.moves_data() => error.because(format!(
            "on a namespace, offset and length must be multiples of {block} bytes, and the length not 0"
        )),
        (None, libc::EACCES) => error.because("before Linux 6.2, NVMe commands need CAP_SYS_ADMIN"),
        (None, _) => error,
    }
}

/// The meaning of `EAGAIN` for an operation that does not wait for another process.
const NO_THREAD: &str = "the kernel lacks a resource for it, such as a thread of io_uring: see RLIMIT_NPROC, and pids.max \
    of the control group, or open with Route::Workers";

const NOT_FOR_READING: &str = "the file was not opened for reading";
const NOT_FOR_WRITING: &str = "the file was not opened for writing";

/// Adds the other path of an operation that names two.
fn with_other_path(request: &Request, held: &Held, error: Error) -> Error {
    if let Held::Paths(paths) = held
        && let Some(to) = paths.to()
    {
        let what = if request.kind == Kind::Symlink { "it would point to" } else { "the new path is" };
        return error.because(format!("{what} {}", to.to_string_lossy()));
    }
    error
}

/// Returns whether an operation can be submitted as it is; false for a direct read that must go through aligned memory.
/// Fails if the kernel would refuse it without giving a reason, and if it reaches beyond its memory: there, the kernel would
/// follow the request.
#[inline(always)]
pub(crate) fn fits(file: &Target, request: &Request, held: &Held) -> Result<bool, Error> {
    if fits_as_it_is(file, request, held) { Ok(true) } else { fits_otherwise(file, request, held) }
}

/// Returns whether [`fits`] returns `Ok(true)`, as for most operations. May return false for one that moves no bytes.
#[inline(always)]
pub(crate) fn fits_as_it_is(file: &Target, request: &Request, held: &Held) -> bool {
    lies_within(request, held)
        && range_ends_in_a_file(request.offset, request.want)
        && file.direct().is_none_or(|direct| direct.fits(request, held))
}

#[cold]
fn fits_otherwise(file: &Target, request: &Request, held: &Held) -> Result<bool, Error> {
    if !lies_within(request, held) {
        return Err(beyond_memory(file, request, held));
    }
    if !range_ends_in_a_file(request.offset, request.want) {
        return Err(error(file, request, ErrorKind::InvalidInput, BEYOND));
    }
    match file.direct() {
        Some(direct) if request.want > 0 => does_not_fit(file, request, direct),
        _ => Ok(true),
    }
}

/// Returns how an operation that moves no bytes ends.
#[cold]
pub(crate) fn moves_nothing(file: &Target, request: &Request, held: &Held) -> Result<Ended, Error> {
    if request.kind.is_read() && matches!(held, Held::Bytes(_)) {
        let why = "cannot read into shared bytes; read into a buffer of a Pool or a vector";
        return Err(error(file, request, ErrorKind::InvalidInput, why));
    }
    Ok(Ended { done: 0, errno: 0 })
}

#[cold]
fn beyond_memory(file: &Target, request: &Request, held: &Held) -> Error {
    let (start, room) = (request.start, room(held, request.kind.is_read()));
    let why = match start.checked_add(request.want) {
        Some(end) => format!("the part {start}..{end} does not lie within the buffer's {room} bytes"),
        None => format!("the part ends before it starts, at byte {start} of the buffer's {room}"),
    };
    let what = request.kind.verb(request.op_flags);
    Error::new(ErrorKind::InvalidInput, what).at(request.offset).on(file.path()).because(why)
}

/// Returns whether an operation on one piece of memory lies within it. With several, the submission goes no further than
/// they do.
#[inline(always)]
fn lies_within(request: &Request, held: &Held) -> bool {
    let room = match held {
        Held::Pooled(buffer) if request.kind.is_read() => buffer.capacity(),
        held => room(held, request.kind.is_read()),
    };
    request.start <= room && request.want <= room - request.start
}

#[inline(never)]
fn room(held: &Held, is_read: bool) -> usize {
    match held.part(0) {
        Some(_) if held.count() > 1 => usize::MAX,
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
pub(crate) fn fits_without_data(file: &Target, request: &Request, held: &Held) -> Result<(), Error> {
    let refused = || Error::new(ErrorKind::InvalidInput, request.kind.verb(request.op_flags)).on(file.path());
    if request.kind.names_paths() && !matches!(held, Held::Paths(_)) {
        return Err(refused().because("a path contains a NUL byte"));
    }
    if let Held::Destination(to) = held
        && !range_ends_in_a_file(to.offset, request.want)
    {
        return Err(refused().at(to.offset).because(BEYOND));
    }
    if !matches!(request.kind, Kind::SyncRange | Kind::Copy)
        || file.namespace().is_some()
        || range_ends_in_a_file(request.offset, request.want)
    {
        return Ok(());
    }
    Err(refused().at(request.offset).because(BEYOND))
}

#[cold]
fn does_not_fit(file: &Target, request: &Request, direct: Alignment) -> Result<bool, Error> {
    let refused = |why| Err(error(file, request, ErrorKind::InvalidInput, why));
    if request.is_atomic() {
        return refused(atomic_advice(file));
    }
    if !request.kind.is_read() {
        return refused(advice(request, direct));
    }
    // The kernel would refuse such blocks with the errno that means a file without direct I/O.
    let blocks_end = (request.offset + request.want as u64).next_multiple_of(direct.bytes as u64);
    if blocks_end > i64::MAX as u64 {
        return refused("the last block would end beyond 2^63 bytes".into());
    }
    Ok(false)
}

#[cold]
fn advice(request: &Request, Alignment { bytes: block, memory, .. }: Alignment) -> String {
    let fits = request.offset.is_multiple_of(block as u64);
    if fits && request.want.is_multiple_of(block) && !request.start.is_multiple_of(memory) {
        format!("a part must start at a multiple of {memory} bytes in its buffer, or open without direct")
    } else if fits && request.want.is_multiple_of(block) {
        format!(
            "the memory must be aligned to {memory} bytes; write from buffers of a Pool, or open without direct"
        )
    } else {
        format!(
            "offset and length must be multiples of {block} bytes; write whole blocks, or open without direct"
        )
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

fn what(file: &Target, request: &Request) -> String {
    let direct = if file.direct().is_some() { "direct " } else { "" };
    format!("{direct}{} of {} bytes", request.kind.verb(request.op_flags), request.want)
}

#[cold]
pub(crate) fn error(
    file: &Target,
    request: &Request,
    kind: ErrorKind,
    why: impl Into<Cow<'static, str>>,
) -> Error {
    Error::new(kind, what(file, request)).at(request.offset).on(file.path()).because(why)
}

/// Returns why a read or write did not do all that was requested.
#[cold]
pub(crate) fn failure(file: &Target, request: &Request, Ended { done, errno }: Ended) -> Error {
    let is_read = request.kind.is_read();
    if errno == 0 {
        let gave_less = done > 0 && file.kind == FileKind::Other;
        let (kind, why) = match is_read {
            true if gave_less => (ErrorKind::UnexpectedEof, "one read gave less; read on with read_at"),
            true => (ErrorKind::UnexpectedEof, "the file is too short"),
            false if request.is_atomic() => {
                (ErrorKind::WriteZero, "the kernel wrote only a part of an atomic write")
            }
            false => (ErrorKind::WriteZero, "the file accepts no more bytes"),
        };
        return error(file, request, kind, why).after(done);
    }
    if let Some(error) = driver::why_refused(errno) {
        return error.at(request.offset).on(file.path());
    }
    let error = Error::from_errno(driver::errno_of(errno), what(file, request));
    let error = error.at(request.offset).on(file.path()).after(done);
    if file.namespace().is_some() {
        return explain_command(file, request, errno, error);
    }
    match errno {
        libc::EBADF if is_read => error.because(NOT_FOR_READING),
        libc::EBADF => error.because(NOT_FOR_WRITING),
        libc::EINVAL | libc::EOPNOTSUPP if request.is_atomic() => error.because(atomic_advice(file)),
        libc::EINVAL if file.direct().is_some() => error.because(
            "the file system refuses direct I/O here; open without direct, or with buffered_fallback(true)",
        ),
        libc::EOPNOTSUPP if !file.ring.announces() => {
            error.because("the file system can't poll for completions; open without poll")
        }
        libc::ECANCELED => cancelled(error),
        libc::EAGAIN if file.kind != FileKind::Other => error.because(NO_THREAD),
        _ if is_lost(file, request, errno) => error.because(LOST),
        _ => error,
    }
}

/// Returns whether an operation must be repeated with buffered I/O: direct I/O turned out to be refused, and the user
/// allowed buffered I/O instead. Another operation may have found that out while this one was in flight.
#[cold]
pub(crate) fn falls_back(file: &Target, request: &Request, ended: Ended) -> bool {
    // An atomic write is refused for other reasons, and no buffered one is atomic.
    request.kind.moves_data()
        && !request.is_atomic()
        && ended.done == 0
        && file.falls_back
        && (file.direct().is_none() || file.turn_buffered().is_ok())
}
