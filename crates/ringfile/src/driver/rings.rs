//! The rings of a thread: one of each kind, created when the first operation needs it.
//!
//! Knows what each kind can do, and no operation in flight. Invariant: the properties of a kind are decided here, by
//! matches without a wildcard, so that a new kind of ring does not compile before each has an answer.

use std::time::{Duration, Instant};

use linux_raw_sys::io_uring::io_uring_op as uop;

use super::op::Request;
use super::ring_kind::RingKind;
use super::target::Target;
use crate::memory::{Held, Part};
use crate::ring::Ring;

/// Returns the errno of a set-up that failed less than a second ago, and so is not tried again yet: on `ENOMEM` an
/// attempt takes 200 ms.
pub(super) fn recent(failed: Option<(Instant, i32)>) -> Option<i32> {
    failed.filter(|(when, _)| when.elapsed() < Duration::from_secs(1)).map(|(_, errno)| errno)
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
    /// Whether the main ring polls the signal of the ring for commands.
    pub commands_announced: bool,
    pub wakeup_armed: bool,
    /// Whether the ring for commands polls the wake-up descriptor.
    pub commands_wakeup_armed: bool,
    pub wakeup_repeats: bool,
    /// Whether the kernel refused the last `io_uring_enter` outright: a filter was installed since the ring was made.
    pub shut: bool,
}

impl Rings {
    pub(super) fn new(main: Ring) -> Self {
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

    /// Returns the counter of operations in flight on rings of this kind; `None` if there is none.
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

    pub(super) fn add(&mut self, kind: RingKind, ring: Ring) {
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
    #[inline(always)]
    pub(super) fn take(&self, target: &Target, request: &Request) -> bool {
        if target.ring == RingKind::Main && request.kind.moves_data() {
            return !target.is_misplaced_by_rings(request.kind);
        }
        self.take_unusual(target, request)
    }

    /// As [`take`](Self::take), for all but reads and writes of a file on the main ring.
    #[inline(never)]
    fn take_unusual(&self, target: &Target, request: &Request) -> bool {
        let kind = request.kind;
        let ring = target.ring_for(kind);
        match ring {
            RingKind::Main => {
                kind.opcode().is_some_and(|code| self.main.supports(code)) && request.fits_an_entry()
            }
            RingKind::Polled | RingKind::Commands | RingKind::PolledCommands | RingKind::Aio => {
                ring.beside().is_some_and(|place| self.beside[place].is_some())
            }
        }
    }
}

/// Returns the index of the registered region that contains all parts of a buffer.
#[inline(always)]
pub(super) fn fixed_index(held: &Held, ring: &mut Ring) -> Option<u16> {
    if let Held::Pooled(buffer) = held
        && let Some(index) = ring.buffers.recent_index_of(buffer.as_ptr(), buffer.capacity())
    {
        return Some(index);
    }
    found_index(held, ring)
}

/// As `fixed_index`, for memory other than a buffer in the last operation's region.
#[inline(never)]
fn found_index(held: &Held, ring: &mut Ring) -> Option<u16> {
    if held.count() > 1 && !ring.supports(uop::IORING_OP_READV_FIXED as u8) {
        return None;
    }
    match held {
        Held::Bytes(bytes) => return ring.buffers.index_of_bytes(std::slice::from_ref(bytes)),
        Held::ManyBytes(all) => return ring.buffers.index_of_bytes(all),
        Held::None | Held::Pooled(_) | Held::Vec(_) | Held::Buffers(_) | Held::Vecs(_) => {}
        Held::Other(_) | Held::Paths(_) | Held::Destination(_) => {}
    }
    let first = held.part(0)?.region?;
    let same = |part: Part<'_>| part.region.is_some_and(|region| std::ptr::eq(first, region));
    if held.count() > 1 && !held.parts().all(same) {
        return None;
    }
    ring.buffers.index_of(first)
}
