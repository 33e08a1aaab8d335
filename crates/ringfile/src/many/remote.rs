//! Results that come to an engine from elsewhere: from other threads, and from this thread's driver while it is turned for
//! somebody else.
//!
//! What always holds: a result that comes when nobody will fetch it any more is dropped, outside of the lock; a waker or a
//! descriptor that was left here before a result came is told of it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::Waker;

use rustix::event::EventfdFlags;

use crate::driver::{Finished, Sink};

/// See the module.
#[derive(Default)]
pub(super) struct RemoteResults {
    letters: Mutex<Letters>,
    /// There are some.
    has_letters: AtomicBool,
    /// Readable where a result can be had without waiting; made when first asked for.
    signal: OnceLock<OwnedFd>,
    /// It was made readable, and not reset since.
    signalled: AtomicBool,
    /// They are of a queue, whose thread may leave a loop while its operations go on.
    outlive_loops: bool,
}

#[derive(Default)]
struct Letters {
    finished: Vec<(u32, Finished)>,
    /// What other threads have and need not begin.
    cancelled: Vec<u32>,
    waker: Option<Waker>,
    /// So many results wake it.
    wake_at: usize,
    closed: bool,
}

impl RemoteResults {
    pub(super) fn new(outlive_loops: bool) -> Arc<Self> {
        Arc::new(Self { outlive_loops, ..Self::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn are_there(&self) -> bool {
        self.has_letters.load(Ordering::Acquire)
    }

    /// Gives all that has come, each with the index of its operation. Nothing while another thread has the lock, as it may
    /// for ever in a forked child: who waits asks again.
    #[cold]
    pub(super) fn take_each(&self, mut take: impl FnMut(u32, Finished)) {
        let mut letters = match self.letters.try_lock() {
            Ok(letters) => letters,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let Letters { finished, cancelled, .. } = &mut *letters;
        for (index, finished) in finished.drain(..) {
            cancelled.retain(|&other| other != index);
            take(index, finished);
        }
        self.has_letters.store(false, Ordering::Relaxed);
    }

    /// Wakes `waker` once there are `at_least` so many results. False where there are already.
    pub(super) fn wake(&self, waker: &Waker, at_least: usize) -> bool {
        // Cloning and dropping a waker may run anybody's code: neither is done under the lock.
        let mut waker = Some(waker.clone());
        let mut letters = self.lock();
        let must_wait = letters.finished.len() < at_least;
        if must_wait {
            std::mem::swap(&mut letters.waker, &mut waker);
            letters.wake_at = at_least;
        }
        drop(letters);
        drop(waker);
        must_wait
    }

    /// Notes that an operation which another thread has need not be begun.
    pub(super) fn cancel(&self, index: u32) {
        self.lock().cancelled.push(index);
    }

    /// Drops what comes from now on.
    pub(super) fn close(&self) {
        let mut letters = self.lock();
        letters.closed = true;
        let rest = (std::mem::take(&mut letters.finished), letters.waker.take());
        drop(letters);
        drop(rest);
    }

    /// The descriptor that is readable while there are results.
    ///
    /// # Errors
    /// As `eventfd(2)`.
    pub(super) fn signal(&self) -> std::io::Result<BorrowedFd<'_>> {
        if self.signal.get().is_none() {
            let made = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let _ = self.signal.set(made);
        }
        self.signal.get().map(AsFd::as_fd).ok_or_else(|| std::io::ErrorKind::Other.into())
    }

    /// Makes the descriptor readable if there are results here, or where `has_more` says so, and else not readable. Called
    /// by the thread that takes results, when it has taken what it wanted.
    #[inline]
    pub(super) fn set_signal(&self, has_more: bool) {
        if self.signal.get().is_some() {
            self.set_signal_to(has_more);
        }
    }

    #[cold]
    fn set_signal_to(&self, has_more: bool) {
        // Reset before the causes are looked at, so that a result which comes meanwhile is not missed.
        if !has_more
            && self.signalled.swap(false, Ordering::SeqCst)
            && let Some(signal) = self.signal.get()
        {
            let _ = rustix::io::read(signal, &mut [0; 8]);
        }
        if has_more || self.are_there() {
            self.raise_signal();
        }
    }

    fn raise_signal(&self) {
        if let Some(signal) = self.signal.get()
            && !self.signalled.swap(true, Ordering::SeqCst)
        {
            // It can't block: the counter would have to be near its 64-bit limit.
            let _ = rustix::io::write(signal, &1u64.to_ne_bytes());
        }
    }
}

impl Sink for RemoteResults {
    fn done(self: Arc<Self>, index: u32, finished: Finished) {
        let mut letters = self.lock();
        if letters.closed {
            drop(letters);
            return drop(finished);
        }
        letters.finished.push((index, finished));
        self.has_letters.store(true, Ordering::SeqCst);
        let enough = letters.finished.len() >= letters.wake_at;
        let waker = if enough { letters.waker.take() } else { None };
        // Under the lock: a descriptor that became readable after the result was taken would stay so.
        self.raise_signal();
        drop(letters);
        waker.into_iter().for_each(Waker::wake);
    }

    fn is_wanted(&self, index: u32) -> bool {
        let letters = self.lock();
        !letters.closed && !letters.cancelled.contains(&index)
    }

    fn outlives_loops(&self) -> bool {
        self.outlive_loops
    }

    fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }
}
