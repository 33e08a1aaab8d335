//! Creates a ring with the features that this kernel and this process allow.
//!
//! Kernel versions are never compared: every flag is tried, and on `EINVAL` flags are dropped one at a time, the least
//! valuable first. The completion queue is never smaller than the submission queue. Invariant: a returned ring is
//! mapped completely, and [`Mapping`] unmaps it exactly once.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use linux_raw_sys::io_uring as uapi;

use super::abi;
use ringfile_buffer::internal::event;

/// Flags in the order in which they are dropped. `DEFER_TASKRUN` needs `SINGLE_ISSUER`, so it is dropped first.
const GIVE_UP: [(u32, &str); 6] = [
    (uapi::IORING_SETUP_NO_SQARRAY, "no_sqarray"),
    (uapi::IORING_SETUP_DEFER_TASKRUN, "defer_taskrun"),
    (uapi::IORING_SETUP_SINGLE_ISSUER, "single_issuer"),
    (uapi::IORING_SETUP_COOP_TASKRUN | uapi::IORING_SETUP_TASKRUN_FLAG, "coop_taskrun"),
    (uapi::IORING_SETUP_SUBMIT_ALL, "submit_all"),
    (uapi::IORING_SETUP_CLAMP, "clamp"),
];

/// How often to try again after `ENOMEM`, and how long to sleep in between: the kernel returns the memory of a closed ring up to
/// 150 ms later. Attempts are counted, since a busy machine delays the sleeps as much as the kernel's thread that returns it.
const ATTEMPTS: u32 = 40;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(5);

const SMALLEST: u32 = 8;

/// Entries and completions of twice the size.
const LARGE_ENTRIES: u32 = uapi::IORING_SETUP_SQE128 | uapi::IORING_SETUP_CQE32;

/// The smallest number of entries: two, since a write and its linked sync are submitted together.
const LINKED: u32 = 2;

/// Selects when the kernel finishes an operation whose I/O has completed. A part of that work runs on the submitting
/// thread.
///
/// If the kernel does not support the requested one, the next one in this list is used;
/// [`ring_features`](crate::metrics::ring_features) names the flags of a thread's ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskRun {
    /// When the thread asks for completions, all of them together (`IORING_SETUP_DEFER_TASKRUN`, Linux 6.1). Takes the least
    /// CPU time.
    #[default]
    Deferred,
    /// When the thread enters the kernel for any reason (`IORING_SETUP_COOP_TASKRUN`, Linux 5.19).
    Cooperative,
    /// At once: the kernel interrupts the thread, on whichever core it runs.
    Interrupt,
}

/// The options of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingOptions {
    /// Submission queue entries, rounded up to a power of two; halved while memory is refused.
    pub entries: u32,
    /// Completion queue entries for each submission queue entry.
    pub completions_per_entry: u32,
    /// Milliseconds after which an idle kernel submission thread sleeps; `None`: no such thread.
    pub sqpoll_idle: Option<u32>,
    /// Whether completions are polled from the device; only for direct I/O on devices with poll queues.
    pub iopoll: bool,
    /// Whether entries have 128 bytes and completions 32, for commands to a driver. This option is never dropped.
    pub commands: bool,
    /// When the kernel finishes operations for the thread; no effect if a kernel thread submits.
    pub task_run: TaskRun,
    /// Whether several threads enter the ring, in turn.
    pub is_shared: bool,
    /// Whether waiting for I/O is not counted as iowait, if the kernel supports that.
    pub no_iowait: bool,
    /// Additional flags to try, with which tests request unknown ones.
    pub extra_flags: u32,
}

impl Default for RingOptions {
    fn default() -> Self {
        // 256 entries for two threads fit in RLIMIT_MEMLOCK = 64 KiB, and a batch that fills them is submitted in well
        // under a millisecond on a cached file.
        Self {
            entries: 256,
            completions_per_entry: 4,
            sqpoll_idle: None,
            iopoll: false,
            commands: false,
            task_run: TaskRun::Deferred,
            is_shared: false,
            no_iowait: false,
            extra_flags: 0,
        }
    }
}

