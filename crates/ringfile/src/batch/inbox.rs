//! Where results lie until the thread that began the operations comes for them: those of other threads, and those of its own
//! driver where that turns for somebody else.
//!
//! What always holds: what comes when nobody will come for it any more is dropped, outside of the lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Waker;

use crate::driver::{Finished, Sink};

/// See the module.
#[derive(Default)]
pub(super) struct Inbox {
    letters: Mutex<Letters>,
    /// There are some.
    has_letters: AtomicBool,
}

#[derive(Default)]
struct Letters {
    finished: Vec<(u32, Finished)>,
    /// What other threads have and need not begin.
    aborted: Vec<u32>,
    /// Of the thread, while it waits for other threads.
    waker: Option<Waker>,
    closed: bool,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn has_letters(&self) -> bool {
        self.has_letters.load(Ordering::Acquire)
    }

    /// Gives all that has come, each with the index of its operation. Nothing while another thread has the lock, as it may
    /// for ever in a forked child: who waits asks again.
    #[cold]
    pub(super) fn empty(&self, mut take: impl FnMut(u32, Finished)) {
        let mut letters = match self.letters.try_lock() {
            Ok(letters) => letters,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let Letters { finished, aborted, .. } = &mut *letters;
        for (index, finished) in finished.drain(..) {
            aborted.retain(|&other| other != index);
            take(index, finished);
        }
        self.has_letters.store(false, Ordering::Relaxed);
    }

    /// Has the next result wake the thread. False where there is one already.
    pub(super) fn wake(&self, waker: Waker) -> bool {
        let mut letters = self.lock();
        if letters.finished.is_empty() && letters.waker.is_none() {
            letters.waker = Some(waker);
        }
        letters.finished.is_empty()
    }

    /// Notes that an operation need not be begun.
    pub(super) fn abort(&self, index: u32) {
        self.lock().aborted.push(index);
    }

    /// Nobody comes any more.
    pub(super) fn close(&self) {
        let mut letters = self.lock();
        letters.closed = true;
        let rest = (std::mem::take(&mut letters.finished), letters.waker.take());
        drop(letters);
        drop(rest);
    }
}

impl Sink for Inbox {
    fn done(self: Arc<Self>, index: u32, finished: Finished) {
        let mut letters = self.lock();
        if letters.closed {
            drop(letters);
            return drop(finished);
        }
        letters.finished.push((index, finished));
        self.has_letters.store(true, Ordering::Release);
        let waker = letters.waker.take();
        drop(letters);
        waker.into_iter().for_each(Waker::wake);
    }

    fn is_wanted(&self, index: u32) -> bool {
        let letters = self.lock();
        !letters.closed && !letters.aborted.contains(&index)
    }

    fn outlives_loops(&self) -> bool {
        true
    }

    fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }
}
