//! What the functions of `ringfile_ops.h` do, for these tests. `examples/c/operations.c` tests those functions.

use std::ffi::{c_char, c_void};

use libc::iovec;

use super::*;
use crate::batch::*;
use crate::op::*;
use crate::path::ringfile_metadata;
use crate::queue::*;

/// Returns a record of this kind that has nothing else.
pub(super) fn op(kind: u32) -> ringfile_op {
    // SAFETY: it consists of integers and raw pointers only.
    let none: ringfile_op = unsafe { std::mem::zeroed() };
    ringfile_op { size: size_of::<ringfile_op>(), kind, ..none }
}

fn transfer(
    kind: u32,
    file: *const ringfile_file,
    data: *const c_void,
    length: usize,
    at: u64,
) -> ringfile_op {
    ringfile_op { file, data: data.cast_mut(), length: length as u64, offset: at, ..op(kind) }
}

fn vectored(
    kind: u32,
    file: *const ringfile_file,
    parts: *const iovec,
    count: usize,
    offset: u64,
) -> ringfile_op {
    ringfile_op { file, parts, count, offset, ..op(kind) }
}

fn range(kind: u32, file: *const ringfile_file, offset: u64, length: u64, flags: u32) -> ringfile_op {
    ringfile_op { file, offset, length, flags, ..op(kind) }
}

type Batch = *mut ringfile_batch;
type Queue = *mut ringfile_queue;
type File = *const ringfile_file;

pub(super) fn ringfile_batch_advise(
    batch: Batch,
    file: File,
    offset: u64,
    length: u64,
    advice: u32,
    user_data: u64,
) -> i64 {
    let op = range(RINGFILE_OP_ADVISE, file, offset, length, advice);
    // SAFETY: no memory is named.
    unsafe { ringfile_batch_add(batch, &op, user_data) }
}

pub(super) fn ringfile_batch_allocate(
    batch: Batch,
    file: File,
    mode: u32,
    offset: u64,
    length: u64,
    user_data: u64,
) -> i64 {
    let op = range(RINGFILE_OP_ALLOCATE, file, offset, length, mode);
    // SAFETY: no memory is named.
    unsafe { ringfile_batch_add(batch, &op, user_data) }
}

pub(super) unsafe fn ringfile_batch_read(
    batch: Batch,
    file: File,
    data: *mut c_void,
    length: usize,
    offset: u64,
    user_data: u64,
) -> i64 {
    let op = transfer(RINGFILE_OP_READ, file, data, length, offset);
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_batch_add(batch, &op, user_data) }
}

pub(super) unsafe fn ringfile_batch_readv(
    batch: Batch,
    file: File,
    parts: *const iovec,
    count: usize,
    offset: u64,
    user_data: u64,
) -> i64 {
    let op = vectored(RINGFILE_OP_READV, file, parts, count, offset);
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_batch_add(batch, &op, user_data) }
}

pub(super) fn ringfile_batch_sync_all(batch: Batch, file: File, user_data: u64) -> i64 {
    let op = range(RINGFILE_OP_SYNC_ALL, file, 0, 0, 0);
    // SAFETY: no memory is named.
    unsafe { ringfile_batch_add(batch, &op, user_data) }
}

pub(super) fn ringfile_batch_sync_data(batch: Batch, file: File, user_data: u64) -> i64 {
    let op = range(RINGFILE_OP_SYNC_DATA, file, 0, 0, 0);
    // SAFETY: no memory is named.
    unsafe { ringfile_batch_add(batch, &op, user_data) }
}

pub(super) fn ringfile_batch_sync_range(
    batch: Batch,
    file: File,
    offset: u64,
    length: u64,
    flags: u32,
    user_data: u64,
) -> i64 {
    let op = range(RINGFILE_OP_SYNC_RANGE, file, offset, length, flags);
    // SAFETY: no memory is named.
    unsafe { ringfile_batch_add(batch, &op, user_data) }
}

