//! Blocking reads and writes, one or many.
//!
//! Invariants: when a function returns, no operation uses the caller's memory any more.

use std::ffi::{c_int, c_void};

use libc::iovec;
use ringfile::queue::{ReadRequest, WriteRequest};
use ringfile::{Buffer, File, Queue, Token};

use crate::error::{Result, call, number_or_errno};
use crate::file::{self, ringfile_file};
use crate::local::{self, block_on};
use crate::memory::Parts;
use crate::pool::{self, ringfile_buffer};
use crate::{memory, raw};

/// One read of ringfile_read_many.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ringfile_read_request {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The memory to read into.
    pub data: *mut c_void,
    /// The number of bytes to read.
    pub length: usize,
    /// Set by the call: the bytes read, fewer than `length` only at the end of the file, or a negative errno.
    pub result: i64,
}

/// One write of ringfile_write_many.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ringfile_write_request {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The memory to write.
    pub data: *const c_void,
    /// The number of bytes to write.
    pub length: usize,
    /// Set by the call: `length`, or a negative errno.
    pub result: i64,
}

/// Carries out one operation.
fn one(file: *const ringfile_file, add: impl FnOnce(&mut Queue, &File) -> Result<Token>) -> Result<i64> {
    let file = file::get(file)?;
    local::blocking(|queue| {
        let token = add(queue, &file)?;
        let mut completion = local::wait_for(queue, token)?;
        memory::keep_list(&mut completion);
        Ok(completion.result? as i64)
    })
}

/// Reads up to `length` bytes from `offset` into `data`. Returns how many: fewer only at the end of the file.
///
/// Any thread. Blocks. Errors are those of pread(2).
///
/// Pointers: `length` bytes at `data`, as at the top of this file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_read(
    file: *const ringfile_file,
    data: *mut c_void,
    length: usize,
    offset: u64,
) -> i64 {
    call(|| {
        one(file, |queue, file| {
            // SAFETY: by the contract in the header, the memory is valid, and nothing else accesses it, until this
            // returns.
            Ok(queue.add(file.read_at(unsafe { memory::at(data, length) }?, offset), 0))
        })
    })
}

/// Writes all of `length` bytes from `data` at `offset`, or fails. Returns `length`.
///
/// Any thread. Blocks. Errors are those of pwrite(2); some of the bytes may have been written then.
///
/// Pointers: `length` bytes at `data`, as at the top of this file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_write(
    file: *const ringfile_file,
    data: *const c_void,
    length: usize,
    offset: u64,
) -> i64 {
    call(|| {
        one(file, |queue, file| {
            // SAFETY: by the contract in the header, the memory is valid and unchanged until this returns.
            Ok(queue.add(file.write_at(unsafe { memory::at(data.cast_mut(), length) }?, offset), 0))
        })
    })
}

/// Reads from `offset` into a buffer up to its capacity, and sets its length to the number of bytes read. Returns that
/// number.
///
/// Any thread. Blocks. As ringfile_read; do not use or release the buffer meanwhile.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_buffer_read(
    file: *const ringfile_file,
    buffer: *mut ringfile_buffer,
    offset: u64,
) -> i64 {
    call(|| {
        let (data, capacity, _) = pool::extent(buffer)?;
        let read = one(file, |queue, file| {
            // SAFETY: it is the buffer's own memory, which the operation's share keeps alive.
            Ok(queue.add(file.read_at(unsafe { memory::at(data, capacity) }?, offset), 0))
        })?;
        pool::set_length(buffer, read as usize)?;
        Ok(read)
    })
}

/// Writes a buffer, up to its length, at `offset`. Returns the number of bytes.
///
/// Any thread. Blocks. As ringfile_write; do not change or release the buffer meanwhile.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_buffer_write(
    file: *const ringfile_file,
    buffer: *const ringfile_buffer,
    offset: u64,
) -> i64 {
    call(|| {
        let (data, _, length) = pool::extent(buffer)?;
        one(file, |queue, file| {
            // SAFETY: it is the buffer's own memory, which the operation's share keeps alive.
            Ok(queue.add(file.write_at(unsafe { memory::at(data, length) }?, offset), 0))
        })
    })
}

