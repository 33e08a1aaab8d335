//! The atomics that `sleep.rs` uses.
//!
//! A separate file, so that the loom model (`tests/loom_sleep.rs`) can compile `sleep.rs` with loom's atomics instead.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
