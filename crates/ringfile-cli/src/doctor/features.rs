//! Tries each part of io_uring that ringfile uses, or that users ask about, on rings of this process.
//!
//! Invariants: a feature is usable only if its trial gave the right results and bytes; a feature that could not be
//! tried is neither usable nor unusable.

use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use io_uring::{IoUring, opcode};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use crate::sys::ring::{self, Op, TrialRing};

/// A feature of the kernel, and whether this process can use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feature {
    /// Its name, as `ringfile::metrics::ring_features()` and the kernel's headers have it, in lower case.
    pub name: String,
    /// Whether the trial succeeded; `null` if it could not be made.
    pub usable: Option<bool>,
    /// What was tried, what the kernel answered, and what the lack of the feature costs.
    pub why: String,
}

/// A trial: its name, what was done, the first Linux that has the feature, and what the lack of it costs.
struct Trial<'a>(&'a str, &'a str, &'a str, &'a str);

// IORING_SETUP_… of linux/io_uring.h.
const CQSIZE: u32 = 1 << 3;
const CLAMP: u32 = 1 << 4;
const SUBMIT_ALL: u32 = 1 << 7;
/// COOP_TASKRUN and TASKRUN_FLAG.
const COOP: u32 = 1 << 8 | 1 << 9;
const SINGLE_ISSUER: u32 = 1 << 12;
const DEFER_TASKRUN: u32 = 1 << 13;
/// SQE128 and CQE32.
const LARGE: u32 = 1 << 10 | 1 << 11;
const NO_SQARRAY: u32 = 1 << 16;

/// Set-up flags, each with only the flags that it needs: bits, name, the kernel's names, first Linux, cost of the lack.
const SETUP: [(u32, &str, &str, &str, &str); 8] = [
    (CQSIZE, "cqsize", "CQSIZE", "5.5", "completions can overflow"),
    (CLAMP, "clamp", "CLAMP", "5.6", "large queue depths are refused"),
    (SUBMIT_ALL, "submit_all", "SUBMIT_ALL", "5.18", "one bad entry ends a batch early"),
    (COOP, "coop_taskrun", "COOP_TASKRUN and TASKRUN_FLAG", "5.19", "completions interrupt the thread"),
    (LARGE, "large_entries", "SQE128 and CQE32", "5.19", "no NVMe commands to namespaces (/dev/ng0n1)"),
    (SINGLE_ISSUER, "single_issuer", "SINGLE_ISSUER", "6.0", "no deferred task work"),
    (
        SINGLE_ISSUER | DEFER_TASKRUN,
        "defer_taskrun",
        "DEFER_TASKRUN and SINGLE_ISSUER",
        "6.1",
        "completions are processed at arbitrary moments: more CPU time for each I/O",
    ),
    (NO_SQARRAY, "no_sqarray", "NO_SQARRAY", "6.6", "one more memory access for each submission"),
];

/// Operations that ringfile submits, by the kernel's own list.
const OPERATIONS: [(u8, &str, &str); 12] = [
    (opcode::Read::CODE, "op_read", "reads become plain calls on worker threads"),
    (opcode::Write::CODE, "op_write", "writes become plain calls on worker threads"),
    (opcode::Readv::CODE, "op_readv", "no vectored reads"),
    (opcode::Writev::CODE, "op_writev", "no vectored writes"),
    (opcode::Fsync::CODE, "op_fsync", "syncs become plain calls on worker threads"),
    (opcode::Fallocate::CODE, "op_fallocate", "allocating becomes a plain call"),
    (opcode::Fadvise::CODE, "op_fadvise", "advice becomes a plain call"),
    (opcode::Ftruncate::CODE, "op_ftruncate", "setting a length is a plain call that may block the thread"),
    (opcode::PollAdd::CODE, "op_poll_add", "wake-ups from other threads take longer"),
    (opcode::AsyncCancel::CODE, "op_async_cancel", "dropped operations run to their end"),
    (opcode::UringCmd80::CODE, "op_uring_cmd", "no NVMe commands to namespaces (/dev/ng0n1)"),
    (
        opcode::WritevFixed::CODE,
        "op_writev_fixed",
        "vectored writes on registered memory take the plain form",
    ),
];

