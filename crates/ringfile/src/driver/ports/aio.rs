//! Linux AIO as a port, in place of io_uring: which operations it takes, and how a thread submits to it and waits in it.
//!
//! Its operations have slots like all others, and the same code as for rings continues, ends and cancels them.
//! Invariants: AIO gets direct reads, and direct writes within the file as it was when last checked, since `io_submit`
//! waits for everything else. The end of an operation wakes a sleeping thread: without a ring the thread sleeps in the
//! context; with a ring, each operation that ends signals the wake-up descriptor, which the ring polls.

use std::time::{Duration, Instant};

use super::entry::{begin, plain_entry};
use crate::aio::Aio;
use crate::driver::mail::sleep::SleepState;
use crate::driver::op::{PartsOf, Request};
use crate::driver::slots::files::FileInUse;
use crate::driver::slots::key::Key;
use crate::driver::slots::slot::{Slot, State};
use crate::driver::target::{FileKind, Target};

/// How long a thread pauses if the kernel refuses the wait, for instance because of a seccomp filter that was installed
/// meanwhile, or refuses to poll the wake-up descriptor.
const PAUSE: Duration = Duration::from_millis(1);

/// See the module.
#[derive(Default)]
pub(crate) struct AioPort {
    pub(crate) context: Option<Aio>,
    /// When and why creating a context failed.
    pub(super) failed: Option<(Instant, i32)>,
    /// How often it failed.
    pub(super) refused_contexts: u64,
    /// Whether a descriptor was handed out that becomes readable when operations have ended.
    pub(super) signals: bool,
    /// Whether the kernel accepts no more operations until one has completed.
    pub(super) is_full: bool,
    /// Why the context no longer accepts operations: the errno of a seccomp filter that was installed after the context
    /// was created. Filters are never removed.
    pub(crate) refused: Option<i32>,
}

/// Returns whether AIO may carry out an operation.
pub(super) fn is_for_aio(target: &Target, request: &Request) -> bool {
    let is_right = request.kind.moves_data()
        && !request.linked
        && target.direct().is_some()
        && target.kind != FileKind::Other
        && target.lanes.lets_aio(request.kind);
    let end = || request.offset.saturating_add(request.want as u64);
    is_right && (request.kind.is_read() || !target.appends && target.reaches(end()))
}

impl AioPort {
    /// Returns whether there is a context, and it may take this operation.
    pub(super) fn may_take(&self, target: &Target, request: &Request) -> bool {
        let kind = request.kind;
        self.context.is_some()
            && self.refused.is_none()
            && kind.moves_data()
            && target.direct().is_some()
            && target.lanes.lets_aio(kind)
    }

    /// Returns the number of operations that have not ended.
    #[inline]
    pub(crate) fn open(&self) -> u32 {
        self.context.as_ref().map_or(0, Aio::open)
    }

    /// Returns whether the next turn may submit something: not if the kernel accepts nothing before an operation has
    /// completed.
    #[inline]
    pub(super) fn has_unsubmitted(&self) -> bool {
        let may_submit = |aio: &Aio| aio.has_queued() && !(self.is_full && aio.at_work() > 0);
        self.context.as_ref().is_some_and(may_submit)
    }

    /// Returns whether the thread must not sleep in its ring: there are operations to submit or completions to collect,
    /// or an operation in flight will end without a signal.
    #[inline]
    pub(crate) fn keeps_awake(&self) -> bool {
        let must_look = |aio: &Aio| aio.has_completions() || aio.silent() > 0;
        self.has_unsubmitted() || self.context.as_ref().is_some_and(must_look)
    }

    /// Returns whether the context is full: operations that wait for room cannot be submitted before another one has
    /// ended.
    #[inline]
    pub(super) fn is_out_of_room(&self) -> bool {
        self.context.as_ref().is_some_and(|aio| !aio.has_room())
    }

    /// Makes the context answer when another thread writes to the wake-up descriptor.
    #[inline]
    pub(super) fn arm_wakeup(&mut self) {
        if let Some(aio) = self.context.as_mut().filter(|_| self.refused.is_none()) {
            aio.arm_wakeup();
        }
    }

    /// Puts an operation's next submission into the context's queue; returns false if the queue is full. `signal` is the
    /// descriptor that its end signals.
    pub(super) fn push(
        &mut self,
        file: &FileInUse,
        key: Key,
        slot: &mut Slot,
        mut parts: PartsOf<'_>,
        signal: Option<i32>,
    ) -> bool {
        let Some(aio) = &mut self.context else { return false };
        if file.target.has_extra() && aio.has_room() {
            begin(file, &slot.request, slot.progress, &mut slot.marks, parts.reborrow());
        }
        let entry = plain_entry(&file.target, key, slot, parts);
        // SAFETY: the entry was made above of what the slot owns, see the module `ports`.
        let Some(position) = (unsafe { aio.push(&entry, signal) }) else { return false };
        (slot.fixed, slot.position, slot.state) = (false, position, State::InFlight);
        true
    }

    /// Sleeps in the context until `wanted` operations have ended, if there is one and no operation has ended yet. Does not
    /// sleep if `wanted` is 0, or if operations wait for room that is there.
    pub(super) fn wait(
        &mut self,
        wanted: u32,
        deadline: Option<Instant>,
        has_waiting: bool,
        thread: &SleepState,
    ) {
        let Some(aio) = self.context.as_mut() else { return };
        let all_submitted = !aio.has_queued() && (!has_waiting || !aio.has_room());
        let is_idle = !aio.has_completions() && (self.is_full || all_submitted);
        if wanted == 0 || !is_idle || aio.open() == 0 {
            return aio.look();
        }
        // If the kernel refuses to poll the wake-up descriptor, no other thread can wake this one: it looks for
        // messages from time to time.
        let latest = if aio.is_wakeup_armed() { None } else { Some(Instant::now() + PAUSE) };
        let deadline = deadline.into_iter().chain(latest).min();
        if thread.about_to_sleep_in_ring() {
            let at_most = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let wanted = if self.is_full { 1 } else { wanted };
            let waited = aio.wait(wanted, at_most);
            thread.woke();
            if waited.is_err_and(|error| error.raw_os_error() != Some(libc::EINTR)) {
                std::thread::sleep(PAUSE);
            }
        }
    }
}
