//! Anonymous mappings of Linux.

use std::fs;
use std::io;
use std::ptr::{self, NonNull};

use once_cell::race::OnceBox;

use super::options::{HugePages, MapOptions};

/// Maps `len` bytes at a multiple of `align`. Fails with the system's errno.
pub(super) fn map(len: usize, align: usize, options: &MapOptions) -> io::Result<NonNull<u8>> {
    let huge = options.huge_pages == HugePages::Auto && len >= transparent_huge_page();
    let align = if huge { align.max(transparent_huge_page()) } else { align };
    let base = map_aligned(len, align, options)?;
    match options.huge_pages {
        // Both are hints: a kernel without transparent huge pages returns EINVAL, and never uses them.
        HugePages::Auto if huge => _ = advise(base, len, libc::MADV_HUGEPAGE),
        HugePages::Never => _ = advise(base, len, libc::MADV_NOHUGEPAGE),
        _ => {}
    }
    let done = match options.huge_pages {
        HugePages::Require => touch(base, len, granule(options)),
        // Not MADV_DONTFORK: a child would lack the range, so its allocator could get the same addresses, which
        // buffers and free blocks still refer to.
        _ if options.dont_fork => advise(base, len, libc::MADV_WIPEONFORK),
        _ => Ok(()),
    };
    done.map(|()| base).inspect_err(|_| {
        // SAFETY: our own mapping, which nobody knows yet.
        unsafe { cut(base.as_ptr(), len) }
    })
}

/// Makes the kernel provide every page of a new mapping. Fails with ENOMEM if it refuses one.
///
/// A mapping reserves its huge pages, but a control group's limit (`hugetlb.2MB.max`) and the memory policy are only applied
/// when a page is touched, and a refusal is SIGBUS then. A system call that writes to the page gets EFAULT instead. This one
/// exists everywhere and no filter forbids it, since threads start with it; `MADV_POPULATE_WRITE` needs Linux 5.14.
fn touch(base: NonNull<u8>, len: usize, page: usize) -> io::Result<()> {
    for offset in (0..len).step_by(page) {
        let mask = base.as_ptr().wrapping_add(offset).cast::<libc::sigset_t>();
        // SAFETY: this only reads the thread's mask of signals. The kernel writes it to our own mapping, which nobody knows
        // yet, or fails.
        if unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask) } != 0 {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        // SAFETY: the page is there now, and a mapping begins as zeros.
        unsafe { mask.write_bytes(0, 1) };
    }
    Ok(())
}

fn map_aligned(len: usize, align: usize, options: &MapOptions) -> io::Result<NonNull<u8>> {
    let mut flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    if options.huge_pages == HugePages::Require {
        flags |= libc::MAP_HUGETLB;
    }
    // mmap only aligns to the granule: map enough to contain an aligned piece, then cut off both ends.
    let spare = align - granule(options);
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
        cut(start, before);
        cut(base.add(len), spare - before);
        Ok(NonNull::new_unchecked(base))
    }
}

fn advise(base: NonNull<u8>, len: usize, advice: libc::c_int) -> io::Result<()> {
    // SAFETY: our own mapping, and none of the advices used here changes what is in it.
    match unsafe { libc::madvise(base.as_ptr().cast(), len, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// # Safety
/// The range was mapped here, and nothing uses it.
pub(super) unsafe fn unmap(base: NonNull<u8>, len: usize, _align: usize) {
    // SAFETY: as the caller says.
    unsafe { cut(base.as_ptr(), len) }
}

/// # Safety
/// The range is ours and nothing uses it.
unsafe fn cut(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: as the caller says. It can fail only for an invalid range, or when splitting a mapping passes the
        // limit on mappings; then the memory stays mapped, which harms nothing.
        unsafe { libc::munmap(start.cast(), len) };
    }
}

/// Returns what this system cannot do.
pub(super) fn unsupported(options: &MapOptions) -> Option<&'static str> {
    (options.huge_pages == HugePages::Require && options.dont_fork).then_some(
        "a pool cannot keep reserved huge pages out of forked children: use HugePages::Auto, or no dont_fork",
    )
}

/// Returns the unit of mappings with these options.
pub(super) fn granule(options: &MapOptions) -> usize {
    match options.huge_pages {
        HugePages::Require => reserved_huge_page(),
        _ => page_size(),
    }
}

/// Returns the system's page size: 4 KiB, but 16 or 64 KiB on some aarch64 systems.
pub fn page_size() -> usize {
    static PAGE: OnceBox<usize> = OnceBox::new();
    *PAGE.get_or_init(|| {
        // SAFETY: the call only returns a number.
        let asked = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        Box::new(usize::try_from(asked).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096))
    })
}

/// Returns the size of a transparent huge page: 2 MiB on x86, up to 512 MiB on aarch64 with large pages.
fn transparent_huge_page() -> usize {
    static SIZE: OnceBox<usize> = OnceBox::new();
    *SIZE.get_or_init(|| {
        let text =
            fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").unwrap_or_default();
        Box::new(text.trim().parse().ok().filter(|size: &usize| size.is_power_of_two()).unwrap_or(2 << 20))
    })
}

/// Returns the default page size of MAP_HUGETLB.
fn reserved_huge_page() -> usize {
    static SIZE: OnceBox<u64> = OnceBox::new();
    *SIZE.get_or_init(|| {
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Box::new(meminfo(&text, "Hugepagesize:").filter(|size| size.is_power_of_two()).unwrap_or(2 << 20))
    }) as usize
}

/// Returns a figure in the text of `/proc/meminfo`, in bytes.
pub fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
