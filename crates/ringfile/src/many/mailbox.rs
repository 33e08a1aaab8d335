//! A mailbox: results wait here for the thread or task that fetches them, and wake it.
//!
//! Knows a lock and a flag (through `sync.rs`) and wakers, so that loom can run all of it. Invariants:
//!
//! - a waker that was registered before enough results arrived is woken afterwards; a later one is refused;
//! - results that arrive after the mailbox was closed are returned, and those in it are dropped, both outside the lock;
//! - wakers are cloned, woken and dropped outside the lock;
//! - a descriptor that is raised under the lock, and lowered only before a check for results, is readable while there
//!   are results; after the thread that fetches them has lowered it, it is readable only then.
//!
//! The proof is `RUSTFLAGS="--cfg loom" cargo test --release -p ringfile --test loom mailbox`.

use std::sync::{PoisonError, TryLockError};
use std::task::Waker;

use super::sync::{AtomicBool, Mutex, MutexGuard, Ordering};

/// See the module.
pub(super) struct Mailbox<T> {
    inner: Mutex<MailboxState<T>>,
    /// Whether there are results.
    has_some: AtomicBool,
}

struct MailboxState<T> {
    results: Vec<T>,
    waker: Option<Waker>,
    /// The number of results at which the waker is called.
    wake_at: usize,
    closed: bool,
}

type Locked<'a, T> = MutexGuard<'a, MailboxState<T>>;

impl<T> Mailbox<T> {
    pub(super) fn new() -> Self {
        let inner = MailboxState { results: Vec::new(), waker: None, wake_at: 0, closed: false };
        Self { inner: Mutex::new(inner), has_some: AtomicBool::new(false) }
    }

    fn lock(&self) -> Locked<'_, T> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<Locked<'_, T>> {
        match self.inner.try_lock() {
            Ok(inner) => Some(inner),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[inline]
    pub(super) fn has_some(&self) -> bool {
        self.has_some.load(Ordering::Acquire)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Waits for a thread that is adding a result. A thread that adds one later sees what this thread has stored before.
    pub(super) fn let_others_pass(&self) {
        drop(self.lock());
    }

    /// Adds a result, calls `under_lock`, then wakes the waiting task. Returns the result if the mailbox was closed.
    pub(super) fn put(&self, result: T, under_lock: impl FnOnce()) -> Result<(), T> {
        self.put_locked(self.lock(), result, under_lock)
    }

    /// Does what [`put`](Self::put) does, in a forked child. Also returns the result if another thread holds the lock,
    /// which may last forever.
    #[cold]
    pub(super) fn put_if_free(&self, result: T) -> Result<(), T> {
        match self.try_lock() {
            Some(inner) => self.put_locked(inner, result, || ()),
            None => Err(result),
        }
    }

    fn put_locked(&self, mut inner: Locked<'_, T>, result: T, under_lock: impl FnOnce()) -> Result<(), T> {
        if inner.closed {
            return Err(result);
        }
        inner.results.push(result);
        self.has_some.store(true, Ordering::SeqCst);
        let enough = inner.results.len() >= inner.wake_at;
        let waker = if enough { inner.waker.take() } else { None };
        under_lock();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Moves every result into `fetched`, which is empty. Moves none while another thread holds the lock, which may
    /// last forever in a forked child; the caller asks again.
    #[cold]
    pub(super) fn fetch(&self, fetched: &mut Vec<T>) {
        let Some(mut inner) = self.try_lock() else { return };
        std::mem::swap(&mut inner.results, fetched);
        self.has_some.store(false, Ordering::Relaxed);
    }

    /// Wakes `waker` once there are at least `at_least` results. Returns false if there already are.
    pub(super) fn wake(&self, waker: &Waker, at_least: usize) -> bool {
        let mut waker = Some(waker.clone());
        let mut inner = self.lock();
        let must_wait = inner.results.len() < at_least;
        if must_wait {
            std::mem::swap(&mut inner.waker, &mut waker);
            inner.wake_at = at_least;
        }
        drop(inner);
        drop(waker);
        must_wait
    }

    /// Drops all results, and returns later ones to their senders.
    pub(super) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        let rest = (std::mem::take(&mut inner.results), inner.waker.take());
        drop(inner);
        drop(rest);
    }
}

/// Whether a descriptor was made readable, and not reset since.
pub(super) struct Raised(AtomicBool);

impl Raised {
    pub(super) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Makes the descriptor readable by `write`, unless it is.
    pub(super) fn raise(&self, write: impl FnOnce()) {
        if !self.0.swap(true, Ordering::SeqCst) {
            write();
        }
    }

    /// Resets the descriptor by `read`, if it is readable. The caller then checks for results, and raises it again if
    /// there are some: those that arrive before the flag is cleared do not raise it themselves.
    pub(super) fn lower(&self, read: impl FnOnce()) {
        if self.0.load(Ordering::SeqCst) {
            // Read before the flag is cleared: once it is, the next result writes, and this must not take that away.
            read();
            // A swap, so that the check sees the results for which the flag was found set.
            self.0.swap(false, Ordering::SeqCst);
        }
    }
}
