//! Limits how much memory reading calls hold at once, and how many of them run: each has its object open, so a thousand
//! calls could use up memory or descriptors.
//!
//! A call waits here for other calls' reads, never for memory that a consumer holds. Invariant: no call waits forever.
//! A call that is no longer polled keeps its share; if that makes others wait, they continue after [`PATIENCE`].

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// If no call has ended for this long, waiting calls are let in.
const PATIENCE: Duration = Duration::from_millis(500);
/// The bytes of memory for one permit.
const UNIT: usize = 4096;
/// The largest number of calls at once, however little they read: the number of tokio's threads for blocking work,
/// which limits `LocalFileSystem` in the same way, and half of the usual limit on descriptors.
const MOST_CALLS: usize = 512;

pub(crate) struct Gate {
    permits: Arc<Semaphore>,
    most: usize,
    waiting: AtomicUsize,
    /// The number of calls that have ended.
    ended: AtomicUsize,
    /// Permits that were given beyond the limit, and are removed again as calls end.
    beyond: Mutex<usize>,
    is_watched: AtomicBool,
}

/// A call's share, until it is dropped.
pub(crate) struct Share {
    gate: Arc<Gate>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Gate {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        let most = (bytes / UNIT).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(most)),
            most,
            waiting: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            beyond: Mutex::new(0),
            is_watched: AtomicBool::new(false),
        })
    }

    /// Waits for a share of this many bytes, or of the limit if that is smaller.
    pub(crate) async fn enter(self: &Arc<Self>, bytes: usize) -> Share {
        let least = self.most.div_ceil(MOST_CALLS);
        let units = bytes.div_ceil(UNIT).clamp(least, self.most);
        let permits = Arc::clone(&self.permits);
        let permit = match permits.try_acquire_many_owned(units as u32) {
            Ok(permit) => Some(permit),
            Err(_) => self.wait(units).await,
        };
        Share { gate: Arc::clone(self), permit }
    }

    async fn wait(self: &Arc<Self>, units: usize) -> Option<OwnedSemaphorePermit> {
        struct Waits<'a>(&'a AtomicUsize);
        impl Drop for Waits<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        // `SeqCst`, as in `look`: either this call sees that the watch is over, or the watch sees this call.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waits = Waits(&self.waiting);
        if !self.is_watched.swap(true, Ordering::SeqCst) && !watch(self) {
            // Without a watch, nothing would let this call in later.
            return None;
        }
        // Fails only if the semaphore is closed, which never happens.
        Arc::clone(&self.permits).acquire_many_owned(units as u32).await.ok()
    }

    /// Lets waiting calls in if no call has ended for a while. Returns false when the watch is over.
    fn look(&self, ended_before: &mut usize) -> bool {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            self.is_watched.store(false, Ordering::SeqCst);
            // A call that has just begun to wait has either seen this watch, or starts another one.
            return self.waiting.load(Ordering::SeqCst) > 0 && !self.is_watched.swap(true, Ordering::SeqCst);
        }
        let ended = self.ended.load(Ordering::Relaxed);
        if std::mem::replace(ended_before, ended) == ended {
            *self.beyond() += self.most;
            self.permits.add_permits(self.most);
        }
        true
    }

    fn beyond(&self) -> std::sync::MutexGuard<'_, usize> {
        self.beyond.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the thread that watches waiting calls; it ends when there are none.
fn watch(gate: &Arc<Gate>) -> bool {
    let weak: Weak<Gate> = Arc::downgrade(gate);
    let started = thread::Builder::new().name("ringfile-gate".into()).spawn(move || {
        let mut ended = usize::MAX;
        loop {
            thread::sleep(PATIENCE);
            if !weak.upgrade().is_some_and(|gate| gate.look(&mut ended)) {
                return;
            }
        }
    });
    if started.is_err() {
        gate.is_watched.store(false, Ordering::SeqCst);
    }
    started.is_ok()
}

impl Drop for Share {
    fn drop(&mut self) {
        self.gate.ended.fetch_add(1, Ordering::Relaxed);
        if let Some(mut permit) = self.permit.take() {
            let mut beyond = self.gate.beyond();
            let back = permit.num_permits().min(*beyond);
            *beyond -= back;
            if let Some(part) = permit.split(back) {
                part.forget();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::executor::block_on;

    #[test]
    fn calls_wait_for_each_other_and_ask_for_no_more_than_there_is() {
        let gate = Gate::new(8 * UNIT);
        let first = block_on(gate.enter(5 * UNIT));
        let second = block_on(gate.enter(3 * UNIT));
        let mut third = Box::pin(gate.enter(100 * UNIT));
        assert!(third.as_mut().now_or_never().is_none(), "all is given");
        drop(first);
        assert!(third.as_mut().now_or_never().is_none(), "it needs all");
        drop(second);
        drop(block_on(third));
        assert_eq!(gate.permits.available_permits(), 8);
    }

    #[test]
    fn calls_that_read_little_are_limited_by_their_number() {
        let gate = Gate::new(10 * MOST_CALLS * UNIT);
        let all: Vec<_> = (0..MOST_CALLS).map(|_| block_on(gate.enter(1))).collect();
        let mut next = Box::pin(gate.enter(1));
        assert!(next.as_mut().now_or_never().is_none());
        drop(all);
        assert!(next.as_mut().now_or_never().is_some());
    }

    #[test]
    fn nobody_waits_for_ever_for_a_call_that_is_not_polled() {
        let gate = Gate::new(8 * UNIT);
        let forgotten = block_on(gate.enter(8 * UNIT));
        let second = block_on(gate.enter(8 * UNIT));
        assert!(*gate.beyond() >= 8);
        drop((forgotten, second));
        assert_eq!((*gate.beyond(), gate.permits.available_permits()), (0, 8), "the limit is as before");
    }
}
