//! Being called when a thread ends that uses the library for the first time while it ends.
//!
//! glibc runs the destructors of a thread's locals before those of pthread keys. A local that is first used by a key's
//! destructor is never destroyed; a key that is set by one is looked at once more (`PTHREAD_DESTRUCTOR_ITERATIONS`).
//! Invariant: a thread that did not ask for it, or has cancelled, is not called.

use std::ffi::c_void;
use std::panic::catch_unwind;
use std::sync::OnceLock;

static END: OnceLock<fn()> = OnceLock::new();
static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();

/// Has `end`, the same for every call, called by this thread when it ends.
pub(crate) fn ask(end: fn()) {
    END.get_or_init(|| end);
    set((&raw const END).cast());
}

/// Has nothing called any more.
pub(crate) fn cancel() {
    set(std::ptr::null());
}

fn set(value: *const c_void) {
    let key = KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: the key is written to a local; the function is there for as long as the library, which a thread that
        // has asked keeps by the destructor of a local, until that cancels.
        (unsafe { libc::pthread_key_create(&mut key, Some(ends)) } == 0).then_some(key)
    });
    if let Some(key) = key {
        // SAFETY: the value is an address that nobody follows. Where there is no memory for it, nothing is called.
        let _ = unsafe { libc::pthread_setspecific(*key, value) };
    }
}

extern "C" fn ends(_: *mut c_void) {
    if let Some(end) = END.get() {
        // A panic may not leave a function of C's; its hook has told of it.
        let _ = catch_unwind(end);
    }
}
