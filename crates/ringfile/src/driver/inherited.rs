//! The buffer of an operation that a parent process has in flight, as a forked child finds it.
//!
//! What always holds: the bytes are those of a buffer that another thread owns, and nothing is made of them but in a child
//! that has no such thread.

use std::mem::MaybeUninit;

use super::{Ended, Request};
use crate::memory::Held;

/// See the module.
pub(super) struct Inherited {
    held: MaybeUninit<Held>,
    is_read: bool,
    is_taken: bool,
}

impl Inherited {
    /// Notes the bytes of what an operation is about to hold.
    #[inline]
    pub(super) fn of(request: &Request, held: &Held) -> Self {
        // SAFETY: any bytes may be copied into a `MaybeUninit`, and nothing is made of them here.
        let held = unsafe { std::ptr::from_ref(held).cast::<MaybeUninit<Held>>().read() };
        Self { held, is_read: request.kind.is_read(), is_taken: false }
    }

    /// Ends the operation in a forked child, and puts the child's copy of the buffer into `held`.
    ///
    /// # Safety
    /// Nobody else in this process uses or drops what the operation held: the thread that had it does not exist.
    #[cold]
    pub(super) unsafe fn give_up(&mut self, held: &mut Held) -> Ended {
        if !std::mem::replace(&mut self.is_taken, true) {
            // SAFETY: these are the bytes of a buffer that is nobody else's, says the caller; the flag says that this is
            // done once.
            *held = unsafe { self.held.assume_init_read() };
            if self.is_read {
                // Nothing was read, and the buffer's length says so.
                held.copy_in(0, &[]);
            }
        }
        Ended { done: 0, errno: libc::ECANCELED }
    }
}
