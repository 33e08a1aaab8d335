//! How an operation ended, and the receiver of its result.

use std::sync::Arc;

use super::op::Ended;
use crate::memory::Held;

/// How an operation ended, and its buffer.
pub(crate) struct Finished {
    pub held: Held,
    pub ended: Ended,
}

impl Finished {
    pub(crate) const NOTHING: Self = Self { held: Held::None, ended: Ended { done: 0, errno: 0 } };
}

/// The receiver of results of remote requests, which it distinguishes by an index.
pub(crate) trait Handler: Send + Sync {
    /// Takes a result.
    fn done(self: Arc<Self>, index: u32, finished: Finished);

    /// Returns whether the result is still wanted; otherwise a remote request that has not begun is not carried out.
    fn is_wanted(&self, index: u32) -> bool;

    /// Returns whether a thread may leave its loop while its ring has such remote requests: true for those of a queue,
    /// until the queue is dropped.
    fn outlives_loops(&self) -> bool {
        false
    }

    /// Returns whether the thread with this driver stays in its loop until the result arrives.
    fn holds(&self, _driver: u64) -> bool {
        false
    }

    /// Returns the identity of the handler: one handler may wrap another.
    fn address(&self) -> *const ();
}
