//! Handles: numbers that look like pointers, and the values behind them.
//!
//! Safe code. Invariants: a closed handle is never valid again (unless its place was reused 2^32 times); a handle of
//! another kind, or a real pointer, is detected by the low bits.

use std::sync::{PoisonError, RwLock};

use crate::error::{Fault, Result};
use crate::fork::{self, Guard, Hold, Lock};

/// The low bits of a handle are its kind. Allocated memory never has an odd address.
pub(crate) const TAG_BITS: u32 = 5;
const PLACE_BITS: u32 = 24;

/// The open handles of one kind.
pub(crate) struct Table<T> {
    what: &'static str,
    tag: usize,
    lock: Lock,
    hold: Hold,
    slots: RwLock<Slots<T>>,
}

struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
}

struct Slot<T> {
    /// The number of the last handle: its kind, the place of this slot, and a generation.
    handle: usize,
    value: Option<T>,
}

impl<T> Table<T> {
    /// Creates a table. `tag` must be odd, below 32, and different for each table; `lock` is the table's own, which
    /// `hold` takes with [`hold`](Self::hold).
    pub(crate) const fn new(what: &'static str, tag: usize, lock: Lock, hold: Hold) -> Self {
        Self { what, tag, lock, hold, slots: RwLock::new(Slots { slots: Vec::new(), free: Vec::new() }) }
    }

    /// Locks the table while the process forks.
    pub(crate) fn hold(&'static self) -> Option<Guard>
    where
        T: 'static,
    {
        Some(Box::new(self.slots.write().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Adds a value, and returns its handle.
    pub(crate) fn add<H>(&self, value: T) -> Result<*mut H> {
        self.heed();
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let place = match slots.free.pop() {
            Some(place) => place,
            None if slots.slots.len() >> PLACE_BITS == 0 => {
                slots.slots.push(Slot { handle: 0, value: None });
                slots.slots.len() - 1
            }
            None => {
                return Err(Fault::new(
                    libc::EMFILE,
                    format!("too many handles are open ({}): close some", self.what),
                ));
            }
        };
        let slot = &mut slots.slots[place];
        let generation = ((slot.handle >> 32) as u32).wrapping_add(1).max(1);
        slot.handle = (generation as usize) << 32 | place << TAG_BITS | self.tag;
        slot.value = Some(value);
        Ok(std::ptr::without_provenance_mut(slot.handle))
    }

    /// Returns the place of the slot whose last handle this may be.
    fn place(number: usize) -> usize {
        (number & 0xffff_ffff) >> TAG_BITS
    }

    /// Makes forks hold the lock of this table, before it is taken.
    #[inline]
    pub(crate) fn heed(&self) {
        fork::heed(self.lock, self.hold);
    }

    /// Returns whether a handle is, or was, one of this table.
    #[inline]
    pub(crate) fn is_kind_of<H>(&self, handle: *const H) -> bool {
        handle.addr() & ((1 << TAG_BITS) - 1) == self.tag
    }

    /// Accesses the value behind a handle.
    #[inline]
    pub(crate) fn with<H, R>(&self, handle: *const H, look: impl FnOnce(&T) -> R) -> Result<R> {
        self.heed();
        self.with_heeded(handle, look)
    }

    /// As [`with`](Self::with), after [`heed`](Self::heed).
    #[inline]
    pub(crate) fn with_heeded<H, R>(&self, handle: *const H, look: impl FnOnce(&T) -> R) -> Result<R> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let number = handle.addr();
        let slot = slots.slots.get(Self::place(number)).filter(|slot| slot.handle == number);
        match slot.and_then(|slot| slot.value.as_ref()) {
            Some(value) => Ok(look(value)),
            None => Err(self.unknown(handle.cast())),
        }
    }

    /// Closes a handle, and returns its value.
    pub(crate) fn remove<H>(&self, handle: *const H) -> Result<T> {
        self.heed();
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slots = &mut *slots;
        let number = handle.addr();
        let slot = slots.slots.get_mut(Self::place(number)).filter(|slot| slot.handle == number);
        let found = slot.and_then(|slot| slot.value.take());
        if found.is_some() {
            slots.free.push(Self::place(number));
        }
        found.ok_or_else(|| self.unknown(handle.cast()))
    }

    #[cold]
    fn unknown(&self, handle: *const ()) -> Fault {
        let why = match handle.addr() {
            0 => "it is NULL",
            number if number & ((1 << TAG_BITS) - 1) == self.tag => {
                "the handle was closed, or belongs to another process"
            }
            _ => "this is a handle of another kind, or no handle",
        };
        Fault::new(libc::EBADF, format!("not an open {}: {why}", self.what))
    }
}

impl<T: Clone> Table<T> {
    /// Returns a copy of the value behind a handle.
    pub(crate) fn get<H>(&self, handle: *const H) -> Result<T> {
        self.with(handle, T::clone)
    }
}