impl RingOptions {
    /// Returns the options of a ring that several threads enter, in turn, and whose completions any of them collects.
    pub(crate) fn shared() -> Self {
        Self { task_run: TaskRun::Cooperative, is_shared: true, ..Self::default() }
    }

    fn flags(&self) -> u32 {
        let common = uapi::IORING_SETUP_CLAMP
            | uapi::IORING_SETUP_SUBMIT_ALL
            | uapi::IORING_SETUP_NO_SQARRAY
            | self.extra_flags;
        let polled = if self.iopoll { uapi::IORING_SETUP_IOPOLL } else { 0 };
        let large = if self.commands { LARGE_ENTRIES } else { 0 };
        let cooperative = uapi::IORING_SETUP_COOP_TASKRUN | uapi::IORING_SETUP_TASKRUN_FLAG;
        let own = match (self.sqpoll_idle, self.task_run) {
            (Some(_), _) => uapi::IORING_SETUP_SQPOLL,
            (None, TaskRun::Deferred) => cooperative | uapi::IORING_SETUP_DEFER_TASKRUN,
            (None, TaskRun::Cooperative) => cooperative,
            (None, TaskRun::Interrupt) => 0,
        };
        let single = if self.is_shared { 0 } else { uapi::IORING_SETUP_SINGLE_ISSUER };
        common | single | polled | large | own
    }
}

/// A ring's descriptor and its memory, as the kernel laid it out.
pub(crate) struct Mapping {
    pub fd: Arc<OwnedFd>,
    pub params: uapi::io_uring_params,
    rings: Area,
    entries: Area,
}

struct Area {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, and this value alone names it.
unsafe impl Send for Area {}

impl Area {
    fn map(fd: &OwnedFd, len: usize, offset: u32) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping of a ring descriptor at an address of the kernel's choice touches no other memory.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, access, flags, fd.as_raw_fd(), i64::from(offset))
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by `map`, is owned by this value alone, and every pointer into it is in the
        // `Ring` that owns this value.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl Mapping {
    /// Returns the address of the field at `offset` of the area that holds both rings' heads, tails and completions.
    pub(crate) fn field<T>(&self, offset: u32) -> NonNull<T> {
        debug_assert!(offset as usize + size_of::<T>() <= self.rings.len);
        // SAFETY: the kernel's offsets lie inside the area, whose length was computed from them.
        unsafe { self.rings.start.add(offset as usize) }.cast()
    }

    pub(crate) fn entries(&self) -> NonNull<abi::Sqe> {
        self.entries.start.cast()
    }

    fn new(fd: OwnedFd, params: uapi::io_uring_params) -> io::Result<Self> {
        if params.features & uapi::IORING_FEAT_SINGLE_MMAP == 0
            || params.features & uapi::IORING_FEAT_NODROP == 0
        {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel's io_uring is older than Linux 5.5",
            ));
        }
        let indexed = params.flags & uapi::IORING_SETUP_NO_SQARRAY == 0;
        let index_len = if indexed { params.sq_entries as usize * size_of::<u32>() } else { 0 };
        let submission_end = params.sq_off.array as usize + index_len;
        let shift = entry_shift(&params);
        let completions_len = (params.cq_entries as usize * size_of::<abi::Cqe>()) << shift;
        let completion_end = params.cq_off.cqes as usize + completions_len;
        let rings = Area::map(&fd, submission_end.max(completion_end), uapi::IORING_OFF_SQ_RING)?;
        let entries_len = (params.sq_entries as usize * size_of::<abi::Sqe>()) << shift;
        let entries = Area::map(&fd, entries_len, uapi::IORING_OFF_SQES)?;
        let mapping = Self { fd: Arc::new(fd), params, rings, entries };
        if indexed {
            // Entry `i` is always at place `i`.
            let array = mapping.field::<u32>(params.sq_off.array);
            for i in 0..params.sq_entries {
                // SAFETY: the array has `sq_entries` elements inside the mapped area, and the kernel reads it only
                // during `enter`.
                unsafe { array.add(i as usize).write(i) };
            }
        }
        Ok(mapping)
    }
}

