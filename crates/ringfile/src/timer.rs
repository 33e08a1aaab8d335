//! Threads that call wakers at given times, for waits that must not depend on a loop, a ring or a worker.
//!
//! One thread at a time keeps the time. It gives that up before it calls a waker, which may run anybody's code, and
//! another thread takes over if there are more timers. So there is usually one thread, or two, and one more for each
//! waker that blocks. A thread starts when it is needed, and ends after being idle for a while. Invariants: no waker is
//! called or dropped under the lock; while there are timers, a thread keeps the time or is about to, unless none can be
//! started.

use std::collections::BTreeMap;
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::caught::caught;
use crate::driver::start_thread;
use crate::lock::Lock;
use ringfile_buffer::internal::fork;

const IDLE: Duration = Duration::from_secs(10);

/// The number makes equal times differ.
type TimerKey = (Instant, u64);

pub(super) struct Timers {
    wakers: BTreeMap<TimerKey, Waker>,
    next: u64,
    /// Whether a thread keeps the time, or starts to.
    is_kept: bool,
    /// The number of threads that wait to keep the time.
    idle: usize,
    /// The process in which the threads run.
    process: Option<fork::Mark>,
}

pub(super) static TIMERS: Lock<Timers> =
    Lock::new(Timers { wakers: BTreeMap::new(), next: 0, is_kept: false, idle: 0, process: None });
/// Notified when there is an earlier timer than before, for the thread that keeps the time.
static EARLIER: Condvar = Condvar::new();
/// Notified when no thread keeps the time, for the idle ones.
static VACANT: Condvar = Condvar::new();

/// Returns the time by which timers go: in a simulation, that of its own clock.
pub fn now() -> Instant {
    if let Some(now) = crate::sim::now() {
        return now;
    }
    Instant::now()
}

/// A timer. Dropping it drops its waker, if that has not been called.
pub struct Timer(TimerKey);

impl Drop for Timer {
    fn drop(&mut self) {
        if crate::sim::forget_timer(&self.0) {
            return;
        }
        let waker = TIMERS.lock().wakers.remove(&self.0);
        drop(waker);
    }
}

/// Calls the waker at `at`, from another thread, unless the timer is dropped before. `None` if no thread can be started.
/// Calls no waker itself.
pub fn wake_at(at: Instant, waker: Waker) -> Option<Timer> {
    let waker = match crate::sim::wake_at(at, waker) {
        Ok(number) => return Some(Timer((at, number))),
        Err(waker) => waker,
    };
    let mut timers = TIMERS.lock();
    if !timers.process.is_some_and(fork::Mark::is_current) {
        // A forked child has none of its parent's threads. The parent's timers are leaked there.
        std::mem::forget(std::mem::take(&mut timers.wakers));
        (timers.is_kept, timers.idle, timers.process) = (false, 0, Some(fork::Mark::current()));
    }
    if !timers.is_watched() {
        return None;
    }
    let key = (at, timers.next);
    timers.next += 1;
    let is_earlier = timers.wakers.first_key_value().is_none_or(|(first, _)| key < *first);
    timers.wakers.insert(key, waker);
    drop(timers);
    if is_earlier {
        EARLIER.notify_one();
    }
    Some(Timer(key))
}

impl Timers {
    /// Makes a thread keep the time, if none does. Returns false if none can be started.
    fn is_watched(&mut self) -> bool {
        if self.is_kept {
            return true;
        }
        if self.idle > 0 {
            VACANT.notify_one();
            return true;
        }
        self.is_kept = start_thread("ringfile-timer", run).is_ok();
        self.is_kept
    }
}

/// Runs a thread, which keeps the time at first.
fn run() {
    let mut timers = TIMERS.lock();
    while let Some((mut left, waker)) = keep(timers) {
        if !left.wakers.is_empty() {
            // If no thread can be started, the other timers wait for this waker.
            left.is_watched();
        }
        drop(left);
        caught("a waker panicked on a timer thread", || waker.wake());
        timers = TIMERS.lock();
        while timers.is_kept {
            timers.idle += 1;
            let (woken, waited) = VACANT.wait_timeout(timers, IDLE).unwrap_or_else(PoisonError::into_inner);
            timers = woken;
            timers.idle -= 1;
            if waited.timed_out() && timers.is_kept {
                return;
            }
        }
        timers.is_kept = true;
    }
}

/// Keeps the time until a timer is due, and returns its waker. `None` if there was no timer for a while.
fn keep(mut timers: MutexGuard<'static, Timers>) -> Option<(MutexGuard<'static, Timers>, Waker)> {
    loop {
        let now = Instant::now();
        let left = timers.wakers.first_key_value().map(|((at, _), _)| at.saturating_duration_since(now));
        if left == Some(Duration::ZERO)
            && let Some((_, waker)) = timers.wakers.pop_first()
        {
            timers.is_kept = false;
            return Some((timers, waker));
        }
        let (woken, waited) =
            EARLIER.wait_timeout(timers, left.unwrap_or(IDLE)).unwrap_or_else(PoisonError::into_inner);
        timers = woken;
        if left.is_none() && waited.timed_out() && timers.wakers.is_empty() {
            timers.is_kept = false;
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};
    use std::task::Wake;

    use super::*;
    use crate::patience::patience;

    /// A waker that waits for a message, then sends one.
    struct Waits(Mutex<mpsc::Receiver<()>>, mpsc::Sender<()>);

    impl Wake for Waits {
        fn wake(self: Arc<Self>) {
            let _ = self.0.lock().unwrap().recv();
            let _ = self.1.send(());
        }
    }

    fn waker() -> (mpsc::Sender<()>, mpsc::Receiver<()>, Waker) {
        let ((release, released), (tell, told)) = (mpsc::channel(), mpsc::channel());
        (release, told, Waker::from(Arc::new(Waits(Mutex::new(released), tell))))
    }

    #[cfg(feature = "sim")]
    #[test]
    fn a_timer_that_was_set_outside_of_a_simulation_is_forgotten_in_it() {
        let (_release, told, waker) = waker();
        let timer = wake_at(Instant::now() + Duration::from_secs(3600), waker).unwrap();
        crate::sim::Simulation::new(1).run(|_| async { drop(timer) });
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Disconnected), "its waker is dropped");
    }

    #[test]
    fn a_waker_that_blocks_delays_no_other_timer() {
        let now = Instant::now();
        // Some are there before a waker blocks, and some come while one does.
        let blocked: Vec<_> = (0..3)
            .map(|_| {
                let (release, told, blocks) = waker();
                (wake_at(now, blocks).unwrap(), release, told)
            })
            .collect();
        for _ in 0..3 {
            let (release, told, free) = waker();
            drop(release);
            let _timer = wake_at(now + Duration::from_millis(1), free).unwrap();
            told.recv_timeout(patience()).expect("the timer waits for the waker of another one");
        }
        for (_timer, release, told) in blocked {
            assert!(told.try_recv().is_err());
            drop(release);
            told.recv_timeout(patience()).unwrap();
        }
    }
}
