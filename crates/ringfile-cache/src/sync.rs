//! The atomics that `word.rs` uses.
//!
//! A separate file, so that the loom model (`tests/loom_word.rs`) can compile that file with loom's atomics instead.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
