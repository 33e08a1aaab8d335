//! A pool's counters, as a snapshot for users.
//!
//! Knows the core and what its lock guards, and only reads.

use std::sync::atomic::Ordering;

use super::class::{self, CLASSES};
use super::core::Core;
use super::inner::PoolInner;
use super::region::Region;

/// Counters of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassMetrics {
    /// The size of this class's blocks, in bytes.
    pub size: usize,
    /// Blocks in use.
    pub in_use: u64,
    /// Blocks handed out since the pool was made.
    pub gets: u64,
    /// Blocks returned since the pool was made.
    pub returns: u64,
}

/// Counters of a pool. They are not read at one instant while other threads use the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolMetrics {
    /// The hard limit, in bytes.
    pub capacity: usize,
    /// Bytes of memory mapped for the pool, in use or not.
    pub reserved: usize,
    /// The most that `reserved` ever was.
    pub reserved_high_water: usize,
    /// Bytes in use, as whole blocks.
    pub in_use: usize,
    /// Gets that found nothing cached and took the pool's lock.
    pub misses: u64,
    /// Buffers that were allocated outside the pool, since it was made.
    pub outside_allocations: u64,
    /// Bytes outside the pool, in use now.
    pub outside_bytes: usize,
    /// Gets that had to wait for memory to come back.
    pub waits: u64,
    /// Gets that failed because the pool was full.
    pub failures: u64,
    /// Buffers whose content was copied to a larger block because more was appended than fitted.
    pub growths: u64,
    /// The pool's regions of memory.
    pub regions: usize,
    /// Regions that are registered with io_uring.
    pub registered_regions: usize,
    /// Bytes in registered regions.
    pub registered_bytes: usize,
    /// Regions whose registration was refused (RLIMIT_MEMLOCK), since the pool was made. Before Linux 5.19 nothing is
    /// registered: see ringfile's `Metrics::refused_registrations`.
    pub refused_registrations: usize,
    /// The size classes that were ever used, the smallest first.
    pub classes: Vec<ClassMetrics>,
}

impl Core {
    pub(super) fn metrics(&self) -> PoolMetrics {
        let inner = self.lock();
        let regions = || inner.tracts.iter().map(|tract| &*tract.region);
        let registered = || regions().filter(|region| region.is_registered() == Some(true));
        let refused = regions().filter(|region| region.is_registered() == Some(false)).count();
        PoolMetrics {
            capacity: self.options.capacity,
            reserved: inner.reserved,
            reserved_high_water: inner.reserved_high_water,
            in_use: self.in_use(&inner),
            misses: self.counters.misses.load(Ordering::Relaxed),
            outside_allocations: inner.outside_allocations,
            outside_bytes: inner.outside_bytes,
            waits: self.counters.waits.load(Ordering::Relaxed),
            failures: self.counters.failures.load(Ordering::Relaxed),
            growths: self.counters.growths.load(Ordering::Relaxed),
            regions: inner.tracts.len(),
            registered_regions: registered().count(),
            registered_bytes: registered().map(Region::len).sum(),
            refused_registrations: inner.refused_before + refused,
            classes: (0..CLASSES)
                .map(|class| self.class_metrics(&inner, class))
                .filter(|class| class.gets > 0)
                .collect(),
        }
    }

    /// Blocks that exist and are in no stack are in use. Gets are pops that handed a block out, plus new blocks that
    /// were handed out.
    pub(super) fn class_metrics(&self, inner: &PoolInner, class: usize) -> ClassMetrics {
        let book = &inner.classes[class];
        let (pops, cached) = self.cells(class).fold((0, 0), |sum, cell| {
            let (pops, height) = cell.counts(&self.arena);
            (sum.0 + pops, sum.1 + height)
        });
        // Other threads pop and push concurrently, so sums over shards may be off by a few.
        let in_use = book.existing.saturating_sub(cached);
        let gets = (pops + book.fresh).saturating_sub(book.drained);
        ClassMetrics { size: class::size(class), in_use, gets, returns: gets.saturating_sub(in_use) }
    }

    /// Returns the bytes of the pool's own memory that are in use.
    pub(super) fn in_use(&self, inner: &PoolInner) -> usize {
        let of_class = |class| {
            let metrics = self.class_metrics(inner, class);
            metrics.in_use as usize * metrics.size
        };
        let classes: usize =
            (0..CLASSES).filter(|&class| inner.classes[class].existing > 0).map(of_class).sum();
        classes.saturating_sub(inner.below_class)
    }
}
