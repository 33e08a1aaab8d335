//! Submission: entries for the queues of the rings. Entries that name memory come only from here, and from
//! [`super::commands`] and [`super::in_place`].
//!
//! Invariant: an entry names only memory that its slot owns (`held`, and `parts`, which lists addresses inside `held`),
//! and a slot releases that memory only when the operation was withdrawn or answered ([`super::slot`]). A buffer's
//! address does not change when the buffer moves (the contract of [`IoBuf`](crate::IoBuf)). Whatever the kernel answers
//! to `enter`, the driver remains usable.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux_raw_sys::io_uring as uapi;
use uapi::io_uring_op as uop;

use super::alone::may_be_alone;
use super::commands::{self, Entered};
use super::deferred::Deferred;
use super::files::FileInUse;
use super::kept::Lend;
use super::key::Key;
use super::marks::{ASYNC, COMMANDS, FIXED_FILE, IGNORED, LINK, SLICE, WAKEUP};
use super::op::{self, PartsOf, Progress, Request};
use super::ring_kind::RingKind;
use super::rings::{Rings, fixed_index};
use super::slot::{Marks, Slot, State};
use super::state::{Driver, Refusals, Waiting};
use super::target::Target;
use super::timing::Timed;
use super::wake::Wake;
use crate::ring::{Ring, Sqe, Until};
use ringfile_buffer::internal::event;

/// How long to retry while the kernel accepts nothing (EAGAIN, EBUSY, ENOMEM) before its errno becomes the operations'
/// result.
const REFUSED_PATIENCE: Duration = Duration::from_secs(1);
const REFUSED_PAUSE: Duration = Duration::from_millis(1);
/// The time between two attempts counts as at most this much: the kernel might have accepted entries in a longer one,
/// if it had been asked.
const REFUSED_GAP: Duration = Duration::from_millis(100);

impl Driver {
    /// Gives an operation a slot, which owns its buffer from here on, and submits it. [`may_start`](Self::may_start)
    /// has allowed it, and returned the ring.
    #[inline(always)]
    pub(super) fn queue(
        &mut self,
        target: &Arc<Target>,
        request: &Request,
        held: &mut impl Lend,
        ring: RingKind,
        wake: &mut Wake,
    ) -> Key {
        let number = target.number;
        self.in_flight += 1;
        let file = self.files.enter(target, self.id);
        let key = {
            let (key, slot, parts) = self.slots.insert(request, held, number, ring, wake);
            self.on_streams |= file.is_stream;
            if ring == RingKind::Main
                && self.waiting.is_empty()
                && !may_be_alone(self.in_flight, request)
                && let Some(rings) = &mut self.rings
                && push_to(&mut rings.main, file, key, slot, parts, 0)
            {
                return key;
            }
            key
        };
        self.queue_otherwise(key, ring, request);
        key
    }

    /// Submits an operation for another ring, or one that found the main ring full, or, with the next turn, one that the
    /// thread may carry out itself ([`super::alone`]).
    #[cold]
    fn queue_otherwise(&mut self, key: Key, ring: RingKind, request: &Request) {
        if ring == RingKind::Main && may_be_alone(self.in_flight, request) {
            return self.waiting.push_back(Waiting::Operation(key));
        }
        if ring != RingKind::Main {
            let count = self.rings.as_mut().and_then(|rings| rings.in_flight(ring));
            count.into_iter().for_each(|count| *count += 1);
        }
        // If there is no room, the operation waits; each of the next turns submits some of those that wait.
        self.submit_again(key);
    }

    /// Submits the rest of an operation.
    pub(super) fn submit_again(&mut self, key: Key) {
        if !self.waiting.is_empty() || !self.push(key) {
            self.waiting.push_back(Waiting::Operation(key));
        }
    }

    /// Puts the operation's next submission into the queue; returns false if the queue is full.
    fn push(&mut self, key: Key) -> bool {
        if self.slots.at(key.slot()).ring == RingKind::Aio {
            return self.push_to_aio(key);
        }
        let (slot, parts) = self.slots.with_parts(key.slot());
        match (self.rings.as_mut(), self.files.entry(slot.file)) {
            (Some(rings), Some(file)) => push(rings, file, key, slot, parts),
            _ => false,
        }
    }

    /// Submits waiting operations, as far as there is room.
    pub(super) fn submit_waiting(&mut self) {
        while let Some(&next) = self.waiting.front() {
            let pushed = match next {
                _ if self.is_withdrawn(next) => true,
                Waiting::Operation(key) => self.push(key),
                Waiting::Cancellation(key) => self.push_cancellation(key),
            };
            if !pushed {
                return;
            }
            self.waiting.pop_front();
        }
    }

