//! The AIO context of a driver.

use std::time::Instant;

use super::op::Request;
use super::target::Target;
use crate::aio::Aio;

/// The context of a driver.
#[derive(Default)]
pub(super) struct AioContext {
    pub aio: Option<Aio>,
    /// When and why creating a context failed.
    pub(super) failed: Option<(Instant, i32)>,
    /// Whether a descriptor was handed out that becomes readable when operations have ended.
    pub signals: bool,
    /// Whether the kernel accepts no more operations until one has completed.
    pub(super) is_full: bool,
    /// Why the context no longer accepts operations: the errno of a seccomp filter that was installed after the context
    /// was created. Filters are never removed.
    pub(super) refused: Option<i32>,
}

impl AioContext {
    /// Returns whether there is a context, and it may take this operation.
    pub(super) fn may_take(&self, target: &Target, request: &Request) -> bool {
        let kind = request.kind;
        self.aio.is_some()
            && self.refused.is_none()
            && kind.moves_data()
            && target.direct().is_some()
            && target.lanes.lets_aio(kind)
    }

    /// Returns the number of operations that have not ended.
    #[inline]
    pub(super) fn open(&self) -> u32 {
        self.aio.as_ref().map_or(0, Aio::open)
    }

    /// Returns whether the next turn may submit something: not if the kernel accepts nothing before an operation has
    /// completed.
    #[inline]
    pub(super) fn has_unsubmitted(&self) -> bool {
        let may_submit = |aio: &Aio| aio.has_queued() && !(self.is_full && aio.at_work() > 0);
        self.aio.as_ref().is_some_and(may_submit)
    }

    /// Returns whether the thread must not sleep in its ring: there are operations to submit or completions to collect,
    /// or an operation in flight will end without a signal.
    #[inline]
    pub(super) fn keeps_awake(&self) -> bool {
        let must_look = |aio: &Aio| aio.has_completions() || aio.silent() > 0;
        self.has_unsubmitted() || self.aio.as_ref().is_some_and(must_look)
    }

    /// Returns whether the context is full: operations that wait for room cannot be submitted before another one has
    /// ended.
    #[inline]
    pub(super) fn is_out_of_room(&self) -> bool {
        self.aio.as_ref().is_some_and(|aio| !aio.has_room())
    }
}
