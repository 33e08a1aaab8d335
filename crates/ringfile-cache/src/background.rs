//! Operations that run to their end by themselves, although nobody awaits them.
//!
//! The waker of such an operation is the operation itself, which it polls until it has ended. So it ends although those
//! who wait for it were dropped, leaked, or are not polled. Invariants: it is polled by one thread at a time, under no
//! lock but its own; wakers are called under none.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::sync::lock;
use crate::wake::wake_all;

/// Returns whom to wake.
type Operation = Pin<Box<dyn Future<Output = Vec<Waker>> + Send>>;

struct Running {
    operation: Mutex<Option<Operation>>,
    /// How often it was woken since it was last idle. Whoever raises this from 0 polls it.
    wakes: AtomicU32,
}

/// Starts an operation. It returns whom to wake when it has ended.
pub(crate) fn run(operation: impl Future<Output = Vec<Waker>> + Send + 'static) {
    let operation: Operation = Box::pin(operation);
    Arc::new(Running { operation: Mutex::new(Some(operation)), wakes: AtomicU32::new(0) }).drive();
}

impl Running {
    /// Polls the operation, or has the thread that polls it now poll it once more.
    fn drive(self: &Arc<Self>) {
        if self.wakes.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let waker = Waker::from(Arc::clone(self));
        let mut seen = 1;
        loop {
            let mut operation = lock(&self.operation);
            let Some(running) = operation.as_mut() else { return };
            let polled = running.as_mut().poll(&mut Context::from_waker(&waker));
            // `wakes` stays above 0 if it has ended: nobody polls it again.
            let ended = if polled.is_ready() { operation.take() } else { None };
            drop(operation);
            drop(ended);
            if let Poll::Ready(wakers) = polled {
                return wake_all(wakers.into_iter());
            }
            match self.wakes.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

impl Wake for Running {
    fn wake(self: Arc<Self>) {
        self.drive();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.drive();
    }
}

/// How an operation ended, for all who wait for it.
pub(crate) struct Answer<T>(Mutex<Waiting<T>>);

struct Waiting<T> {
    outcome: Option<T>,
    wakers: Vec<Waker>,
}

impl<T: Clone> Answer<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Waiting { outcome: None, wakers: Vec::new() }))
    }

    /// Returns the outcome, or has `waker` woken when there is one.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<T> {
        let mut own = None;
        loop {
            let mut waiting = lock(&self.0);
            if let Some(outcome) = &waiting.outcome {
                // Cloning a page takes the cache's lock only if its frame has left its word, and never this one.
                return Poll::Ready(outcome.clone());
            }
            if waiting.wakers.iter().any(|known| known.will_wake(waker)) {
                return Poll::Pending;
            }
            if let Some(own) = own.take() {
                waiting.wakers.push(own);
                return Poll::Pending;
            }
            // A waker's clone may run anybody's code, so it is made without the lock.
            drop(waiting);
            own = Some(waker.clone());
        }
    }

    /// Sets the outcome. Returns whom to wake.
    pub(crate) fn give(&self, outcome: T) -> Vec<Waker> {
        let mut waiting = lock(&self.0);
        waiting.outcome = Some(outcome);
        std::mem::take(&mut waiting.wakers)
    }
}