pub(super) fn ringfile_batch_truncate(batch: Batch, file: File, length: u64, user_data: u64) -> i64 {
    let op = range(RINGFILE_OP_TRUNCATE, file, 0, length, 0);
    // SAFETY: no memory is named.
    unsafe { ringfile_batch_add(batch, &op, user_data) }
}

pub(super) unsafe fn ringfile_batch_write(
    batch: Batch,
    file: File,
    data: *const c_void,
    length: usize,
    offset: u64,
    user_data: u64,
) -> i64 {
    let op = transfer(RINGFILE_OP_WRITE, file, data, length, offset);
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_batch_add(batch, &op, user_data) }
}

pub(super) unsafe fn ringfile_batch_write_atomic(
    batch: Batch,
    file: File,
    data: *const c_void,
    length: usize,
    offset: u64,
    user_data: u64,
) -> i64 {
    let op = transfer(RINGFILE_OP_WRITE_ATOMIC, file, data, length, offset);
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_batch_add(batch, &op, user_data) }
}

pub(super) unsafe fn ringfile_batch_write_durable(
    batch: Batch,
    file: File,
    data: *const c_void,
    length: usize,
    offset: u64,
    user_data: u64,
) -> i64 {
    let op = transfer(RINGFILE_OP_WRITE_DURABLE, file, data, length, offset);
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_batch_add(batch, &op, user_data) }
}

pub(super) unsafe fn ringfile_batch_writev(
    batch: Batch,
    file: File,
    parts: *const iovec,
    count: usize,
    offset: u64,
    user_data: u64,
) -> i64 {
    let op = vectored(RINGFILE_OP_WRITEV, file, parts, count, offset);
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_batch_add(batch, &op, user_data) }
}

pub(super) unsafe fn ringfile_queue_advise(
    queue: Queue,
    file: File,
    offset: u64,
    length: u64,
    advice: u32,
    user_data: u64,
    token: *mut u64,
) -> i32 {
    let op = range(RINGFILE_OP_ADVISE, file, offset, length, advice);
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_queue_add(queue, &op, user_data, token) }
}

pub(super) unsafe fn ringfile_queue_allocate(
    queue: Queue,
    file: File,
    mode: u32,
    offset: u64,
    length: u64,
    user_data: u64,
    token: *mut u64,
) -> i32 {
    let op = range(RINGFILE_OP_ALLOCATE, file, offset, length, mode);
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_queue_add(queue, &op, user_data, token) }
}

pub(super) unsafe fn ringfile_queue_mkdir(
    queue: Queue,
    path: *const c_char,
    user_data: u64,
    token: *mut u64,
) -> i32 {
    let op = ringfile_op { path, ..op(RINGFILE_OP_MKDIR) };
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_queue_add(queue, &op, user_data, token) }
}

pub(super) unsafe fn ringfile_queue_open_file(
    queue: Queue,
    path: *const c_char,
    options: *const ringfile_open_options,
    opened: *mut *mut ringfile_file,
    user_data: u64,
    token: *mut u64,
) -> i32 {
    let op = ringfile_op { path, options, opened, ..op(RINGFILE_OP_OPEN) };
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_queue_add(queue, &op, user_data, token) }
}

pub(super) unsafe fn ringfile_queue_read(
    queue: Queue,
    file: File,
    data: *mut c_void,
    length: usize,
    offset: u64,
    user_data: u64,
    token: *mut u64,
) -> i32 {
    let op = transfer(RINGFILE_OP_READ, file, data, length, offset);
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_queue_add(queue, &op, user_data, token) }
}

pub(super) unsafe fn ringfile_queue_readv(
    queue: Queue,
    file: File,
    parts: *const iovec,
    count: usize,
    offset: u64,
    user_data: u64,
    token: *mut u64,
) -> i32 {
    let op = vectored(RINGFILE_OP_READV, file, parts, count, offset);
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_queue_add(queue, &op, user_data, token) }
}

