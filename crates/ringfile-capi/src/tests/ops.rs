//! What the functions of `ringfile_ops.h` do, for these tests. `examples/c/operations.c` tests those functions.

use std::ffi::{c_char, c_void};
use std::ptr;

use libc::iovec;

use super::*;
use crate::op::*;
use crate::path::ringfile_metadata;

type File = *const ringfile_file;

/// Returns a record of this kind that has nothing else.
pub(super) const fn op(kind: u32) -> ringfile_op {
    ringfile_op {
        kind,
        flags: 0,
        file: ptr::null(),
        data: ptr::null(),
        length: 0,
        offset: 0,
        other: ptr::null(),
        to_offset: 0,
        result: ptr::null_mut(),
    }
}

fn transfer(kind: u32, file: File, data: *const c_void, length: usize, offset: u64) -> ringfile_op {
    ringfile_op { file, data, length: length as u64, offset, ..op(kind) }
}

fn range(kind: u32, file: File, offset: u64, length: u64, flags: u32) -> ringfile_op {
    ringfile_op { file, offset, length, flags, ..op(kind) }
}

pub(super) fn ringfile_op_read(file: File, data: *mut c_void, length: usize, offset: u64) -> ringfile_op {
    transfer(RINGFILE_OP_READ, file, data, length, offset)
}

pub(super) fn ringfile_op_write(file: File, data: *const c_void, length: usize, offset: u64) -> ringfile_op {
    transfer(RINGFILE_OP_WRITE, file, data, length, offset)
}

pub(super) fn ringfile_op_write_durable(
    file: File,
    data: *const c_void,
    length: usize,
    offset: u64,
) -> ringfile_op {
    transfer(RINGFILE_OP_WRITE_DURABLE, file, data, length, offset)
}

pub(super) fn ringfile_op_write_atomic(
    file: File,
    data: *const c_void,
    length: usize,
    offset: u64,
) -> ringfile_op {
    transfer(RINGFILE_OP_WRITE_ATOMIC, file, data, length, offset)
}

pub(super) fn ringfile_op_readv(file: File, parts: *const iovec, count: usize, offset: u64) -> ringfile_op {
    transfer(RINGFILE_OP_READV, file, parts.cast(), count, offset)
}

pub(super) fn ringfile_op_writev(file: File, parts: *const iovec, count: usize, offset: u64) -> ringfile_op {
    transfer(RINGFILE_OP_WRITEV, file, parts.cast(), count, offset)
}

pub(super) fn ringfile_op_sync_data(file: File) -> ringfile_op {
    range(RINGFILE_OP_SYNC_DATA, file, 0, 0, 0)
}

pub(super) fn ringfile_op_sync_all(file: File) -> ringfile_op {
    range(RINGFILE_OP_SYNC_ALL, file, 0, 0, 0)
}

pub(super) fn ringfile_op_sync_range(file: File, offset: u64, length: u64, flags: u32) -> ringfile_op {
    range(RINGFILE_OP_SYNC_RANGE, file, offset, length, flags)
}

pub(super) fn ringfile_op_allocate(file: File, mode: u32, offset: u64, length: u64) -> ringfile_op {
    range(RINGFILE_OP_ALLOCATE, file, offset, length, mode)
}

pub(super) fn ringfile_op_truncate(file: File, length: u64) -> ringfile_op {
    range(RINGFILE_OP_TRUNCATE, file, 0, length, 0)
}

pub(super) fn ringfile_op_advise(file: File, offset: u64, length: u64, advice: u32) -> ringfile_op {
    range(RINGFILE_OP_ADVISE, file, offset, length, advice)
}

pub(super) fn ringfile_op_copy_range(
    file: File,
    offset: u64,
    to: File,
    to_offset: u64,
    length: u64,
) -> ringfile_op {
    ringfile_op { other: to.cast(), to_offset, ..range(RINGFILE_OP_COPY_RANGE, file, offset, length, 0) }
}

pub(super) fn ringfile_op_stat(file: File, metadata: *mut ringfile_metadata) -> ringfile_op {
    ringfile_op { file, result: metadata.cast(), ..op(RINGFILE_OP_STATX) }
}

pub(super) fn ringfile_op_path(kind: u32, path: *const c_char) -> ringfile_op {
    ringfile_op { data: path.cast(), ..op(kind) }
}

pub(super) fn ringfile_op_open(
    path: *const c_char,
    options: *const ringfile_open_options,
    opened: *mut *mut ringfile_file,
) -> ringfile_op {
    ringfile_op { other: options.cast(), result: opened.cast(), ..ringfile_op_path(RINGFILE_OP_OPEN, path) }
}

pub(super) fn ringfile_op_statx(path: *const c_char, metadata: *mut ringfile_metadata) -> ringfile_op {
    ringfile_op { result: metadata.cast(), ..ringfile_op_path(RINGFILE_OP_STATX, path) }
}

pub(super) fn ringfile_op_rename(from: *const c_char, to: *const c_char, flags: u32) -> ringfile_op {
    ringfile_op { other: to.cast(), flags, ..ringfile_op_path(RINGFILE_OP_RENAME, from) }
}
