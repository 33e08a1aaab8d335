//! Whether an operation can be submitted, and to which port; creates the port that it needs.

use std::time::{Duration, Instant};

use super::aio::is_for_aio;
use super::entry::AIO_WAKEUP;
use super::ring::RingPort;
use super::set::Ports;
use crate::aio::Aio;
use crate::driver::op::Request;
use crate::driver::refused::{Lack, Refused, set_up_errno, warn_of_no_aio, warn_of_no_ring};
use crate::driver::target::Target;
use crate::driver::target::port_kind::PortKind;
use crate::driver::target::route::{self, Backend};
use crate::ring::Ring;

/// The size of an AIO context, if the system's limit allows it: many times a drive's queue depth.
const OPERATIONS: u32 = 512;

/// Returns the errno of a set-up that failed less than a second ago, and so is not tried again yet: on `ENOMEM` an
/// attempt takes 200 ms.
fn recent(failed: Option<(Instant, i32)>) -> Option<i32> {
    failed.filter(|(when, _)| when.elapsed() < Duration::from_secs(1)).map(|(_, errno)| errno)
}

impl Ports {
    /// Returns the ring that takes an operation on `target`, if nothing has to be prepared.
    #[inline(always)]
    pub(crate) fn ready(&self, target: &Target, request: &Request) -> Option<PortKind> {
        (self.are_ours() && self.take(target, request)).then(|| target.ring_for(request.kind))
    }

    /// Returns whether an operation on `target` can be submitted now, to a ring.
    #[inline(always)]
    fn take(&self, target: &Target, request: &Request) -> bool {
        if target.ring == PortKind::Main && request.kind.moves_data() {
            return !target.is_misplaced_by_rings(request.kind);
        }
        self.take_unusual(target, request)
    }

    /// As [`take`](Self::take), for all but reads and writes of a file on the main ring.
    #[inline(never)]
    fn take_unusual(&self, target: &Target, request: &Request) -> bool {
        let kind = target.ring_for(request.kind);
        let port = match kind.extra() {
            None => self.main.as_ref().filter(|_| kind == PortKind::Main),
            Some(place) => self.extra[place].as_ref(),
        };
        port.is_some_and(|port| {
            // The kernel looks paths up with the rights of the thread that submits.
            let is_own = !self.options.is_shared && !port.ring.is_sqpoll();
            port.takes(request) && (is_own || !request.kind.names_paths())
        })
    }

    /// Ensures that an operation on `target` can be submitted, and returns the port that takes it.
    #[inline(never)]
    pub(crate) fn prepare(&mut self, target: &Target, request: &Request) -> Result<PortKind, Refused> {
        if route::workers_are_forced() {
            return Err(Refused::NoRing(Lack::Forbidden(Backend::Workers)));
        }
        if self.shared.is_inherited() {
            return Err(Refused::Forked);
        }
        let kind = target.ring_for(request.kind);
        if self.options.is_shared && !matches!(kind, PortKind::Main | PortKind::Aio) {
            // Nothing would wake the threads that share the driver.
            return Err(Refused::Outside);
        }
        // Once the context replaces the ring, operations that it accepts do not make the driver try a ring again.
        if kind == PortKind::Aio
            || self.main.is_none() && !kind.takes_commands() && self.aio.may_take(target, request)
        {
            return self.prepare_aio(target, request);
        }
        if self.main.is_none() {
            match self.make_main() {
                Ok(()) => {}
                Err(lack) if kind.takes_commands() => return Err(Refused::NoRing(lack)),
                Err(lack) => return self.prepare_aio_instead(target, request, lack),
            }
        }
        self.prepare_extra(kind)?;
        if self.take(target, request) { Ok(kind) } else { Err(Refused::Unsupported) }
    }

    /// Creates the extra ring of a kind, if there is none.
    #[cold]
    fn prepare_extra(&mut self, kind: PortKind) -> Result<(), Refused> {
        if let Some(place) = kind.extra()
            && self.extra[place].is_none()
        {
            let ring = Ring::new(&kind.options(&self.options), self.shared.waker())
                .map_err(|error| Refused::Finally(Lack::Ring(set_up_errno(&error))))?;
            self.extra[place] = Some(RingPort::new(ring, kind));
            self.has_extra = true;
        }
        Ok(())
    }

    /// Creates the main ring.
    pub(crate) fn make_main(&mut self) -> Result<(), Lack> {
        if let Some(lack) = Lack::forbidden() {
            return Err(lack);
        }
        if let Some(errno) = recent(self.failed) {
            return Err(Lack::Ring(errno));
        }
        let made =
            self.shared.eventfd(&mut self.wakeup).and_then(|_| Ring::new(&self.options, self.shared.waker()));
        match made.and_then(|mut ring| ring.signal_as(self.signal.clone()).map(|_| ring)) {
            Ok(ring) => {
                self.failed = None;
                self.main = Some(RingPort::new(ring, PortKind::Main));
                Ok(())
            }
            Err(error) => {
                let errno = set_up_errno(&error);
                self.failed = Some((Instant::now(), errno));
                Err(Lack::Ring(errno))
            }
        }
    }

    /// Does what [`prepare`](Self::prepare) does, for an operation that must use AIO. Creates the context if
    /// there is none.
    fn prepare_aio(&mut self, target: &Target, request: &Request) -> Result<PortKind, Refused> {
        if !is_for_aio(target, request) {
            return Err(Refused::Unsupported);
        }
        if let Some(errno) = self.aio.refused {
            return Err(Refused::NoRing(Lack::Aio(errno)));
        }
        if self.aio.context.is_none() {
            self.aio.context = Some(self.make_aio().map_err(Refused::NoRing)?);
        }
        Ok(PortKind::Aio)
    }

    #[cold]
    fn make_aio(&mut self) -> Result<Aio, Lack> {
        if let Some(errno) = recent(self.aio.failed) {
            return Err(Lack::Aio(errno));
        }
        let operations = self.options.entries.saturating_mul(2).clamp(OPERATIONS, 1 << 14);
        let made =
            self.shared.eventfd(&mut self.wakeup).and_then(|wakeup| Aio::new(operations, wakeup, AIO_WAKEUP));
        made.inspect(|_| self.aio.failed = None).map_err(|error| {
            let errno = set_up_errno(&error);
            self.aio.failed = Some((Instant::now(), errno));
            self.aio.refused_contexts += 1;
            Lack::Aio(errno)
        })
    }

    /// Does what [`prepare_aio`](Self::prepare_aio) does, for an operation that wanted a ring. `lack` says why there is
    /// none.
    #[cold]
    fn prepare_aio_instead(
        &mut self,
        target: &Target,
        request: &Request,
        lack: Lack,
    ) -> Result<PortKind, Refused> {
        let prepared = self.prepare_aio(target, request);
        match &prepared {
            Ok(_) => warn_of_no_ring(lack),
            Err(Refused::NoRing(why)) => warn_of_no_aio(*why),
            Err(_) => {}
        }
        prepared.map_err(|_| Refused::NoRing(lack))
    }
}