/// Returns the binary logarithm of how many [`Sqe`](abi::Sqe)s a submission entry takes, and how many
/// [`Cqe`](abi::Cqe)s a completion.
pub(super) fn entry_shift(params: &uapi::io_uring_params) -> u32 {
    u32::from(params.flags & LARGE_ENTRIES == LARGE_ENTRIES)
}

/// Creates a ring with `options`, or without those that the kernel refuses.
///
/// # Errors
/// The errno of `io_uring_setup(2)`: `ENOSYS`, `EPERM` if io_uring is switched off, `EMFILE`, or `ENOMEM` after the
/// smallest ring was refused for 200 ms, or longer on a busy machine. That of `io_uring_enter(2)` if a filter refuses only this
/// call.
pub(crate) fn make(options: &RingOptions) -> io::Result<Mapping> {
    let entries = options.entries.max(LINKED);
    let mapping = step_down(&RingOptions { entries, ..*options }, options.flags())?;
    // SAFETY: no entry is submitted.
    unsafe { abi::enter(mapping.fd.as_raw_fd(), 0, 0, 0) }?;
    Ok(mapping)
}

/// Creates the smallest ring, in which any thread may register.
pub(crate) fn make_shared() -> io::Result<Mapping> {
    let options = RingOptions { entries: 1, completions_per_entry: 1, ..RingOptions::default() };
    step_down(&options, 0)
}

