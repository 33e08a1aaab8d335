//! The atomics and barriers that `word.rs` and `holds.rs` use, and how this crate locks.
//!
//! A separate file, so that the loom model (`tests/loom.rs`) can compile those files with loom's instead.

pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::thread::{MembarrierCommand, membarrier};

/// The half of a barrier that each use of a page needs: only the compiler keeps the order.
#[inline(always)]
pub(crate) fn light_barrier() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// The other half: when it returns, each thread of the process has passed a barrier of its processor. A system call.
pub(crate) fn heavy_barrier() {
    let mut done = membarrier(MembarrierCommand::PrivateExpedited);
    if done == Err(Errno::PERM) {
        // A child, after a fork, is not registered.
        done = prepare_barriers().and_then(|()| membarrier(MembarrierCommand::PrivateExpedited));
    }
    if let Err(error) = done {
        // Without it, no memory could ever be used again, since others may be about to read it.
        tracing::error!(%error, "membarrier(2) worked before and is refused now: allow it in the seccomp filter");
        eprintln!(
            "ringfile-cache: membarrier(2) worked before and is refused now ({error}): allow it in the filter"
        );
        std::process::abort();
    }
}

/// Prepares the process for heavy barriers. If that fails, there are none here.
pub(crate) fn prepare_barriers() -> rustix::io::Result<()> {
    membarrier(MembarrierCommand::RegisterPrivateExpedited)
}

/// Locks. A panic under a lock of this crate leaves nothing half done that safe code could break memory with.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
