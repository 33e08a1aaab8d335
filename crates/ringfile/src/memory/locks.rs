//! The locks of all pools and of all lent memory. A thread that forks holds them all, so that the child finds them free
//! and their state consistent.
//!
//! Invariants: a core or lender is in [`ALL`] from its creation until it is about to be freed. A thread that holds one of these locks takes none of the
//! others; the list of regions (`regions.rs`) is locked last.

use std::any::Any;
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::core::Core;
use super::lend::Lender;
use super::regions;
use crate::ring::fork;

/// An object with a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Locked {
    Core(NonNull<Core>),
    Lender(NonNull<Lender>),
}

// SAFETY: addresses of what is `Sync`.
unsafe impl Send for Locked {}

static ALL: Mutex<BTreeSet<Locked>> = Mutex::new(BTreeSet::new());

fn all() -> MutexGuard<'static, BTreeSet<Locked>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Locked {
    /// # Safety
    /// It is in `ALL`, which is locked until the guard is dropped.
    unsafe fn lock(self) -> Box<dyn Any> {
        match self {
            // SAFETY: as the caller says: nothing in `ALL` is freed.
            Locked::Core(core) => Box::new(unsafe { core.as_ref() }.lock()),
            // SAFETY: as above.
            Locked::Lender(lender) => Box::new(unsafe { lender.as_ref() }.lock()),
        }
    }
}

/// Adds a lock that a forking thread must hold.
pub(super) fn add(locked: Locked) {
    fork::hold_over_forks(&fork::MEMORY, hold);
    all().insert(locked);
}

/// Removes a lock, before its object is freed. Called with no lock of memory held.
pub(super) fn remove(locked: Locked) {
    all().remove(&locked);
}

fn hold() -> Box<dyn Any> {
    let all = all();
    // SAFETY: all in `ALL`, whose guard goes last.
    let each: Vec<_> = all.iter().map(|locked| unsafe { locked.lock() }).collect();
    // Dropped in this order.
    Box::new((regions::lock(), each, all))
}