pub(super) unsafe fn ringfile_queue_rename(
    queue: Queue,
    path: *const c_char,
    to_path: *const c_char,
    user_data: u64,
    token: *mut u64,
) -> i32 {
    let op = ringfile_op { path, to_path, ..op(RINGFILE_OP_RENAME) };
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_queue_add(queue, &op, user_data, token) }
}

pub(super) unsafe fn ringfile_queue_rmdir(
    queue: Queue,
    path: *const c_char,
    user_data: u64,
    token: *mut u64,
) -> i32 {
    let op = ringfile_op { path, ..op(RINGFILE_OP_RMDIR) };
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_queue_add(queue, &op, user_data, token) }
}

pub(super) unsafe fn ringfile_queue_statx(
    queue: Queue,
    path: *const c_char,
    metadata: *mut ringfile_metadata,
    user_data: u64,
    token: *mut u64,
) -> i32 {
    let op = ringfile_op { path, metadata, ..op(RINGFILE_OP_STATX) };
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_queue_add(queue, &op, user_data, token) }
}

pub(super) unsafe fn ringfile_queue_sync_all(
    queue: Queue,
    file: File,
    user_data: u64,
    token: *mut u64,
) -> i32 {
    let op = range(RINGFILE_OP_SYNC_ALL, file, 0, 0, 0);
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_queue_add(queue, &op, user_data, token) }
}

pub(super) unsafe fn ringfile_queue_sync_data(
    queue: Queue,
    file: File,
    user_data: u64,
    token: *mut u64,
) -> i32 {
    let op = range(RINGFILE_OP_SYNC_DATA, file, 0, 0, 0);
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_queue_add(queue, &op, user_data, token) }
}

pub(super) unsafe fn ringfile_queue_sync_range(
    queue: Queue,
    file: File,
    offset: u64,
    length: u64,
    flags: u32,
    user_data: u64,
    token: *mut u64,
) -> i32 {
    let op = range(RINGFILE_OP_SYNC_RANGE, file, offset, length, flags);
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_queue_add(queue, &op, user_data, token) }
}

pub(super) unsafe fn ringfile_queue_truncate(
    queue: Queue,
    file: File,
    length: u64,
    user_data: u64,
    token: *mut u64,
) -> i32 {
    let op = range(RINGFILE_OP_TRUNCATE, file, 0, length, 0);
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_queue_add(queue, &op, user_data, token) }
}

pub(super) unsafe fn ringfile_queue_unlink(
    queue: Queue,
    path: *const c_char,
    user_data: u64,
    token: *mut u64,
) -> i32 {
    let op = ringfile_op { path, ..op(RINGFILE_OP_UNLINK) };
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_queue_add(queue, &op, user_data, token) }
}

pub(super) unsafe fn ringfile_queue_write_atomic(
    queue: Queue,
    file: File,
    data: *const c_void,
    length: usize,
    offset: u64,
    user_data: u64,
    token: *mut u64,
) -> i32 {
    let op = transfer(RINGFILE_OP_WRITE_ATOMIC, file, data, length, offset);
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_queue_add(queue, &op, user_data, token) }
}

pub(super) unsafe fn ringfile_queue_write_durable(
    queue: Queue,
    file: File,
    data: *const c_void,
    length: usize,
    offset: u64,
    user_data: u64,
    token: *mut u64,
) -> i32 {
    let op = transfer(RINGFILE_OP_WRITE_DURABLE, file, data, length, offset);
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_queue_add(queue, &op, user_data, token) }
}

pub(super) unsafe fn ringfile_queue_writev(
    queue: Queue,
    file: File,
    parts: *const iovec,
    count: usize,
    offset: u64,
    user_data: u64,
    token: *mut u64,
) -> i32 {
    let op = vectored(RINGFILE_OP_WRITEV, file, parts, count, offset);
    // SAFETY: by this function's contract, which is the header's.
    unsafe { ringfile_queue_add(queue, &op, user_data, token) }
}
