//! The lock and the flag that `mailbox.rs` uses: std's here, loom's in its model.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard};