/// Bytes of the file that trials read: each is its offset modulo 251.
const SAMPLE: usize = 16 << 10;

/// How often all trials together are repeated when memory is lacking, 5 ms apart. Rings count against RLIMIT_MEMLOCK, and the
/// kernel releases the memory of a closed one up to 150 ms later: on a busy machine more, as the sleeps between attempts are.
const ATTEMPTS: u32 = 40;

/// What the trials found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Every feature, in the order of the trials.
    pub features: Vec<Feature>,
    /// Whether the kernel kills a process that makes a ring, so that none was made.
    pub kills: bool,
    /// The errno of `io_uring_setup`, if no ring can be made.
    pub refused: Option<i32>,
    /// The most kernel threads for one thread's rings: for files and block devices, and for all else.
    pub workers: Option<[u32; 2]>,
    /// Bytes that could be registered, of [`REGISTERED_AT_MOST`].
    pub registered: Option<u64>,
}

/// How much memory the trial of registering asks for.
pub const REGISTERED_AT_MOST: u64 = 16 << 20;

/// Makes all trials, but none if the kernel kills this process for one.
pub fn look(kills: bool) -> Found {
    let attempts = &AtomicU32::new(ATTEMPTS);
    let mut found = Found { kills, ..Found::default() };
    if found.kills {
        let why = "tried: io_uring_setup in another process, which a seccomp filter killed (SIGSYS)";
        found.features.push(Feature::new("io_uring", Some(false), why.into()));
        return found;
    }
    let without = "worker threads do all I/O with plain calls";
    let basic = Trial("io_uring", "io_uring_setup of two entries", "5.1", without);
    let setup = patiently(attempts, || ring::try_setup(0));
    found.refused = setup.as_ref().err().and_then(io::Error::raw_os_error);
    found.features.push(basic.judge(setup));
    if found.refused.is_some_and(|errno| errno != libc::ENOMEM) {
        return found;
    }
    for (flags, name, called, since, without) in SETUP {
        let tried = format!("a ring with IORING_SETUP_{called}");
        let done = patiently(attempts, || ring::try_setup(flags));
        found.features.push(Trial(name, &tried, since, without).judge(done));
    }
    if let (Ok(mut ring), Ok(file)) = (patiently(attempts, || TrialRing::new(8)), sample()) {
        found.workers = workers(attempts);
        found.registered = registered(&ring);
        one_ring(&mut ring, &file, &mut found.features);
        // Without registered memory, sharing it can't be judged.
        if is_usable(&found.features, "registered_buffers") {
            let done = patiently(attempts, || TrialRing::new(8));
            let done = done.and_then(|other| other.clone_registrations(&ring));
            let tried = "registered memory shared with a second ring";
            let without = "every thread pins and pays for the same memory again";
            found.features.push(Trial("clone_buffers", tried, "6.12", without).judge(done));
        }
    }
    let done = patiently(attempts, || TrialRing::built(8, IoUring::builder().setup_sqpoll(10)));
    let done = done.and_then(|mut ring| read_back(&mut ring, &sample()?, Op::Read(4096, 0), 4096));
    let tried = "4 KiB read by a ring with a kernel thread (IORING_SETUP_SQPOLL)";
    let without = "every submission is a system call, as by default";
    found.features.push(Trial("sqpoll", tried, "5.11", without).judge(done));
    found
}

/// Returns whether a feature was tried successfully.
pub fn is_usable(features: &[Feature], name: &str) -> bool {
    features.iter().any(|feature| feature.name == name && feature.usable == Some(true))
}

