//! The ports of one driver, and what is done with each of them alike.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::aio::AioPort;
use super::entry::{AIO_WAKEUP, COMMANDS, IGNORED, WAKEUP};
use super::ring::RingPort;
use crate::counters::Metrics;
use crate::driver::mail::shared::Shared;
use crate::driver::op::PartsOf;
use crate::driver::slots::files::FileInUse;
use crate::driver::slots::key::Key;
use crate::driver::slots::slot::{Slot, State};
use crate::driver::target::port_kind::PortKind;
use crate::ring::{Cqe, RingOptions};

/// See the module. The extra rings are made after the main one.
pub(crate) struct Ports {
    pub(crate) main: Option<RingPort>,
    /// The extra rings; [`PortKind::extra`] is the place.
    pub(super) extra: [Option<RingPort>; 3],
    pub(super) has_extra: bool,
    pub(crate) aio: AioPort,
    /// When and why making the main ring failed.
    pub(super) failed: Option<(Instant, i32)>,
    /// What completions of the main ring signal, if a descriptor was asked for before there was a ring.
    pub(super) signal: Option<Arc<OwnedFd>>,
    /// The descriptor with which other threads wake this one, if it was created.
    pub(crate) wakeup: Option<Arc<OwnedFd>>,
    /// Whether the main ring polls the signal of the ring for commands.
    pub(super) commands_announced: bool,
    /// Whether the kernel refused the last `io_uring_enter` outright: a filter was installed since the ring was made.
    pub(super) shut: bool,
    /// Set while the kernel refuses operations for lack of a resource.
    pub(super) refusals: Option<Refusals>,
    /// Whether the thread has nothing else to do in this turn, and may pause before it asks the kernel again.
    pub(crate) may_pause: bool,
    /// The driver ends these before it collects completions.
    pub(crate) rejected: Vec<Rejected>,
    pub(crate) options: RingOptions,
    /// How other threads wake this one.
    pub(super) shared: Arc<Shared>,
}

/// Returns the ring of a kind, if it was created.
#[inline]
pub(super) fn of_kind<'a>(
    main: &'a mut Option<RingPort>,
    extra: &'a mut [Option<RingPort>; 3],
    kind: PortKind,
) -> Option<&'a mut RingPort> {
    if kind == PortKind::Main { main.as_mut() } else { extra[kind.extra()?].as_mut() }
}

/// An operation that the kernel did not take, and that is not in a queue any more.
pub(crate) struct Rejected {
    pub(crate) kind: PortKind,
    pub(crate) user_data: u64,
    pub(crate) errno: i32,
}

/// The kernel's refusals since it last accepted operations.
#[derive(Clone, Copy)]
pub(super) struct Refusals {
    pub(super) last: Instant,
    lasted: Duration,
}

/// How long to retry while the kernel accepts nothing (EAGAIN, EBUSY, ENOMEM) before its errno becomes the operations'
/// result.
const REFUSED_PATIENCE: Duration = Duration::from_secs(1);
const REFUSED_PAUSE: Duration = Duration::from_millis(1);
/// The time between two attempts counts as at most this much: the kernel might have accepted entries in a longer one,
/// if it had been asked.
const REFUSED_GAP: Duration = Duration::from_millis(100);

impl Ports {
    pub(crate) fn new(options: RingOptions, shared: Arc<Shared>) -> Self {
        Self {
            main: None,
            extra: [None, None, None],
            has_extra: false,
            aio: AioPort::default(),
            failed: None,
            signal: None,
            wakeup: None,
            commands_announced: false,
            shut: false,
            refusals: None,
            may_pause: false,
            rejected: Vec::new(),
            options,
            shared,
        }
    }

    /// Returns the ring of a kind, if it was created.
    #[inline]
    pub(crate) fn ring(&mut self, kind: PortKind) -> Option<&mut RingPort> {
        of_kind(&mut self.main, &mut self.extra, kind)
    }

    /// Returns every ring that was created.
    fn rings(&self) -> impl Iterator<Item = &RingPort> {
        self.main.iter().chain(self.extra.iter().flatten())
    }

    fn rings_mut(&mut self) -> impl Iterator<Item = &mut RingPort> {
        self.main.iter_mut().chain(self.extra.iter_mut().flatten())
    }

    /// Puts an operation's next submission into the queue of its port; returns false if the queue is full.
    pub(crate) fn push(
        &mut self,
        file: &mut FileInUse,
        key: Key,
        slot: &mut Slot,
        parts: PartsOf<'_>,
    ) -> bool {
        if slot.ring == PortKind::Aio {
            // If the thread may sleep elsewhere than in the context, completions must signal.
            let tells = self.main.is_some() || self.aio.signals;
            let signal = if tells { self.shared.eventfd(&mut self.wakeup).ok() } else { None };
            return self.aio.push(file, key, slot, parts, signal);
        }
        self.ring(slot.ring).is_some_and(|port| port.push_any(file, key, slot, parts))
    }

    /// Withdraws an entry, unless the kernel may already have it.
    pub(crate) fn withdraw(&mut self, kind: PortKind, key: Key, position: u32) -> bool {
        match kind {
            PortKind::Main | PortKind::Polled | PortKind::Commands | PortKind::PolledCommands => {
                let own = key.to_user_data();
                self.ring(kind).is_some_and(|port| port.ring.withdraw(position, own, IGNORED))
            }
            PortKind::Aio => self.aio.context.as_mut().is_some_and(|aio| aio.withdraw(position)),
        }
    }

