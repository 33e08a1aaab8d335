//! Operations in flight: their buffers, their progress, and which task to wake.
//!
//! A slot owns its buffer until the kernel has answered. Slots are reused; a generation distinguishes the operations of
//! one slot. Nothing here allocates once there are as many slots as there were ever operations in flight.

use std::sync::Arc;

use super::handler::{Finished, Handler, LocalHandlers};
use super::key::Key;
use super::loan::Lend;
use super::wake::Wake;
use crate::driver::op::{Kind, OpResult, PartsOf, Progress, Request, SlotParts};
use crate::driver::target::port_kind::PortKind;
use crate::memory::IoMemory;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Free,
    /// Waits for room in the submission queue.
    Waiting,
    /// In the submission queue, or with the kernel.
    InFlight,
    /// Answered; the result waits for its future.
    Done,
}

/// The receiver of the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// A future on this thread.
    Here,
    /// A future that moved to another thread.
    Remote,
    /// There is none: the future was dropped.
    None,
}

/// What the end of an operation has to consider, in one number: an operation of [`Owner::Here`] that is not timed has 0, so
/// one check at its end covers both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Marks(u8);

impl Marks {
    pub(crate) const NONE: Self = Self(0);
    const REMOTE: u8 = 1;
    const NO_OWNER: u8 = 2;
    /// The operation is timed: [`SlotParts`] has the time at which it began.
    const TIMED: u8 = 4;

    #[inline]
    pub(crate) fn owner(self) -> Owner {
        if self.0 & Self::REMOTE != 0 {
            Owner::Remote
        } else if self.0 & Self::NO_OWNER != 0 {
            Owner::None
        } else {
            Owner::Here
        }
    }

    pub(crate) fn set_owner(&mut self, owner: Owner) {
        let owner = match owner {
            Owner::Here => 0,
            Owner::Remote => Self::REMOTE,
            Owner::None => Self::NO_OWNER,
        };
        self.0 = owner | self.0 & Self::TIMED;
    }

    pub(crate) fn is_timed(self) -> bool {
        self.0 & Self::TIMED != 0
    }

    pub(crate) fn set_timed(&mut self, is_timed: bool) {
        self.0 = self.0 & !Self::TIMED | if is_timed { Self::TIMED } else { 0 };
    }
}

/// At most two cache lines, aligned: by the time they are used, copying data has evicted them from the first-level
/// cache.
#[repr(align(64))]
pub(crate) struct Slot {
    pub generation: u32,
    pub state: State,
    /// Whether every submission so far used a registered buffer.
    pub fixed: bool,
    pub marks: Marks,
    /// Whether the operation was cancelled: the kernel's next answer ends it.
    pub cancelled: bool,
    /// The kind of port that it is submitted to.
    pub ring: PortKind,
    /// Whether the kernel cancels it if the linked operation before it fails or is short.
    pub behind_link: bool,
    /// 0, or the errno with which the operation failed; Linux has no errno above 4095.
    pub errno: u16,
    pub file: u32,
    /// The entry's position in the submission queue; in a free slot, the next free one.
    pub position: u32,
    pub request: Request,
    pub progress: Progress,
    pub memory: IoMemory,
    pub wake: Wake,
}

const _: () = assert!(size_of::<Slot>() <= 128);

impl Slot {
    /// Puts the slot with this index at the head of the list of free ones. Returns how its operation ended.
    #[inline]
    fn free(&mut self, index: u32, list: &mut u32) -> OpResult {
        debug_assert!(matches!((&self.wake, &self.memory), (Wake::None, IoMemory::None)));
        self.state = State::Free;
        self.generation = self.generation.wrapping_add(1).max(1);
        self.position = std::mem::replace(list, index);
        OpResult { done: self.progress.done(), errno: self.errno.into() }
    }
}

const NONE: u32 = u32::MAX;

