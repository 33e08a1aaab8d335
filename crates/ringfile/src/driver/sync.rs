//! The atomics and locks that `sleep.rs` and `turns.rs` use.
//!
//! A separate file, so that their loom models (`tests/loom/sleep.rs`, `tests/loom/turns.rs`) can compile them with loom's
//! instead.

#[cfg(feature = "tokio")]
pub(crate) use std::sync::atomic::fence;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
#[cfg(feature = "tokio")]
pub(crate) use std::sync::{Mutex, TryLockError};