    /// Asks the kernel to cancel an operation in flight; returns false if there is no room for that now. Most operations
    /// cannot be cancelled, and simply finish; in AIO none can.
    pub(crate) fn cancel(&mut self, key: Key, slot: &Slot) -> bool {
        match (slot.ring, &mut self.aio.context) {
            (PortKind::Aio, Some(aio)) if slot.state == State::InFlight => aio.cancel(slot.position),
            (PortKind::Aio, _) => {}
            (kind, _) => return self.ring(kind).is_none_or(|port| port.cancel(key)),
        }
        true
    }

    /// Takes the next completion of the main ring.
    #[inline(always)]
    pub(crate) fn complete(&mut self) -> Option<Cqe> {
        self.main.as_mut()?.ring.complete()
    }

    /// Takes the next completion of another port. AIO comes last: the wake-up descriptor, which announces its completions, is
    /// reset when the main ring's are collected.
    #[inline]
    pub(crate) fn complete_extra(&mut self) -> Option<(PortKind, Cqe)> {
        if self.has_extra
            && let Some(completed) = self.complete_in_extra_rings()
        {
            return Some(completed);
        }
        self.aio.context.as_mut()?.complete().map(|cqe| (PortKind::Aio, cqe))
    }

    #[cold]
    fn complete_in_extra_rings(&mut self) -> Option<(PortKind, Cqe)> {
        self.extra.iter_mut().flatten().find_map(|port| Some((port.kind, port.ring.complete()?)))
    }

    /// Ends a turn: what was released is not registered any more.
    #[inline]
    pub(crate) fn forget_released(&mut self) {
        self.rings_mut().for_each(|port| port.ring.buffers.forget_released());
    }

    /// Returns whether released memory is to be forgotten.
    pub(crate) fn has_released(&self) -> bool {
        self.rings().any(|port| port.ring.buffers.has_released())
    }

    /// Gives the rings' shares of registered memory back, which `uses` operations have used. No entry may be unsubmitted.
    pub(crate) fn forget_buffers(&mut self, uses: u64) {
        if self.are_ours() {
            self.rings_mut().for_each(|port| port.ring.buffers.forget_all(uses));
        }
    }

    /// Ends the registration of a file with the ring of its kind.
    pub(crate) fn unregister(&mut self, kind: PortKind, number: u32) {
        // A forked child's registered files belong to the parent's ring.
        if self.are_ours()
            && let Some(port) = self.ring(kind)
        {
            port.ring.set_file(number, None);
        }
    }

    /// Counts an operation that goes to a port of this kind, or has ended there. Those of the main ring follow from the
    /// driver's count, and AIO counts its own.
    #[cold]
    pub(crate) fn count(&mut self, kind: PortKind, begins: bool) {
        if let Some(place) = kind.extra()
            && let Some(port) = &mut self.extra[place]
        {
            port.in_flight = if begins { port.in_flight + 1 } else { port.in_flight - 1 };
        }
    }

    /// Takes an answer to an entry of the ports' own; returns false if it is none.
    #[cold]
    pub(crate) fn answered(&mut self, kind: PortKind, cqe: Cqe) -> bool {
        match cqe.user_data {
            IGNORED => {}
            WAKEUP => {
                let ends = self.ring(kind).is_some_and(|port| port.wakeup_answered(cqe));
                if ends || self.aio.signals {
                    self.reset_wakeup();
                }
            }
            COMMANDS => self.commands_announced = false,
            AIO_WAKEUP => self.reset_wakeup(),
            _ => return false,
        }
        true
    }

    /// Returns whether another turn has something to submit, or completions for which a queue had no room. Nothing
    /// announces either. `has_waiting`: operations wait for room.
    pub(crate) fn must_turn_again(&self, has_waiting: bool) -> bool {
        let has_rest = |port: &RingPort| port.ring.waiting() > 0 || port.ring.has_overflowed();
        has_waiting && !self.aio.is_out_of_room() || self.rings().any(has_rest) || self.aio.has_unsubmitted()
    }

    /// Returns whether this process created the ports' rings, and there are some.
    #[inline]
    pub(super) fn are_ours(&self) -> bool {
        self.main.as_ref().is_some_and(|main| main.ring.is_ours())
    }

    /// Returns whether the main ring could be made when it was last tried, or AIO takes its place.
    pub(crate) fn are_usable(&self) -> bool {
        self.failed.is_none() || self.aio.context.is_some()
    }

    /// Returns whether the kernel refuses operations for now.
    pub(crate) fn are_refused(&self) -> bool {
        self.refusals.is_some()
    }

    /// Pauses if the kernel refuses operations, for a thread that does nothing but ask again.
    pub(crate) fn pause_if_refused(&self) {
        if self.refusals.is_some() {
            std::thread::sleep(REFUSED_PAUSE);
        }
    }

    /// Returns whether to try again after the kernel refused operations. Pauses first if there are no completions to
    /// collect and the thread has nothing else to do, so that it does not spin.
    pub(super) fn may_ask_again(&mut self) -> bool {
        let has_completions = self.rings().any(|port| port.ring.has_completions());
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

    /// Adds what the ports count.
    #[inline]
    pub(crate) fn add_counts(&self, counts: &mut Metrics) {
        for port in self.rings() {
            counts.enters += port.ring.enters;
            counts.refused_registrations += port.ring.buffers.refusals;
        }
        counts.aio_calls += self.aio.context.as_ref().map_or(0, |aio| aio.calls);
        counts.refused_contexts += self.aio.refused_contexts;
    }

    /// Returns whether a ring or an AIO context was created.
    pub(crate) fn is_some(&self) -> bool {
        self.main.is_some() || self.aio.context.is_some()
    }

    /// Leaves the rings and the context to the parent of this forked child.
    pub(crate) fn disown(&mut self) {
        std::mem::forget((self.main.take(), std::mem::take(&mut self.extra), self.aio.context.take()));
    }
}
