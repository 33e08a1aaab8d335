//! The library's threads beside the program's: whose signals are whose (F63), and where its threads run (F66).

use std::io::Write;
use std::num::NonZeroU64;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::support::logs::options;
use crate::support::mounts::Mount;
use crate::support::threads::Thread;
use crate::support::{Folder, content, in_child, in_child_with, is_without_ring, patience, poll_once, skip};
use ringfile::runtime::set_worker_threads;
use ringfile::{Appender, Batch, OpenOptions, Pool, Route, Runtime, block_on};

const PAGE: usize = 4096;

/// Makes the library start a thread of each kind, and calls `check` with the name of each while it lives.
fn start_each(test: &str, check: impl Fn(&str)) {
    let folder = Folder::new();
    let data = folder.file("data", &content(0, PAGE));

    let (tell, told) = std::sync::mpsc::channel();
    Batch::new().start(move |_| tell.send(()).unwrap()).unwrap();
    told.recv().unwrap();
    check("ringfile-io-0");

    set_worker_threads(1);
    let file = OpenOptions::new().read(true).route(Route::Workers).open_blocking(data).unwrap();
    futures::executor::block_on(file.read_at(Vec::with_capacity(PAGE), 0)).unwrap();
    check("ringfile-worker");

    // The only worker does not wait for a pipe.
    let (reader, mut writer) = std::io::pipe().unwrap();
    let reader = std::fs::File::from(std::os::fd::OwnedFd::from(reader));
    let reader = OpenOptions::new().route(Route::Workers).from_std(reader).unwrap();
    let reads =
        std::thread::spawn(move || futures::executor::block_on(reader.read_at(vec![0; 1], 0)).unwrap());
    check("ringfile-poller");
    writer.write_all(&[7]).unwrap();
    assert_eq!(reads.join().unwrap(), [7]);

    let log = options(Route::Auto, false).open_blocking(folder.path().join("log")).unwrap();
    let log = Appender::open(&log, &Pool::new(1 << 20), 0).sync_interval(Duration::from_secs(3600));
    let log = block_on(async { log.await.unwrap() });
    block_on(async {
        log.append(&[7; 100]).await.unwrap();
        log.sync().await.unwrap();
        log.append(&[7; 100]).await.unwrap();
        let mut sync = Box::pin(log.sync());
        assert!(poll_once(&mut sync).await.is_pending(), "the interval is not over");
        check("ringfile-timer");
    });

    // On other file systems nothing is filled.
    let Some(mount) = Mount::ext4(&format!("the filler in {test}"), 48 << 20) else { return };
    let log = options(Route::Auto, false).open_blocking(mount.path().join("log")).unwrap();
    block_on(async {
        let log = Appender::open(&log, &Pool::new(1 << 20), 0).fill_ahead(512 << 10).await.unwrap();
        while log.len() < 300 << 10 {
            log.append(&content(log.len(), 1000)).await.unwrap();
            log.sync().await.unwrap();
        }
        check("ringfile-filler");
        log.close().await.unwrap();
    });
}

/// Blocks a signal on the calling thread, or unblocks it.
fn set_blocked(signal: i32, how: i32) {
    // SAFETY: `sigemptyset` makes a set, which the other calls change and read.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        assert_eq!(libc::pthread_sigmask(how, &set, std::ptr::null_mut()), 0);
    }
}

fn this_thread() -> Thread {
    Thread::of(rustix::thread::gettid().as_raw_pid()).unwrap()
}

#[test]
fn f63_each_thread_of_the_library_blocks_all_signals_but_faults() {
    let name = "f63_each_thread_of_the_library_blocks_all_signals_but_faults";
    if !in_child(name) {
        return;
    }
    let before = this_thread();
    start_each(name, |thread| _ = Thread::wait_for(thread, Thread::blocks_all_but_faults));
    assert_eq!(this_thread().blocked, before.blocked, "the calling thread's mask");
    // Threads of a runtime run the program's own tasks.
    set_blocked(libc::SIGUSR1, libc::SIG_BLOCK);
    let runtime = Runtime::builder().threads(1).build().unwrap();
    let there = runtime.spawn(async { this_thread() }).join().unwrap();
    assert_eq!(there.blocked, before.blocked | 1 << (libc::SIGUSR1 - 1));
}

