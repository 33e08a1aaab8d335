//! The memory of a cache: frames, in segments that can be given back one by one.
//!
//! A segment is a pool, since a pool gives its memory back to the system when it is dropped. It is used piece by piece.
//! Frames are cut from pieces as a buddy allocator does: each begins at a multiple of its size, so that two which lie
//! side by side can become one of twice the size, and pages of all sizes share the memory. Invariants: the frames that
//! exist, cached or not, never take more than the budget, unless the budget was lowered while they were in use; no byte
//! is in two frames, or in a frame and in `free`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ringfile::buf::HugePages;
use ringfile::{Buffer, Pool};

use crate::word::is_addressable;

pub(crate) const SMALLEST_PAGE: usize = 4096;
pub(crate) const LARGEST_PAGE: usize = 2 << 20;

/// What a piece is at most, so that every page fits, and a segment at least; the budget is divided into at most about 16
/// segments at first.
const PIECE: usize = LARGEST_PAGE;
const MOST_SPARE: usize = 64;

/// A unit is as large as the smallest page; a page of order `n` has `2^n` units.
const UNIT: usize = SMALLEST_PAGE;
const ORDERS: usize = (LARGEST_PAGE / UNIT).ilog2() as usize + 1;

fn order_of(size: usize) -> usize {
    (size / UNIT).ilog2() as usize
}

/// The memory of one page.
pub(crate) struct Frame {
    pub(crate) buffer: Buffer,
    pub(crate) piece: Arc<Piece>,
}

/// A block of a segment's pool, from which frames are cut.
pub(crate) struct Piece {
    block: Buffer,
    number: u32,
    segment: u32,
    // Both are read and changed under the cache's lock.
    is_given_up: AtomicBool,
    /// Of each unit, what the frame is used for that begins there.
    uses: Box<[AtomicU32]>,
}

/// What a frame is used for.
pub(crate) enum Use {
    /// There is none.
    Free,
    /// It has the page of this slot.
    Slot(u32),
    /// Otherwise: it is being read into, or its page has left the cache and is in use.
    Other,
}

const FREE: u32 = u32::MAX;
const OTHER: u32 = u32::MAX - 1;

impl Piece {
    /// Returns whether its segment was given up, so that its frames are to be freed.
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    pub(crate) fn use_of(&self, unit: usize) -> Use {
        match self.uses[unit].load(Ordering::Relaxed) {
            FREE => Use::Free,
            OTHER => Use::Other,
            slot => Use::Slot(slot),
        }
    }

    /// Returns where a unit is among those of all pieces.
    pub(crate) fn place(&self, unit: usize) -> u64 {
        u64::from(self.number) << (ORDERS - 1) | unit as u64
    }
}

impl Frame {
    /// Returns where its bytes begin.
    pub(crate) fn start(&self) -> NonNull<u8> {
        NonNull::new(self.buffer.as_ptr().cast_mut()).unwrap_or(NonNull::dangling())
    }

    /// Returns the unit at which it begins.
    fn unit(&self) -> Option<usize> {
        let offset = self.buffer.as_ptr().addr().checked_sub(self.piece.block.as_ptr().addr())?;
        Some(offset / UNIT).filter(|&unit| unit < self.piece.uses.len())
    }

    /// Notes which slot it belongs to, if any.
    pub(crate) fn note_slot(&self, slot: Option<u32>) {
        self.set_use(slot.unwrap_or(OTHER));
    }

    fn set_use(&self, of: u32) {
        if let Some(unit) = self.unit() {
            self.piece.uses[unit].store(of, Ordering::Relaxed);
        }
    }

    /// Returns the units of the frame of `size` bytes that could be here, if there is room for it in the piece.
    pub(crate) fn around(&self, size: usize) -> Option<Range<usize>> {
        let units = size / UNIT;
        let start = self.unit()? / units * units;
        (start + units <= self.piece.uses.len()).then_some(start..start + units)
    }
}

struct Segment {
    number: u32,
    pool: Pool,
    bytes: usize,
    /// What no piece was made of yet.
    left: usize,
}

/// See the top of this file.
pub(crate) struct Memory {
    segments: Vec<Segment>,
    pieces: BTreeMap<u32, Arc<Piece>>,
    /// By order: the places of memory that is in no frame.
    free: [BTreeSet<u64>; ORDERS],
    /// Frames that were given back, with their sizes: the next of the same size need no search.
    spare: Vec<(Frame, usize)>,
    huge_pages: HugePages,
    /// How many segments and pieces were made.
    made: u32,
    budget: usize,
    /// Bytes of all frames that exist, also in segments that were given up.
    used: usize,
}

impl Memory {
    pub(crate) fn new(budget: usize, huge_pages: HugePages) -> ringfile::Result<Self> {
        let mut memory = Self {
            segments: Vec::new(),
            pieces: BTreeMap::new(),
            free: [const { BTreeSet::new() }; ORDERS],
            spare: Vec::new(),
            huge_pages,
            made: 0,
            budget: 0,
            used: 0,
        };
        memory.grow(budget)?;
        Ok(memory)
    }

