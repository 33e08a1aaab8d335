//! The part of a pool under its lock: regions, the hard limit, and the search for memory when nothing is cached.
//!
//! Knows the core, what its lock guards (`inner.rs`), headers, extents and mappings. Invariants under the lock: the
//! regions' lengths add up to `reserved`, which never passes the capacity; each byte of a region is in an extent or in
//! exactly one block; `blocks` has all blocks that exist, so those that are in no stack are in use.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::block::{Block, BlockKind};
use super::class::{self, CLASSES, LARGEST, SLAB};
use super::core::Core;
use super::error::PoolError;
use super::extents::Extents;
use super::inner::{PoolInner, Tract};
use super::kernel::{Blocks, Cell, Linked};
use super::mapping::{HugePages, MappedMemory, page_size};
use super::queue::wake_all;
use super::region::{REGION_MAX, Region};
use super::regions;
use crate::event;

/// What a system that gives no reason refuses memory for: ENOMEM, or Windows' ERROR_NOT_ENOUGH_MEMORY.
const NO_MEMORY: i32 = if cfg!(windows) { 8 } else { 12 };

/// The first region's size; each further one is twice as large. So, with a low limit on locked memory, at least the
/// first regions can be registered; these are searched first.
const FIRST_REGION: usize = 2 << 20;

impl Core {
    /// Fails if the pool can never provide `n` bytes, however empty it is.
    pub(super) fn check_size(&self, n: usize) -> Result<(), PoolError> {
        let within = self.options.capacity.min(LARGEST) & !(self.options.map.align - 1);
        let outside = self.options.when_full.outside_limit() & !(page_size() - 1);
        let largest = within.max(outside);
        if n <= largest && largest > 0 { Ok(()) } else { Err(PoolError::TooLarge { requested: n, largest }) }
    }

    /// Returns a free block, from the pool or wherever else the settings allow; `None` if there is none now. The caller has
    /// decided whose turn it is.
    pub(super) fn try_get(
        &self,
        inner: &mut PoolInner,
        n: usize,
    ) -> Result<Option<NonNull<Block>>, PoolError> {
        match self.find(inner, n)? {
            None => self.find_outside(inner, n),
            found => Ok(found),
        }
    }

    /// Returns a block of the pool for `n` bytes. Tries cheap ways first, and those that disturb other threads last.
    fn find(&self, inner: &mut PoolInner, n: usize) -> Result<Option<NonNull<Block>>, PoolError> {
        let Some(class) = self.class_of(n) else { return Ok(None) };
        let size = class::size(class);
        if let Some(block) = self.take_cached(class).or_else(|| self.carve_cached(inner, class)) {
            return Ok(Some(block));
        }
        let grown = self.grow(inner, size);
        if let Ok(true) = grown {
            return Ok(self.carve_cached(inner, class));
        }
        // Blocks of other classes become extents again, and neighbours are joined.
        self.drain_cached(inner);
        if let Some(block) = self.carve_cached(inner, class) {
            return Ok(Some(block));
        }
        if self.make_room(inner, size) && self.grow(inner, size)? {
            return Ok(self.carve_cached(inner, class));
        }
        // The class may be up to a quarter larger than the request: try a block of exactly that size.
        let exact = n.max(1).next_multiple_of(self.options.map.align);
        if exact < size {
            if let Some(block) = self.carve(inner, BlockKind::Exact, class, exact) {
                return Ok(Some(block));
            }
            if self.make_room(inner, exact) && self.grow(inner, exact)? {
                return Ok(self.carve(inner, BlockKind::Exact, class, exact));
            }
        }
        // If there was room but the system refused, the caller gets the system's error instead of "full".
        grown.map(|_| None)
    }

    /// Cuts a block that will be cached when it is returned; small ones a page at a time, so that they do not scatter.
    fn carve_cached(&self, inner: &mut PoolInner, class: usize) -> Option<NonNull<Block>> {
        let size = class::size(class);
        let page = if size < SLAB { take(inner, SLAB, SLAB) } else { None };
        let Some((slot, offset)) = page else {
            return self.carve(inner, BlockKind::Cached, class, size);
        };
        let first = self.describe(inner, (slot, offset), BlockKind::Cached, class, size);
        for rest in (offset + size..offset + SLAB).step_by(size) {
            if let Some(block) = self.describe(inner, (slot, rest), BlockKind::Cached, class, size)
                && !self.cache(class, block)
            {
                self.dissolve(inner, block);
            }
        }
        inner.classes[class].fresh += u64::from(first.is_some());
        first
    }

    fn carve(
        &self,
        inner: &mut PoolInner,
        kind: BlockKind,
        class: usize,
        size: usize,
    ) -> Option<NonNull<Block>> {
        let align = if size < SLAB { size.next_power_of_two() } else { self.options.map.align.max(SLAB) };
        let at = take(inner, size, align)?;
        let block = self.describe(inner, at, kind, class, size)?;
        inner.classes[class].fresh += 1;
        Some(block)
    }

