//! The only place where the library starts a thread of its own. Threads of a [`Runtime`](crate::Runtime) are the program's:
//! they run its tasks.
//!
//! Such a thread works for the whole program, so it does not take after the thread that needed it first. It blocks the signals
//! that are sent to the process: the program's threads get them. What the kernel places it by is that of the process's first
//! thread, except for a real-time class, in which a worker could keep a core from all else.

use std::fs;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::num::NonZeroU64;

use libc::{c_int, pid_t};
use rustix::process::{Pid, getpid, getpriority_process, setpriority_process};
use rustix::thread::{current_timer_slack, sched_getaffinity, sched_setaffinity, set_current_timer_slack};

/// The signals by which the kernel reports what the thread itself has done. One that is blocked ends the process, whatever its
/// handler is.
const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// `IOPRIO_WHO_PROCESS`: a thread, despite its name.
const ONE_THREAD: c_int = 1;
/// Linux 6.12.
const SCHED_EXT: c_int = 7;

/// In nanoseconds: that of a process to which nobody has given another.
const USUAL_TIMER_SLACK: u64 = 50_000;

/// Starts a thread of the library.
///
/// # Errors
/// Those of `pthread_create(3)`.
pub fn start_thread<T: Send + 'static>(
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<()> {
    let run = move || {
        take_after_first_thread();
        run()
    };
    // A new thread has the mask of its maker: set by itself, it would come too late for a signal that arrives first.
    let before = block_signals();
    let started = std::thread::Builder::new().name(name.into()).spawn(run);
    if let Some(before) = before {
        // SAFETY: the mask is one that the same call has returned.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    }
    started.map(drop)
}

/// Blocks all signals on the calling thread but [`FAULTS`], and returns its mask before that; `None` if nothing has changed.
fn block_signals() -> Option<libc::sigset_t> {
    let (mut blocked, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: `sigfillset` makes a set, without what the C library needs for itself, and the other calls change it and read
    // it. After a success, the last one has written the mask before.
    unsafe {
        libc::sigfillset(blocked.as_mut_ptr());
        for fault in FAULTS {
            libc::sigdelset(blocked.as_mut_ptr(), fault);
        }
        let failed = libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), before.as_mut_ptr());
        (failed == 0).then(|| before.assume_init())
    }
}

/// Gives the calling thread the scheduling class, affinity, nice value, I/O priority, timer slack and memory policy of the
/// process's first thread, as far as the kernel allows: a lower nice value needs `RLIMIT_NICE` or `CAP_SYS_NICE`. What is the
/// same is not set: a thread whose affinity was never set follows its control group's.
fn take_after_first_thread() {
    // The first thread has the number of its process.
    let first = getpid();
    take_class(first);
    take_timer_slack();
    take_memory_policy();
    if let (Ok(wanted), Ok(own)) = (sched_getaffinity(Some(first)), sched_getaffinity(None))
        && wanted != own
    {
        let _ = sched_setaffinity(None, &wanted);
    }
    if let (Ok(wanted), Ok(own)) = (getpriority_process(Some(first)), getpriority_process(None))
        && wanted != own
    {
        let _ = setpriority_process(None, wanted);
    }
}

/// Gives the calling thread the scheduling class and I/O priority of the thread `first`, but no real-time class.
fn take_class(first: Pid) {
    let (first, own): (pid_t, pid_t) = (first.as_raw_pid(), 0);
    let class_of = |thread: pid_t| {
        // SAFETY: takes and returns numbers.
        let class = unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread) };
        class as c_int & !libc::SCHED_RESET_ON_FORK
    };
    let wanted = match class_of(first) {
        class @ (libc::SCHED_BATCH | libc::SCHED_IDLE | SCHED_EXT) => class,
        // A real-time class, or unknown.
        _ => libc::SCHED_OTHER,
    };
    if class_of(own) != wanted {
        let no_priority: c_int = 0;
        // SAFETY: the kernel reads the record during the call: one number, which is 0 outside of real-time classes.
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, own, wanted, &raw const no_priority) };
    }
    // SAFETY: these take and return numbers.
    unsafe {
        let wanted = libc::syscall(libc::SYS_ioprio_get, ONE_THREAD, first);
        if wanted >= 0 && libc::syscall(libc::SYS_ioprio_get, ONE_THREAD, own) != wanted {
            libc::syscall(libc::SYS_ioprio_set, ONE_THREAD, own, wanted);
        }
    }
}

/// Gives the calling thread the timer slack of the first one, or the usual one: only `CAP_SYS_NICE` may know another thread's.
fn take_timer_slack() {
    if current_timer_slack() == Ok(USUAL_TIMER_SLACK) {
        return;
    }
    let of_first = fs::read_to_string("/proc/self/timerslack_ns").ok();
    let wanted = of_first.and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL_TIMER_SLACK);
    let _ = set_current_timer_slack(NonZeroU64::new(wanted));
}

/// Gives up the calling thread's memory policy if the first thread has none. If that one has a policy, as under `numactl`, the
/// calling thread mostly has the same.
fn take_memory_policy() {
    let mut mode = libc::MPOL_DEFAULT;
    let none = std::ptr::null::<libc::c_ulong>();
    // SAFETY: the kernel writes one number.
    let known = unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, none, 0, none, 0) };
    if known == 0 && mode != libc::MPOL_DEFAULT && first_has_no_memory_policy() {
        // SAFETY: no memory is read.
        unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_DEFAULT, none, 0) };
    }
}

/// Reads only the first line of `/proc/self/numa_maps`, which is that of the program's text: for each line, the kernel looks at
/// all pages of a mapping. Its second field is the first thread's policy, since that mapping has none of its own.
fn first_has_no_memory_policy() -> bool {
    let mut start = [0; 64];
    let read = fs::File::open("/proc/self/numa_maps").and_then(|mut maps| maps.read(&mut start));
    let policy = start[..read.unwrap_or(0)].split(|&byte| byte == b' ').nth(1);
    policy.is_none_or(|policy| policy == b"default")
}
