//! The user data of entries that belong to no operation with a slot, and the flags of entries.

use linux_raw_sys::io_uring as uapi;

/// The user data of completions without an operation: withdrawn entries, and cancellations. No operation has generation
/// 0.
pub(super) const IGNORED: u64 = 0;

/// The user data of the eventfd with which other threads wake this one; the ring polls it.
pub(super) const WAKEUP: u64 = 1;

/// The user data of the same eventfd in the AIO context.
pub(super) const AIO_WAKEUP: u64 = 2;

/// The user data of the signal of the ring for commands.
pub(super) const COMMANDS: u64 = 3;

/// How many entries one `enter` submits at most on a thread with other tasks: a device takes about 3 µs for each, and
/// the tasks wait meanwhile. A thread that only waits for these operations submits all at once.
pub(super) const SLICE: u32 = 128;

pub(super) const FIXED_FILE: u8 = 1 << uapi::io_uring_sqe_flags_bit::IOSQE_FIXED_FILE_BIT as u8;

pub(super) const ASYNC: u8 = 1 << uapi::io_uring_sqe_flags_bit::IOSQE_ASYNC_BIT as u8;

pub(super) const LINK: u8 = 1 << uapi::io_uring_sqe_flags_bit::IOSQE_IO_LINK_BIT as u8;

/// The user data of the first read in place; the others follow. Their upper half is 0, a generation that no slot has.
pub(super) const FIRST: u64 = 1 << 16;

/// Returns the index, among all answers, of the read in place with this user data; `None` if it belongs to none.
#[inline]
pub(super) fn index(user_data: u64) -> Option<usize> {
    (FIRST..=u32::MAX.into()).contains(&user_data).then(|| (user_data - FIRST) as usize)
}
