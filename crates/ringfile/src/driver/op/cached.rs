//! Which parts of a file the page cache holds (`cachestat`, Linux 6.5).
//!
//! `RWF_NOWAIT` cannot answer that: a buffered read that carries it and finds nothing starts reading the pages in, for
//! the cache (`page_cache_sync_ra` in mm/filemap.c), before it says `EAGAIN`.

use super::last_errno;
use crate::driver::target::Target;

/// The same number on every architecture: the call is newer than the common table.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range` and `struct cachestat` of linux/mman.h.
#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Stat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Returns how many of the pages that these bytes touch are in the page cache. Takes 0.15 µs for one page, 0.4 µs for
/// 32.
///
/// # Errors
/// `ENOSYS` before Linux 6.5; `EPERM` where the file is another user's, and this process may not write to it (6.14).
pub(crate) fn cached_pages(target: &Target, offset: u64, len: u64) -> Result<u64, i32> {
    let (range, mut stat) = (Range { offset, len }, Stat::default());
    // SAFETY: the kernel reads one `Range` and writes one `Stat`, of the layout that linux/mman.h gives; both live on this
    // stack frame throughout.
    let status = unsafe { libc::syscall(SYS_CACHESTAT, target.raw_fd(), &raw const range, &raw mut stat, 0) };
    if status == 0 { Ok(stat.cached) } else { Err(last_errno()) }
}
