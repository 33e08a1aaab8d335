//! The atomics that `kernel.rs` is written against.
//!
//! A file of its own so that the loom model (`tests/loom_pool.rs`) can compile `kernel.rs` with loom's atomics in
//! its place. Knows nothing.

pub(crate) use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Orders an earlier store before a later load of another location.
///
/// Nothing here, as both sides of [`super::kernel::Gate`] use sequentially consistent operations, which are
/// totally ordered without it. Loom treats those as acquire and release only, so there it is a real fence.
#[inline(always)]
pub(crate) fn store_load_fence() {}