fn step_down(options: &RingOptions, mut flags: u32) -> io::Result<Mapping> {
    let wanted = options.entries.clamp(1, 32768).next_power_of_two();
    let mut entries = wanted;
    let mut give_up = [(options.extra_flags, "extra")].into_iter().chain(GIVE_UP);
    let mut attempts = 0..ATTEMPTS;
    loop {
        // SAFETY: the record is plain integers, for which all zeros is a valid value.
        let mut params: uapi::io_uring_params = unsafe { std::mem::zeroed() };
        params.flags = flags | uapi::IORING_SETUP_CQSIZE;
        params.cq_entries = entries * options.completions_per_entry.max(1);
        params.sq_thread_idle = options.sqpoll_idle.unwrap_or(0);
        match abi::setup(entries, &mut params).and_then(|fd| Mapping::new(fd, params)) {
            Ok(mapping) => return Ok(mapping),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let Some(next) = give_up.find(|(flag, _)| flags & flag != 0) else { return Err(error) };
                flags &= !next.0;
                event::defer(move || {
                    tracing::debug!(flag = next.1, "io_uring_setup refused a flag, continuing without it");
                });
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                if entries > SMALLEST {
                    entries /= 2;
                    continue;
                }
                if attempts.next().is_none() {
                    return Err(error);
                }
                std::thread::sleep(BETWEEN_ATTEMPTS);
                entries = wanted;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reads which operations this kernel supports, with `IORING_REGISTER_PROBE`.
///
/// # Errors
/// That of `io_uring_register(2)` if a filter refuses this call, or the kernel is older than Linux 5.6.
pub(crate) fn probe(ring: &impl AsFd) -> io::Result<[bool; 256]> {
    #[repr(C)]
    struct Probe {
        last_op: u8,
        count: u8,
        reserved: u16,
        reserved2: [u32; 3],
        ops: [uapi::io_uring_probe_op; 256],
    }
    let mut supported = [false; 256];
    let unknown = uapi::io_uring_probe_op { op: 0, resv: 0, flags: 0, resv2: 0 };
    let mut answer = Probe { last_op: 0, count: 0, reserved: 0, reserved2: [0; 3], ops: [unknown; 256] };
    let opcode = uapi::io_uring_register_op::IORING_REGISTER_PROBE as u32;
    // SAFETY: the record has room for the 256 operations that the count announces.
    unsafe { abi::register(ring.as_fd(), opcode, &mut answer, 256) }?;
    for operation in answer.ops.iter().take(answer.count.into()) {
        supported[operation.op as usize] = operation.flags & uapi::IO_URING_OP_SUPPORTED as u16 != 0;
    }
    Ok(supported)
}

/// Returns the names of the set-up flags that a ring was made with.
pub(crate) fn flag_names(flags: u32) -> impl Iterator<Item = &'static str> {
    let rest = [
        (uapi::IORING_SETUP_SQPOLL, "sqpoll"),
        (uapi::IORING_SETUP_IOPOLL, "iopoll"),
        (LARGE_ENTRIES, "large_entries"),
    ];
    GIVE_UP.into_iter().chain(rest).filter(move |(flag, _)| flags & flag == *flag).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f10_a_flag_that_the_kernel_does_not_know_costs_no_other() {
        let plain = make(&RingOptions::default()).unwrap();
        let unknown = make(&RingOptions { extra_flags: 1 << 31, ..RingOptions::default() }).unwrap();
        assert_eq!(unknown.params.flags, plain.params.flags);
        assert_eq!(unknown.params.sq_entries, plain.params.sq_entries);
    }

    #[test]
    fn a_ring_has_the_flags_of_its_task_run() {
        let all =
            uapi::IORING_SETUP_DEFER_TASKRUN | uapi::IORING_SETUP_COOP_TASKRUN | uapi::IORING_SETUP_SQPOLL;
        let known = make(&RingOptions::default()).unwrap().params.flags;
        let flags = |task_run| {
            let options = RingOptions { task_run, ..RingOptions::default() };
            make(&options).unwrap().params.flags & all
        };
        assert_eq!(flags(TaskRun::Interrupt), 0);
        assert_eq!(flags(TaskRun::Cooperative), known & uapi::IORING_SETUP_COOP_TASKRUN);
        assert_eq!(flags(TaskRun::Deferred), known & all);
    }

    #[test]
    fn f10_flags_that_exclude_each_other_are_given_up_one_by_one() {
        // A submission thread excludes DEFER_TASKRUN and similar flags: they must be dropped, since the thread is
        // requested explicitly.
        let options = RingOptions { entries: 8, ..RingOptions::default() };
        let sqpoll = uapi::IORING_SETUP_SQPOLL;
        let made = step_down(&options, options.flags() | sqpoll).unwrap();
        assert_ne!(made.params.flags & sqpoll, 0);
        assert_eq!(made.params.flags & uapi::IORING_SETUP_DEFER_TASKRUN, 0);
        // DEFER_TASKRUN is never used without the flag that it needs.
        let flags = uapi::IORING_SETUP_DEFER_TASKRUN | 1 << 31;
        let made = step_down(&RingOptions { extra_flags: 1 << 31, ..options }, flags).unwrap();
        assert_eq!(made.params.flags & uapi::IORING_SETUP_DEFER_TASKRUN, 0);
    }

    #[test]
    fn f10_an_unknown_flag_that_cannot_be_given_up_is_an_error() {
        let options = RingOptions::default();
        let error = step_down(&options, 1 << 31).err().map(|error| error.raw_os_error());
        assert_eq!(error, Some(Some(libc::EINVAL)));
    }

    #[test]
    fn f10_the_completion_queue_is_never_smaller_than_the_submission_queue() {
        for entries in [0, 1, 2, 3, 5, 8, 100, 1000, 32768, u32::MAX] {
            for completions_per_entry in [0, 1, 2, 4] {
                let options = RingOptions { entries, completions_per_entry, ..RingOptions::default() };
                let params = make(&options).unwrap().params;
                assert!(params.cq_entries >= params.sq_entries, "{entries} entries");
                assert!(params.sq_entries >= LINKED && params.sq_entries.is_power_of_two());
            }
        }
    }
}
