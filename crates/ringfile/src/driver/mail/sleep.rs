//! Whether a driver's thread sleeps, and whether other threads have work for it.
//!
//! Knows only atomics (through `sync.rs`), so that loom can run all of it; the caller wakes the thread. Invariant:
//! whatever another thread stores before it notifies is seen by this thread. A thread that was notified before it slept
//! does not sleep; for a thread that sleeps, exactly one notifier learns that it must wake it.
//!
//! The proof is `RUSTFLAGS="--cfg loom" cargo test --release -p ringfile --test loom sleep`.

use super::sync::{AtomicBool, AtomicU32, Ordering};

const RUNNING: u32 = 0;
const NOTIFIED: u32 = 1;
const IN_RING: u32 = 2;
const PARKED: u32 = 3;

/// How a notifier must wake the thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asleep {
    /// Not at all: the thread is awake, or another notifier wakes it.
    None,
    /// It sleeps in `io_uring_enter`: the eventfd wakes it.
    InRing,
    /// It sleeps without a ring: a futex wakes it.
    Parked,
}

pub(crate) struct SleepState {
    state: AtomicU32,
    has_mail: AtomicBool,
}

impl SleepState {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU32::new(RUNNING), has_mail: AtomicBool::new(false) }
    }

    /// Makes the thread check its mail and queues before it sleeps. If it sleeps already, the result says how the caller
    /// must wake it, and the thread checks when it wakes up.
    pub(crate) fn notify(&self) -> Asleep {
        match self.state.swap(NOTIFIED, Ordering::SeqCst) {
            IN_RING => Asleep::InRing,
            PARKED => Asleep::Parked,
            _ => Asleep::None,
        }
    }

    /// Marks that there is mail; a notification must follow.
    pub(crate) fn mail_came(&self) {
        self.has_mail.store(true, Ordering::Release);
    }

    /// Returns whether mail has arrived since the last call.
    #[inline]
    pub(crate) fn take_mail_flag(&self) -> bool {
        self.has_mail.load(Ordering::Relaxed) && self.has_mail.swap(false, Ordering::Acquire)
    }

    /// Clears a notification before its causes are checked. Returns whether there was one.
    #[inline]
    pub(crate) fn take_notification(&self) -> bool {
        self.state.load(Ordering::Relaxed) == NOTIFIED
            && self.state.swap(RUNNING, Ordering::SeqCst) == NOTIFIED
    }

    /// Returns whether there is mail, or a notification that was not taken.
    pub(crate) fn is_notified(&self) -> bool {
        self.has_mail.load(Ordering::Acquire) || self.state.load(Ordering::SeqCst) == NOTIFIED
    }

    /// Notes that the thread is about to sleep in its ring. Returns false if it was notified, or has mail to read; in
    /// that case it must not sleep.
    pub(crate) fn about_to_sleep_in_ring(&self) -> bool {
        // `take_notification` may have cleared the notification that came with the mail.
        !self.has_mail.load(Ordering::Acquire) && self.sleeps_as(IN_RING)
    }

    /// Returns whether there is mail.
    #[cfg_attr(
        not(feature = "tokio"),
        allow(dead_code, reason = "only a driver of a tokio runtime needs it")
    )]
    pub(crate) fn has_mail(&self) -> bool {
        self.has_mail.load(Ordering::Acquire)
    }

    /// Does what [`about_to_sleep_in_ring`](Self::about_to_sleep_in_ring) does, except that mail without a notification
    /// is left to the thread that has brought it.
    #[cfg_attr(
        not(feature = "tokio"),
        allow(dead_code, reason = "only a driver of a tokio runtime needs it")
    )]
    pub(crate) fn about_to_wait(&self) -> bool {
        self.sleeps_as(IN_RING)
    }

    /// Does what [`about_to_sleep_in_ring`](Self::about_to_sleep_in_ring) does, for a thread that parks for as long as
    /// [`is_parked`](Self::is_parked).
    pub(crate) fn about_to_park(&self) -> bool {
        !self.has_mail.load(Ordering::Acquire) && self.sleeps_as(PARKED)
    }

    fn sleeps_as(&self, how: u32) -> bool {
        self.state.compare_exchange(RUNNING, how, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Returns whether the thread was not notified since it began to park.
    pub(crate) fn is_parked(&self) -> bool {
        self.state.load(Ordering::SeqCst) == PARKED
    }

    /// Marks the thread as awake although it was not notified. A notification that arrived meanwhile stays.
    pub(crate) fn gave_up_parking(&self) {
        let _ = self.state.compare_exchange(PARKED, RUNNING, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Marks the thread as awake. A notification stays.
    pub(crate) fn woke(&self) {
        let _ = self.state.compare_exchange(IN_RING, RUNNING, Ordering::SeqCst, Ordering::SeqCst);
    }
}
