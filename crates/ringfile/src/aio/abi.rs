//! The kernel's side of Linux AIO: the five system calls, and the records that both sides read.
//!
//! Knows nothing of ringfile. The records are those of `include/uapi/linux/aio_abi.h`; the header of the completion ring,
//! which libaio and fio read too, is `struct aio_ring` of `fs/aio.c`.

use std::io;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::ring::check;

/// The operation of an [`Iocb`], `IOCB_CMD_…`.
pub(super) const PREAD: u16 = 0;
pub(super) const PWRITE: u16 = 1;
pub(super) const POLL: u16 = 5;
pub(super) const PREADV: u16 = 7;
pub(super) const PWRITEV: u16 = 8;

/// `IOCB_FLAG_RESFD`: the kernel adds 1 to the eventfd `signal` when the operation has ended.
pub(super) const SIGNALS: u32 = 1;

/// One operation, as the kernel reads it: `struct iocb`. The kernel writes `key` in `io_submit`, and knows the operation by
/// the address of this record from then on.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Iocb {
    pub data: u64,
    #[cfg(target_endian = "little")]
    pub key: u32,
    pub rw_flags: u32,
    #[cfg(target_endian = "big")]
    pub key: u32,
    pub opcode: u16,
    pub priority: i16,
    pub fd: u32,
    pub addr: u64,
    pub len: u64,
    pub offset: u64,
    pub reserved: u64,
    pub flags: u32,
    pub signal: u32,
}

const _: () = assert!(size_of::<Iocb>() == 64 && std::mem::offset_of!(Iocb, opcode) == 16);

/// One completion: `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct IoEvent {
    pub data: u64,
    /// The address of the operation's [`Iocb`].
    pub iocb: u64,
    pub result: i64,
    pub result2: i64,
}

const _: () = assert!(size_of::<IoEvent>() == 32);

/// The beginning of the completion ring, `struct aio_ring`; the events follow.
#[repr(C)]
pub(super) struct Header {
    pub id: u32,
    /// The number of events that the ring has room for.
    pub events: u32,
    /// The next event to be taken. Advanced by this process, and by the kernel in `io_getevents`.
    pub head: AtomicU32,
    /// Where the kernel puts the next event.
    pub tail: AtomicU32,
    pub magic: u32,
    pub compatible: u32,
    pub incompatible: u32,
    pub header_len: u32,
}

const _: () = assert!(size_of::<Header>() == 32);

/// `AIO_RING_MAGIC`.
pub(super) const MAGIC: u32 = 0xa10a_10a1;

/// Names a context: `aio_context_t`, the address at which the kernel has mapped the completion ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContextId(pub libc::c_ulong);

/// Creates a context for `operations` in flight (`io_setup(2)`).
pub(super) fn setup(operations: u32) -> io::Result<ContextId> {
    let mut context = ContextId(0);
    // SAFETY: the kernel writes one number of this type.
    check(unsafe { libc::syscall(libc::SYS_io_setup, operations, &raw mut context.0) })?;
    Ok(context)
}

/// Destroys a context (`io_destroy(2)`): cancels the operations that can be cancelled, and waits for the others.
pub(super) fn destroy(context: ContextId) {
    // SAFETY: no memory is passed. The caller does not use the completion ring any more, which is unmapped.
    unsafe { libc::syscall(libc::SYS_io_destroy, context.0) };
}

/// Submits operations (`io_submit(2)`), and returns how many the kernel accepted, in order. An error means
/// that the kernel refused the first of them, or the call itself.
///
/// # Safety
/// Each address is that of a record. Until its completion has been seen, the record and the memory that it names must
/// stay valid and must not move. The kernel writes to the record, and for a read to the memory, and nothing else may
/// access them.
pub(super) unsafe fn submit(context: ContextId, all: &[*mut Iocb]) -> io::Result<u32> {
    // SAFETY: by this function's contract; the list itself is read during the call.
    check(unsafe { libc::syscall(libc::SYS_io_submit, context.0, all.len() as libc::c_long, all.as_ptr()) })
}

/// Waits for at least `at_least` completions, but no longer than `at_most`. Puts all completions that have arrived, as
/// far as there is room, into `events` (`io_getevents(2)`).
pub(super) fn get_events(
    context: ContextId,
    at_least: u32,
    events: &mut [IoEvent],
    at_most: Option<Duration>,
) -> io::Result<u32> {
    let time = at_most.map(|at_most| libc::timespec {
        tv_sec: at_most.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: at_most.subsec_nanos() as libc::c_long,
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let (at_least, room) = (libc::c_long::from(at_least), events.len() as libc::c_long);
    // SAFETY: the kernel writes at most as many events as there is room for, and reads the time during the call.
    check(unsafe {
        libc::syscall(libc::SYS_io_getevents, context.0, at_least, room, events.as_mut_ptr(), time)
    })
}

/// Asks the kernel to cancel an operation (`io_cancel(2)`). Whatever it answers, the operation's completion arrives in
/// the ring: since Linux 3.11 the kernel no longer writes it to the record that is passed here.
///
/// # Safety
/// `iocb` is the address of a record that may be read.
pub(super) unsafe fn cancel(context: ContextId, iocb: *mut Iocb) {
    let mut unused = IoEvent::default();
    // SAFETY: by this function's contract; the kernel writes at most one event.
    unsafe { libc::syscall(libc::SYS_io_cancel, context.0, iocb, &raw mut unused) };
}
