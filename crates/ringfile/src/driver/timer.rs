//! A thread that calls wakers at given times, for waits that must not depend on a loop, a ring or a worker.
//!
//! It starts with the first timer, and ends after being idle for a while. Invariant: no waker is called or dropped under
//! the lock.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::event;
use crate::panics;
use crate::ring::fork;

const IDLE: Duration = Duration::from_secs(10);

struct Timers {
    /// The number makes equal times differ.
    wakers: BTreeMap<(Instant, u64), Waker>,
    next: u64,
    /// The process whose thread runs.
    runs: Option<fork::Mark>,
}

static TIMERS: Mutex<Timers> = Mutex::new(Timers { wakers: BTreeMap::new(), next: 0, runs: None });
/// Notified when there is an earlier timer than before.
static EARLIER: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Timers> {
    TIMERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the lock of the timers, for a fork.
pub(super) fn hold() -> Box<dyn Any> {
    Box::new(lock())
}

/// Calls the waker at `at`, from another thread, which it must not block. Returns it if no thread can be started. Does not
/// call or drop a waker before it returns.
pub(crate) fn wake_at(at: Instant, waker: Waker) -> Result<(), Waker> {
    let mut timers = lock();
    if !timers.runs.is_some_and(fork::Mark::is_current) {
        // A forked child has none of its parent's threads. The parent's timers are leaked there.
        std::mem::forget(std::mem::take(&mut timers.wakers));
        if std::thread::Builder::new().name("ringfile-timer".into()).spawn(run).is_err() {
            timers.runs = None;
            return Err(waker);
        }
        timers.runs = Some(fork::Mark::current());
    }
    let key = (at, timers.next);
    timers.next += 1;
    let is_earlier = timers.wakers.first_key_value().is_none_or(|(first, _)| key < *first);
    timers.wakers.insert(key, waker);
    drop(timers);
    if is_earlier {
        EARLIER.notify_one();
    }
    Ok(())
}

fn run() {
    let mut timers = lock();
    loop {
        let now = Instant::now();
        let left = timers.wakers.first_key_value().map(|((at, _), _)| at.saturating_duration_since(now));
        if left == Some(Duration::ZERO)
            && let Some((_, waker)) = timers.wakers.pop_first()
        {
            drop(timers);
            if panics::catch(|| waker.wake()).is_err() {
                event::emit(|| tracing::error!("a waker panicked on the timer thread"));
            }
            timers = lock();
            continue;
        }
        timers = EARLIER.wait_timeout(timers, left.unwrap_or(IDLE)).unwrap_or_else(PoisonError::into_inner).0;
        if left.is_none() && timers.wakers.is_empty() {
            timers.runs = None;
            return;
        }
    }
}