    /// Assigns a header to a piece that was taken; if none is left, returns the piece.
    fn describe(
        &self,
        inner: &mut PoolInner,
        (slot, offset): (usize, usize),
        kind: BlockKind,
        class: usize,
        size: usize,
    ) -> Option<NonNull<Block>> {
        let tract = &mut inner.tracts[slot];
        let Some(index) = self.arena.number(&mut inner.numbers, self.home()) else {
            tract.extents.give(offset, size);
            return None;
        };
        let base = tract.region.base().as_ptr().wrapping_add(offset);
        let region = Arc::as_ptr(&tract.region);
        self.arena.header(index).describe(kind, class, base, size, region);
        inner.blocks.insert(base.addr(), index);
        inner.below_class += class::size(class) - size;
        inner.classes[class].existing += 1;
        if inner.classes[class].existing == 1 && inner.waiters.any() {
            self.mark_waiting(class);
        }
        Some(self.arena.block(index))
    }

    /// Turns a block without references, which is in no stack, into free extents.
    fn dissolve(&self, inner: &mut PoolInner, block: NonNull<Block>) {
        // SAFETY: headers live as long as the arena.
        let header = unsafe { block.as_ref() };
        let class = header.class();
        inner.classes[class].existing -= 1;
        inner.below_class -= class::size(class) - header.size();
        // SAFETY: the block's region is in `tracts`, which keeps it, as not all of it is free.
        let region = unsafe { &*header.region() };
        let offset = header.base().addr() - region.base().addr().get();
        inner.tracts[region.slot.load(Ordering::Relaxed)].extents.give(offset, header.size());
        inner.blocks.remove(&header.base().addr());
        self.arena.free(&mut inner.numbers, header.number());
    }

    /// Turns all cached blocks into free extents.
    fn drain_cached(&self, inner: &mut PoolInner) {
        for class in 0..CLASSES {
            // A class without blocks has empty stacks.
            if inner.classes[class].existing == 0 {
                continue;
            }
            while let Some(block) = self.take_cached(class) {
                inner.classes[class].drained += 1;
                self.dissolve(inner, block);
            }
        }
    }

    /// Makes the gets and returns of a class take the lock.
    fn mark_waiting(&self, class: usize) {
        self.cells(class).for_each(Cell::mark_waiting);
    }

    /// Makes all gets and returns take the lock, because a request is about to wait.
    pub(super) fn mark_all_waiting(&self, inner: &PoolInner) {
        // Classes without blocks have nothing to get or to return; `describe` marks later ones.
        (0..CLASSES)
            .filter(|&class| inner.classes[class].existing > 0)
            .for_each(|class| self.mark_waiting(class));
    }

    /// Lets gets and returns run without the lock again.
    pub(super) fn unmark_all_waiting(&self) {
        (0..CLASSES).flat_map(|class| self.cells(class)).for_each(Cell::unmark_waiting);
    }

    /// Closes the pool after its last handle: frees cached blocks, makes all returns take the lock, and turns each
    /// block in use into an anchor, which its return removes.
    pub(super) fn close(&self) {
        let mut inner = self.lock();
        (0..CLASSES).flat_map(|class| self.cells(class)).for_each(Cell::close);
        self.drain_cached(&mut inner);
        inner.closed = true;
        // Under the lock: a return after this may remove the anchor at once.
        self.anchors.add(inner.blocks.len() as i64);
    }

    /// Adds a region that can hold `need` bytes. Returns false if the capacity has no room for it.
    pub(super) fn grow(&self, inner: &mut PoolInner, need: usize) -> Result<bool, PoolError> {
        let options = &self.options;
        let need = need.next_multiple_of(options.map.granule());
        let room = options.capacity - inner.reserved;
        if need > room {
            return Ok(false);
        }
        let regions = u32::try_from(inner.tracts.len()).unwrap_or(u32::MAX);
        let next = FIRST_REGION.checked_shl(regions).filter(|&len| len > 0).unwrap_or(REGION_MAX);
        // `room` and `need` are multiples of the granule, and so are powers of two from 2 MiB on that are at least the
        // granule.
        let mut len = next.min(REGION_MAX).next_multiple_of(options.map.granule()).max(need).min(room);
        let mapping = loop {
            match MappedMemory::new(len, &options.map) {
                Ok(mapping) => break mapping,
                // A smaller amount may still be available.
                Err(_) if len > need => len = (len / 2).next_multiple_of(options.map.granule()).max(need),
                Err(error) => return Err(self.refused(len, &error)),
            }
        };
        let region = Arc::new(Region::new(mapping, options.registered));
        region.slot.store(inner.tracts.len(), Ordering::Relaxed);
        if region.is_registrable() {
            regions::add(&region);
        }
        inner.tracts.push(Tract { region, extents: Extents::new(len) });
        inner.reserved += len;
        inner.reserved_high_water = inner.reserved_high_water.max(inner.reserved);
        Ok(true)
    }

