//! The atomics and locks that `sleep.rs` and `shared/exclusive.rs` use.
//!
//! A separate file, so that their loom models (`tests/loom/sleep.rs`, `tests/loom/shared.rs`) can compile them with loom's
//! instead.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
