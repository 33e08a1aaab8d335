//! Memory from the system: aligned mappings, zeroed, with the requested page size.
//!
//! The only code in ringfile that maps anonymous memory. `linux.rs` knows the kernel's calls and files about memory;
//! elsewhere (`portable.rs`) the allocator of the standard library provides it. Invariants: a mapping is zeroed when new,
//! stays at its address, in forked children too, and is unmapped once, by its drop.

use std::io;
use std::ptr::NonNull;

#[cfg(target_os = "linux")]
mod linux;
mod options;
#[cfg(not(target_os = "linux"))]
mod portable;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(target_os = "linux")]
pub use linux::meminfo;
pub use options::HugePages;
pub(crate) use options::MapOptions;
#[cfg(not(target_os = "linux"))]
use portable as system;
pub use system::page_size;

impl MapOptions {
    /// Returns what this system cannot do of it.
    pub(crate) fn unsupported(&self) -> Option<&'static str> {
        system::unsupported(self)
    }

    /// Mappings are multiples of this.
    pub(crate) fn granule(&self) -> usize {
        system::granule(self)
    }
}

/// A private mapping.
pub(crate) struct MappedMemory {
    base: NonNull<u8>,
    len: usize,
    align: usize,
}

// SAFETY: plain memory; ownership of blocks decides which thread may access which part.
unsafe impl Send for MappedMemory {}
// SAFETY: as above; a shared mapping gives out only its address.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// Maps `len` bytes, a multiple of the granule. Fails with the system's error.
    pub fn new(len: usize, options: &MapOptions) -> io::Result<MappedMemory> {
        debug_assert_eq!(len % options.granule(), 0);
        let align = options.align.max(options.granule());
        let base = system::map(len, align, options)?;
        Ok(MappedMemory { base, len, align })
    }

    /// Returns the address of the first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Gives up the mapping without unmapping it, for [`MappedMemory::from_parts`].
    pub(crate) fn into_parts(self) -> (NonNull<u8>, usize) {
        let parts = (self.base, self.len);
        std::mem::forget(self);
        parts
    }

    /// # Safety
    /// The parts come from [`MappedMemory::into_parts`] of a mapping with these options, and nothing uses the memory after
    /// the new mapping is dropped.
    pub(crate) unsafe fn from_parts(base: NonNull<u8>, len: usize, options: &MapOptions) -> MappedMemory {
        MappedMemory { base, len, align: options.align.max(options.granule()) }
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length and alignment, and the code that drops a mapping has ensured that none
        // of its blocks is in use.
        unsafe { system::unmap(self.base, self.len, self.align) }
    }
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
