//! Memory from the system: anonymous, aligned mappings with the requested page size.
//!
//! The only code in ringfile that maps anonymous memory. Knows the kernel's calls and files about memory. Invariants: a
//! mapping is zeroed when new, stays at its address, in forked children too, and is unmapped once, by its drop.

use std::fs;
use std::io;
use std::ptr::{self, NonNull};

use crate::once::Value;

/// Selects the page sizes of a pool's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePages {
    /// Huge pages if the system provides them transparently, otherwise ordinary pages.
    #[default]
    Auto,
    /// Ordinary pages only. There are more TLB misses, but sparsely used pools waste no memory.
    Never,
    /// Huge pages that the administrator has reserved (`vm.nr_hugepages`), or an error.
    Require,
}

/// How to map memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapOptions {
    pub(crate) align: usize,
    pub(crate) huge_pages: HugePages,
    pub(crate) dont_fork: bool,
}

impl MapOptions {
    /// Mappings are multiples of this.
    pub(crate) fn granule(&self) -> usize {
        match self.huge_pages {
            HugePages::Require => reserved_huge_page(),
            _ => page_size(),
        }
    }
}

/// A private anonymous mapping.
pub(crate) struct MappedMemory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory; ownership of blocks decides which thread may access which part.
unsafe impl Send for MappedMemory {}
// SAFETY: as above; a shared mapping gives out only its address.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// Maps `len` bytes, a multiple of the granule. Fails with the system's errno.
    pub(crate) fn new(len: usize, options: &MapOptions) -> io::Result<MappedMemory> {
        debug_assert_eq!(len % options.granule(), 0);
        let mut align = options.align.max(options.granule());
        if options.huge_pages == HugePages::Auto && len >= transparent_huge_page() {
            align = align.max(transparent_huge_page());
        }
        let mapping = MappedMemory::aligned(len, align, options)?;
        match options.huge_pages {
            // Both are hints: a kernel without transparent huge pages returns EINVAL, and never uses them.
            HugePages::Auto if len >= transparent_huge_page() => _ = mapping.advise(libc::MADV_HUGEPAGE),
            HugePages::Never => _ = mapping.advise(libc::MADV_NOHUGEPAGE),
            _ => {}
        }
        if options.dont_fork {
            // Not MADV_DONTFORK: a child would lack the range, so its allocator could get the same addresses, which
            // buffers and free blocks still refer to.
            mapping.advise(libc::MADV_WIPEONFORK)?;
        }
        Ok(mapping)
    }

    fn aligned(len: usize, align: usize, options: &MapOptions) -> io::Result<MappedMemory> {
        let mut flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        if options.huge_pages == HugePages::Require {
            flags |= libc::MAP_HUGETLB;
        }
        // mmap only aligns to the granule: map enough to contain an aligned piece, then cut off both ends.
        let spare = align - options.granule();
        let too_much = || io::Error::from_raw_os_error(libc::ENOMEM);
        let total = len.checked_add(spare).ok_or_else(too_much)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            libc::mmap(ptr::null_mut(), total, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).cast::<u8>()
        };
        if start.cast() == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let before = start.align_offset(align);
        // SAFETY: `before` is at most `spare`, so the aligned piece and both ends lie in the new mapping, which no
        // other code uses.
        unsafe {
            let base = start.add(before);
            unmap(start, before);
            unmap(base.add(len), spare - before);
            Ok(MappedMemory { base: NonNull::new_unchecked(base), len })
        }
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Gives up the mapping without unmapping it, for [`MappedMemory::from_parts`].
    pub(crate) fn into_parts(self) -> (NonNull<u8>, usize) {
        let parts = (self.base, self.len);
        std::mem::forget(self);
        parts
    }

    /// # Safety
    /// The parts come from [`MappedMemory::into_parts`], and nothing uses the memory after the new mapping is dropped.
    pub(crate) unsafe fn from_parts(base: NonNull<u8>, len: usize) -> MappedMemory {
        MappedMemory { base, len }
    }

    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: our own mapping, and none of the advices used here changes what is in it.
        match unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and the code that drops a mapping has ensured that none of its blocks is in use.
        unsafe { unmap(self.base.as_ptr(), self.len) }
    }
}

/// # Safety
/// The range is ours and nothing uses it.
unsafe fn unmap(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: as the caller says. It can fail only for an invalid range, or when splitting a mapping passes the
        // limit on mappings; then the memory stays mapped, which harms nothing.
        unsafe { libc::munmap(start.cast(), len) };
    }
}

/// Returns the system's page size: 4 KiB, but 16 or 64 KiB on some aarch64 systems.
pub(crate) fn page_size() -> usize {
    static PAGE: Value<usize> = Value::new();
    *PAGE.get_or(|| {
        // SAFETY: the call only returns a number.
        let asked = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(asked).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
    })
}

/// Returns the size of a transparent huge page: 2 MiB on x86, up to 512 MiB on aarch64 with large pages.
fn transparent_huge_page() -> usize {
    static SIZE: Value<usize> = Value::new();
    *SIZE.get_or(|| {
        let text =
            fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").unwrap_or_default();
        text.trim().parse().ok().filter(|size: &usize| size.is_power_of_two()).unwrap_or(2 << 20)
    })
}

/// Returns the default page size of MAP_HUGETLB.
fn reserved_huge_page() -> usize {
    static SIZE: Value<u64> = Value::new();
    *SIZE.get_or(|| {
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        meminfo(&text, "Hugepagesize:").filter(|size| size.is_power_of_two()).unwrap_or(2 << 20)
    }) as usize
}

/// Returns a figure in the text of `/proc/meminfo`, in bytes.
pub(crate) fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_aligned_and_zeroed() {
        for huge_pages in [HugePages::Auto, HugePages::Never] {
            for align in [512, 4096, 1 << 16, 1 << 22] {
                let options = MapOptions { align, huge_pages, dont_fork: true };
                let len = (3 << 20) + page_size();
                let mapping = MappedMemory::new(len, &options).unwrap();
                assert_eq!(mapping.base().as_ptr() as usize % align.max(page_size()), 0);
                // SAFETY: a mapping of this length that only this test knows.
                let bytes = unsafe { std::slice::from_raw_parts_mut(mapping.base().as_ptr(), len) };
                assert!(bytes.iter().all(|&byte| byte == 0));
                bytes.fill(1);
            }
        }
    }
}
