//! The locks of all pools and of all lent memory. A thread that forks holds them all, so that the child finds them free
//! and their state consistent.
//!
//! Knows the list of regions, and of a core or lender only that it has a lock. Invariants: a core or lender is in
//! [`ALL`] from its creation until it is about to be freed. A thread that holds one of these locks takes none of the
//! others; the list of regions (`regions.rs`) is locked last.

use std::any::Any;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::regions;
use crate::fork;

/// An object with a lock that a forking thread must hold: a pool's core, or a lender.
pub(super) trait HasLock: Sync {
    /// What the lock guards.
    type State: 'static;

    fn mutex(&self) -> &Mutex<Self::State>;
}

/// An object with a lock, of a type that only `lock` knows.
#[derive(Clone, Copy)]
struct Locked {
    object: NonNull<()>,
    /// Locks the object.
    lock: unsafe fn(NonNull<()>) -> Box<dyn Any>,
}

// SAFETY: the address of what is `Sync`.
unsafe impl Send for Locked {}

/// The objects by address.
static ALL: Mutex<BTreeMap<usize, Locked>> = Mutex::new(BTreeMap::new());

fn all() -> MutexGuard<'static, BTreeMap<usize, Locked>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// # Safety
/// The object is a `T` in `ALL`, which is locked until the guard is dropped.
unsafe fn lock<T: HasLock + 'static>(object: NonNull<()>) -> Box<dyn Any> {
    // SAFETY: as the caller says: nothing in `ALL` is freed.
    let object: &'static T = unsafe { object.cast::<T>().as_ref() };
    Box::new(object.mutex().lock().unwrap_or_else(PoisonError::into_inner))
}

/// Adds a lock that a forking thread must hold.
pub(super) fn add<T: HasLock + 'static>(object: NonNull<T>) {
    fork::hold_over_forks(&fork::MEMORY, hold);
    all().insert(object.addr().get(), Locked { object: object.cast(), lock: lock::<T> });
}

/// Removes a lock, before its object is freed. Called with no lock of memory held.
pub(super) fn remove<T: HasLock>(object: NonNull<T>) {
    all().remove(&object.addr().get());
}

fn hold() -> Box<dyn Any> {
    let all = all();
    // SAFETY: all in `ALL`, whose guard goes last, each with the function for its type.
    let each: Vec<_> = all.values().map(|locked| unsafe { (locked.lock)(locked.object) }).collect();
    // Dropped in this order.
    Box::new((regions::lock(), each, all))
}
