//! An operation's buffer in its future: owned by the future before and after the operation, and lent to a driver
//! meanwhile.
//!
//! Invariant: the bytes of a lent buffer stay here but are not used, except in a forked child without the thread that
//! had borrowed it.

use std::mem::MaybeUninit;

use super::op::Ended;
use crate::memory::{Held, copy_by_words, copy_in_pieces};

/// Where an operation's buffer is kept.
pub(crate) trait Lend {
    /// Keeps a buffer; with `is_read`, the kernel writes to it.
    fn of(held: Held, is_read: bool) -> Self;

    /// Returns the buffer, if it is not lent.
    fn get(&self) -> &Held;

    /// Moves the buffer to `to`, which is empty.
    fn lend_to(&mut self, to: &mut Held);

    /// Returns the buffer, to be put back later.
    fn lend(&mut self) -> Held {
        let mut held = Held::None;
        self.lend_to(&mut held);
        held
    }

    /// Returns the buffer for a plain call, which has finished with it when it returns.
    fn own(&mut self) -> &mut Held;
}

impl Lend for Held {
    #[inline]
    fn of(held: Held, _: bool) -> Self {
        held
    }

    #[inline]
    fn get(&self) -> &Held {
        self
    }

    #[inline(always)]
    fn lend_to(&mut self, to: &mut Held) {
        self.move_to(to);
    }

    #[inline]
    fn own(&mut self) -> &mut Held {
        self
    }
}

pub(crate) struct Kept {
    held: MaybeUninit<Held>,
    is_own: bool,
    is_read: bool,
}

impl Kept {
    /// Takes the buffer back.
    #[inline]
    pub(crate) fn put(&mut self, mut held: Held) {
        self.put_from(&mut held);
    }

    /// Takes the buffer back from where a driver kept it, and leaves that place empty.
    #[inline]
    pub(super) fn put_from(&mut self, from: &mut Held) {
        if self.is_own {
            return from.move_to(self.own());
        }
        // SAFETY: the flag says that the place here is empty, and the source is forgotten after the copy.
        unsafe {
            copy_in_pieces(from, self.held.as_mut_ptr());
            std::ptr::write(from, Held::None);
        }
        self.is_own = true;
    }

    /// Returns the buffer, for the caller of an operation that has ended.
    #[inline]
    pub(crate) fn take(&mut self) -> Held {
        if !std::mem::replace(&mut self.is_own, false) {
            return Held::None;
        }
        // SAFETY: the flag said that the value is here, and says that it is not from now on.
        unsafe { self.held.assume_init_read() }
    }

    /// Ends the operation in a forked child, and takes the child's copy of the buffer.
    ///
    /// # Safety
    /// No other code in this process uses or drops the lent buffer: the thread that had it does not exist.
    #[cold]
    pub(super) unsafe fn reclaim(&mut self) -> Ended {
        // If the result was taken already, the bytes here would belong to other code by now.
        if !self.is_own {
            self.is_own = true;
            if self.is_read {
                // Nothing was read, and the buffer's length says so.
                self.own().copy_in(0, &[]);
            }
        }
        Ended { done: 0, errno: libc::ECANCELED }
    }
}

impl Lend for Kept {
    #[inline]
    fn of(held: Held, is_read: bool) -> Self {
        Self { held: MaybeUninit::new(held), is_own: true, is_read }
    }

    #[inline]
    fn get(&self) -> &Held {
        const NONE: &Held = &Held::None;
        // SAFETY: the flag says that the value is here.
        if self.is_own { unsafe { self.held.assume_init_ref() } } else { NONE }
    }

    #[inline(always)]
    fn lend_to(&mut self, to: &mut Held) {
        if !matches!(to, Held::None) {
            *to = Held::None;
        }
        if std::mem::replace(&mut self.is_own, false) {
            // SAFETY: the flag said that the value is here, and says that it is not from now on.
            unsafe { copy_by_words(self.held.as_ptr(), to) };
        }
    }

    #[inline]
    fn lend(&mut self) -> Held {
        self.take()
    }

    #[inline]
    fn own(&mut self) -> &mut Held {
        if !self.is_own {
            self.held.write(Held::None);
            self.is_own = true;
        }
        // SAFETY: the flag says that the value is here.
        unsafe { self.held.assume_init_mut() }
    }
}

impl Drop for Kept {
    #[inline]
    fn drop(&mut self) {
        if self.is_own {
            // SAFETY: the flag says that the value is here; it is dropped once, with `self`.
            unsafe { self.held.assume_init_drop() };
        }
    }
}
