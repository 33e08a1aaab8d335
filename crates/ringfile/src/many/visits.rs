//! Something that threads use in turn, and for which they wait together: one of them sleeps for all.
//!
//! Knows only a lock and a condition (through `sync.rs`), so that loom can run all of it. Invariants:
//!
//! - the lock is held by a thread that looks or changes something, and by no thread that waits;
//! - of the threads that wait, one sleeps where it learns of all that ends, and the others until it, or any other
//!   thread, has collected something. Before a thread returns from waiting, another one takes its place;
//! - a thread that collects something while another sleeps, or is about to, makes that one look, even if it panics; and
//!   so does one that may have taken what another has sent to wake it.
//!
//! The proof is `RUSTFLAGS="--cfg loom" cargo test --release -p ringfile --test loom visits`.

use std::time::Instant;

use super::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

/// What threads use in turn.
pub(super) trait Visited {
    type Outside: Outside;
    type Bed;

    /// Returns a number that changes whenever something has ended that a thread may wait for.
    fn open(&self) -> usize;

    /// Returns where to sleep until there is something to do; `None` if there is something already.
    fn make_bed(&mut self) -> Option<Self::Bed>;

    /// Returns whether a thread that sleeps in the last bed must look although nothing has ended: it should sleep
    /// elsewhere by now, or not at all.
    fn must_look(&self) -> bool;

    /// Sleeps until there is something to do, or until the deadline.
    fn sleep(bed: Self::Bed, deadline: Option<Instant>);
}

/// What threads use without the lock.
pub(super) trait Outside {
    /// Called before the thread waits for the lock. Panics if that could last for ever.
    fn assert_may_block(&self);

    /// Called before a thread looks that may sleep afterwards: whoever has something for it from now on keeps it from
    /// sleeping.
    fn begin_look(&self);

    /// Returns whether somebody has, and the thread that sleeps, or is about to, has not looked since.
    fn was_told(&self) -> bool;

    /// Wakes that thread.
    fn wake(&self);
}

pub(super) struct Visits<T: Visited> {
    state: Mutex<State<T>>,
    /// Signalled when something was collected, and when no thread sleeps any more, for threads that wait.
    changed: Condvar,
    pub(super) outside: T::Outside,
}

pub(super) struct State<T> {
    pub(super) subject: T,
    /// Whether a thread sleeps, or is about to.
    has_sleeper: bool,
    /// Whether something was collected since that thread has let go of the lock.
    must_wake: bool,
    /// The number of threads that wait for `changed`.
    waiting: usize,
}

type Locked<'a, T> = MutexGuard<'a, State<T>>;

impl<T: Visited> Visits<T> {
    pub(super) fn new(subject: T, outside: T::Outside) -> Self {
        let state = State { subject, has_sleeper: false, must_wake: false, waiting: 0 };
        Self { state: Mutex::new(state), changed: Condvar::new(), outside }
    }

    pub(super) fn lock(&self) -> Locked<'_, T> {
        self.try_lock().unwrap_or_else(|| self.lock_busy())
    }

    pub(super) fn try_lock(&self) -> Option<Locked<'_, T>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[cold]
    fn lock_busy(&self) -> Locked<'_, T> {
        self.outside.assert_may_block();
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs code that may collect something, and tells the threads that wait.
    pub(super) fn visit<R>(&self, state: &mut State<T>, act: impl FnOnce(&mut T) -> R) -> R {
        let open = state.subject.open();
        let visit = Visit { visits: self, state, open };
        act(&mut visit.state.subject)
    }

    /// Looks until `ready` returns something, and sleeps meanwhile. `None` if it may not wait, or the deadline has passed.
    pub(super) fn wait_until<R>(
        &self,
        may_wait: bool,
        deadline: Option<Instant>,
        mut ready: impl FnMut(&mut T) -> Option<R>,
    ) -> Option<R> {
        let mut state = self.lock();
        loop {
            // What the thread that sleeps was told stays until it looks.
            if !state.has_sleeper {
                self.outside.begin_look();
            }
            let found = self.visit(&mut state, &mut ready);
            let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if found.is_some() || !may_wait || is_late() {
                if state.waiting > 0 && !state.has_sleeper {
                    self.changed.notify_one();
                }
                return found;
            }
            state = if state.has_sleeper {
                self.wait_for_others(state, deadline)
            } else {
                self.sleep(state, deadline)
            };
        }
    }

    fn wait_for_others<'a>(&'a self, mut state: Locked<'a, T>, deadline: Option<Instant>) -> Locked<'a, T> {
        state.waiting += 1;
        let mut state = match deadline {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.waiting -= 1;
        state
    }

    /// Sleeps for all, unless there is something to do.
    fn sleep<'a>(&'a self, mut state: Locked<'a, T>, deadline: Option<Instant>) -> Locked<'a, T> {
        let Some(bed) = self.visit(&mut state, T::make_bed) else { return state };
        state.has_sleeper = true;
        drop(state);
        T::sleep(bed, deadline);
        let mut state = self.lock();
        (state.has_sleeper, state.must_wake) = (false, false);
        state
    }
}

struct Visit<'a, T: Visited> {
    visits: &'a Visits<T>,
    state: &'a mut State<T>,
    /// At the beginning.
    open: usize,
}

impl<T: Visited> Drop for Visit<'_, T> {
    fn drop(&mut self) {
        let Self { visits, state, open } = self;
        // A thread whose visit panics leaves its place among those that wait.
        let tells = state.subject.open() != *open || std::thread::panicking();
        if tells && state.waiting > 0 {
            visits.changed.notify_all();
        }
        state.must_wake |=
            state.has_sleeper && (tells || visits.outside.was_told() || state.subject.must_look());
        if state.must_wake {
            // Again by each visit until the thread is awake: this one may have taken what was sent to wake it, and what
            // comes next is not sent to a thread that was told already.
            visits.outside.wake();
        }
    }
}