/// Writes all of `length` bytes from `data` at `offset`, and makes them durable (see RINGFILE_DURABILITY_AUTO). Returns
/// `length`.
///
/// Any thread. Blocks. Errors are those of pwrite(2) and fdatasync(2). A failure is remembered, see ringfile_sync_data.
///
/// Pointers: `length` bytes at `data`, as at the top of this file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_write_durable(
    file: *const ringfile_file,
    data: *const c_void,
    length: usize,
    offset: u64,
) -> i64 {
    call(|| {
        let file = file::get(file)?;
        // SAFETY: by the contract in the header, the memory is valid and unchanged until this returns; `block_on`
        // waits.
        let buffer = unsafe { memory::at(data.cast_mut(), length) }?;
        block_on(file.write_durable_at(buffer, offset))?.map_err(ringfile::Error::from)?;
        Ok(length as i64)
    })
}

/// Writes all of `length` bytes from `data` at `offset` so that a power cut leaves all of them or none (RWF_ATOMIC,
/// Linux 6.11). Not durable by itself: call ringfile_sync_data afterwards. `length` must be a power of two within
/// ringfile_atomic_limits, `offset` a multiple of it, and the file direct. Returns `length`.
///
/// Any thread. Blocks. Errors are those of pwritev2(2); -EOPNOTSUPP if the file does not support atomic writes, and
/// -EINVAL for a length or an offset that it does not accept: ringfile_last_error says what it accepts. In these cases
/// nothing was written. Never writes a part.
///
/// Pointers: `length` bytes at `data`, as at the top of this file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_write_atomic(
    file: *const ringfile_file,
    data: *const c_void,
    length: usize,
    offset: u64,
) -> i64 {
    call(|| {
        one(file, |queue, file| {
            // SAFETY: by the contract in the header, the memory is valid and unchanged until this returns; `one` waits.
            Ok(queue.add(file.write_atomic_at(unsafe { memory::at(data.cast_mut(), length) }?, offset), 0))
        })
    })
}

/// Returns the parts of a vectored operation as buffers.
///
/// # Safety
/// As [`memory::parts`] and [`Parts::of`].
unsafe fn buffers(parts: *const iovec, count: usize) -> Result<Vec<Buffer>> {
    // SAFETY: by this function's contract.
    unsafe { Parts::of(memory::parts(parts, count)?) }
}

/// Reads as ringfile_read does, into several parts, one after another.
///
/// Any thread. Blocks. RINGFILE_OP_READV says when it is a fixed read, and when it allocates.
///
/// Pointers: `count` parts at `parts`, and memory for each, as at the top of this file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_readv(
    file: *const ringfile_file,
    parts: *const iovec,
    count: usize,
    offset: u64,
) -> i64 {
    call(|| {
        one(file, |queue, file| {
            // SAFETY: by the contract in the header; `one` waits.
            Ok(queue.add(file.read_vectored_at(unsafe { buffers(parts, count) }?, offset), 0))
        })
    })
}

/// Writes as ringfile_write does, from several parts, one after another.
///
/// Any thread. Blocks. RINGFILE_OP_READV says when it is a fixed write, and when it allocates.
///
/// Pointers: `count` parts at `parts`, and memory for each, as at the top of this file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_writev(
    file: *const ringfile_file,
    parts: *const iovec,
    count: usize,
    offset: u64,
) -> i64 {
    call(|| {
        one(file, |queue, file| {
            // SAFETY: by the contract in the header; `one` waits.
            Ok(queue.add(file.write_vectored_at(unsafe { buffers(parts, count) }?, offset), 0))
        })
    })
}

