//! Whether an operation can be submitted, and to which ring; creates the ring that it needs.

use std::time::Instant;

use super::op::Request;
use super::refused::{Lack, Refused, set_up_errno};
use super::ring_kind::RingKind;
use super::rings::{Rings, recent};
use super::route::{self, Backend};
use super::state::Driver;
use super::target::Target;
use crate::ring::Ring;

impl Driver {
    /// Ensures that an operation on `target` can be submitted, and returns the kind of ring that takes it. For `own`
    /// see [`takes`](Self::takes).
    pub(super) fn may_start(
        &mut self,
        target: &Target,
        request: &Request,
        own: bool,
    ) -> Result<RingKind, Refused> {
        match self.ready_ring(target, request, own) {
            Some(ring) => Ok(ring),
            None => self.prepare(target, request, own),
        }
    }

    /// Returns what [`may_start`](Self::may_start) returns, if nothing has to be prepared.
    #[inline(always)]
    pub(super) fn ready_ring(&self, target: &Target, request: &Request, own: bool) -> Option<RingKind> {
        let rings = self.rings.as_ref()?;
        (self.takes(own) && rings.are_ours() && rings.take(target, request))
            .then(|| target.ring_for(request.kind))
    }

    #[inline(never)]
    pub(super) fn prepare(
        &mut self,
        target: &Target,
        request: &Request,
        own: bool,
    ) -> Result<RingKind, Refused> {
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
        if self.options.is_joint && !matches!(ring, RingKind::Main | RingKind::Aio) {
            // Nothing would wake the threads that share the driver.
            return Err(Refused::Outside);
        }
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

    /// Returns whether the thread may sleep in its ring, or in the AIO context: not in the parent's ring after a fork,
    /// not in a ring that the kernel refuses to enter while nothing is in flight, and in the AIO context only while it
    /// has operations.
    #[inline]
    pub(super) fn can_sleep_in_ring(&self) -> bool {
        match &self.rings {
            Some(rings) => rings.are_ours() && !(rings.shut && self.is_idle()),
            None => self.context.open() > 0 && !self.shared.is_inherited(),
        }
    }
}
