//! Regions: pieces of memory that are registered with io_uring as one buffer each.
//!
//! Knows nothing of io_uring: the ring layer passes in functions that register and release. Invariants: a region covers
//! every buffer that was cut from it and outlives them; its registration is released before its memory is unmapped.

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;

use super::mapping::MappedMemory;

/// A registered buffer may be at most this large (the kernel's limit).
pub(crate) const REGION_MAX: usize = 1 << 30;

/// A region's place in the process-wide table of registered buffers.
///
/// `index` may be used again for another region after this one is gone; `serial` never is.
pub struct Registration {
    /// See above.
    pub index: u32,
    /// See above.
    pub serial: u64,
    /// Called once, with index and serial, when the region is dropped; from any thread, even while a completion is
    /// handled or with a pool's lock held, so it must not access a pool.
    pub on_release: fn(u32, u64),
}

impl Drop for Registration {
    fn drop(&mut self) {
        (self.on_release)(self.index, self.serial);
    }
}

/// A piece of memory from which blocks are cut.
pub struct Region {
    // Dropped before the mapping: fields are dropped in this order.
    registration: OnceLock<Option<Registration>>,
    base: NonNull<u8>,
    len: usize,
    registrable: bool,
    /// Its place in the pool's list of regions; changed under the pool's lock only.
    pub(crate) slot: AtomicUsize,
    /// `None` for memory that the user owns.
    mapping: Option<MappedMemory>,
}

// SAFETY: the ownership of blocks decides who uses the memory; everything else is Send and Sync.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    pub(crate) fn new(mapping: MappedMemory, registrable: bool) -> Self {
        Region::of(mapping.base(), mapping.len(), registrable, Some(mapping))
    }

    /// Makes a region of the user's memory, which the caller keeps alive as long as the region.
    pub(crate) fn foreign(base: NonNull<u8>, len: usize) -> Self {
        Region::of(base, len, true, None)
    }

    fn of(base: NonNull<u8>, len: usize, registrable: bool, mapping: Option<MappedMemory>) -> Self {
        Region { registration: OnceLock::new(), base, len, registrable, slot: AtomicUsize::new(0), mapping }
    }

    /// Returns its first address.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns its length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it may be registered.
    pub fn is_registrable(&self) -> bool {
        self.registrable
    }

    /// Returns the region's registration, if known: `Some(None)` after a refusal.
    #[inline]
    pub fn registration(&self) -> Option<Option<&Registration>> {
        if !self.registrable {
            return Some(None);
        }
        self.registration.get().map(Option::as_ref)
    }

    /// Returns the registration; if it is unknown, calls `register` with base and length in bytes. A refusal is
    /// remembered too, and not tried again.
    ///
    /// Called under the lock of all registrations, so that no thread waits here for another one: a child forked meanwhile
    /// would wait forever.
    pub fn register(
        &self,
        register: impl FnOnce(*mut u8, usize) -> Option<Registration>,
    ) -> Option<&Registration> {
        self.registration().unwrap_or_else(|| {
            let made = register(self.base.as_ptr(), self.len);
            self.registration.get_or_init(|| made).as_ref()
        })
    }

    /// Returns whether the region owns its mapping; otherwise the memory belongs to the user.
    pub fn owns_memory(&self) -> bool {
        self.mapping.is_some()
    }

    /// Returns whether the region is registered; `None` if that was not tried yet.
    pub(crate) fn is_registered(&self) -> Option<bool> {
        self.registration.get().map(Option::is_some)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::mapping::{HugePages, MapOptions, page_size};
    use super::*;

    fn region(registrable: bool) -> Region {
        let options = MapOptions { align: 4096, huge_pages: HugePages::Auto, dont_fork: false };
        Region::new(MappedMemory::new(page_size(), &options).unwrap(), registrable)
    }

    #[test]
    fn a_region_is_registered_once_and_released_once() {
        static RELEASED: AtomicU64 = AtomicU64::new(0);
        fn on_release(index: u32, serial: u64) {
            assert_eq!(index, 3);
            RELEASED.fetch_add(serial, Ordering::Relaxed);
        }
        let region = region(true);
        let made = region.register(|base, len| {
            assert_eq!((base, len), (region.base().as_ptr(), page_size()));
            Some(Registration { index: 3, serial: 77, on_release })
        });
        assert_eq!(made.map(|made| made.serial), Some(77));
        assert_eq!(region.register(|_, _| unreachable!()).map(|made| made.index), Some(3));
        assert_eq!(RELEASED.load(Ordering::Relaxed), 0);
        drop(region);
        assert_eq!(RELEASED.load(Ordering::Relaxed), 77);
    }

    #[test]
    fn a_refusal_is_kept_and_an_unregistered_pool_is_never_asked() {
        let refused = region(true);
        assert!(refused.register(|_, _| None).is_none());
        assert!(refused.register(|_, _| unreachable!()).is_none());
        assert_eq!(refused.is_registered(), Some(false));
        let never = region(false);
        assert!(never.register(|_, _| unreachable!()).is_none());
        assert_eq!(never.is_registered(), None);
    }
}
