//! The atomics that `kernel.rs` and `count.rs` use.
//!
//! A separate file, so that the loom models (`tests/loom/pool.rs`, `tests/loom/thaw.rs`) can compile those files with
//! loom's atomics instead.

pub(crate) use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