    /// Returns whether an operation has ended or was withdrawn while it waited, so that nothing is left to submit.
    pub(super) fn is_withdrawn(&mut self, next: Waiting) -> bool {
        match next {
            Waiting::Operation(key) => self.slots.get(key).is_none_or(|slot| slot.state != State::Waiting),
            Waiting::Cancellation(_) => false,
        }
    }

    /// Returns whether another turn has something to do that need not wait for the end of an operation: something to
    /// submit, for instance the rest of an operation that the kernel has done in part, or completions for which the queue
    /// had no room. Nothing announces either.
    pub(super) fn must_turn_again(&self) -> bool {
        if self.shared.is_inherited() {
            return false;
        }
        let waits_for_room = !self.waiting.is_empty() && !self.context.is_out_of_room();
        let has_rest = |ring: &Ring| ring.waiting() > 0 || ring.has_overflowed();
        waits_for_room
            || self.rings.iter().flat_map(Rings::each).any(has_rest)
            || self.context.has_unsubmitted()
    }

    /// Makes the ring wait for messages again, if the thread has collected the last one that it was told to wait for. If the
    /// kernel refuses, the next turn does.
    #[inline]
    pub(super) fn listen(&mut self) {
        if self.rings.as_ref().is_some_and(|rings| !rings.wakeup_armed) && self.can_sleep_in_ring() {
            self.arm_wakeup(RingKind::Main);
            let _ = self.rings.as_mut().map(|rings| rings.main.enter(Until::Submitted, SLICE, None));
        }
    }

    /// Sleeps until there are `wanted` completions, if there are none yet. Does not sleep if `wanted` is 0.
    pub(super) fn enter(&mut self, wanted: u32, deadline: Option<Instant>, deferred: &mut Deferred) {
        let deadline = self.asked.limit(deadline);
        self.on_streams &= self.in_flight > 0;
        let mut wanted = if self.on_streams { wanted.min(1) } else { wanted };
        let most = if self.guards > 0 && !self.in_loop { u32::MAX } else { SLICE };
        let has_aio = self.context.aio.is_some();
        let mut refused = false;
        if has_aio {
            let ended = self.counts.ops;
            refused = self.submit_to_aio(most, deferred);
            if self.counts.ops != ended {
                // No completion announces a refused entry: its task must be woken first.
                wanted = 0;
            }
        }
        let Some(rings) = self.rings.as_ref() else {
            if !refused {
                self.refusals = None;
            }
            return self.wait_in_aio(wanted, deadline);
        };
        if has_aio && self.context.keeps_awake() {
            wanted = 0;
        } else if has_aio && self.context.open() > 0 {
            // One completion here may announce several finished operations there.
            wanted = wanted.min(1);
        }
        // Reset before the kernel is asked for the completions that it holds back, so that later ones signal again.
        rings.main.reset_completion_signal();
        let before = if rings.has_beside {
            self.enter_beside(wanted, deferred)
        } else {
            Entered { home: RingKind::Main, wanted, refused: false }
        };
        refused |= self.enter_home(before.home, before.wanted, most, deadline, deferred) || before.refused;
        if !refused {
            self.refusals = None;
        }
    }

    /// Enters the ring in which the thread may sleep. Returns whether the kernel refused its entries.
    #[inline(always)]
    fn enter_home(
        &mut self,
        home: RingKind,
        wanted: u32,
        most: u32,
        deadline: Option<Instant>,
        deferred: &mut Deferred,
    ) -> bool {
        let is_stuck = self.context.aio.is_some() && self.context.is_out_of_room();
        let Some(rings) = self.rings.as_mut() else { return false };
        // If the queue was too full to poll the wake-up descriptor, no thread could wake this one.
        let awaited = *rings.wakeup_of(home) && !rings.each().any(|ring| ring.buffers.has_released());
        let Some(ring) = rings.get(home) else { return false };
        let idle = !ring.has_completions() && (self.waiting.is_empty() || is_stuck);
        let sleeps = wanted > 0 && idle && awaited && self.shared.sleep.about_to_sleep_in_ring();
        let until = if sleeps {
            // Waiting for more completions than there are operations would never end.
            Until::Completed(wanted.min(self.in_flight as u32).max(1))
        } else if ring.has_deferred() || ring.waiting() > 0 {
            Until::Collected
        } else {
            Until::Submitted
        };
        let before = ring.enters;
        let at_most = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let answer = ring.enter(until, most, at_most);
        let entered = ring.enters != before;
        if entered {
            let (submitted, completed) = ring.enter_sizes();
            self.shared.counters.entered(submitted, completed);
        }
        let cut_off = ring.take_cut_off(IGNORED);
        rings.shut &= answer.is_err() || !entered;
        if sleeps {
            self.shared.sleep.woke();
        }
        if let Some(user_data) = cut_off {
            self.end_cut_off(Key::from_user_data(user_data), deferred);
        }
        self.was_refused(home, answer, deferred)
    }