/// Makes the trials that share one ring. Registrations come last, because they stay.
fn one_ring(ring: &mut TrialRing, file: &File, features: &mut Vec<Feature>) {
    let mut add = |name, tried, since, without, done: io::Result<()>| {
        features.push(Trial(name, tried, since, without).judge(done));
    };
    let done = ring.run_by_number(file, &[Op::Nop]).and_then(|results| same(&results, &[0]));
    let without = "a file look-up for each system call";
    add("registered_ring_fd", "a ring entered by its registered number", "5.18", without, done);
    let done = ring.run_without_iowait(file, &[Op::Nop]).and_then(|results| same(&results, &[0]));
    let without = "waiting for I/O shows as iowait; speed is the same";
    add("no_iowait", "a wait with IORING_ENTER_NO_IOWAIT", "6.15", without, done);
    let done = read_back(ring, file, Op::Read(4096, 0), 4096);
    add("read", "4 KiB read through the ring and compared", "5.6", "plain calls on worker threads", done);
    ring.fill(7);
    let done = ring.run(file, &[Op::WriteLinked(4096, SAMPLE as u64), Op::Fdatasync]);
    let done = done.and_then(|results| same(&results, &[4096, 0]));
    let without = "a durable write takes two trips to the kernel";
    add("linked_fsync", "a write and an fdatasync linked to it", "5.3", without, done);
    let done = ring.submitter().register_files_sparse(8);
    let without = "a file look-up for each operation";
    add("sparse_files", "an empty table of registered files", "5.19", without, done);
    let done = TrialRing::new(8).and_then(|ring| ring.submitter().register_buffers_sparse(8));
    add("sparse_buffers", "an empty table of registered buffers", "5.19", "no registered buffers", done);
    // Two parts of 4 KiB: a small RLIMIT_MEMLOCK has room for that, but not for more.
    let registered = ring.register_memory(8192);
    let refused = registered.as_ref().err().and_then(io::Error::raw_os_error);
    let done = registered.and_then(|()| read_back(ring, file, Op::ReadFixed(4096, 0), 4096));
    let without = "the kernel maps the buffer for each direct I/O";
    add("registered_buffers", "8 KiB registered, READ_FIXED into it compared", "5.1", without, done);
    let done = match refused {
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => read_back(ring, file, Op::ReadvFixed(4096, 0), 8192),
    };
    let without = "vectored I/O takes the plain form, 1.2 to 1.45 times slower at 32 x 4 KiB";
    add("readv_fixed", "two times 4 KiB read with READV_FIXED and compared", "6.15", without, done);
    let Ok(probe) = ring.probe() else { return };
    features.extend(OPERATIONS.map(|(code, name, without)| {
        let usable = probe.is_supported(code);
        let (not, cost) =
            if usable { ("", String::new()) } else { ("not ", format!("; without it {without}")) };
        Feature::new(name, Some(usable), format!("{not}listed by IORING_REGISTER_PROBE{cost}"))
    }));
}

/// Returns the most kernel threads for one thread's rings, with as many entries as ringfile's. Asked on a new thread,
/// because a thread's first ring decides.
fn workers(attempts: &AtomicU32) -> Option<[u32; 2]> {
    let ask = || patiently(attempts, || TrialRing::new(256))?.worker_limits();
    std::thread::scope(|scope| std::thread::Builder::new().spawn_scoped(scope, ask).ok()?.join().ok()?.ok())
}

/// Returns the most that can be registered at once, from [`REGISTERED_AT_MOST`] down by halves.
fn registered(ring: &TrialRing) -> Option<u64> {
    let mut bytes = REGISTERED_AT_MOST;
    while bytes >= 4096 {
        match ring.register_and_forget(bytes as usize) {
            Ok(()) => return Some(bytes),
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => bytes /= 2,
            Err(_) => return None,
        }
    }
    Some(0)
}

fn read_back(ring: &mut TrialRing, file: &File, op: Op, bytes: usize) -> io::Result<()> {
    ring.fill(0);
    let results = ring.run(file, &[op])?;
    same(&results, &[bytes as i32])?;
    match ring.bytes()[..bytes] == sample_bytes()[..bytes] {
        true => Ok(()),
        false => Err(io::Error::other("the bytes read are not the file's")),
    }
}

/// Returns an error for the first result that is not as expected.
fn same(results: &[i32], expected: &[i32]) -> io::Result<()> {
    match results.iter().zip(expected).find(|(result, expected)| result != expected) {
        None => Ok(()),
        Some((&result, _)) if result < 0 => Err(io::Error::from_raw_os_error(-result)),
        Some((result, expected)) => Err(io::Error::other(format!("{result} instead of {expected}"))),
    }
}

