//! What `mailbox.rs` locks with: std's here, loom's where the model is run. Knows nothing.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard};
