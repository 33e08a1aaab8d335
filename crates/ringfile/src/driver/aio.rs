//! Linux AIO in place of io_uring: which operations it takes, and how a thread submits to it and waits in it.
//!
//! Its operations have slots like all others, and the same code as for rings continues, ends and cancels them.
//! Invariants: AIO gets direct reads, and direct writes within the file as it was when last checked, since `io_submit`
//! waits for everything else. The end of an operation wakes a sleeping thread: without a ring the thread sleeps in the
//! context; with a ring, each operation that ends signals the wake-up descriptor, which the ring polls.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::alone::call_for;
use super::deferred::Deferred;
use super::key::Key;
use super::marks::AIO_WAKEUP;
use super::op::Request;
use super::refused::{self, Lack, Refused};
use super::ring_kind::RingKind;
use super::slot::State;
use super::state::Driver;
use super::target::{FileKind, Target};
use super::{rings, submit};
use crate::aio::Aio;

/// The size of a context, if the system's limit allows it: many times a drive's queue depth.
const OPERATIONS: u32 = 512;

/// How long a thread pauses if the kernel refuses the wait, for instance because of a seccomp filter that was installed
/// meanwhile, or refuses to poll the wake-up descriptor.
const PAUSE: Duration = Duration::from_millis(1);

/// Returns whether AIO may carry out an operation, on this thread or another.
pub(super) fn is_for_aio(target: &Target, request: &Request) -> bool {
    let is_right = request.kind.moves_data()
        && !request.linked
        && target.direct().is_some()
        && target.kind != FileKind::Other
        && target.lanes.lets_aio(request.kind);
    let end = || request.offset.saturating_add(request.want as u64);
    is_right && (request.kind.is_read() || !target.appends && target.reaches(end()))
}

impl Driver {
    /// Does what [`may_start`](Driver::may_start) does, for an operation that must use AIO. Creates the context if
    /// there is none.
    pub(super) fn prepare_aio(&mut self, target: &Target, request: &Request) -> Result<RingKind, Refused> {
        if !is_for_aio(target, request) {
            return Err(Refused::Unsupported);
        }
        if let Some(errno) = self.context.refused {
            return Err(Refused::NoRing(Lack::Aio(errno)));
        }
        if self.context.aio.is_none() {
            self.context.aio = Some(self.make_aio().map_err(Refused::NoRing)?);
        }
        Ok(RingKind::Aio)
    }

    #[cold]
    fn make_aio(&mut self) -> Result<Aio, Lack> {
        if let Some(errno) = rings::recent(self.context.failed) {
            return Err(Lack::Aio(errno));
        }
        let operations = self.options.entries.saturating_mul(2).clamp(OPERATIONS, 1 << 14);
        let made = self
            .shared
            .eventfd(&mut self.wakeup)
            .and_then(|eventfd| Aio::new(operations, eventfd, AIO_WAKEUP));
        made.inspect(|_| self.context.failed = None).map_err(|error| {
            let errno = refused::set_up_errno(&error);
            self.context.failed = Some((Instant::now(), errno));
            self.counts.refused_contexts += 1;
            Lack::Aio(errno)
        })
    }

    /// Does what [`prepare_aio`](Self::prepare_aio) does, for an operation that wanted a ring. `lack` says why there is
    /// none.
    #[cold]
    pub(super) fn prepare_aio_instead(
        &mut self,
        target: &Target,
        request: &Request,
        lack: Lack,
    ) -> Result<RingKind, Refused> {
        let prepared = self.prepare_aio(target, request);
        match &prepared {
            Ok(_) => refused::warn_of_no_ring(lack),
            Err(Refused::NoRing(why)) => refused::warn_of_no_aio(*why),
            Err(_) => {}
        }
        prepared.map_err(|_| Refused::NoRing(lack))
    }

    /// Puts an operation's next submission into the context's queue; returns false if the queue is full.
    pub(super) fn push_to_aio(&mut self, key: Key) -> bool {
        let (slot, mut parts) = self.slots.with_parts(key.slot());
        let (Some(aio), Some(file)) = (self.context.aio.as_mut(), self.files.entry(slot.file)) else {
            return false;
        };
        // If the thread may sleep elsewhere than in the context, completions must signal.
        let tells = self.rings.is_some() || self.context.signals;
        let signal = if tells { self.shared.eventfd(&mut self.wakeup).ok() } else { None };
        if file.target.has_extra() && aio.has_room() {
            submit::begin(file, &slot.request, slot.progress, &mut slot.marks, parts.reborrow());
        }
        let entry = submit::plain_entry(&file.target, key, slot, parts);
        // SAFETY: the entry was made above of what the slot owns, see `submit`.
        let Some(position) = (unsafe { aio.push(&entry, signal) }) else { return false };
        (slot.fixed, slot.position, slot.state) = (false, position, State::InFlight);
        true
    }

