//! Which thread starts a batch's operations, which task is woken when all have ended, and who takes the results.
//!
//! Knows a lock (through `sync.rs`) and wakers, so that loom can run all of it; what an operation is, the caller says.
//! What always holds:
//!
//! - one thread at a time starts operations, and never under the lock, as an operation may end before its start returns;
//! - once the results were taken, or nobody wants them, nothing can be started or ended any more, whoever comes late: a
//!   poll that nobody asked for may take the results between the end of the last operation and the start of the next;
//! - a task that registered its waker before the end is woken after it, if it did not see the end;
//! - wakers are cloned, woken and dropped outside the lock.
//!
//! The proof is `RUSTFLAGS="--cfg loom" cargo test --release -p ringfile --test loom_batch`.

use std::sync::PoisonError;
use std::task::Waker;

use super::sync::{Mutex, MutexGuard};

/// A batch's operations.
pub(super) trait Work {
    /// Whether all have ended.
    fn is_over(&self) -> bool;
}

/// See the module.
pub(super) struct Progress<W> {
    state: Mutex<State<W>>,
}

struct State<W> {
    /// `None` once the results were taken, or nobody wants them.
    work: Option<W>,
    /// A thread starts operations.
    starting: bool,
    waker: Option<Waker>,
}

impl<W: Work> State<W> {
    fn is_over(&self) -> bool {
        self.work.as_ref().is_some_and(W::is_over)
    }
}

impl<W: Work> Progress<W> {
    pub(super) fn new(work: W) -> Self {
        Self { state: Mutex::new(State { work: Some(work), starting: false, waker: None }) }
    }

    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the waker that is woken when all operations have ended. Does nothing if they have.
    pub(super) fn register(&self, waker: &Waker) {
        let is_known = |state: &State<W>| {
            state.is_over() || state.waker.as_ref().is_some_and(|known| known.will_wake(waker))
        };
        if is_known(&self.lock()) {
            return;
        }
        // Cloning and dropping may run anybody's code, so neither is done under the lock.
        let mut waker = Some(waker.clone());
        let mut state = self.lock();
        if !state.is_over() {
            std::mem::swap(&mut state.waker, &mut waker);
        }
        drop(state);
        drop(waker);
    }

    /// Makes the calling thread the one that starts operations, until [`next`](Self::next) gives it none. False if
    /// another thread is, or this one further up the stack: that one will see what this one came for.
    pub(super) fn begin_starting(&self) -> bool {
        let mut state = self.lock();
        state.work.is_some() && !std::mem::replace(&mut state.starting, true)
    }

    /// Returns the operation that the starting thread is to start next; if there is none, the thread stops starting, and
    /// the task is woken if that is the end.
    pub(super) fn next<T>(&self, next: impl FnOnce(&mut W) -> Option<T>) -> Option<T> {
        let mut state = self.lock();
        let operation = state.work.as_mut().and_then(next);
        if operation.is_none() {
            state.starting = false;
            let waker = if state.is_over() { state.waker.take() } else { None };
            drop(state);
            waker.into_iter().for_each(Waker::wake);
        }
        operation
    }

    /// Stops starting operations with some left to start: the task is woken, and its next poll goes on.
    pub(super) fn pause(&self, put_back: impl FnOnce(&mut W)) {
        let mut state = self.lock();
        state.starting = false;
        let Some(work) = state.work.as_mut() else { return };
        put_back(work);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Notes that an operation has ended. What `end` owns is dropped outside the lock if nobody wants the result.
    pub(super) fn end(&self, end: impl FnOnce(&mut W)) {
        let mut state = self.lock();
        let Some(work) = state.work.as_mut() else { return };
        end(work);
    }

    /// Takes the work with its results, once all operations have ended.
    pub(super) fn take(&self) -> Option<W> {
        let mut state = self.lock();
        if !state.is_over() {
            return None;
        }
        let (work, waker) = (state.work.take(), state.waker.take());
        drop(state);
        drop(waker);
        work
    }

    /// Takes the work, however far it is.
    pub(super) fn close(&self) -> Option<W> {
        let mut state = self.lock();
        let (work, waker) = (state.work.take(), state.waker.take());
        drop(state);
        drop(waker);
        work
    }
}