fn sample_bytes() -> Vec<u8> {
    (0..SAMPLE).map(|place| (place % 251) as u8).collect()
}

/// Returns a file in memory, which every machine can make.
fn sample() -> io::Result<File> {
    let mut file = File::from(memfd_create("ringfile-doctor", MemfdFlags::CLOEXEC)?);
    file.write_all(&sample_bytes())?;
    Ok(file)
}

/// Repeats a trial while memory is refused.
fn patiently<T>(attempts: &AtomicU32, mut trial: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match trial() {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && attempts.load(Relaxed) > 0 => {
                attempts.fetch_sub(1, Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

impl Feature {
    /// Creates a feature.
    pub fn new(name: &str, usable: Option<bool>, why: String) -> Feature {
        Feature { name: name.into(), usable, why }
    }
}

impl Trial<'_> {
    fn judge(&self, done: io::Result<()>) -> Feature {
        let &Trial(name, tried, since, without) = self;
        let Err(error) = done else { return Feature::new(name, Some(true), format!("tried: {tried}")) };
        // A temporary shortage in this process says nothing about the kernel.
        let short = [libc::ENOMEM, libc::EAGAIN, libc::EMFILE, libc::ENFILE, libc::ECANCELED];
        let short = error.raw_os_error().is_some_and(|errno| short.contains(&errno));
        let why = format!("tried: {tried}; {}; without it: {without}", meaning(&error, since));
        Feature::new(name, (!short).then_some(false), why)
    }
}

/// Returns the meaning of an errno of io_uring.
pub fn meaning(error: &io::Error, since: &str) -> String {
    match error.raw_os_error() {
        Some(libc::EINVAL) => format!("this kernel does not know it (EINVAL; Linux {since} brought it)"),
        Some(libc::EOPNOTSUPP) => format!("not supported (EOPNOTSUPP; Linux {since} brought it)"),
        Some(libc::ENOSYS) => "there is no such call (ENOSYS): an old kernel, or a seccomp filter".into(),
        Some(libc::EPERM) => "not permitted (EPERM): kernel.io_uring_disabled, or a seccomp filter".into(),
        Some(libc::EACCES) => "not permitted (EACCES): a security module".into(),
        Some(libc::ENOMEM) => "RLIMIT_MEMLOCK leaves no room (ENOMEM)".into(),
        Some(libc::EAGAIN | libc::ECANCELED) => "no kernel thread could be started (RLIMIT_NPROC)".into(),
        Some(libc::EMFILE) => "too many open files (EMFILE): RLIMIT_NOFILE".into(),
        _ => crate::error::errno_text(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_that_was_refused_memory_is_not_called_unusable() {
        let trial = Trial("x", "x", "9.9", "y");
        let of = |errno| trial.judge(Err(io::Error::from_raw_os_error(errno)));
        assert_eq!(of(libc::ENOMEM).usable, None);
        assert!(of(libc::ENOMEM).why.contains("RLIMIT_MEMLOCK"));
        let unknown = of(libc::EINVAL);
        assert_eq!(unknown.usable, Some(false));
        let why = &unknown.why;
        assert!(why.contains("Linux 9.9") && why.ends_with("without it: y"), "{why}");
        assert_eq!(trial.judge(Ok(())).usable, Some(true));
    }

    #[test]
    fn results_are_compared() {
        assert!(same(&[4096, 0], &[4096, 0]).is_ok());
        let error = same(&[4096, -libc::EINVAL], &[4096, 0]).expect_err("it failed");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        assert!(same(&[100], &[4096]).is_err(), "a short read of a whole file");
    }

    #[test]
    fn every_feature_is_named_once() {
        let found = look(false);
        let mut names: Vec<&str> = found.features.iter().map(|feature| feature.name.as_str()).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "{names:?}");
        assert!(found.features.iter().all(|feature| !feature.why.is_empty()));
    }
}
