//! The rings of a thread: one of each kind, created when the first operation needs it; without io_uring, AIO.
//!
//! Knows what each kind can do, and no operation in flight. Invariant: the properties of a kind are decided here, by
//! matches without a wildcard, so that a new kind of ring does not compile before each has an answer.

use std::time::{Duration, Instant};

use super::refused::{Lack, Refused, set_up_errno};
use super::route::Backend;
use super::{Driver, Request, Target, route};
use crate::ring::{Ring, RingOptions};

/// Returns the errno of a failed set-up that is not retried yet: on `ENOMEM` an attempt takes 200 ms.
pub(super) fn recent(failed: Option<(Instant, i32)>) -> Option<i32> {
    failed.filter(|(when, _)| when.elapsed() < Duration::from_secs(1)).map(|(_, errno)| errno)
}

/// The kind of ring that an operation goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RingKind {
    /// The kernel announces completions.
    Main,
    /// Completions are polled from the device (`IORING_SETUP_IOPOLL`).
    Polled,
    /// Entries have room for NVMe commands ([`super::commands`]).
    Commands,
    /// As [`Commands`](Self::Commands), and completions are polled.
    PolledCommands,
    /// Not a ring: the thread's AIO context, [`super::aio`].
    Aio,
}

impl RingKind {
    /// Returns every other kind of ring.
    pub(super) fn others(self) -> impl Iterator<Item = Self> {
        let all = [Self::Main, Self::Polled, Self::Commands, Self::PolledCommands];
        all.into_iter().filter(move |&kind| kind != self)
    }

    /// Returns the place of such a ring among those beside the main one.
    fn beside(self) -> Option<usize> {
        match self {
            Self::Main | Self::Aio => None,
            Self::Polled => Some(0),
            Self::Commands => Some(1),
            Self::PolledCommands => Some(2),
        }
    }

    /// Returns whether a completion wakes a sleeping thread; otherwise the thread must poll.
    pub(crate) fn announces(self) -> bool {
        match self {
            Self::Main | Self::Commands | Self::Aio => true,
            Self::Polled | Self::PolledCommands => false,
        }
    }

    /// Returns whether submissions are NVMe commands.
    #[inline]
    pub(crate) fn takes_commands(self) -> bool {
        match self {
            Self::Main | Self::Polled | Self::Aio => false,
            Self::Commands | Self::PolledCommands => true,
        }
    }

    /// Returns the kind of ring for operations without data, of a file whose reads and writes go here.
    pub(super) fn without_data(self) -> Self {
        match self {
            Self::Main | Self::Polled | Self::Aio => Self::Main,
            Self::Commands | Self::PolledCommands => Self::Commands,
        }
    }

    /// Returns the options of such a ring, given those of the main one.
    pub(super) fn options(self, options: &RingOptions) -> RingOptions {
        let (iopoll, commands) = (!self.announces(), self.takes_commands());
        RingOptions { iopoll, commands, sqpoll_idle: None, ..*options }
    }
}

pub(super) struct Rings {
    pub main: Ring,
    /// The other rings, each made when first needed; [`RingKind::beside`] is the place.
    beside: [Option<Ring>; 3],
    pub has_beside: bool,
    /// Operations in flight on rings that do not announce completions.
    pub unannounced: usize,
    /// Operations in flight on the ring for commands that announces them.
    pub commands: usize,
    /// The main ring polls the signal of the ring for commands.
    pub commands_announced: bool,
    pub wakeup_armed: bool,
    /// The ring for commands polls the wake-up descriptor.
    pub commands_wakeup_armed: bool,
    pub wakeup_repeats: bool,
    /// The kernel refused the last `io_uring_enter` outright: a filter was installed since the ring was made.
    pub shut: bool,
}

impl Rings {
    fn new(main: Ring) -> Self {
        Self {
            main,
            beside: [None, None, None],
            has_beside: false,
            unannounced: 0,
            commands: 0,
            commands_announced: false,
            wakeup_armed: false,
            commands_wakeup_armed: false,
            wakeup_repeats: true,
            shut: false,
        }
    }

    /// Returns the count of operations in flight on such rings.
    #[cold]
    pub(super) fn in_flight(&mut self, kind: RingKind) -> Option<&mut usize> {
        match kind {
            RingKind::Main | RingKind::Aio => None,
            RingKind::Commands => Some(&mut self.commands),
            RingKind::Polled | RingKind::PolledCommands => Some(&mut self.unannounced),
        }
    }

    /// Returns whether the ring of a kind polls the descriptor by which other threads wake this one.
    #[inline]
    pub(super) fn wakeup_of(&mut self, kind: RingKind) -> &mut bool {
        if kind.takes_commands() { &mut self.commands_wakeup_armed } else { &mut self.wakeup_armed }
    }

    /// Returns the ring of a kind, if it was created.
    #[inline]
    pub(super) fn get(&mut self, kind: RingKind) -> Option<&mut Ring> {
        if kind == RingKind::Main { Some(&mut self.main) } else { self.beside[kind.beside()?].as_mut() }
    }

