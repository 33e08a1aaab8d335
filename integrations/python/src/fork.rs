//! What a forked child may do: nothing that its parent had begun.
//!
//! The parent's rings and threads are not there in the child, so each call fails at once. A process that has only imported the
//! module has none: a fork server may do that, and its children work.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

static USED: AtomicBool = AtomicBool::new(false);
static FORKED: AtomicBool = AtomicBool::new(false);

const WHY: &str = "ringfile does not work in a process that was forked from one that had used it: start processes with \
    multiprocessing.get_context('spawn') or 'forkserver' (torch: DataLoader(multiprocessing_context='spawn'))";

/// Every call begins with this.
///
/// # Errors
/// `RuntimeError` in a forked child of a process that has used the library.
#[inline]
pub fn check() -> PyResult<()> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(PyRuntimeError::new_err(WHY));
    }
    if !USED.load(Ordering::Relaxed) && !USED.swap(true, Ordering::Relaxed) {
        // SAFETY: the function exists as long as the process: Python does not unload modules.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
    Ok(())
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}
