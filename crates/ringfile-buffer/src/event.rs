//! Emits events for `tracing`. Those that occur while a lock is held or the driver is borrowed are deferred until neither
//! is.
//!
//! A subscriber is user code: it may do I/O, take pool memory, fork, or panic. Invariants: an event is emitted on the
//! thread on which it occurred, with no lock, borrow or one-time initialisation of ours in progress; a subscriber's
//! panic ends here, since it would hit an operation or a task that has nothing to do with it.

use std::cell::{Cell, RefCell};

use crate::panics;

type Event = Box<dyn FnOnce()>;

thread_local! {
    /// Whether `DEFERRED` has events, so that each turn of a driver only loads this.
    static ANY: Cell<bool> = const { Cell::new(false) };
    static DEFERRED: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

/// Emits an event now. The caller must hold no lock and no borrow.
#[cold]
pub fn emit(event: impl FnOnce()) {
    let _ = panics::catch(event);
}

/// Keeps an event for this thread's next [`emit_deferred`]. Events that occur while the thread ends are lost.
#[cold]
pub fn defer(event: impl FnOnce() + 'static) {
    let kept = DEFERRED.try_with(|deferred| deferred.borrow_mut().push(Box::new(event)));
    ANY.set(kept.is_ok());
}

/// Returns whether this thread has deferred events.
#[inline]
pub fn are_deferred() -> bool {
    ANY.get()
}

/// Emits deferred events. The caller must hold no lock and no borrow, because subscribers may do anything.
#[inline]
pub fn emit_deferred() {
    if are_deferred() {
        emit_all();
    }
}

#[cold]
fn emit_all() {
    ANY.set(false);
    let events = DEFERRED.try_with(RefCell::take).unwrap_or_default();
    events.into_iter().for_each(emit);
}
