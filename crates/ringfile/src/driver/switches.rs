//! Tells a call that waited from one whose thread had to let others run.
//!
//! On a busy machine, a thread may be preempted for tens of milliseconds in the middle of a call that only copies memory. The
//! clock alone shows no difference, but the kernel counts both kinds of context switches of a thread.

use std::cell::Cell;

thread_local! {
    /// This thread's voluntary and involuntary context switches when they were last looked at.
    static SEEN: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
}

/// Returns whether this thread was preempted since the last call of this function, and has not waited for anything.
/// Takes a system call.
#[cold]
pub(super) fn was_only_preempted() -> bool {
    let Some(now) = look() else { return false };
    let before = SEEN.replace(now);
    now.0 == before.0 && now.1 != before.1
}

/// Returns this thread's voluntary and involuntary context switches.
fn look() -> Option<(i64, i64)> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: `usage` has room for what the call writes.
    let answer = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: a call that succeeds has filled it.
    (answer == 0).then(|| unsafe { usage.assume_init() }).map(|usage| (usage.ru_nvcsw, usage.ru_nivcsw))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_that_has_waited_was_not_only_preempted() {
        for _ in 0..3 {
            was_only_preempted();
            std::thread::sleep(Duration::from_millis(1));
            assert!(!was_only_preempted());
        }
    }

    #[test]
    fn a_thread_that_others_preempt_was_only_preempted() {
        // Three threads on one processor, and this one does not wait.
        let cpu = rustix::thread::sched_getcpu();
        let mut only = rustix::thread::CpuSet::new();
        only.set(cpu);
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let _ = rustix::thread::sched_setaffinity(None, &only);
                    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let own = rustix::thread::sched_getaffinity(None).unwrap();
            rustix::thread::sched_setaffinity(None, &only).unwrap();
            was_only_preempted();
            let before = look().unwrap();
            while look().unwrap().1 == before.1 {}
            let (only_preempted, after) = (was_only_preempted(), look().unwrap());
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            rustix::thread::sched_setaffinity(None, &own).unwrap();
            assert_eq!(only_preempted, after.0 == before.0, "{before:?} {after:?}");
        });
    }
}