    fn add(&mut self, kind: RingKind, ring: Ring) {
        if let Some(place) = kind.beside() {
            self.beside[place] = Some(ring);
            self.has_beside = true;
        }
    }

    /// Returns every ring that was created.
    pub(super) fn each(&self) -> impl Iterator<Item = &Ring> {
        let [polled, commands, polled_commands] = &self.beside;
        std::iter::once(&self.main).chain(polled).chain(commands).chain(polled_commands)
    }

    pub(super) fn each_mut(&mut self) -> impl Iterator<Item = &mut Ring> {
        let [polled, commands, polled_commands] = &mut self.beside;
        std::iter::once(&mut self.main).chain(polled).chain(commands).chain(polled_commands)
    }

    /// Returns whether this process created the rings.
    #[inline]
    pub(super) fn are_ours(&self) -> bool {
        self.main.is_ours()
    }

    /// Returns whether an operation on `target` can be submitted now.
    #[inline]
    fn take(&self, target: &Target, request: &Request) -> bool {
        let kind = request.kind;
        let ring = target.ring_for(kind);
        match ring {
            RingKind::Main if kind.moves_data() => !target.is_misplaced_by_rings(kind),
            RingKind::Main => self.main.supports(kind.opcode()) && request.fits_an_entry(),
            RingKind::Polled | RingKind::Commands | RingKind::PolledCommands | RingKind::Aio => {
                ring.beside().is_some_and(|place| self.beside[place].is_some())
            }
        }
    }
}

impl Driver {
    /// Ensures that an operation on `target` can be submitted, and returns where; `own` as for [`takes`](Self::takes).
    #[inline]
    pub(super) fn may_start(
        &mut self,
        target: &Target,
        request: &Request,
        own: bool,
    ) -> Result<RingKind, Refused> {
        match &self.rings {
            Some(rings) if self.takes(own) && rings.are_ours() && rings.take(target, request) => {
                Ok(target.ring_for(request.kind))
            }
            _ => self.prepare(target, request, own),
        }
    }

    #[inline(never)]
    fn prepare(&mut self, target: &Target, request: &Request, own: bool) -> Result<RingKind, Refused> {
        if !self.takes(own) {
            return Err(Refused::Outside);
        }
        if route::workers_are_forced() {
            return Err(Refused::NoRing(Lack::Forbidden(Backend::Workers)));
        }
        if self.shared.is_inherited() {
            return Err(Refused::Forked);
        }
        let ring = target.ring_for(request.kind);
        // Once the context replaces the ring, operations that it accepts do not make the driver try a ring again.
        if ring == RingKind::Aio
            || self.rings.is_none() && !ring.takes_commands() && self.context.may_take(target, request)
        {
            return self.prepare_aio(target, request);
        }
        if self.rings.is_none() {
            match self.make_rings() {
                Ok(rings) => self.rings = Some(rings),
                Err(lack) if ring.takes_commands() => return Err(Refused::NoRing(lack)),
                Err(lack) => return self.prepare_aio_instead(target, request, lack),
            }
        }
        self.prepare_ring(target, request)
    }

    #[cold]
    fn prepare_ring(&mut self, target: &Target, request: &Request) -> Result<RingKind, Refused> {
        let ring = target.ring_for(request.kind);
        let Some(rings) = self.rings.as_mut() else { return Err(Refused::Outside) };
        if rings.get(ring).is_none() {
            let made = Ring::new(&ring.options(&self.options), self.shared.waker())
                .map_err(|error| Refused::Finally(Lack::Ring(set_up_errno(&error))))?;
            rings.add(ring, made);
        }
        if rings.take(target, request) { Ok(ring) } else { Err(Refused::Unsupported) }
    }

    pub(super) fn make_rings(&mut self) -> Result<Rings, Lack> {
        if let Some(lack) = Lack::forbidden() {
            return Err(lack);
        }
        if let Some(errno) = recent(self.failed) {
            return Err(Lack::Ring(errno));
        }
        let made =
            self.shared.eventfd(&mut self.wakeup).and_then(|_| Ring::new(&self.options, self.shared.waker()));
        let made = made.and_then(|mut ring| ring.signal_as(self.signal.clone()).map(|_| ring));
        match made {
            Ok(main) => {
                self.failed = None;
                Ok(Rings::new(main))
            }
            Err(error) => {
                let errno = set_up_errno(&error);
                self.failed = Some((Instant::now(), errno));
                Err(Lack::Ring(errno))
            }
        }
    }

    /// Returns whether the thread may sleep in its ring, or in the AIO context: not in a parent's ring after a fork, not in a
    /// ring that must not be entered when nothing is in flight, and in the AIO context only while it has operations.
    #[inline]
    pub(super) fn can_sleep_in_ring(&self) -> bool {
        match &self.rings {
            Some(rings) => rings.are_ours() && !(rings.shut && self.is_idle()),
            None => self.context.open() > 0 && !self.shared.is_inherited(),
        }
    }
}
