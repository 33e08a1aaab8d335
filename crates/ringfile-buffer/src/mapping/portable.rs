//! Memory from the standard library's allocator, which aligns and zeroes it on every platform.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;

use super::options::{HugePages, MapOptions};

/// A page, or a part of a larger one. Only alignments and sizes depend on it, and no system call does.
const PAGE: usize = 4096;

/// Allocates `len` bytes, more than 0, at a multiple of `align`.
pub(super) fn map(len: usize, align: usize, _options: &MapOptions) -> io::Result<NonNull<u8>> {
    let too_much = || io::Error::from(io::ErrorKind::OutOfMemory);
    let layout = Layout::from_size_align(len, align).ok().filter(|layout| layout.size() > 0);
    // SAFETY: the layout is not empty.
    let base = layout.map(|layout| unsafe { alloc_zeroed(layout) });
    base.and_then(NonNull::new).ok_or_else(too_much)
}

/// # Safety
/// The memory was allocated here with this length and alignment, and nothing uses it.
pub(super) unsafe fn unmap(base: NonNull<u8>, len: usize, align: usize) {
    // SAFETY: as the caller says; `map` has accepted this layout.
    unsafe { dealloc(base.as_ptr(), Layout::from_size_align_unchecked(len, align)) }
}

/// Returns what this system cannot do.
pub(super) fn unsupported(options: &MapOptions) -> Option<&'static str> {
    if options.huge_pages == HugePages::Require {
        Some("reserved huge pages exist on Linux only: use HugePages::Auto")
    } else if options.dont_fork && cfg!(unix) {
        Some("only Linux keeps a pool's memory out of forked children: build the pool without dont_fork")
    } else {
        None
    }
}

/// Returns the unit of mappings with these options.
pub(super) fn granule(_options: &MapOptions) -> usize {
    PAGE
}

/// Returns the unit of mappings.
pub fn page_size() -> usize {
    PAGE
}
