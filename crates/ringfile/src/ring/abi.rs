//! The kernel's side of io_uring: the three system calls, and the two records that both sides read.
//!
//! Knows nothing of ringfile. Constants come from `linux-raw-sys`; the submission entry is written out flat here,
//! since it is filled in place on every operation and the kernel never changes it (include/uapi/linux/io_uring.h).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use linux_raw_sys::io_uring::{
    IORING_ENTER_EXT_ARG, IORING_RSRC_REGISTER_SPARSE, io_uring_getevents_arg, io_uring_params,
    io_uring_register_op, io_uring_rsrc_register,
};

use crate::descriptor::above_standard;

/// One submission queue entry, as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Sqe {
    pub opcode: u8,
    pub flags: u8,
    pub ioprio: u16,
    pub fd: i32,
    pub offset: u64,
    pub addr: u64,
    pub len: u32,
    pub op_flags: u32,
    pub user_data: u64,
    pub buf_index: u16,
    pub personality: u16,
    pub file_index: u32,
    pub addr3: u64,
    pub pad: u64,
}

const _: () = assert!(size_of::<Sqe>() == 64 && std::mem::offset_of!(Sqe, user_data) == 32);

/// One submission queue entry of a ring with entries of 128 bytes (`IORING_SETUP_SQE128`). The command for a driver begins
/// where smaller entries have `addr3`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CommandSqe {
    pub opcode: u8,
    pub flags: u8,
    pub ioprio: u16,
    pub fd: i32,
    pub command_op: u32,
    pub reserved: u32,
    pub addr: u64,
    pub len: u32,
    /// `IORING_URING_CMD_FIXED` or 0.
    pub command_flags: u32,
    pub user_data: u64,
    pub buf_index: u16,
    pub personality: u16,
    pub file_index: u32,
    pub command: NvmeCommand,
    pub rest: u64,
}

const _: () = assert!(size_of::<CommandSqe>() == 2 * size_of::<Sqe>());
const _: () = assert!(std::mem::offset_of!(CommandSqe, user_data) == std::mem::offset_of!(Sqe, user_data));
const _: () = assert!(std::mem::offset_of!(CommandSqe, command) == std::mem::offset_of!(Sqe, addr3));

/// `struct nvme_uring_cmd` (include/uapi/linux/nvme_ioctl.h).
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct NvmeCommand {
    pub opcode: u8,
    pub flags: u8,
    pub reserved: u16,
    pub namespace: u32,
    pub cdw2: u32,
    pub cdw3: u32,
    pub metadata: u64,
    pub addr: u64,
    pub metadata_len: u32,
    /// Length in bytes; for a vectored command, the number of parts.
    pub data_len: u32,
    pub cdw10: u32,
    pub cdw11: u32,
    pub cdw12: u32,
    pub cdw13: u32,
    pub cdw14: u32,
    pub cdw15: u32,
    pub timeout_ms: u32,
    pub reserved2: u32,
}

const _: () = assert!(size_of::<NvmeCommand>() == 72);

/// One completion queue entry, as the kernel writes it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cqe {
    pub user_data: u64,
    pub result: i32,
    pub flags: u32,
}

const _: () = assert!(size_of::<Cqe>() == 16);

/// Turns the answer of a system call that returns a number into a result.
pub(crate) fn check(result: libc::c_long) -> io::Result<u32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as u32) }
}

/// Creates a ring (`io_uring_setup(2)`); the kernel fills in `params`.
pub(crate) fn setup(entries: u32, params: &mut io_uring_params) -> io::Result<OwnedFd> {
    // SAFETY: `params` is a valid, exclusively borrowed record of the size the kernel expects.
    let fd =
        check(unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, params as *mut io_uring_params) })?;
    // SAFETY: the call succeeded, so `fd` is a new descriptor that nothing else owns.
    Ok(above_standard(unsafe { OwnedFd::from_raw_fd(fd as i32) })?)
}

/// Calls `io_uring_enter(2)` without an argument record. `fd` is an index if `flags` contains
/// `IORING_ENTER_REGISTERED_RING`.
///
/// # Safety
/// Every entry that this call submits must obey the contract of [`super::Ring::push`].
pub(crate) unsafe fn enter(fd: i32, submit: u32, wait: u32, flags: u32) -> io::Result<u32> {
    let no_signal_mask = std::ptr::null::<libc::sigset_t>();
    // SAFETY: no memory is passed except a null mask; the entries are covered by this function's contract.
    check(unsafe { libc::syscall(libc::SYS_io_uring_enter, fd, submit, wait, flags, no_signal_mask, 0usize) })
}

/// As [`enter`], but fails with `ETIME` when `at_most` has passed. Needs Linux 5.11.
///
/// # Safety
/// As [`enter`].
pub(crate) unsafe fn enter_for(
    fd: i32,
    submit: u32,
    wait: u32,
    flags: u32,
    at_most: Duration,
) -> io::Result<u32> {
    // `struct __kernel_timespec`, whose fields have 64 bits on every architecture.
    let time = [i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX), i64::from(at_most.subsec_nanos())];
    let ts = (&raw const time).expose_provenance() as u64;
    let argument = io_uring_getevents_arg { sigmask: 0, sigmask_sz: 0, min_wait_usec: 0, ts };
    let (flags, size) = (flags | IORING_ENTER_EXT_ARG, size_of_val(&argument));
    // SAFETY: the record and the time are read during the call; the entries are covered by this function's contract.
    check(unsafe {
        libc::syscall(libc::SYS_io_uring_enter, fd, submit, wait, flags, &raw const argument, size)
    })
}

/// Calls `io_uring_register(2)` with an argument record, or an array of them, of a size that `opcode` defines.
///
/// # Safety
/// `argument` must point to `count` of the records that `opcode` expects, valid for reads and writes; memory that gets
/// registered must stay mapped until it is unregistered.
pub(crate) unsafe fn register<T>(
    ring: BorrowedFd<'_>,
    opcode: u32,
    argument: *mut T,
    count: u32,
) -> io::Result<u32> {
    // SAFETY: by this function's contract.
    check(unsafe { libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), opcode, argument, count) })
}

/// Gives a ring a table of empty places: `opcode` says whether for memory or files.
pub(crate) fn register_table(ring: &OwnedFd, opcode: io_uring_register_op, places: u32) -> io::Result<()> {
    let flags = IORING_RSRC_REGISTER_SPARSE;
    let mut table = io_uring_rsrc_register { nr: places, flags, resv2: 0, data: 0, tags: 0 };
    let size = size_of_val(&table) as u32;
    // SAFETY: one valid record whose size is passed as the count, as these operations require; it names no memory.
    unsafe { register(ring.as_fd(), opcode as u32, &mut table, size) }.map(drop)
}