#[test]
fn f63_a_signal_waits_for_the_thread_that_asks_for_it() {
    let name = "f63_a_signal_waits_for_the_thread_that_asks_for_it";
    // SAFETY: the function makes two system calls.
    let blocks = |command: &mut std::process::Command| unsafe {
        // Also on threads of the test's harness.
        command.pre_exec(|| {
            set_blocked(libc::SIGTERM, libc::SIG_BLOCK);
            Ok(())
        });
    };
    if !in_child_with(name, blocks) {
        return;
    }
    // The library's threads start before the program blocks the signal.
    set_blocked(libc::SIGTERM, libc::SIG_UNBLOCK);
    start_each(name, |thread| _ = Thread::wait_for(thread, |_| true));
    set_blocked(libc::SIGTERM, libc::SIG_BLOCK);
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
    let limit = libc::timespec { tv_sec: patience().as_secs().cast_signed(), tv_nsec: 0 };
    // SAFETY: as in `set_blocked`; the kernel reads the set and the time during the call.
    let came = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigtimedwait(&set, std::ptr::null_mut(), &limit)
    };
    assert_eq!(came, libc::SIGTERM, "the signal went elsewhere");
}

/// `IOPRIO_CLASS_IDLE`.
const IDLE: libc::c_long = 3 << 13;

/// Returns the I/O priority of a thread of this process.
fn io_priority(thread: i32) -> libc::c_long {
    // SAFETY: takes and returns numbers.
    unsafe { libc::syscall(libc::SYS_ioprio_get, 1, thread) }
}

#[test]
fn f66_a_pinned_nice_and_real_time_thread_passes_none_of_that_on() {
    let name = "f66_a_pinned_nice_and_real_time_thread_passes_none_of_that_on";
    if !in_child(name) {
        return;
    }
    let all = sched_getaffinity(None).unwrap();
    let Some(core) = (0..CpuSet::MAX_CPU).find(|&core| all.is_set(core)).filter(|_| all.count() > 1) else {
        return skip(name, "there is one core");
    };
    let first = Thread::first();
    // Not the first thread, which the harness may have made the test's.
    let pinned = std::thread::spawn(move || {
        let mut one = CpuSet::new();
        one.set(core);
        sched_setaffinity(None, &one).unwrap();
        let own = getpriority_process(None).unwrap();
        let nicer = (own + 5).min(19);
        setpriority_process(None, nicer).unwrap();
        let may_be_less_nice = setpriority_process(None, own).is_ok();
        setpriority_process(None, nicer).unwrap();
        let priority: libc::c_int = 1;
        // SAFETY: the kernel reads one number; the second call takes numbers.
        let is_real_time = unsafe {
            assert_eq!(libc::syscall(libc::SYS_ioprio_set, 1, 0, IDLE), 0);
            libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_RR, &raw const priority) == 0
        };
        rustix::thread::set_current_timer_slack(NonZeroU64::new(7_000_000)).unwrap();
        let node_0: libc::c_ulong = 1;
        // SAFETY: the kernel reads one word. It may refuse that, or have no policies.
        unsafe {
            libc::syscall(
                libc::SYS_set_mempolicy,
                libc::MPOL_BIND,
                &raw const node_0,
                8 * size_of_val(&node_0),
            )
        };
        if !is_real_time || !may_be_less_nice {
            skip(
                &format!("a half of {name}"),
                "a thread may not be in a real-time class, or become less nice",
            );
        }
        let is_like_first = |thread: &Thread| {
            thread.cores == first.cores
                && (thread.nice == first.nice || !may_be_less_nice)
                && (thread.class, thread.timer_slack) == (first.class, first.timer_slack)
                && thread.memory_policy == first.memory_policy
                && io_priority(thread.id) == io_priority(first.id)
        };
        start_each(name, |thread| _ = Thread::wait_for(thread, is_like_first));
        let here = this_thread();
        assert_eq!((&*here.cores, here.nice), (&*core.to_string(), nicer), "the calling thread");
        if is_without_ring() {
            return;
        }
        // The kernel's workers of the I/O thread's ring, which needs one for a write to a file in memory. It ends after five
        // idle seconds.
        let folder = Folder::inside("/dev/shm".as_ref());
        let file = options(Route::Ring, false).open_blocking(folder.path().join("data")).unwrap();
        futures::executor::block_on(file.write_at(vec![7; PAGE], 0)).unwrap();
        let io = Thread::wait_for("ringfile-io-0", |_| true);
        let name_of_worker = format!("iou-wrk-{}", io.id);
        match Thread::all().find(|thread| thread.name == name_of_worker) {
            Some(worker) => assert!(is_like_first(&worker), "{worker:?}"),
            None => skip(&format!("the kernel's workers in {name}"), "there are none"),
        }
    });
    pinned.join().unwrap();
}