    pub(crate) fn budget(&self) -> usize {
        self.budget
    }

    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Returns a frame of `size` bytes, if there is room.
    ///
    /// # Errors
    /// If the system has no memory.
    pub(crate) fn get(&mut self, size: usize) -> ringfile::Result<Option<Frame>> {
        if self.used + size > self.budget {
            self.free_spare();
            return Ok(None);
        }
        if let Some((frame, _)) = self.spare.pop_if(|(_, its_size)| *its_size == size) {
            self.used += size;
            return Ok(Some(frame));
        }
        self.free_spare();
        let place = loop {
            if let Some(place) = self.take(order_of(size)) {
                break place;
            }
            if !self.add_piece()? {
                return Ok(None);
            }
        };
        let Some(piece) = self.pieces.get(&((place >> (ORDERS - 1)) as u32)) else { return Ok(None) };
        let unit = place as usize % (1 << (ORDERS - 1));
        // SAFETY: these bytes are in no other frame, by the invariant, and the block itself is only what keeps them.
        let buffer = unsafe { piece.block.share(unit * UNIT, size) };
        let frame = Frame { buffer, piece: Arc::clone(piece) };
        frame.note_slot(None);
        self.used += size;
        Ok(Some(frame))
    }

    /// Returns how many frames of `size` bytes have a place that is free. The budget may allow fewer.
    pub(crate) fn free_places(&mut self, size: usize) -> usize {
        self.free_spare();
        let order = order_of(size);
        let joined = (order..ORDERS).map(|larger| self.free[larger].len() << (larger - order));
        let not_made = self
            .segments
            .iter()
            .map(|Segment { left, .. }| left / PIECE * (PIECE / size) + left % PIECE / size);
        joined.chain(not_made).sum()
    }

    /// Gives a frame of `size` bytes back.
    pub(crate) fn put(&mut self, frame: Frame, size: usize) {
        self.used -= size;
        if self.spare.len() < MOST_SPARE && !frame.piece.is_given_up() {
            self.spare.push((frame, size));
        } else {
            self.free(frame, size);
        }
    }

    /// Frees the spare frames, so that they can become frames of other sizes.
    fn free_spare(&mut self) {
        while let Some((frame, size)) = self.spare.pop() {
            self.free(frame, size);
        }
    }

    fn free(&mut self, frame: Frame, size: usize) {
        frame.set_use(FREE);
        // A buffer that is not of the piece is not the one that was cut here, which may still be in use.
        let place = frame.unit().filter(|_| !frame.piece.is_given_up()).map(|unit| frame.piece.place(unit));
        drop(frame);
        let (Some(mut place), mut order) = (place, order_of(size)) else { return };
        while order + 1 < ORDERS && self.free[order].remove(&(place ^ 1 << order)) {
            place &= !(1 << order);
            order += 1;
        }
        self.free[order].insert(place);
    }

    /// Takes memory of this order out of `free`, and splits larger one if need be.
    fn take(&mut self, order: usize) -> Option<u64> {
        let from = (order..ORDERS).find(|&from| !self.free[from].is_empty())?;
        let place = self.free[from].pop_first()?;
        for half in order..from {
            self.free[half].insert(place + (1 << half));
        }
        Some(place)
    }

    /// Makes another piece. Returns false if there is no room for one.
    fn add_piece(&mut self) -> ringfile::Result<bool> {
        let Some(segment) = self.segments.iter_mut().find(|segment| segment.left > 0) else {
            return Ok(false);
        };
        let bytes = segment.left.min(PIECE);
        let block = segment.pool.try_get(bytes)?;
        // A word has no room for other addresses. No system that Linux runs on gives them without being asked.
        assert!(is_addressable(block.as_ptr()), "memory beyond 48 bits of address");
        segment.left -= bytes;
        self.made += 1;
        let piece = Piece {
            block,
            number: self.made,
            segment: segment.number,
            is_given_up: AtomicBool::new(false),
            uses: (0..bytes / UNIT).map(|_| AtomicU32::new(FREE)).collect(),
        };
        let (mut unit, units) = (0, piece.uses.len());
        while unit < units {
            let order = (unit.trailing_zeros()).min((units - unit).ilog2()) as usize;
            self.free[order].insert(piece.place(unit));
            unit += 1 << order;
        }
        self.pieces.insert(self.made, Arc::new(piece));
        Ok(true)
    }

    /// Changes the budget: adds segments, or gives up as many as are above it.
    pub(crate) fn set_budget(&mut self, budget: usize) -> ringfile::Result<()> {
        if budget >= self.budget {
            return self.grow(budget);
        }
        self.budget = budget;
        self.free_spare();
        let mut bytes: usize = self.segments.iter().map(|segment| segment.bytes).sum();
        // A part of a segment cannot be given back, so the last that is needed stays.
        while let Some(last) = self.segments.pop_if(|last| bytes - last.bytes >= budget) {
            bytes -= last.bytes;
            self.pieces.retain(|_, piece| {
                let stays = piece.segment != last.number;
                piece.is_given_up.store(!stays, Ordering::Relaxed);
                stays
            });
        }
        let Self { pieces, free, .. } = self;
        for places in free {
            places.retain(|place| pieces.contains_key(&((place >> (ORDERS - 1)) as u32)));
        }
        Ok(())
    }

