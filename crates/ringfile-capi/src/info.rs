//! The library's counters and features, and its settings for the whole process.

use std::ffi::{CStr, c_char, c_int};

use ringfile::metrics::Metrics;

use crate::cache;
use crate::error::{Fault, Result, call, done};
use crate::file::route;
use crate::local;
use crate::raw::{self, Growing};

/// The version of the interface that this header declares: major, minor, patch.
#[allow(dead_code, reason = "for the header")]
pub const RINGFILE_VERSION_MAJOR: u32 = 0;
/// See RINGFILE_VERSION_MAJOR.
#[allow(dead_code, reason = "for the header")]
pub const RINGFILE_VERSION_MINOR: u32 = 2;
/// See RINGFILE_VERSION_MAJOR.
#[allow(dead_code, reason = "for the header")]
pub const RINGFILE_VERSION_PATCH: u32 = 0;

/// Counters of operations since the process or the thread began. Filled by ringfile_metrics and
/// ringfile_thread_metrics.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ringfile_counts {
    /// sizeof(ringfile_counts), set by the caller.
    pub size: usize,
    /// Operations that finished, successfully or not.
    pub ops: u64,
    /// Operations all of whose submissions used a registered buffer.
    pub fixed_ops: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Calls of io_uring_enter.
    pub enters: u64,
    /// Submissions beyond the first of an operation: after a short count, EINTR or EAGAIN.
    pub resubmitted: u64,
    /// Operations that were cancelled before they finished.
    pub cancelled: u64,
    /// Operations that ended with an errno.
    pub failed: u64,
    /// Completions that belonged to no operation. Any value but 0 is a defect: please report it.
    pub stray: u64,
    /// Times that registering memory was refused (RLIMIT_MEMLOCK, an old kernel); I/O on that memory is unregistered.
    pub refused_registrations: u64,
    /// Operations that were plain calls on the calling thread.
    pub inline_ops: u64,
    /// Operations that a worker carried out.
    pub worker_ops: u64,
    /// Operations that Linux AIO carried out. All operations that are not counted as inline, worker or AIO operations
    /// went through a ring.
    pub aio_ops: u64,
    /// Calls of io_submit and io_getevents.
    pub aio_calls: u64,
    /// Times that AIO was refused (fs.aio-max-nr used up, a seccomp filter); workers carry out direct I/O then.
    pub refused_contexts: u64,
    /// Operations that went to an NVMe drive as its own commands.
    pub passthrough_ops: u64,
    /// Reads of files with RINGFILE_ADAPTIVE whose data was in the page cache. Estimated by sampling.
    pub cache_hits: u64,
    /// Reads of such files whose data, or a part of it, was not in the page cache.
    pub cache_misses: u64,
    /// Misses whose beginning was read from the cache, and only the rest past it.
    pub cache_partial: u64,
    /// Misses that were read through the cache, because the data had been read before.
    pub cache_admitted: u64,
    /// Bytes of such files that were read ahead, and then used.
    pub ahead_used: u64,
    /// Bytes that were read ahead in vain.
    pub ahead_unused: u64,
    /// Operations that an I/O thread took over from a thread without a ring.
    pub io_thread_ops: u64,
}

// SAFETY: it consists of integers only, with the size first.
unsafe impl Growing for ringfile_counts {}

fn counts(metrics: Metrics) -> ringfile_counts {
    ringfile_counts {
        size: 0,
        ops: metrics.ops,
        fixed_ops: metrics.fixed_ops,
        bytes_read: metrics.bytes_read,
        bytes_written: metrics.bytes_written,
        enters: metrics.enters,
        resubmitted: metrics.resubmitted,
        cancelled: metrics.cancelled,
        failed: metrics.failed,
        stray: metrics.stray,
        refused_registrations: metrics.refused_registrations,
        inline_ops: metrics.inline_ops,
        worker_ops: metrics.worker_ops,
        aio_ops: metrics.aio_ops,
        aio_calls: metrics.aio_calls,
        refused_contexts: metrics.refused_contexts,
        passthrough_ops: metrics.passthrough_ops,
        cache_hits: metrics.cache_hits,
        cache_misses: metrics.cache_misses,
        cache_partial: metrics.cache_partial,
        cache_admitted: metrics.cache_admitted,
        ahead_used: metrics.ahead_used,
        ahead_unused: metrics.ahead_unused,
        io_thread_ops: metrics.io_thread_ops,
    }
}

/// Stores the counters of the whole process. Those of a running thread are from its last wait.
///
/// Any thread. Takes a lock for a moment.
///
/// Pointers: `counts` points to a struct whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_metrics(counts: *mut ringfile_counts) -> c_int {
    // SAFETY: by the contract in the header.
    done(|| unsafe { raw::give(counts, &self::counts(ringfile::metrics()), "ringfile_counts") })
}

/// Stores the counters of the calling thread, exact at this moment. Does not block.
///
/// Pointers: `counts` points to a struct whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_thread_metrics(counts: *mut ringfile_counts) -> c_int {
    // SAFETY: by the contract in the header.
    done(|| unsafe { raw::give(counts, &self::counts(ringfile::thread_metrics()), "ringfile_counts") })
}

/// Describes what io_uring offers here, as words separated by spaces: for the calling thread's ring, or for a temporary
/// one. Writes as much as there is room for, followed by a NUL. Returns the length of the whole text without the NUL.
///
/// Any thread. May create a ring. Fails if none can be created: the error text says why.
///
/// Pointers: `text` has room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_ring_features(text: *mut c_char, room: usize) -> i64 {
    call(|| {
        let features = ringfile::metrics::ring_features()?.join(" ");
        // SAFETY: by the contract in the header; a c_char is a byte.
        let text = unsafe { raw::array_mut(text.cast::<u8>(), room, "the pointer to the text") }?;
        if let Some(most) = room.checked_sub(1) {
            let len = features.len().min(most);
            text[..len].copy_from_slice(&features.as_bytes()[..len]);
            text[len] = 0;
        }
        Ok(features.len() as i64)
    })
}

/// Returns the library's version, such as "0.2.0". Never NULL. Any thread; does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// Sets the route (RINGFILE_ROUTE_...) of files that are opened from now on without one of their own. Any thread; does not
/// block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_set_default_route(default_route: u32) -> c_int {
    done(|| {
        ringfile::set_default_route(route(default_route)?.unwrap_or_default());
        Ok(())
    })
}

fn some(threads: usize) -> Result<usize> {
    if threads <= 4096 {
        Ok(threads)
    } else {
        Err(Fault::invalid(format!(
            "{threads} threads are too many: use at \
        most 4096"
        )))
    }
}

/// Sets how many I/O threads the library starts, for ringfile_batch_start: at most 4096, 0 for the default of one. Has no
/// effect after they have started. Any thread; does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_set_io_threads(threads: usize) -> c_int {
    done(|| {
        ringfile::runtime::set_io_threads(some(threads)?);
        Ok(())
    })
}

/// Sets the maximum number of worker threads (RINGFILE_ROUTE_WORKERS): at most 4096, 0 for the default. Any thread; does
/// not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_set_worker_threads(threads: usize) -> c_int {
    done(|| {
        ringfile::runtime::set_worker_threads(some(threads)?);
        Ok(())
    })
}

/// Releases what the calling thread keeps between blocking calls: shares of registered memory, and cached files that were
/// closed. For a thread that will do no I/O for long; its next call takes a little longer. Blocks only to close files, see
/// ringfile_close.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_thread_release() -> c_int {
    done(|| {
        local::rest()?;
        cache::rest();
        Ok(())
    })
}
