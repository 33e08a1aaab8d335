//! The atomics that `sleep.rs` is written against.
//!
//! A file of its own so that the loom model (`tests/loom_sleep.rs`) can compile `sleep.rs` with loom's atomics in its
//! place. Knows nothing.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
