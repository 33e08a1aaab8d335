//! Defers events for `tracing` that occur while a lock is held or the driver is borrowed, until neither is.
//!
//! A subscriber is user code: it may do I/O, take pool memory, or fork. Invariant: an event is emitted on the thread on
//! which it occurred, by [`emit_deferred`], which is called with no lock, borrow or one-time initialisation of ours in
//! progress.

use std::cell::{Cell, RefCell};

type Event = Box<dyn FnOnce()>;

thread_local! {
    /// Whether `DEFERRED` has events, so that each turn of a driver only loads this.
    static ANY: Cell<bool> = const { Cell::new(false) };
    static DEFERRED: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

/// Keeps an event for this thread's next [`emit_deferred`]. Events that occur while the thread ends are lost.
#[cold]
pub(crate) fn defer(event: impl FnOnce() + 'static) {
    let kept = DEFERRED.try_with(|deferred| deferred.borrow_mut().push(Box::new(event)));
    ANY.set(kept.is_ok());
}

/// Returns whether this thread has deferred events.
#[inline]
pub(crate) fn are_deferred() -> bool {
    ANY.get()
}

/// Emits deferred events. The caller must hold no lock and no borrow, because subscribers may do anything.
#[inline]
pub(crate) fn emit_deferred() {
    if are_deferred() {
        emit_all();
    }
}

#[cold]
fn emit_all() {
    ANY.set(false);
    let events = DEFERRED.try_with(RefCell::take).unwrap_or_default();
    events.into_iter().for_each(|event| event());
}