    fn refused(&self, bytes: usize, error: &io::Error) -> PoolError {
        let errno = error.raw_os_error().unwrap_or(NO_MEMORY);
        match self.options.map.huge_pages {
            HugePages::Require => PoolError::NoHugePages { bytes, page: self.options.map.granule(), errno },
            _ => PoolError::System { bytes, errno },
        }
    }

    /// Unmaps free regions, the newest first, if that makes room for one of `need` bytes; otherwise returns false.
    fn make_room(&self, inner: &mut PoolInner, need: usize) -> bool {
        let is_free = |tract: &Tract| tract.extents.free_bytes() == tract.region.len();
        let need = need.next_multiple_of(self.options.map.granule());
        let free: usize =
            inner.tracts.iter().filter(|tract| is_free(tract)).map(|tract| tract.region.len()).sum();
        if self.options.capacity - inner.reserved + free < need {
            return false;
        }
        for slot in (0..inner.tracts.len()).rev() {
            if self.options.capacity - inner.reserved >= need {
                break;
            }
            if is_free(&inner.tracts[slot]) {
                let gone = inner.tracts.remove(slot);
                inner.reserved -= gone.region.len();
                inner.refused_before += usize::from(gone.region.is_registered() == Some(false));
            }
        }
        for (slot, tract) in inner.tracts.iter().enumerate() {
            tract.region.slot.store(slot, Ordering::Relaxed);
        }
        true
    }

    /// Maps memory outside the pool, if the limit for such memory allows it.
    fn find_outside(&self, inner: &mut PoolInner, n: usize) -> Result<Option<NonNull<Block>>, PoolError> {
        let (map, limit) = (self.options.map, self.options.when_full.outside_limit());
        let Some(size) = n.max(1).checked_next_multiple_of(map.granule()) else { return Ok(None) };
        if size > limit - inner.outside_bytes {
            return Ok(None);
        }
        let mapping = MappedMemory::new(size, &map).map_err(|error| self.refused(size, &error))?;
        let Some(index) = self.arena.number(&mut inner.numbers, self.home()) else { return Ok(None) };
        let (base, size) = mapping.into_parts();
        self.arena.header(index).describe(BlockKind::Outside, 0, base.as_ptr(), size, std::ptr::null());
        inner.blocks.insert(base.addr().get(), index);
        inner.outside_bytes += size;
        inner.outside_allocations += 1;
        if inner.outside_allocations == 1 && self.options.warns {
            let capacity = self.options.capacity;
            event::defer(move || {
                tracing::warn!(
                    capacity,
                    limit,
                    requested = n,
                    "a pool is full: further buffers are mapped one by one, outside the pool and not registered; a \
                     larger pool avoids that"
                );
            });
        }
        Ok(Some(self.arena.block(index)))
    }

    /// Takes back a block under the lock, and serves waiting requests. Returns true if the block is an anchor.
    pub(super) fn dissolve_and_serve(&self, block: NonNull<Block>) -> bool {
        // SAFETY: headers live as long as the arena.
        let header = unsafe { block.as_ref() };
        let mut inner = self.lock_waiters();
        let mut mapping = None;
        if header.kind() == BlockKind::Outside {
            inner.blocks.remove(&header.base().addr());
            inner.outside_bytes -= header.size();
            // SAFETY: made by `find_outside`; nobody refers to the block, so nobody uses the memory.
            let outside = unsafe {
                let base = NonNull::new_unchecked(header.base());
                MappedMemory::from_parts(base, header.size(), &self.options.map)
            };
            mapping = Some(outside);
            self.arena.free(&mut inner.numbers, header.number());
        } else {
            self.dissolve(&mut inner, block);
        }
        let wakers = self.serve_queue(&mut inner);
        let closed = inner.closed;
        drop(inner);
        drop(mapping);
        wake_all(wakers.into_iter());
        closed
    }

    /// Finds the block that contains `len` bytes at `address`, if it belongs to this pool.
    pub(super) fn block_at(&self, inner: &PoolInner, address: usize, len: usize) -> Option<NonNull<Block>> {
        let (&base, &index) = inner.blocks.range(..=address).next_back()?;
        (address - base + len <= self.arena.header(index).size()).then(|| self.arena.block(index))
    }

    fn home(&self) -> *mut () {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

/// Takes memory from the oldest region that has enough: returns its slot and the offset there.
fn take(inner: &mut PoolInner, size: usize, align: usize) -> Option<(usize, usize)> {
    inner
        .tracts
        .iter_mut()
        .enumerate()
        .find_map(|(slot, tract)| tract.extents.take(size, align).map(|offset| (slot, offset)))
}
