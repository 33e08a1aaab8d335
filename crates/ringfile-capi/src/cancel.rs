//! pthread_cancel: a thread is not cancelled inside a call, nor while the library closes what it left open.
//!
//! Unwinding from a cancellation point (preadv2, close) would drop queues and batches whose operations use the caller's
//! memory, and ends the process where it reaches a destructor.

use std::ffi::c_int;

#[expect(unused_doc_comments, reason = "cbindgen reads it")]
/// cbindgen:ignore
unsafe extern "C" {
    // The crate libc has no declaration of it for Linux.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

pub(crate) const ENABLE: c_int = 0;
pub(crate) const DISABLE: c_int = 1;

/// Sets whether the calling thread can be cancelled, and returns the state before. Not a cancellation point; in
/// glibc one atomic operation, 1.4 ns.
#[inline]
pub(crate) fn set_state(state: c_int) -> c_int {
    let mut before = ENABLE;
    // SAFETY: the pointer is to a local value. It fails only for another state.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Delays a cancellation of the calling thread until this is dropped.
pub(crate) struct Delayed {
    before: c_int,
}

impl Delayed {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { before: set_state(DISABLE) }
    }
}

impl Drop for Delayed {
    #[inline]
    fn drop(&mut self) {
        set_state(self.before);
    }
}
