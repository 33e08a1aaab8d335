//! The memory of a cache: frames, in segments that can be given back one by one.
//!
//! A segment is a pool, since a pool gives its memory back to the system when it is dropped. Invariant: the frames that
//! exist, cached or not, never take more than the budget, unless the budget was lowered while they were in use.

use ringfile::{Buffer, HugePages, Pool};

use crate::word::is_addressable;

/// What a segment is at least; the budget is divided into at most about 16 at first.
const SMALLEST: usize = 2 << 20;
const MOST_SPARE: usize = 64;

/// The memory of one page.
pub(crate) struct Frame {
    pub(crate) buffer: Buffer,
    pub(crate) segment: Segment,
}

/// Says which segment a frame lies in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment(u32);

struct Owned {
    segment: Segment,
    pool: Pool,
    bytes: usize,
}

/// See the top of this file.
pub(crate) struct Memory {
    segments: Vec<Owned>,
    /// Frames that were given back, with their sizes: the next need no way through a pool.
    spare: Vec<(Frame, usize)>,
    huge_pages: HugePages,
    made: u32,
    /// The segment that gave the last frame.
    last: usize,
    budget: usize,
    /// Bytes of all frames that exist, also in segments that were given up.
    used: usize,
}

impl Memory {
    pub(crate) fn new(budget: usize, huge_pages: HugePages) -> ringfile::Result<Self> {
        let mut memory = Self {
            segments: Vec::new(),
            spare: Vec::new(),
            huge_pages,
            made: 0,
            last: 0,
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
    pub(crate) fn get(&mut self, size: usize) -> Option<Frame> {
        if self.used + size > self.budget {
            return None;
        }
        if let Some((frame, _)) = self.spare.pop_if(|(_, its_size)| *its_size == size) {
            self.used += size;
            return Some(frame);
        }
        // Those of other sizes are in the way.
        self.spare.clear();
        let count = self.segments.len();
        // From the one that had room last: asking a full pool is slow.
        for index in (0..count).map(|step| (self.last + step) % count) {
            let Owned { segment, pool, .. } = &self.segments[index];
            if let Ok(buffer) = pool.try_get(size) {
                // A word has no room for other addresses. No system that Linux runs on gives them without being asked.
                assert!(is_addressable(buffer.as_ptr()), "memory beyond 48 bits of address");
                self.used += size;
                self.last = index;
                return Some(Frame { buffer, segment: *segment });
            }
        }
        None
    }

    /// Gives a frame of `size` bytes back.
    pub(crate) fn put(&mut self, frame: Frame, size: usize) {
        self.used -= size;
        if self.spare.len() < MOST_SPARE && !self.is_given_up(frame.segment) {
            self.spare.push((frame, size));
        }
    }

    /// Returns whether the segment was given up, so that its frames are to be freed.
    pub(crate) fn is_given_up(&self, segment: Segment) -> bool {
        !self.segments.iter().any(|owned| owned.segment == segment)
    }

    /// Changes the budget: adds segments, or gives up as many as are above it.
    pub(crate) fn set_budget(&mut self, budget: usize) -> ringfile::Result<()> {
        if budget >= self.budget {
            return self.grow(budget);
        }
        self.budget = budget;
        self.spare.clear();
        let mut bytes: usize = self.segments.iter().map(|owned| owned.bytes).sum();
        // A part of a segment cannot be given back, so the last that is needed stays.
        while let Some(last) = self.segments.last()
            && bytes - last.bytes >= budget
        {
            bytes -= last.bytes;
            self.segments.pop();
        }
        Ok(())
    }

    fn grow(&mut self, budget: usize) -> ringfile::Result<()> {
        let bytes: usize = self.segments.iter().map(|owned| owned.bytes).sum();
        let mut missing = budget.saturating_sub(bytes);
        let size = (missing / 16).next_power_of_two().max(SMALLEST);
        while missing > 0 {
            // A later segment is not smaller than the largest page, which would fit in none then.
            let least = if self.segments.is_empty() { 0 } else { SMALLEST };
            let bytes = missing.min(size).max(least);
            let pool = Pool::builder().capacity(bytes).huge_pages(self.huge_pages).build()?;
            self.made += 1;
            self.segments.push(Owned { segment: Segment(self.made), pool, bytes });
            missing = missing.saturating_sub(bytes);
        }
        self.budget = budget;
        Ok(())
    }
}
