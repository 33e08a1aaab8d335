//! The rings of a thread: one of each kind, made when the first operation needs it; where none can be had, AIO.
//!
//! Knows what each kind can do, and no operation in flight. What always holds: a kind's properties are asked here, by
//! matches without a wildcard, so that a new kind of ring does not compile before each has an answer.

use std::time::{Duration, Instant};

use super::refused::{Lack, Refused, set_up_errno, set_up_failed};
use super::route::Backend;
use super::{Driver, Kind, Request, Target, route};
use crate::ring::{Ring, RingOptions};

/// A failed set-up is not tried again at once: on `ENOMEM` a try takes 200 ms.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The kind of ring that an operation goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RingKind {
    /// The kernel announces completions.
    Main,
    /// Completions are polled from the device (`IORING_SETUP_IOPOLL`).
    Polled,
    /// Not a ring: the thread's AIO context, [`super::aio`].
    Aio,
}

impl RingKind {
    /// In the order in which completions are collected. AIO is last: the wake-up descriptor, which tells of its completions, is
    /// reset where the main ring's are collected.
    pub(super) const ALL: [Self; 3] = [Self::Main, Self::Polled, Self::Aio];

    /// Whether a thread that sleeps is woken by a completion; otherwise it has to ask for completions in a loop.
    pub(crate) fn announces(self) -> bool {
        match self {
            Self::Main | Self::Aio => true,
            Self::Polled => false,
        }
    }
}

/// See the module.
pub(super) struct Rings {
    pub main: Ring,
    polled: Option<Ring>,
    /// Operations in flight on rings that do not announce completions.
    pub unannounced: usize,
    pub wakeup_armed: bool,
    pub wakeup_repeats: bool,
    /// The kernel refused the last `io_uring_enter` outright: a filter was installed since the ring was made.
    pub shut: bool,
}

impl Rings {
    fn new(main: Ring) -> Self {
        Self { main, polled: None, unannounced: 0, wakeup_armed: false, wakeup_repeats: true, shut: false }
    }

    /// The ring of a kind, where it was made.
    #[inline]
    pub(super) fn get(&mut self, kind: RingKind) -> Option<&mut Ring> {
        match kind {
            RingKind::Main => Some(&mut self.main),
            RingKind::Polled => self.polled.as_mut(),
            RingKind::Aio => None,
        }
    }

    /// Every ring there is.
    pub(super) fn each(&self) -> impl Iterator<Item = &Ring> {
        std::iter::once(&self.main).chain(&self.polled)
    }

    pub(super) fn each_mut(&mut self) -> impl Iterator<Item = &mut Ring> {
        std::iter::once(&mut self.main).chain(&mut self.polled)
    }

    /// Whether this process made the rings.
    #[inline]
    pub(super) fn are_ours(&self) -> bool {
        self.main.is_ours()
    }

    /// Whether an operation on `target` can be submitted as things are.
    #[inline]
    fn take(&self, target: &Target, kind: Kind) -> bool {
        if !kind.moves_data() {
            return self.main.supports(kind.opcode());
        }
        match target.ring {
            RingKind::Main => true,
            RingKind::Polled => self.polled.is_some(),
            RingKind::Aio => false,
        }
    }
}

impl Driver {
    /// Makes sure that an operation on `target` can be submitted, and says where; `own` as for [`takes`](Self::takes).
    #[inline]
    pub(super) fn may_start(
        &mut self,
        target: &Target,
        request: &Request,
        own: bool,
    ) -> Result<RingKind, Refused> {
        match &self.rings {
            Some(rings) if self.takes(own) && rings.are_ours() && rings.take(target, request.kind) => {
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
        // Once the context stands in for the ring, what it takes is not what a ring is tried again for.
        if ring == RingKind::Aio || self.rings.is_none() && self.context.may_take(target, request) {
            return self.prepare_aio(target, request);
        }
        if self.rings.is_none() {
            match self.make_rings() {
                Ok(rings) => self.rings = Some(rings),
                Err(lack) => return self.prepare_aio_instead(target, request, lack),
            }
        }
        self.prepare_ring(target, request.kind)
    }

    #[cold]
    fn prepare_ring(&mut self, target: &Target, kind: Kind) -> Result<RingKind, Refused> {
        let ring = target.ring_for(kind);
        let Some(rings) = self.rings.as_mut() else { return Err(Refused::Outside) };
        if ring == RingKind::Polled && rings.polled.is_none() {
            let options = RingOptions { iopoll: true, sqpoll_idle: None, ..self.options };
            let polled = Ring::new(&options, self.shared.waker())
                .map_err(|error| Refused::Finally(set_up_failed(set_up_errno(&error))))?;
            rings.polled = Some(polled);
        }
        if rings.take(target, kind) { Ok(ring) } else { Err(Refused::Unsupported) }
    }

    pub(super) fn make_rings(&mut self) -> Result<Rings, Lack> {
        if let Some(lack) = Lack::forbidden() {
            return Err(lack);
        }
        if let Some((when, errno)) = self.failed
            && when.elapsed() < TRY_AGAIN_AFTER
        {
            return Err(Lack::Ring(errno));
        }
        let made = self.shared.eventfd().and_then(|_| Ring::new(&self.options, self.shared.waker()));
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

    /// Not in a parent's ring after a fork, nor in one that may not be entered when nothing is in flight; in the AIO context
    /// only while it has operations.
    #[inline]
    pub(super) fn can_sleep_in_ring(&self) -> bool {
        match &self.rings {
            Some(rings) => rings.are_ours() && !(rings.shut && self.is_idle()),
            None => self.context.open() > 0 && !self.shared.is_inherited(),
        }
    }
}
