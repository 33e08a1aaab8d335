//! Wakes tasks, all of them, also if one of their wakers panics.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::Waker;

/// Wakes all. If wakers panic, goes on with the first panic when all were called. The caller holds no lock.
pub(crate) fn wake_all(wakers: impl Iterator<Item = Waker>) {
    let mut first = None;
    for waker in wakers {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
            first.get_or_insert(panic);
        }
    }
    if let Some(panic) = first {
        resume_unwind(panic);
    }
}
