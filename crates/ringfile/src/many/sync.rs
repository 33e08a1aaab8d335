//! The locks that `mailbox.rs` and `visits.rs` use: std's here, loom's in their models.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