    /// Adds segments. After a failure there are those of before.
    fn grow(&mut self, budget: usize) -> ringfile::Result<()> {
        let before = self.segments.len();
        self.add_segments(budget).inspect_err(|_| self.segments.truncate(before))?;
        self.budget = budget;
        Ok(())
    }

    fn add_segments(&mut self, budget: usize) -> ringfile::Result<()> {
        let bytes: usize = self.segments.iter().map(|segment| segment.bytes).sum();
        let mut missing = budget.saturating_sub(bytes);
        let size = (missing / 16).next_power_of_two().max(PIECE);
        while missing > 0 {
            // A later segment is not smaller than the largest page, which would fit in none then.
            let least = if self.segments.is_empty() { 0 } else { PIECE };
            let bytes = missing.min(size).max(least);
            let pool = Pool::builder().capacity(bytes).huge_pages(self.huge_pages).build()?;
            if self.huge_pages == HugePages::Require {
                map_all(&pool)?;
            }
            self.made += 1;
            // As much as the system's pages allow.
            let left = pool.metrics().capacity;
            self.segments.push(Segment { number: self.made, pool, bytes, left });
            missing = missing.saturating_sub(bytes);
        }
        Ok(())
    }
}

/// Maps all memory of a new segment: if the system refused a page later, the cache would take that for a page in use.
fn map_all(pool: &Pool) -> ringfile::Result<()> {
    const LARGEST: usize = 1 << 30;
    let capacity = pool.metrics().capacity;
    let pieces = (0..capacity).step_by(LARGEST).map(|start| pool.try_get(LARGEST.min(capacity - start)));
    pieces.collect::<Result<Vec<_>, _>>()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(budget: usize) -> ringfile::Result<Memory> {
        Memory::new(budget, HugePages::default())
    }

    #[test]
    fn frames_of_any_sizes_do_not_overlap_and_are_joined_when_they_are_free() -> ringfile::Result<()> {
        let mut seed = 1_u64;
        let mut below = |most: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % most
        };
        for budget in [UNIT, 5 * UNIT, 100 * UNIT, PIECE, 3 * PIECE, 3 * PIECE + 7 * UNIT] {
            let mut memory = memory(budget)?;
            let mut frames: Vec<(Frame, usize)> = Vec::new();
            for _ in 0..2000 {
                let size = UNIT << below(ORDERS);
                if let Some(frame) = memory.get(size)? {
                    assert_eq!((frame.buffer.capacity(), frame.start().addr().get() % UNIT), (size, 0));
                    let start = frame.start().addr().get();
                    let overlaps = |(other, its_size): &&(Frame, usize)| {
                        let other = other.start().addr().get();
                        start < other + its_size && other < start + size
                    };
                    assert!(frames.iter().find(overlaps).is_none());
                    frames.push((frame, size));
                }
                if !frames.is_empty() && below(2) == 0 {
                    let (frame, size) = frames.swap_remove(below(frames.len()));
                    memory.put(frame, size);
                }
                assert_eq!(memory.used(), frames.iter().map(|(_, size)| size).sum());
                assert!(memory.used() <= budget);
            }
            frames.drain(..).for_each(|(frame, size)| memory.put(frame, size));
            for size in (0..ORDERS).map(|order| UNIT << order).filter(|&size| size <= budget) {
                let all: Vec<Frame> =
                    std::iter::from_fn(|| memory.get(size).transpose()).collect::<ringfile::Result<_>>()?;
                assert_eq!(all.len(), budget / size, "of {size} in {budget}");
                all.into_iter().for_each(|frame| memory.put(frame, size));
            }
        }
        Ok(())
    }

    #[test]
    fn memory_that_was_given_up_is_not_used_again() -> ringfile::Result<()> {
        let mut memory = memory(8 * PIECE)?;
        let frames: Vec<Frame> =
            std::iter::from_fn(|| memory.get(PIECE).transpose()).collect::<ringfile::Result<_>>()?;
        memory.set_budget(2 * PIECE)?;
        let given_up = frames.iter().filter(|frame| frame.piece.is_given_up()).count();
        assert_eq!((frames.len(), given_up, memory.used()), (8, 6, 8 * PIECE));
        frames.into_iter().for_each(|frame| memory.put(frame, PIECE));
        assert_eq!(memory.used(), 0);
        for _ in 0..600 {
            let frame = memory.get(UNIT)?;
            assert!(frame.as_ref().is_some_and(|frame| !frame.piece.is_given_up()));
            if let Some(frame) = frame {
                memory.put(frame, UNIT);
            }
        }
        Ok(())
    }
}