    /// Ends the second of two linked operations, if the kernel took only the first. Submitted now, it would not wait
    /// for the first, and a sync could succeed before its write. It ends as if the first had cancelled it, and a
    /// durable write then syncs again when the write has ended. The kernel takes entries in order, so it never takes
    /// the second without the first.
    #[cold]
    fn end_cut_off(&mut self, key: Key, deferred: &mut Deferred) {
        if let Some(slot) = self.slots.get(key).filter(|slot| slot.state == State::InFlight) {
            slot.errno = libc::ECANCELED as u16;
            self.end(key, deferred);
        }
    }

    /// Returns whether the kernel refused entries. After EINTR, and for a while if the kernel lacks a resource, the
    /// next turn tries again. Any other errno is the answer to every operation that was not taken.
    #[inline]
    pub(super) fn was_refused(
        &mut self,
        kind: RingKind,
        answer: io::Result<()>,
        deferred: &mut Deferred,
    ) -> bool {
        answer.map_err(|error| self.refused(kind, error, deferred)).is_err()
    }

    #[cold]
    fn refused(&mut self, kind: RingKind, error: io::Error, deferred: &mut Deferred) {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        match errno {
            libc::EINTR | libc::ETIME => return,
            libc::EBUSY | libc::EAGAIN | libc::ENOMEM if self.may_ask_again() => return,
            _ => {}
        }
        let Some(rings) = self.rings.as_mut() else { return };
        if kind != RingKind::Main || !std::mem::replace(&mut rings.shut, true) {
            event::defer(move || {
                tracing::warn!(%error, "io_uring_enter failed, and so do the operations that it did not accept");
            });
        }
        self.refusals = None;
        let mut refused = Vec::new();
        if let Some(ring) = rings.get(kind) {
            ring.take_back(|user_data| refused.push(user_data));
        }
        for user_data in refused {
            let key = Key::from_user_data(user_data);
            if let Some(slot) = self.slots.get(key) {
                slot.errno = errno as u16;
                self.end(key, deferred);
            } else if let Some(index) = super::marks::index(user_data) {
                // The caller of the read in place has to look at the answer, and nothing else wakes the thread.
                self.answered_in_place(index, -errno);
                self.shared.sleep.notify();
            } else if user_data == WAKEUP
                && let Some(rings) = self.rings.as_mut()
            {
                *rings.wakeup_of(kind) = false;
            } else if user_data == COMMANDS
                && let Some(rings) = self.rings.as_mut()
            {
                rings.commands_announced = false;
            }
        }
    }

    /// Returns whether to try again after the kernel refused operations. Pauses first if there are no completions to
    /// collect and the thread has nothing else to do, so that it does not spin.
    pub(super) fn may_ask_again(&mut self) -> bool {
        let has_completions =
            self.rings.as_ref().is_some_and(|rings| rings.each().any(Ring::has_completions));
        let now = Instant::now();
        let refusals = self.refusals.get_or_insert(Refusals { last: now, lasted: Duration::ZERO });
        refusals.lasted += now.duration_since(refusals.last).min(REFUSED_GAP);
        refusals.last = now;
        let is_over = refusals.lasted >= REFUSED_PATIENCE;
        if has_completions {
            return true;
        }
        if self.may_pause && !is_over {
            self.pause_if_refused();
        }
        !is_over
    }

    /// Pauses if the kernel refuses operations, for a thread that does nothing but ask again.
    pub(super) fn pause_if_refused(&self) {
        if self.refusals.is_some() {
            std::thread::sleep(REFUSED_PAUSE);
        }
    }

    /// Asks the kernel to cancel an operation in flight. Most cannot be cancelled, and simply finish.
    fn push_cancellation(&mut self, key: Key) -> bool {
        let Some(slot) = self.slots.get(key) else { return true };
        if slot.ring == RingKind::Aio {
            self.cancel_in_aio(key);
            return true;
        }
        let Some(ring) = self.rings.as_mut().and_then(|rings| rings.get(slot.ring)) else { return true };
        let sqe = Sqe {
            opcode: uop::IORING_OP_ASYNC_CANCEL as u8,
            fd: -1,
            addr: key.to_user_data(),
            user_data: IGNORED,
            ..Sqe::default()
        };
        // SAFETY: the entry names no memory.
        unsafe { ring.push(sqe) }.is_some()
    }

