//! The lock that `progress.rs` is written against.
//!
//! A file of its own so that the loom model (`tests/loom_batch.rs`) can compile `progress.rs` with loom's lock in its
//! place. Knows nothing.

pub(super) use std::sync::{Mutex, MutexGuard};
