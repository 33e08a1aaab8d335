//! An operation's buffer in its future: owned by the future before and after the operation, and lent to a driver
//! meanwhile.
//!
//! Invariant: the bytes of a lent buffer stay here but are not used, except in a forked child without the thread that
//! had borrowed it.

use std::mem::MaybeUninit;

use crate::driver::op::OpResult;
use crate::memory::{IoMemory, copy_by_words, copy_in_pieces};

/// Where an operation's buffer is kept.
pub(crate) trait Lend {
    /// Keeps a buffer; with `is_read`, the kernel writes to it.
    fn of(memory: IoMemory, is_read: bool) -> Self;

    /// Returns the buffer, if it is not lent.
    fn get(&self) -> &IoMemory;

    /// Moves the buffer to `to`, which is empty.
    fn lend_to(&mut self, to: &mut IoMemory);

    /// Returns the buffer, to be put back later.
    fn lend(&mut self) -> IoMemory {
        let mut memory = IoMemory::None;
        self.lend_to(&mut memory);
        memory
    }

    /// Returns the buffer for a plain call, which has finished with it when it returns.
    fn own(&mut self) -> &mut IoMemory;
}

impl Lend for IoMemory {
    #[inline]
    fn of(memory: IoMemory, _: bool) -> Self {
        memory
    }

    #[inline]
    fn get(&self) -> &IoMemory {
        self
    }

    #[inline(always)]
    fn lend_to(&mut self, to: &mut IoMemory) {
        self.move_to(to);
    }

    #[inline]
    fn own(&mut self) -> &mut IoMemory {
        self
    }
}

pub(crate) struct Loan {
    memory: MaybeUninit<IoMemory>,
    is_own: bool,
    is_read: bool,
}

impl Loan {
    /// Takes the buffer back.
    #[inline]
    pub(crate) fn put(&mut self, mut memory: IoMemory) {
        self.put_from(&mut memory);
    }

    /// Takes the buffer back from where a driver kept it, and leaves that place empty.
    #[inline]
    pub(crate) fn put_from(&mut self, from: &mut IoMemory) {
        if self.is_own {
            return from.move_to(self.own());
        }
        // SAFETY: the flag says that the place here is empty, and the source is forgotten after the copy.
        unsafe {
            copy_in_pieces(from, self.memory.as_mut_ptr());
            std::ptr::write(from, IoMemory::None);
        }
        self.is_own = true;
    }

    /// Returns the buffer, for the caller of an operation that has ended.
    #[inline]
    pub(crate) fn take(&mut self) -> IoMemory {
        if !std::mem::replace(&mut self.is_own, false) {
            return IoMemory::None;
        }
        // SAFETY: the flag said that the value is here, and says that it is not from now on.
        unsafe { self.memory.assume_init_read() }
    }

    /// Ends the operation in a forked child, and takes the child's copy of the buffer.
    ///
    /// # Safety
    /// No other code in this process uses or drops the lent buffer: the thread that had it does not exist.
    #[cold]
    pub(crate) unsafe fn reclaim(&mut self) -> OpResult {
        // If the result was taken already, the bytes here would belong to other code by now.
        if !self.is_own {
            self.is_own = true;
            if self.is_read {
                // Nothing was read, and the buffer's length says so.
                self.own().copy_in(0, &[]);
            }
        }
        OpResult { done: 0, errno: libc::ECANCELED }
    }
}

impl Lend for Loan {
    #[inline]
    fn of(memory: IoMemory, is_read: bool) -> Self {
        Self { memory: MaybeUninit::new(memory), is_own: true, is_read }
    }

    #[inline]
    fn get(&self) -> &IoMemory {
        const NONE: &IoMemory = &IoMemory::None;
        // SAFETY: the flag says that the value is here.
        if self.is_own { unsafe { self.memory.assume_init_ref() } } else { NONE }
    }

    #[inline(always)]
    fn lend_to(&mut self, to: &mut IoMemory) {
        if !matches!(to, IoMemory::None) {
            *to = IoMemory::None;
        }
        if std::mem::replace(&mut self.is_own, false) {
            // SAFETY: the flag said that the value is here, and says that it is not from now on.
            unsafe { copy_by_words(self.memory.as_ptr(), to) };
        }
    }

    #[inline]
    fn lend(&mut self) -> IoMemory {
        self.take()
    }

    #[inline]
    fn own(&mut self) -> &mut IoMemory {
        if !self.is_own {
            self.memory.write(IoMemory::None);
            self.is_own = true;
        }
        // SAFETY: the flag says that the value is here.
        unsafe { self.memory.assume_init_mut() }
    }
}

impl Drop for Loan {
    #[inline]
    fn drop(&mut self) {
        if self.is_own {
            // SAFETY: the flag says that the value is here; it is dropped once, with `self`.
            unsafe { self.memory.assume_init_drop() };
        }
    }
}