    /// Makes a ring, or AIO without a ring, answer when another thread writes to the wake-up descriptor.
    #[inline]
    pub(super) fn arm_wakeup(&mut self, kind: RingKind) {
        let Some(rings) = self.rings.as_mut() else { return self.arm_wakeup_in_aio() };
        if !*rings.wakeup_of(kind)
            && let Ok(eventfd) = self.shared.eventfd(&mut self.wakeup)
        {
            let sqe = Sqe {
                opcode: uop::IORING_OP_POLL_ADD as u8,
                fd: eventfd,
                op_flags: libc::POLLIN as u32,
                len: if rings.wakeup_repeats { uapi::IORING_POLL_ADD_MULTI } else { 0 },
                user_data: WAKEUP,
                ..Sqe::default()
            };
            // SAFETY: the entry names no memory.
            let pushed = rings.get(kind).and_then(|ring| unsafe { ring.push(sqe) });
            *rings.wakeup_of(kind) = pushed.is_some();
        }
    }
}

/// Puts an operation's next submission into the queue of its ring; returns false if the queue is full.
fn push(rings: &mut Rings, file: &mut FileInUse, key: Key, slot: &mut Slot, parts: PartsOf<'_>) -> bool {
    if slot.ring.takes_commands() {
        return commands::push(rings, file, key, slot, parts);
    }
    let began = slot.progress.began(&slot.request, &*file.target);
    rings.get(slot.ring).is_some_and(|ring| push_to(ring, file, key, slot, parts, began))
}

/// Does what [`push`] does, on this ring, which takes no commands, from byte `began` on.
#[inline(always)]
fn push_to(
    ring: &mut Ring,
    file: &mut FileInUse,
    key: Key,
    slot: &mut Slot,
    mut parts: PartsOf<'_>,
    began: usize,
) -> bool {
    let request = &slot.request;
    // A linked operation must be submitted together with the one that waits for it, or later.
    if request.linked && ring.space() < 2 {
        return false;
    }
    let has_fixed_form = request.kind.has_fixed_form();
    let index = if has_fixed_form { fixed_index(&slot.held, ring) } else { None };
    let (fd, registered) = file.descriptor(slot.ring, ring);
    let Some(sqe) = ring.vacant() else { return false };
    let extra = if file.target.has_extra() {
        begin(file, request, slot.progress, &mut slot.marks, parts.reborrow())
    } else {
        0
    };
    let flags = if registered { FIXED_FILE } else { 0 } | if request.linked { LINK } else { 0 } | extra;
    let base = Sqe { flags, ..base(&file.target, key, request, fd) };
    op::fill(request, &slot.held, began, index, parts, base, sqe);
    slot.fixed &= index.is_some();
    // SAFETY: the entry was filled above, and names memory of the slot, see the module.
    slot.position = unsafe { ring.commit() };
    slot.state = State::InFlight;
    true
}

/// Notes when an operation began that was not submitted yet, if it is timed. Returns further flags for its entry.
#[cold]
#[inline(never)]
pub(super) fn begin(
    file: &FileInUse,
    request: &Request,
    progress: Progress,
    marks: &mut Marks,
    parts: PartsOf<'_>,
) -> u8 {
    if progress == Progress::default()
        && !marks.is_timed()
        && let Some(timed) = Timed::begin(&file.target, request, file.in_flight())
    {
        marks.set_timed(true);
        parts.get().timed = Some(timed);
    }
    if request.kind.has_fixed_form() && file.target.waits_in_submission() { ASYNC } else { 0 }
}

/// Fills the fields of an entry that do not depend on the kind of operation.
#[inline(always)]
fn base(target: &Target, key: Key, request: &Request, fd: i32) -> Sqe {
    Sqe {
        fd,
        user_data: key.to_user_data(),
        offset: target.offset(request.offset),
        // Of the operations that move data, only atomic writes have no fixed form, and they do not use the cache.
        op_flags: request.op_flags | if request.kind.has_fixed_form() { target.cache_flags() } else { 0 },
        ..Sqe::default()
    }
}

/// Returns the entry of an operation's next submission, without registered memory. It names memory of the slot.
#[inline]
pub(super) fn plain_entry(target: &Target, key: Key, slot: &Slot, parts: PartsOf<'_>) -> Sqe {
    let request = &slot.request;
    let began = slot.progress.began(request, target);
    let mut sqe = Sqe::default();
    let base = base(target, key, request, target.raw_fd());
    op::fill(request, &slot.held, began, None, parts, base, &mut sqe);
    sqe
}