/// All slots of a driver.
pub(crate) struct Slots {
    slots: Vec<Slot>,
    /// Further memory that entries point to, by slot, allocated when first needed: the addresses of a vectored
    /// operation's parts, which lie inside the memory of the slot's `memory`. It does not move while the kernel has the
    /// operation.
    parts: Vec<SlotParts>,
    free: u32,
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), parts: Vec::new(), free: NONE }
    }

    /// Returns how many slots there are, in use or free.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// Returns a slot for `request`, which the caller submits, and the place for the addresses of its parts.
    #[inline]
    pub(crate) fn insert<'a>(
        &'a mut self,
        request: &Request,
        memory: &mut impl Lend,
        file: u32,
        ring: PortKind,
        wake: &mut Wake,
    ) -> (Key, &'a mut Slot, PartsOf<'a>) {
        if self.free == NONE {
            self.grow();
        }
        let index = self.free;
        let slot = &mut self.slots[index as usize];
        self.free = slot.position;
        slot.state = State::Waiting;
        slot.fixed = true;
        slot.marks = Marks::NONE;
        slot.cancelled = false;
        slot.ring = ring;
        slot.behind_link = false;
        slot.errno = 0;
        slot.file = file;
        slot.request = *request;
        slot.progress = Progress::default();
        // A free slot holds nothing and wakes no task: its content needs no dropping.
        memory.lend_to(&mut slot.memory);
        std::mem::forget(std::mem::replace(&mut slot.wake, std::mem::take(wake)));
        (Key::new(index, slot.generation), slot, PartsOf { all: &mut self.parts, index })
    }

    #[cold]
    fn grow(&mut self) {
        let first = self.slots.len() as u32;
        let count = self.slots.len().max(64) as u32;
        self.slots.extend((0..count).map(|i| {
            let next = if i + 1 == count { NONE } else { first + i + 1 };
            Slot {
                generation: 1,
                state: State::Free,
                fixed: false,
                marks: Marks::NONE,
                cancelled: false,
                ring: PortKind::Main,
                behind_link: false,
                errno: 0,
                file: 0,
                position: next,
                request: Request::of(Kind::Read),
                progress: Progress::default(),
                memory: IoMemory::None,
                wake: Wake::None,
            }
        }));
        self.free = first;
    }

    /// Returns the slot of a live operation.
    #[inline]
    pub(crate) fn get(&mut self, key: Key) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(key.slot() as usize)?;
        (slot.generation == key.generation() && slot.state != State::Free).then_some(slot)
    }

    /// Returns a slot known to be live.
    #[inline]
    pub(crate) fn at(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }

    /// Returns a slot that is known to be live, and the place for the addresses of its parts.
    #[inline]
    pub(crate) fn with_parts(&mut self, index: u32) -> (&mut Slot, PartsOf<'_>) {
        (&mut self.slots[index as usize], PartsOf { all: &mut self.parts, index })
    }

    /// Frees the slot of an operation that has ended or was withdrawn. Its waker was taken before.
    #[inline]
    pub(crate) fn take(&mut self, index: u32) -> Finished {
        let mut finished = Finished::NOTHING;
        self.take_to(index, &mut finished);
        finished
    }

    /// Does what [`take`](Self::take) does, and puts the result into a place that has no buffer.
    #[inline]
    pub(crate) fn take_to(&mut self, index: u32, to: &mut Finished) {
        let slot = &mut self.slots[index as usize];
        slot.memory.move_to(&mut to.memory);
        to.ended = slot.free(index, &mut self.free);
    }

    /// Frees the slot of an operation whose waker and buffer were taken before.
    #[inline]
    pub(crate) fn free(&mut self, index: u32) -> OpResult {
        self.slots[index as usize].free(index, &mut self.free)
    }

    /// Returns the operations that are answered and not yet taken.
    pub(crate) fn done(&self) -> impl Iterator<Item = Key> + '_ {
        self.with_state(|state| state == State::Done)
    }

    /// Returns the unanswered operations whose results would go to `handler`, but which it no longer wants.
    pub(crate) fn unwanted_of(&self, handler: &Arc<dyn Handler>) -> Vec<Key> {
        let unwanted = |key: &Key| match &self.slots[key.slot() as usize].wake {
            Wake::Handler(known, index) => {
                std::ptr::addr_eq(known.address(), handler.address()) && !known.is_wanted(*index)
            }
            _ => false,
        };
        self.unanswered().filter(unwanted).collect()
    }

    /// Returns the unanswered operations that the thread with this driver waits for before it leaves its loop.
    pub(crate) fn guarding(&self, driver: u64) -> Vec<Key> {
        let wanted = |key: &Key| match &self.slots[key.slot() as usize].wake {
            Wake::Handler(handler, _) => handler.guards_loop_of(driver),
            Wake::None | Wake::Task(_) | Wake::Waker(_) | Wake::Local(..) => false,
        };
        self.unanswered().filter(wanted).collect()
    }

    /// Returns the operations in flight that must end before the loop does: those of a queue stay in flight as long as
    /// the queue exists.
    pub(crate) fn of_loop<'a>(&'a self, handlers: &'a LocalHandlers) -> impl Iterator<Item = Key> + 'a {
        self.unanswered().filter(|key| match &self.slots[key.slot() as usize].wake {
            Wake::Handler(handler, _) => !handler.outlives_loops(),
            Wake::Local(own) => handlers.get(own.handler()).is_none_or(|handler| !handler.outlives_loops()),
            Wake::None | Wake::Task(_) | Wake::Waker(_) => true,
        })
    }

    /// Returns how many unanswered operations the handler with this number has.
    pub(crate) fn unanswered_of(&self, handler: u32) -> usize {
        let is_its = |key: &Key| match &self.slots[key.slot() as usize].wake {
            Wake::Local(own) => own.handler() == handler,
            Wake::None | Wake::Task(_) | Wake::Waker(_) | Wake::Handler(..) => false,
        };
        self.unanswered().filter(is_its).count()
    }

    /// Returns the operations that wait for the queue or the kernel.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = Key> + '_ {
        self.with_state(|state| matches!(state, State::Waiting | State::InFlight))
    }

    fn with_state(&self, is_right: impl Fn(State) -> bool) -> impl Iterator<Item = Key> {
        let numbered = self.slots.iter().enumerate().filter(move |(_, slot)| is_right(slot.state));
        numbered.map(|(index, slot)| Key::new(index as u32, slot.generation))
    }
}
