//! What ringfile knows of itself and of a file: counters, and what `ringfile.doctor` shows.

use std::os::fd::{AsFd, AsRawFd};

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::file::PyFile;
use crate::fork;
use crate::memory::pool;

/// Returns counters of the whole process, since it began, as a dict.
#[pyfunction]
pub fn metrics(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    fork::check()?;
    let counts = ringfile::metrics();
    let result = PyDict::new(py);
    for (name, value) in [
        ("ops", counts.ops),
        ("fixed_ops", counts.fixed_ops),
        ("inline_ops", counts.inline_ops),
        ("worker_ops", counts.worker_ops),
        ("aio_ops", counts.aio_ops),
        ("bytes_read", counts.bytes_read),
        ("bytes_written", counts.bytes_written),
        ("enters", counts.enters),
        ("resubmitted", counts.resubmitted),
        ("cancelled", counts.cancelled),
        ("failed", counts.failed),
        ("cache_hits", counts.cache_hits),
        ("cache_partial", counts.cache_partial),
        ("cache_misses", counts.cache_misses),
        ("cache_admitted", counts.cache_admitted),
        ("ahead_used", counts.ahead_used),
        ("ahead_unused", counts.ahead_unused),
        ("refused_registrations", counts.refused_registrations),
    ] {
        result.set_item(name, value)?;
    }
    let pool = pool().metrics();
    for (name, value) in [
        ("pool_in_use", pool.in_use),
        ("pool_reserved", pool.reserved),
        ("pool_registered", pool.registered_bytes),
        ("pool_outside", pool.outside_bytes),
    ] {
        result.set_item(name, value)?;
    }
    Ok(result)
}

/// Returns what `ringfile.doctor` shows of an open file and of this machine.
#[pyfunction]
pub fn describe<'py>(py: Python<'py>, file: &Bound<'py, PyFile>) -> PyResult<Bound<'py, PyDict>> {
    let file = file.get().get()?;
    let result = PyDict::new(py);
    let (alignment, size) = (file.alignment(), file.size().ok());
    result.set_item("size", size)?;
    result.set_item("adaptive", file.is_adaptive())?;
    result.set_item("direct", file.is_direct())?;
    result.set_item("alignment", alignment.bytes)?;
    result.set_item("memory_alignment", alignment.memory)?;
    let cached = py.detach(|| cached_bytes(&file, size.unwrap_or(0)));
    result.set_item("cached", cached)?;
    match py.detach(ringfile::metrics::ring_features) {
        Ok(features) => {
            result.set_item("io_uring", true)?;
            result.set_item("io_uring_features", features)?;
        }
        Err(why) => {
            result.set_item("io_uring", false)?;
            result.set_item("io_uring_refused", why.to_string())?;
        }
    }
    let refused = ringfile::buf::refused_registration().map(|refused| refused.to_string());
    result.set_item("registration_refused", refused)?;
    Ok(result)
}

/// Returns how many bytes of a file's beginning of this length the page cache has; `None` if the kernel does not say.
#[pyfunction]
pub fn cached(py: Python<'_>, file: &Bound<'_, PyFile>, length: u64) -> PyResult<Option<u64>> {
    let file = file.get().get()?;
    Ok(py.detach(|| cached_bytes(&file, length)))
}

/// The system call `cachestat`, Linux 6.5.
fn cached_bytes(file: &ringfile::File, length: u64) -> Option<u64> {
    const CACHESTAT: libc::c_long = 451;
    let range: [u64; 2] = [0, length];
    let mut counts = [0_u64; 5];
    // SAFETY: both records are as long as the kernel's.
    let status =
        unsafe { libc::syscall(CACHESTAT, file.as_fd().as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0) };
    // SAFETY: a plain call.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    (status == 0 && length > 0).then(|| (counts[0] * page).min(length))
}
