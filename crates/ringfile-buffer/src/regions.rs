//! All pools' regions by address, to find the region of frozen `Bytes`, which hold no pointer to it.
//!
//! Knows regions. Invariants: a region is in [`ALL`] only while it is mapped, and [`CHANGES`] is increased with every change
//! of [`ALL`], so a copy with the current count names no region that is gone. Lent memory is not included: it may
//! contain `Bytes` that do not keep it lent, so its registration may end before they are dropped.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::region::Region;

/// All regions, sorted by address. No other lock is taken while this one is held.
static ALL: Mutex<Vec<Mapped>> = Mutex::new(Vec::new());
/// The number of changes of [`ALL`].
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// A region's place in the address space.
#[derive(Clone, Copy)]
pub(super) struct Mapped {
    base: usize,
    len: usize,
    region: *const Region,
}

// SAFETY: it is the address of a `Sync` object; code that dereferences it states why the region exists.
unsafe impl Send for Mapped {}

/// Locks the list, also on behalf of a thread that forks.
pub(super) fn lock() -> MutexGuard<'static, Vec<Mapped>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a region of a pool, before any of its memory is handed out.
pub(super) fn add(region: &Region) {
    let mut all = lock();
    let (base, len) = (region.base().addr().get(), region.len());
    let place = all.partition_point(|other| other.base < base);
    all.insert(place, Mapped { base, len, region });
    CHANGES.fetch_add(1, Ordering::Relaxed);
}

/// Removes a region, before its memory is unmapped; does nothing for one that was not added.
fn remove(region: &Region) {
    let mut all = lock();
    let base = region.base().addr().get();
    let found = all.binary_search_by_key(&base, |other| other.base);
    if let Some(place) = found.ok().filter(|&place| ptr::eq(all[place].region, region)) {
        all.remove(place);
        CHANGES.fetch_add(1, Ordering::Relaxed);
    }
}

// Here, not with `Region`, which knows nothing of this list.
impl Drop for Region {
    fn drop(&mut self) {
        if self.owns_memory() {
            remove(self);
        }
    }
}

/// A thread's copy of the list, searched without a lock; renewed when the list has changed.
#[derive(Default)]
pub struct KnownRegions {
    changes: u64,
    /// The regions, sorted by address.
    regions: Vec<Mapped>,
}

// SAFETY: as for `Mapped`.
unsafe impl Sync for KnownRegions {}

impl KnownRegions {
    /// Returns the pool region that contains all of `bytes`. Takes a lock, and may allocate, only if a pool has mapped
    /// or unmapped a region since the last call.
    #[inline]
    pub fn region_of<'a>(&mut self, bytes: &'a Bytes) -> Option<&'a Region> {
        // SAFETY: the bytes live for `'a`, and keep the region as long.
        unsafe { self.region_at(bytes.as_ptr(), bytes.len()) }
    }

    /// As [`region_of`](Self::region_of), for the memory of a slice.
    ///
    /// # Safety
    /// The memory is borrowed for `'a`: if it is a pool's, a buffer or bytes keep it mapped so long.
    #[inline]
    pub unsafe fn region_at<'a>(&mut self, start: *const u8, len: usize) -> Option<&'a Region> {
        // A thread that has bytes of a new region also sees that the region was added, since it received both in the same
        // way. No other memory can take a region's place before the region's removal was counted, since the removal comes
        // before the unmapping.
        if self.changes != CHANGES.load(Ordering::Relaxed) {
            self.copy();
        }
        let first = start.addr();
        let behind = self.regions.partition_point(|region| region.base <= first);
        let mapped = self.regions.get(behind.checked_sub(1)?)?;
        let inside = first - mapped.base;
        if inside >= mapped.len || len > mapped.len - inside {
            return None;
        }
        // SAFETY: the region was in the list when the count was compared, so it was mapped then. The bytes lie in its mapping
        // and can be read for as long as they exist, and nothing unmaps it but the region's own drop, which therefore comes
        // after them: a frozen buffer's owner holds a reference of its block, and whatever else gives such bytes to safe
        // code keeps that owner or a buffer, or has leaked it.
        Some(unsafe { &*mapped.region })
    }

    #[cold]
    fn copy(&mut self) {
        let all = lock();
        self.regions.clone_from(&all);
        self.changes = CHANGES.load(Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::lend::RegisteredMemory;
    use super::super::pool::Pool;
    use super::*;

    fn frozen(pool: &Pool, len: usize) -> Bytes {
        let mut buffer = pool.get(len).unwrap();
        buffer.resize(len, 7);
        buffer.freeze()
    }

    #[test]
    fn bytes_of_pools_are_found_as_long_as_they_exist_and_others_are_not() {
        let mut known = KnownRegions::default();
        let (one, two) = (Pool::new(16 << 20), Pool::new(2 << 20));
        let (first, second, other) = (frozen(&one, 4096), frozen(&one, 3 << 20), frozen(&two, 512));
        let lens: Vec<_> = [&first, &second, &other]
            .map(|bytes| {
                let region = known.region_of(bytes).unwrap();
                let at = bytes.as_ptr().addr() - region.base().addr().get();
                assert!(at + bytes.len() <= region.len());
                region.len()
            })
            .into();
        assert_eq!(lens, [2 << 20, 4 << 20, 2 << 20]);
        assert!(ptr::eq(known.region_of(&first).unwrap(), known.region_of(&first.slice(4095..)).unwrap()));
        // What is left of a pool's memory keeps its region, but not the pool.
        drop((one, second));
        assert_eq!(known.region_of(&first).unwrap().len(), 2 << 20);
        let region = ptr::from_ref(known.region_of(&first).unwrap());
        let base = known.region_of(&first).unwrap().base().addr().get();
        drop(first);
        let is_known = lock().iter().any(|mapped| mapped.base == base && ptr::eq(mapped.region, region));
        assert!(!is_known, "the region is gone, and forgotten");
        // Memory that is no pool's, or that is never registered.
        let unregistered = Pool::builder().registered(false).build().unwrap();
        let lent = RegisteredMemory::new(vec![7_u8; 4096]).lend(..).unwrap().freeze();
        for bytes in
            [Bytes::from(vec![7_u8; 4096]), Bytes::from_static(b"static"), frozen(&unregistered, 512), lent]
        {
            assert!(known.region_of(&bytes).is_none());
        }
        assert!(known.region_of(&other).is_some());
    }
}
