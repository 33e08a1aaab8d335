//! The atomics that `kernel.rs` and `count.rs` are written against.
//!
//! A file of its own so that the loom models (`tests/loom_pool.rs`, `tests/loom_thaw.rs`) can compile those files with loom's
//! atomics in its place. Knows nothing.

pub(crate) use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
