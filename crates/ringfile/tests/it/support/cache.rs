//! Reads and changes which pages of a file are in the page cache.

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::page_size;

/// Writes dirty pages, and drops the file from the page cache. The kernel skips a page that something else uses at this
/// moment, so it is asked again.
pub fn drop_cache(path: &Path) {
    let file = std::fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    for _ in 0..10 {
        // SAFETY: no memory is named.
        assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
        if cached_pages(path) == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Returns how much of the file is in the page cache, in units of 4 KiB, whatever the size of the system's pages.
pub fn cached_pages(path: &Path) -> usize {
    let len = std::fs::metadata(path).unwrap().len() as usize;
    cached_pages_of(path, 0..len)
}

/// The same of these bytes, of which the first is the first of a page.
pub fn cached_pages_of(path: &Path, range: Range<usize>) -> usize {
    let file = std::fs::File::open(path).unwrap();
    let mut resident = vec![0u8; range.len().div_ceil(page_size())];
    let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
    // SAFETY: a new mapping, which is only examined and then unmapped; `resident` has a byte for each of its pages.
    unsafe {
        let map =
            libc::mmap(std::ptr::null_mut(), range.len(), read, shared, file.as_raw_fd(), range.start as i64);
        assert_ne!(map, libc::MAP_FAILED);
        assert_eq!(libc::mincore(map, range.len(), resident.as_mut_ptr()), 0);
        assert_eq!(libc::munmap(map, range.len()), 0);
    }
    resident.iter().filter(|&&page| page & 1 == 1).count() * (page_size() / 4096)
}

/// Reads these bytes into the cache, as far as the file has them, without the kernel's read-ahead.
pub fn cache(path: &Path, offset: usize, len: usize) {
    let file = std::fs::File::open(path).unwrap();
    // SAFETY: no memory is named.
    assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) }, 0);
    let _ = file.read_at(&mut vec![0; len], offset as u64).unwrap();
}

/// Keeps bytes of a file in the page cache until it is dropped, if the limit on locked memory allows that.
pub struct Cached {
    address: *mut libc::c_void,
    len: usize,
}

impl Cached {
    /// Reads these bytes into the cache. `offset` must be the start of a page.
    pub fn new(path: &Path, offset: usize, len: usize) -> Self {
        cache(path, offset, len);
        let file = std::fs::File::open(path).unwrap();
        let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a new mapping, which is never accessed.
        unsafe {
            let address =
                libc::mmap(std::ptr::null_mut(), len, read, shared, file.as_raw_fd(), offset as i64);
            assert_ne!(address, libc::MAP_FAILED);
            // Missing pages are read alone, without their neighbours.
            assert_eq!(libc::madvise(address, len, libc::MADV_RANDOM), 0);
            // Not by libc's function, which does nothing under AddressSanitizer.
            libc::syscall(libc::SYS_mlock, address, len);
            Self { address, len }
        }
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        // SAFETY: our own mapping; nothing refers to its memory.
        assert_eq!(unsafe { libc::munmap(self.address, self.len) }, 0);
    }
}

/// Returns whether adaptive files are read ahead on the file system of `path`.
pub fn is_read_ahead(path: &Path) -> bool {
    let output = std::process::Command::new("stat").args(["-f", "-c", "%T"]).arg(path).output().unwrap();
    matches!(String::from_utf8(output.stdout).unwrap().trim(), "ext2/ext3" | "xfs" | "btrfs")
}