    /// Submits queued operations, at most `most` in one system call. An operation that the kernel refuses ends with the
    /// kernel's errno. Returns whether the kernel refuses operations for now.
    pub(super) fn submit_to_aio(&mut self, most: u32, deferred: &mut Deferred) -> bool {
        if self.context.signals && self.context.aio.is_some() {
            // Reset before completions are collected, so that one that arrives meanwhile signals again.
            self.reset_wakeup();
        }
        self.context.is_full = false;
        while let Some(aio) = self.context.aio.as_mut().filter(|aio| aio.has_queued()) {
            let errno = match aio.submit(most) {
                Ok(true) => return false,
                // The next call returns why the kernel stopped there.
                Ok(false) => continue,
                Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
            };
            match errno {
                libc::EINTR => return true,
                libc::EAGAIN | libc::ENOMEM if aio.at_work() > 0 => {
                    self.context.is_full = true;
                    return false;
                }
                libc::EAGAIN | libc::ENOMEM if self.may_ask_again() => return true,
                _ => {}
            }
            self.refusals = None;
            self.take_back_from_aio(errno, deferred);
        }
        false
    }

    #[cold]
    fn take_back_from_aio(&mut self, errno: i32, deferred: &mut Deferred) {
        let taken_back = self.context.aio.as_mut().and_then(Aio::take_back);
        let key = taken_back.map(Key::from_user_data);
        if let Some(key) = key
            && let Some(slot) = self.slots.get(key).filter(|slot| slot.state == State::InFlight)
        {
            slot.errno = errno as u16;
            if matches!(errno, libc::EPERM | libc::EACCES | libc::ENOSYS) {
                self.call_instead(key, errno);
            }
            self.end(key, deferred);
        }
    }

    /// Carries out an operation that a seccomp filter seems to refuse with a plain call, unless its file insists on
    /// AIO. If the call gets another answer, there is a filter, and from then on operations are routed as if there were
    /// no AIO. The call blocks the thread, once for each operation that was queued when the filter was installed.
    #[cold]
    fn call_instead(&mut self, key: Key, errno: i32) {
        let slot = self.slots.at(key.slot());
        let Some(target) = self.files.target(slot.file) else { return };
        if target.lanes.insists(slot.request.kind) {
            return;
        }
        let ended = call_for(slot, target);
        self.counts.inline_ops += 1;
        if ended.errno != errno {
            self.context.refused = Some(errno);
        }
    }

    /// Asks the kernel to cancel an operation. The kernel cannot cancel reads and writes of files, so the operation
    /// ends as if nobody had asked.
    #[cold]
    pub(super) fn cancel_in_aio(&mut self, key: Key) {
        if let Some(slot) = self.slots.get(key).filter(|slot| slot.state == State::InFlight)
            && let Some(aio) = self.context.aio.as_mut()
        {
            aio.cancel(slot.position);
        }
    }

    /// Makes the context answer when another thread writes to the wake-up descriptor.
    #[inline]
    pub(super) fn arm_wakeup_in_aio(&mut self) {
        if let Some(aio) = self.context.aio.as_mut().filter(|_| self.context.refused.is_none()) {
            aio.arm_wakeup();
        }
    }

    /// Sleeps in the context until `wanted` operations have ended, if the thread has no ring and no operation has ended
    /// yet. Does not sleep if `wanted` is 0.
    pub(super) fn wait_in_aio(&mut self, wanted: u32, deadline: Option<Instant>) {
        let Some(aio) = self.context.aio.as_mut() else { return };
        let all_submitted = !aio.has_queued() && (self.waiting.is_empty() || !aio.has_room());
        let is_idle = !aio.has_completions() && (self.context.is_full || all_submitted);
        if wanted == 0 || !is_idle || aio.open() == 0 {
            return aio.look();
        }
        // If the kernel refuses to poll the wake-up descriptor, no other thread can wake this one: it looks for
        // messages from time to time.
        let latest = if aio.is_wakeup_armed() { None } else { Some(Instant::now() + PAUSE) };
        let deadline = deadline.into_iter().chain(latest).min();
        if self.shared.sleep.about_to_sleep_in_ring() {
            let at_most = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let wanted = if self.context.is_full { 1 } else { wanted };
            let waited = aio.wait(wanted, at_most);
            self.shared.sleep.woke();
            if waited.is_err_and(|error| error.raw_os_error() != Some(libc::EINTR)) {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Makes finished operations signal the wake-up descriptor, for code that waits for it outside the driver, and
    /// makes it readable now if operations have already finished.
    pub(super) fn signal_ends(&mut self) -> std::io::Result<Option<Arc<OwnedFd>>> {
        self.shared.eventfd(&mut self.wakeup)?;
        self.context.signals = true;
        match self.context.aio {
            Some(_) => self.shared.ring_wakeup(),
            // Until now the descriptor has announced only messages of other threads, which have been read.
            None => self.shared.reset_wakeup(),
        }
        Ok(self.wakeup.clone())
    }

    /// Resets the wake-up descriptor. Leaves it readable if code outside the driver waits for it, and an operation is
    /// in flight that will not signal it.
    #[cold]
    pub(super) fn reset_wakeup(&self) {
        let is_silent = self.context.aio.as_ref().is_some_and(|aio| aio.silent() > 0);
        if !(self.context.signals && is_silent) {
            self.shared.reset_wakeup();
        }
    }
}
