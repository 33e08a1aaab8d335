//! The lock that `mailbox.rs` uses: std's here, loom's in the model.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard};
