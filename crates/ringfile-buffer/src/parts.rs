//! The frozen parts of a pool's blocks, and how many owners of `Bytes` each has.
//!
//! Knows only addresses. Invariants: parts don't overlap; a part is taken only by its only owner.

use std::collections::BTreeMap;

/// The frozen parts of blocks that had other references when the parts were frozen. Protected by the pool's lock.
#[derive(Default)]
pub(crate) struct FrozenParts {
    /// The parts by the address of their first byte; they don't overlap.
    by_start: BTreeMap<usize, FrozenPart>,
}

struct FrozenPart {
    /// The capacity that was frozen, in bytes.
    capacity: usize,
    /// Where it ends, in bytes from the block's base.
    end: usize,
    owners: usize,
}

impl FrozenParts {
    /// Records a part with one owner. Returns false and records nothing if it overlaps another, as shares of one buffer
    /// may: their bytes are never thawed.
    pub(super) fn add(&mut self, start: usize, capacity: usize, end: usize) -> bool {
        let before = self.by_start.range(..start + capacity).next_back();
        let free = before.is_none_or(|(&other, part)| other + part.capacity <= start);
        if free {
            self.by_start.insert(start, FrozenPart { capacity, end, owners: 1 });
        }
        free
    }

    /// Finds the part that contains `len` bytes at `address`, with its start.
    fn at(&mut self, address: usize, len: usize) -> Option<(usize, &mut FrozenPart)> {
        let (&start, part) = self.by_start.range_mut(..=address).next_back()?;
        let at = address - start;
        (at < part.capacity && len <= part.capacity - at).then_some((start, part))
    }

    /// Adds an owner to the part that contains these bytes, if it has only one.
    pub(super) fn join(&mut self, address: usize, len: usize) -> bool {
        match self.at(address, len) {
            Some((_, part)) if part.owners == 1 => {
                part.owners = 2;
                true
            }
            _ => false,
        }
    }

    /// Forgets the part at `address` if the caller is its only owner, and returns its end in its block.
    pub(super) fn take(&mut self, address: usize) -> Option<usize> {
        let (start, part) = self.at(address, 1)?;
        let (only, end) = (part.owners == 1, part.end);
        only.then(|| {
            self.by_start.remove(&start);
            end
        })
    }

    /// Drops an owner of the part at `address`, and forgets the part with the last.
    pub(super) fn drop_owner(&mut self, address: usize) {
        if let Some((start, part)) = self.at(address, 1) {
            part.owners -= 1;
            if part.owners == 0 {
                self.by_start.remove(&start);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_found_by_its_bytes_and_taken_by_its_only_owner() {
        let mut parts = FrozenParts::default();
        assert!(parts.add(1000, 100, 600) && parts.add(1100, 50, 700) && parts.add(900, 100, 500));
        for (start, capacity) in [(1000, 1), (1099, 10), (950, 100), (800, 400)] {
            assert!(!parts.add(start, capacity, 0), "{capacity} bytes at {start} overlap others");
        }
        assert!(!parts.join(1150, 1) && !parts.join(1090, 11) && !parts.join(899, 1));
        assert!(parts.join(1010, 90));
        assert!(!parts.join(1000, 100), "there are two owners");
        assert_eq!(parts.take(1050), None);
        parts.drop_owner(1000);
        assert_eq!(parts.take(1050), Some(600));
        assert_eq!(parts.take(1050), None);
        parts.drop_owner(1100);
        assert!(!parts.join(1100, 50) && parts.join(900, 100));
        assert_eq!(parts.by_start.len(), 1);
    }
}
