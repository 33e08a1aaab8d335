//! What `mailbox.rs` locks with: std's here, loom's where the model is run.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard};
