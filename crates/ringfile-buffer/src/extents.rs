//! The free extents of one region: memory is taken from them and returned to them.
//!
//! Knows offsets and lengths only. Invariants: extents don't overlap or touch (neighbours are joined at
//! once), and their lengths add up to `free`.

use std::collections::BTreeMap;

/// Free memory of a region, by offset.
pub(crate) struct Extents {
    by_offset: BTreeMap<usize, usize>,
    free: usize,
    /// No extent can serve a request of this size or more. Remembered from the last search, so that many small holes
    /// are not searched repeatedly.
    hopeless: usize,
}

impl Extents {
    /// Creates a region's extents, with all of its `len` bytes free.
    pub(crate) fn new(len: usize) -> Self {
        Extents { by_offset: BTreeMap::from([(0, len)]), free: len, hopeless: usize::MAX }
    }

    pub(crate) fn free_bytes(&self) -> usize {
        self.free
    }

    /// Takes `size` bytes at a multiple of `align` from the lowest extent that has them.
    ///
    /// Taking the lowest first keeps used memory together and the rest in one piece. In one pool larger sizes never
    /// have smaller alignments, so one failed search holds for all larger sizes.
    pub(crate) fn take(&mut self, size: usize, align: usize) -> Option<usize> {
        debug_assert!(size > 0 && align.is_power_of_two());
        if size > self.free || size >= self.hopeless {
            return None;
        }
        let found = self.by_offset.iter().find_map(|(&start, &len)| {
            let at = start.next_multiple_of(align);
            (at + size <= start + len).then_some((start, len, at))
        });
        let Some((start, len, at)) = found else {
            self.hopeless = size;
            return None;
        };
        self.by_offset.remove(&start);
        if at > start {
            self.by_offset.insert(start, at - start);
        }
        let (end, rest) = (at + size, start + len - at - size);
        if rest > 0 {
            self.by_offset.insert(end, rest);
        }
        self.free -= size;
        Some(at)
    }

    /// Returns memory from [`Extents::take`], whole or in parts.
    pub(crate) fn give(&mut self, offset: usize, size: usize) {
        self.free += size;
        let (mut start, mut len) = (offset, size);
        if let Some((&before, &before_len)) = self.by_offset.range(..offset).next_back() {
            debug_assert!(before + before_len <= offset, "given back twice");
            if before + before_len == offset {
                self.by_offset.remove(&before);
                (start, len) = (before, before_len + len);
            }
        }
        if let Some(after_len) = self.by_offset.remove(&(offset + size)) {
            len += after_len;
        }
        self.by_offset.insert(start, len);
        if len >= self.hopeless {
            self.hopeless = usize::MAX;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    #[test]
    fn taken_extents_never_overlap_and_join_again_when_returned() {
        const LEN: usize = 1 << 20;
        let mut rng = Rng::new();
        let mut extents = Extents::new(LEN);
        let mut taken: Vec<(usize, usize)> = Vec::new();
        let mut owned = vec![false; LEN / 512];
        for _ in 0..20_000 {
            if rng.below(2) == 0 {
                let align = 512 << rng.below(6);
                let size = (1 + rng.below(40)) as usize * 512;
                if let Some(at) = extents.take(size, align) {
                    assert_eq!(at % align, 0);
                    for unit in &mut owned[at / 512..(at + size) / 512] {
                        assert!(!*unit, "{at} was taken already");
                        *unit = true;
                    }
                    taken.push((at, size));
                }
            } else if !taken.is_empty() {
                let (at, size) = taken.swap_remove(rng.below(taken.len() as u64) as usize);
                owned[at / 512..(at + size) / 512].fill(false);
                extents.give(at, size);
            }
            assert_eq!(extents.free_bytes(), owned.iter().filter(|owned| !**owned).count() * 512);
        }
        for (at, size) in taken {
            extents.give(at, size);
        }
        assert_eq!(extents.take(LEN, 512), Some(0), "all of it, in one piece");
    }

    #[test]
    fn a_size_that_did_not_fit_is_tried_again_after_neighbours_come_back() {
        let mut extents = Extents::new(16 << 10);
        for at in [0, 4096, 8192, 12288] {
            assert_eq!(extents.take(4096, 4096), Some(at));
        }
        extents.give(0, 4096);
        extents.give(8192, 4096);
        assert_eq!(extents.take(8192, 4096), None);
        assert_eq!(extents.take(12288, 4096), None);
        extents.give(4096, 4096);
        assert_eq!(extents.take(12288, 4096), Some(0));
    }
}
