//! A value that threads use in turn, and for which no thread waits.
//!
//! Knows only a lock and a fence (through `sync.rs`), so that loom can run all of it. Invariant: a thread that leaves
//! something to do, and then calls [`Turns::take`], need not care whether it got the value: what it left is done by
//! this call, or by the call that has the value, which looks once more after it has let go.
//!
//! The proof is `RUSTFLAGS="--cfg loom" cargo test --release -p ringfile --test loom turns`.

use super::sync::{Mutex, Ordering, TryLockError, fence};

pub(crate) struct Turns<T>(Mutex<T>);

impl<T> Turns<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Calls `turn` on the value, and then `after`, without it, until `is_done` says that nothing is left to do, but at most
    /// `most` times. Returns false if something is left, which no other thread does. Does nothing if another thread has
    /// the value.
    pub(crate) fn take(
        &self,
        most: usize,
        mut turn: impl FnMut(&mut T),
        mut after: impl FnMut(),
        is_done: impl Fn() -> bool,
    ) -> bool {
        for _ in 0..most {
            // What was left before this call is seen by the thread that has the value now, when it asks `is_done`.
            fence(Ordering::SeqCst);
            let Some(()) = self.with(&mut turn) else { return true };
            after();
            fence(Ordering::SeqCst);
            if is_done() {
                return true;
            }
        }
        false
    }

    /// Calls `look` on the value, unless another thread has it. What other threads leave meanwhile is left: the caller must
    /// see to it.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&mut T) -> R) -> Option<R> {
        match self.0.try_lock() {
            Ok(mut value) => Some(look(&mut value)),
            Err(TryLockError::Poisoned(poisoned)) => Some(look(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