/// Carries out many reads of one file together, and waits for all. Sets each request's `result`. Returns how many of
/// them failed; a negative errno if none was started.
///
/// ringfile_last_error() describes the last one that failed. For the others strerror(-result) says what the errno
/// means; a batch keeps a text for each (ringfile_batch_error).
///
/// Any thread. Blocks. Allocates nothing once the thread has done as many reads in one call.
///
/// Pointers: `count` requests at `requests`, and memory for each, as at the top of this file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_read_many(
    file: *const ringfile_file,
    requests: *mut ringfile_read_request,
    count: usize,
) -> c_int {
    call(|| {
        let file = file::get(file)?;
        // SAFETY: by the contract in the header.
        let requests = unsafe { raw::array_mut(requests, count, "the requests") }?;
        local::blocking_with_requests(|queue, reads, _| read_many(queue, reads, &file, requests))
    }) as c_int
}

fn read_many(
    queue: &mut Queue,
    reads: &mut Vec<ReadRequest>,
    file: &File,
    requests: &mut [ringfile_read_request],
) -> Result<i64> {
    let known = memory::Lookup::new();
    for request in &mut *requests {
        // SAFETY: by the contract in the header, the memory is valid, and nothing else accesses it, until
        // `ringfile_read_many` returns; if the queue keeps a buffer, dropping it waits for the kernel.
        let buffer = unsafe { known.at(request.data, request.length) };
        request.result = match buffer {
            Ok(buffer) => {
                reads.push(ReadRequest::new(buffer, request.offset));
                0
            }
            Err(fault) => fault.note(),
        };
    }
    drop(known);
    let read = queue.read_many(file, reads);
    // A request that was refused above is not among them.
    let accepted = requests.iter_mut().filter(|request| request.result == 0);
    for (request, read) in accepted.zip(reads.drain(..)) {
        request.result = number_or_errno(&read.result);
    }
    read?;
    Ok(requests.iter().filter(|request| request.result < 0).count() as i64)
}

/// Carries out many writes of one file together, in any order, and waits for all. Sets each request's `result`. Returns
/// how many of them failed; a negative errno if none was started. A write that failed may have written a part.
///
/// Nothing is durable before ringfile_sync_data. Direct writes must be aligned, as for ringfile_write. Errors are told as
/// by ringfile_read_many.
///
/// Any thread. Blocks. Allocates nothing once the thread has done as many writes in one call.
///
/// Pointers: `count` requests at `requests`, and memory for each, as at the top of this file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_write_many(
    file: *const ringfile_file,
    requests: *mut ringfile_write_request,
    count: usize,
) -> c_int {
    call(|| {
        let file = file::get(file)?;
        // SAFETY: by the contract in the header.
        let requests = unsafe { raw::array_mut(requests, count, "the requests") }?;
        local::blocking_with_requests(|queue, _, writes| write_many(queue, writes, &file, requests))
    }) as c_int
}

fn write_many(
    queue: &mut Queue,
    writes: &mut Vec<WriteRequest>,
    file: &File,
    requests: &mut [ringfile_write_request],
) -> Result<i64> {
    let known = memory::Lookup::new();
    for request in &mut *requests {
        // SAFETY: by the contract in the header, the memory is valid and unchanged until `ringfile_write_many` returns; if
        // the queue keeps a buffer, dropping it waits for the kernel.
        let buffer = unsafe { known.at(request.data.cast_mut(), request.length) };
        request.result = match buffer {
            Ok(buffer) => {
                writes.push(WriteRequest::new(buffer, request.offset));
                0
            }
            Err(fault) => fault.note(),
        };
    }
    drop(known);
    let written = queue.write_many(file, writes);
    // A request that was refused above is not among them.
    let accepted = requests.iter_mut().filter(|request| request.result == 0);
    for (request, write) in accepted.zip(writes.drain(..)) {
        request.result = number_or_errno(&write.result);
    }
    written?;
    Ok(requests.iter().filter(|request| request.result < 0).count() as i64)
}
