//! Which parts of a file the page cache holds (`cachestat`, Linux 6.5).
//!
//! `RWF_NOWAIT` cannot answer that: a buffered read that carries it and finds nothing starts reading the pages in, for
//! the cache (`page_cache_sync_ra` in mm/filemap.c), before it returns `EAGAIN`.

use linux_raw_sys::general::{__NR_cachestat, cachestat, cachestat_range};

use super::parts::last_errno;
use crate::driver::target::Target;
use crate::memory::page_size;

/// Returns how many of the pages that these bytes touch are in the page cache. Takes 0.15 µs for one page, 0.4 µs for
/// 32.
///
/// # Errors
/// `ENOSYS` before Linux 6.5; `EPERM` where the file is another user's, and this process may not write to it (6.14).
pub(crate) fn cached_pages(target: &Target, offset: u64, len: u64) -> Result<u64, i32> {
    let range = cachestat_range { off: offset, len };
    let mut stat =
        cachestat { nr_cache: 0, nr_dirty: 0, nr_writeback: 0, nr_evicted: 0, nr_recently_evicted: 0 };
    // SAFETY: the kernel reads the range and writes the answer, of the layout that linux/mman.h gives; both live on this stack
    // frame throughout.
    let status = unsafe {
        libc::syscall(__NR_cachestat as libc::c_long, target.raw_fd(), &raw const range, &raw mut stat, 0)
    };
    if status == 0 { Ok(stat.nr_cache) } else { Err(last_errno()) }
}

/// Returns whether the page cache holds all pages that these bytes touch. No, if they reach beyond the end of the file.
///
/// # Errors
/// Those of [`cached_pages`].
pub(crate) fn is_cached(target: &Target, offset: u64, len: u64) -> Result<bool, i32> {
    let page = page_size() as u64;
    let touched = offset.saturating_add(len).div_ceil(page) - offset / page;
    // The kernel takes a length of 0 for all that follows.
    Ok(len == 0 || cached_pages(target, offset, len)? == touched)
}
