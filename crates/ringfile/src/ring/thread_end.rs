//! The end of a thread: calls a function for a thread that uses the library for the first time while it is ending, and
//! delays cancellations (`pthread_cancel`) meanwhile.
//!
//! glibc runs the destructors of a thread's locals before those of pthread keys. A thread-local that is first used by a
//! key's destructor is never destroyed; but a key that is set by one is checked again
//! (`PTHREAD_DESTRUCTOR_ITERATIONS`). Invariant: the function is not called for a thread that did not request it, or
//! has cancelled the request.

use std::ffi::{c_int, c_void};

use once_cell::race::OnceBox;
use ringfile_buffer::internal::panics;

static END: OnceBox<fn()> = OnceBox::new();
/// The key of the process. If two threads create one at the same time, one of the two is never used.
static KEY: OnceBox<Option<libc::pthread_key_t>> = OnceBox::new();

/// Makes this thread call `end`, the same function for every call, when it ends.
pub(crate) fn ask(end: fn()) {
    END.get_or_init(|| Box::new(end));
    set((&raw const END).cast());
}

/// Cancels the call.
pub(crate) fn cancel() {
    set(std::ptr::null());
}

fn set(value: *const c_void) {
    let key = KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: the key is written to a local variable. The function exists as long as the library, which the
        // destructor of a thread-local keeps loaded until it cancels the call.
        Box::new((unsafe { libc::pthread_key_create(&mut key, Some(ends)) } == 0).then_some(key))
    });
    if let Some(key) = key {
        // SAFETY: the value is an address that is never dereferenced. If there is no memory for it, the function is not
        // called.
        let _ = unsafe { libc::pthread_setspecific(*key, value) };
    }
}

extern "C" fn ends(_: *mut c_void) {
    if let Some(end) = END.get() {
        // A panic must not unwind out of a C function; the panic hook has reported it.
        let _ = panics::catch(end);
    }
}

/// Delays a cancellation of the calling thread until this is dropped. A cancelled thread that returns from its start
/// function is cancelled at the next cancellation point (close), also in a destructor of the library, and unwinding out
/// of that ends the process.
pub(crate) struct Delayed {
    before: c_int,
}

impl Delayed {
    pub(crate) fn new() -> Self {
        const DISABLE: c_int = 1;
        Self { before: set_cancel_state(DISABLE) }
    }
}

impl Drop for Delayed {
    fn drop(&mut self) {
        set_cancel_state(self.before);
    }
}

unsafe extern "C" {
    // The crate libc has no declaration of it for Linux.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Returns the state before.
fn set_cancel_state(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: the pointer is to a local value. It fails only for another state.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}
