//! Direct calls of the kernel: CPU time, page cache residency, facts about files.
//!
//! `unsafe` is used here for system calls that no crate wraps yet, and in `sys/ring.rs` for the doctor's rings. The
//! only other `unsafe` of this crate is in `engine/hand_ring.rs`, and where `hand_loop.rs` calls it.

pub mod ring;

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::{Child, ChildStdout};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::fs::{Advice, fadvise};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Creates a Linux AIO context and submits an empty list to it.
///
/// # Errors
/// Those of `io_setup(2)` and `io_submit(2)`.
pub fn try_aio() -> io::Result<()> {
    let check = |answer: libc::c_long| if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    let mut context: libc::c_ulong = 0;
    // SAFETY: the kernel writes one number of this type.
    check(unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) })?;
    // SAFETY: the list is empty, so the kernel does not read it.
    let submitted = check(unsafe {
        libc::syscall(libc::SYS_io_submit, context, 0 as libc::c_long, std::ptr::null::<*const u8>())
    });
    // SAFETY: no memory is passed, and nothing uses the context afterwards.
    check(unsafe { libc::syscall(libc::SYS_io_destroy, context) })?;
    submitted
}

/// The resources that a process or thread has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user space.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// Voluntary and involuntary context switches.
    pub context_switches: u64,
}

impl Usage {
    /// Returns the sum of both.
    pub fn and(&self, other: &Usage) -> Usage {
        self.with(other, |one, other| one + other, |one, other| one + other)
    }

    /// Returns what was used since an earlier measurement.
    pub fn since(&self, earlier: &Usage) -> Usage {
        self.with(earlier, Duration::saturating_sub, u64::saturating_sub)
    }

    /// Combines each figure with that of another.
    fn with(
        &self,
        other: &Usage,
        times: fn(Duration, Duration) -> Duration,
        counts: fn(u64, u64) -> u64,
    ) -> Usage {
        Usage {
            user: times(self.user, other.user),
            system: times(self.system, other.system),
            context_switches: counts(self.context_switches, other.context_switches),
        }
    }

    /// Returns the CPU time, user and system.
    pub fn cpu(&self) -> Duration {
        self.user + self.system
    }
}

/// Returns what this process has used so far. This includes the kernel workers of its rings: they are threads of the
/// process, and the kernel adds up all of its threads, live and ended.
pub fn own_usage() -> io::Result<Usage> {
    usage_of(libc::RUSAGE_SELF)
}

/// Returns what the calling thread has used so far, without kernel workers.
pub fn thread_usage() -> io::Result<Usage> {
    usage_of(libc::RUSAGE_THREAD)
}

/// Returns the user and system CPU time of all child processes that have been waited for. The increase caused by one
/// child equals what `wait4` reports for it.
pub fn children_cpu() -> io::Result<Duration> {
    Ok(usage_of(libc::RUSAGE_CHILDREN)?.cpu())
}

fn usage_of(who: libc::c_int) -> io::Result<Usage> {
    // SAFETY: the record is plain integers, for which all zeros is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one record of this type.
    if unsafe { libc::getrusage(who, &raw mut usage) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let duration = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    Ok(Usage {
        user: duration(usage.ru_utime),
        system: duration(usage.ru_stime),
        context_switches: usage.ru_nvcsw.unsigned_abs() + usage.ru_nivcsw.unsigned_abs(),
    })
}

/// Returns the cores that this process may run on, in ascending order.
pub fn allowed_cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// Keeps the calling thread on a core of its own; `number` distinguishes it from other threads.
pub fn pin(number: usize) -> io::Result<()> {
    let cores = allowed_cores();
    let mut set = CpuSet::new();
    set.set(cores[number % cores.len()]);
    Ok(sched_setaffinity(None, &set)?)
}

/// Returns whether a child has ended, without reaping it.
pub fn has_ended(child: &Child) -> io::Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(waitid(WaitId::Pid(Pid::from_child(child)), options)?.is_some())
}

