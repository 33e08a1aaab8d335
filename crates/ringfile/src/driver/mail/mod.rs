//! What other threads may touch of a driver: requests to its thread, results for futures that moved, and its sleep.

pub(super) mod remote;
pub(crate) mod shared;
pub(super) mod sleep;
pub(super) mod sync;
