//! The atomics that `kernel.rs` is written against.
//!
//! A file of its own so that the loom model (`tests/loom_pool.rs`) can compile `kernel.rs` with loom's atomics in
//! its place. Knows nothing.

pub(crate) use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