/// Returns the CPU time of only the main thread of a child that has not been reaped; `None` if the kernel was built
/// without CONFIG_SCHED_INFO.
pub fn main_thread_cpu(child: &Child) -> Option<Duration> {
    let id = child.id();
    let text = std::fs::read_to_string(format!("/proc/{id}/task/{id}/schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Returns the fraction of the first `bytes` of the file that is in the page cache; `None` if the kernel does not
/// report it.
pub fn cached_fraction(file: &File, bytes: u64) -> Option<f64> {
    let ([now, _], page) = (cached_pages(file, bytes)?, page_size());
    (bytes > 0).then(|| (now as f64 / bytes.div_ceil(page) as f64).min(1.0))
}

/// As the length of a range, cachestat(2) takes this for all that follows.
const WHOLE: u64 = 0;

/// Counts the pages of the first `bytes` of the file that are in the page cache, and those that were evicted for lack of
/// memory since the file was last dropped from it; `None` if the kernel can't tell (before Linux 6.5) or won't (a file
/// system without it, a seccomp filter).
pub fn cached_pages(file: &File, bytes: u64) -> Option<[u64; 2]> {
    /// `struct cachestat_range` and `struct cachestat` of linux/mman.h.
    #[repr(C)]
    struct Range {
        offset: u64,
        length: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Stat {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    /// The same number on every architecture: the call is newer than the common table.
    const SYS_CACHESTAT: libc::c_long = 451;

    let range = Range { offset: 0, length: bytes };
    let mut stat = Stat::default();
    // SAFETY: the kernel reads one `Range` and writes one `Stat`; both live on this stack frame for the whole
    // call, with the layout that linux/mman.h gives them. The descriptor is open: `file` is borrowed.
    let status = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &range, &mut stat, 0) };
    (status == 0).then_some([stat.cached, stat.evicted])
}

/// Returns the size of a page of memory in bytes.
pub fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// Drops the file from the page cache; pages that are dirty stay, so write them out first. The kernel skips a page that
/// something else uses at this moment, so it is asked again while any is left.
pub fn drop_cache(file: &File) -> io::Result<()> {
    const ATTEMPTS: u32 = 10;
    for _ in 0..ATTEMPTS {
        fadvise(file, 0, None, Advice::DontNeed)?;
        if cached_pages(file, WHOLE).is_none_or(|[cached, _]| cached == 0) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Tells the kernel whether reads will be random, as fio does; the kernel then decides about read-ahead.
pub fn advise_order(file: impl AsFd, random: bool) -> io::Result<()> {
    let advice = if random { Advice::Random } else { Advice::Sequential };
    Ok(fadvise(file, 0, None, advice)?)
}

/// Returns a path that leads to an open file, whatever becomes of its name, in this process and in its children.
pub fn path_of(file: &File) -> io::Result<PathBuf> {
    fcntl_setfd(file, FdFlags::empty())?;
    Ok(format!("/proc/self/fd/{}", file.as_raw_fd()).into())
}

/// Reads the lines that a child prints, on a thread that ends with the child or with the receiver.
pub fn lines_of(stdout: Option<ChildStdout>) -> io::Result<Receiver<String>> {
    let (send, lines) = channel();
    let printed = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines());
    let read = move || printed.map_while(Result::ok).try_for_each(|line| send.send(line));
    std::thread::Builder::new().spawn(read)?;
    Ok(lines)
}

/// Returns device and inode of the file that a loop device shows, and its number if it is a device.
///
/// # Errors
/// `ENXIO` if it shows none, and those of `ioctl(2)`.
pub fn backing_file(loop_device: &File) -> io::Result<[u64; 3]> {
    const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;

    // `struct loop_info64` of linux/loop.h, which begins with these numbers.
    let mut status = [0_u64; 29];
    // SAFETY: the kernel writes one `loop_info64` of 232 bytes, which `status` has.
    let answer = unsafe { libc::ioctl(loop_device.as_raw_fd(), LOOP_GET_STATUS64 as _, &mut status) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok([status[0], status[1], status[2]]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::Instant;

    #[test]
    fn own_cpu_grows_with_work() {
        let before = own_usage().expect("getrusage");
        let start = Instant::now();
        // On a busy machine this thread gets only part of a processor.
        while own_usage().expect("getrusage").since(&before).cpu() <= Duration::from_millis(5) {
            assert!(start.elapsed() < Duration::from_secs(60), "no work is seen");
        }
    }

    #[test]
    fn an_ended_child_tells_its_time_before_it_is_waited_for() {
        let began = Instant::now();
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cat starts");
        assert!(!has_ended(&child).expect("waitid"));
        std::thread::sleep(Duration::from_millis(200));
        // It ends when its input ends.
        drop(child.stdin.take());
        while !has_ended(&child).expect("waitid") {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(has_ended(&child).expect("waitid"), "asking takes nothing away");
        if let Some(time) = main_thread_cpu(&child) {
            assert!(time > Duration::ZERO && time < began.elapsed(), "{time:?}");
        }
        assert!(child.wait().expect("wait").success());
        assert_eq!(main_thread_cpu(&child), None);
    }

    #[test]
    fn a_file_just_written_is_cached() {
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(&vec![1; 1 << 20]).expect("write");
        match cached_fraction(&file, 1 << 20) {
            Some(fraction) => assert_eq!(fraction, 1.0),
            None => crate::skip::skip("a_file_just_written_is_cached", "this kernel has no cachestat"),
        }
    }
}
