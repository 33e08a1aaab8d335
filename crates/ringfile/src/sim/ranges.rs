//! Sets of numbers that come in ranges: of pages, of sectors.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges.
#[derive(Clone, Default)]
pub(super) struct Ranges {
    /// The ends, by the starts.
    ends: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Returns how many numbers they have in all.
    pub(super) fn len(&self) -> u64 {
        self.ends.iter().map(|(start, end)| end - start).sum()
    }

    /// Returns the parts of the ranges that lie in another one.
    pub(super) fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let before = self.ends.range(..range.start).next_back();
        let first = before.map_or(range.start, |(start, _)| *start);
        let ranges = self.ends.range(first..range.end.max(first));
        let parts = ranges.map(move |(start, end)| range.start.max(*start)..range.end.min(*end));
        parts.filter(|part| !part.is_empty())
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.within(number..number + 1).next().is_some()
    }

    pub(super) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.remove(range.clone());
        let follows = self.ends.remove(&range.end);
        let before = self.ends.range_mut(..range.start).next_back().map(|(_, end)| end);
        let end = follows.unwrap_or(range.end);
        match before {
            Some(before) if *before == range.start => *before = end,
            _ => _ = self.ends.insert(range.start, end),
        }
    }

    pub(super) fn remove(&mut self, range: Range<u64>) {
        let parts: Vec<Range<u64>> = self.within(range).collect();
        for part in parts {
            let Some((&start, end)) = self.ends.range_mut(..=part.start).next_back() else { continue };
            let behind = std::mem::replace(end, part.start);
            if start == part.start {
                self.ends.remove(&start);
            }
            if part.end < behind {
                self.ends.insert(part.end, behind);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::seed::Random;
    use super::*;

    #[test]
    fn ranges_are_as_a_set_of_each_number() {
        let (mut random, mut ranges, mut plain) = (Random::new(1), Ranges::default(), [false; 100]);
        for _ in 0..5000 {
            let start = random.below(100);
            let end = start + random.below(100 - start);
            let adds = random.happens(0.5);
            if adds {
                ranges.add(start..end)
            } else {
                ranges.remove(start..end)
            }
            plain[start as usize..end as usize].fill(adds);
            let found: Vec<bool> = (0..100).map(|number| ranges.contains(number)).collect();
            assert_eq!(found, plain);
            assert_eq!(ranges.len(), plain.iter().filter(|is_in| **is_in).count() as u64);
            let (start, end) = (random.below(50), 50 + random.below(50));
            let within: u64 = ranges.within(start..end).map(|part| part.end - part.start).sum();
            let expected = plain[start as usize..end as usize].iter().filter(|is_in| **is_in).count();
            assert_eq!(within, expected as u64);
            assert!(ranges.ends.iter().all(|(start, end)| start < end && !ranges.ends.contains_key(end)));
        }
    }
}
