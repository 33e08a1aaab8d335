//! Leader and followers: threads share a lock that they try, and one waiting thread polls for all.
//!
//! Knows only a lock, a condition and a fence (through `sync.rs`), so that loom can run all of it. Invariants:
//!
//! - the lock is held by a thread that looks or changes something, and by no thread that waits;
//! - [`try_each`](Exclusive::try_each) does not wait: work queued before it is done by this call or by the current holder,
//!   which checks again after unlocking;
//! - of the threads in [`wait_until`](Exclusive::wait_until), one leads: it sleeps where it learns of all that ends. The others
//!   follow: they wait until it, or any other thread, has collected something. Before a thread returns, another one leads;
//! - whoever collects a result while the leader sleeps, or is about to, wakes it, even in a panic; so does a thread that may
//!   have used up another's wake-up.
//!
//! The proof is `RUSTFLAGS="--cfg loom" cargo test --release -p ringfile --test loom shared`.

use std::time::Instant;

use super::sync::{Condvar, Mutex, MutexGuard, Ordering, PoisonError, TryLockError, fence};

/// What the lock guards, for threads that wait until something has ended.
pub(crate) trait Subject {
    type Outside: Outside;
    /// Where the leader sleeps.
    type Sleep;

    /// Returns a number that changes whenever something has ended that a thread may wait for.
    fn open(&self) -> usize;

    /// Returns where to sleep until there is something to do; `None` if there is something already.
    fn prepare_sleep(&mut self) -> Option<Self::Sleep>;

    /// Returns whether the leader must look although nothing has ended: it should sleep elsewhere by now, or not at all.
    fn must_look(&self) -> bool;

    /// Sleeps until there is something to do, or until the deadline.
    fn sleep(sleep: Self::Sleep, deadline: Option<Instant>);
}

/// What threads use without the lock.
pub(crate) trait Outside {
    /// Called before the thread waits for the lock. Panics if that could last for ever.
    fn assert_may_block(&self);

    /// Called before a thread looks that may lead afterwards: whoever has something for it from now on keeps it from
    /// sleeping.
    fn begin_look(&self);

    /// Returns whether somebody has, and the leader has not looked since.
    fn was_told(&self) -> bool;

    /// Wakes the leader.
    fn wake(&self);
}

pub(crate) struct Exclusive<T, O> {
    state: Mutex<ExclusiveState<T>>,
    /// Signalled when something was collected, and when no thread leads any more, for the followers.
    changed: Condvar,
    pub(crate) outside: O,
}

pub(crate) struct ExclusiveState<T> {
    pub(crate) subject: T,
    /// Whether a thread sleeps for all, or is about to.
    has_leader: bool,
    /// Whether something was collected since that thread has let go of the lock.
    must_wake: bool,
    /// The number of threads that wait for `changed`.
    followers: usize,
}

type ExclusiveGuard<'a, T> = MutexGuard<'a, ExclusiveState<T>>;

impl<T, O> Exclusive<T, O> {
    pub(crate) fn new(subject: T, outside: O) -> Self {
        let state = ExclusiveState { subject, has_leader: false, must_wake: false, followers: 0 };
        Self { state: Mutex::new(state), changed: Condvar::new(), outside }
    }

    pub(crate) fn try_lock(&self) -> Option<ExclusiveGuard<'_, T>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Calls `act` on the subject, and then `after`, without the lock, until `is_done` says that nothing is left to do, but at
    /// most `most` times. Returns false if something is left, which no other thread does. Does nothing if another thread has
    /// the lock.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "other threads wait for the lock"))]
    pub(crate) fn try_each(
        &self,
        most: usize,
        mut act: impl FnMut(&mut T),
        mut after: impl FnMut(),
        is_done: impl Fn() -> bool,
    ) -> bool {
        for _ in 0..most {
            let Some(mut state) = self.try_lock().or_else(|| {
                // What was left before this call is seen by the thread that has the lock now, when it asks `is_done`.
                fence(Ordering::SeqCst);
                self.try_lock()
            }) else {
                return true;
            };
            act(&mut state.subject);
            drop(state);
            after();
            fence(Ordering::SeqCst);
            if is_done() {
                return true;
            }
        }
        false
    }
}

impl<T: Subject> Exclusive<T, T::Outside> {
    pub(crate) fn lock(&self) -> ExclusiveGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.lock_busy())
    }

    #[cold]
    fn lock_busy(&self) -> ExclusiveGuard<'_, T> {
        self.outside.assert_may_block();
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs code that may collect something, and tells the threads that wait.
    pub(crate) fn collect<R>(&self, state: &mut ExclusiveState<T>, act: impl FnOnce(&mut T) -> R) -> R {
        let open = state.subject.open();
        let collecting = Collecting { exclusive: self, state, open };
        act(&mut collecting.state.subject)
    }

    /// Looks until `ready` returns something, and sleeps meanwhile. `None` if it may not wait, or the deadline has passed.
    pub(crate) fn wait_until<R>(
        &self,
        may_wait: bool,
        deadline: Option<Instant>,
        mut ready: impl FnMut(&mut T) -> Option<R>,
    ) -> Option<R> {
        let mut state = self.lock();
        loop {
            // What the leader was told stays until it looks.
            if !state.has_leader {
                self.outside.begin_look();
            }
            let found = self.collect(&mut state, &mut ready);
            let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if found.is_some() || !may_wait || is_late() {
                if state.followers > 0 && !state.has_leader {
                    self.changed.notify_one();
                }
                return found;
            }
            state = if state.has_leader { self.follow(state, deadline) } else { self.lead(state, deadline) };
        }
    }

    fn follow<'a>(
        &'a self,
        mut state: ExclusiveGuard<'a, T>,
        deadline: Option<Instant>,
    ) -> ExclusiveGuard<'a, T> {
        state.followers += 1;
        let mut state = match deadline {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.followers -= 1;
        state
    }

    /// Sleeps for all, unless there is something to do.
    fn lead<'a>(
        &'a self,
        mut state: ExclusiveGuard<'a, T>,
        deadline: Option<Instant>,
    ) -> ExclusiveGuard<'a, T> {
        let Some(sleep) = self.collect(&mut state, T::prepare_sleep) else { return state };
        state.has_leader = true;
        drop(state);
        T::sleep(sleep, deadline);
        let mut state = self.lock();
        (state.has_leader, state.must_wake) = (false, false);
        state
    }
}

struct Collecting<'a, T: Subject> {
    exclusive: &'a Exclusive<T, T::Outside>,
    state: &'a mut ExclusiveState<T>,
    /// At the beginning.
    open: usize,
}

impl<T: Subject> Drop for Collecting<'_, T> {
    fn drop(&mut self) {
        let Self { exclusive, state, open } = self;
        // A thread that panics leaves its place among those that wait.
        let tells = state.subject.open() != *open || std::thread::panicking();
        if tells && state.followers > 0 {
            exclusive.changed.notify_all();
        }
        state.must_wake |=
            state.has_leader && (tells || exclusive.outside.was_told() || state.subject.must_look());
        if state.must_wake {
            // Again each time until the leader is awake: this thread may have taken what was sent to wake it, and what
            // comes next is not sent to a thread that was told already.
            exclusive.outside.wake();
        }
    }
}
