//! The turn: the one call for several pages that keeps those which it has while it waits for memory.
//!
//! Invariants: one call of a cache has it at a time. What the call keeps lies here while it is not polled. If it waits for
//! [`PATIENCE`], it is woken; if it is then not polled for as long, because it was leaked or its task does something else,
//! its turn is over, and what it kept is free for others: it begins anew when it is polled.

use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::Duration;

use ringfile::internal::{Timer, now, wake_at};

use crate::page::Page;
use crate::pending::Awaited;
use crate::shared::Shared;
use crate::sync::lock;
use crate::wake::wake_all;

/// Long beside what a thread needs to wake up and poll its tasks.
const PATIENCE: Duration = Duration::from_millis(100);

/// The pages of a call, and the reads that it waits for.
pub(crate) type Parts = (Vec<Page>, Vec<Option<Awaited>>);

/// Has the turn until it is dropped, or was not polled.
pub(crate) struct Turn(Arc<Kept>);

/// What the call with the turn keeps. Woken by its timer.
pub(crate) struct Kept {
    shared: Arc<Shared>,
    number: u64,
    state: Mutex<KeptState>,
}

#[derive(Default)]
struct KeptState {
    parts: Parts,
    /// Wakes the call; `None` if that was done since its last poll.
    waker: Option<Waker>,
    timer: Option<Timer>,
    is_over: bool,
}

impl Turn {
    /// Takes the turn if no other call has it.
    pub(crate) fn take(shared: &Arc<Shared>) -> Option<Self> {
        let number = shared.lock().take_turn()?;
        Some(Self(Arc::new(Kept { shared: Arc::clone(shared), number, state: Mutex::default() })))
    }

    /// Returns what the call keeps, for a poll. `None` if the turn is over.
    pub(crate) fn resume(&self) -> Option<Parts> {
        let mut state = lock(&self.0.state);
        let (timer, waker) = (state.timer.take(), state.waker.take());
        let parts = std::mem::take(&mut state.parts);
        let is_over = state.is_over;
        drop(state);
        drop((timer, waker));
        (!is_over).then_some(parts)
    }

    /// Keeps this until the next poll.
    pub(crate) fn pause(&self, parts: Parts, waker: &Waker) {
        let (waker, timer) = (waker.clone(), self.0.set_timer());
        let mut state = lock(&self.0.state);
        if state.is_over {
            drop(state);
            drop((parts, timer));
            return wake_all(std::iter::once(waker));
        }
        (state.parts, state.waker, state.timer) = (parts, Some(waker), timer);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Kept {
    /// Without a thread for timers, the call keeps what it has.
    fn set_timer(self: &Arc<Self>) -> Option<Timer> {
        wake_at(now() + PATIENCE, Waker::from(Arc::clone(self)))
    }

    fn end(&self) {
        let mut state = lock(&self.state);
        state.is_over = true;
        let rest = (std::mem::take(&mut state.parts), state.timer.take(), state.waker.take());
        drop(state);
        let waiters = self.shared.lock().end_turn(self.number);
        drop(rest);
        wake_all(waiters.into_iter());
    }
}

impl Wake for Kept {
    fn wake(self: Arc<Self>) {
        let mut state = lock(&self.state);
        // It was polled meanwhile.
        let Some(before) = state.timer.take() else { return };
        let Some(waker) = state.waker.take() else {
            drop(state);
            return self.end();
        };
        drop(state);
        drop(before);
        let timer = self.set_timer();
        let mut state = lock(&self.state);
        if state.waker.is_none() && !state.is_over {
            state.timer = timer;
        }
        drop(state);
        wake_all(std::iter::once(waker));
    }
}
