//! Which parts of a file are read again: counts of fixed size, as in TinyLFU (Einziger, Friedman, Manes, 2017).
//!
//! Pure functions. A read of a block or more counts for each of its blocks, a smaller one for the page in which it
//! begins, so random reads of different pages of a block do not count as repeated. Invariants: the memory is fixed when
//! the sketch is created; an estimate is never too low, where each read's count is halved once for every window that has
//! ended since.

use std::ops::Range;

/// The unit of counting and admission.
pub(super) const BLOCK: u64 = 64 << 10;
const PAGE: u64 = 4 << 10;
/// Distinguishes pages from blocks with the same number.
const SMALL: u64 = 1 << 63;

/// The number of counters for each block of the file: enough that few blocks share all their counters with others. A third
/// of the file's pages uses half of them. With a quarter of this, pages were forgotten before they were read twice.
const COUNTERS_PER_BLOCK: u64 = 32;
const FEWEST: u64 = 4 << 10;
/// The maximum number of counters: 2 MiB of memory, for files of 8 GiB and more.
const MOST: u64 = 1 << 22;

/// The number of counters that a block uses. They share one cache line, since a miss of the processor's cache for each
/// counter would cost noticeable time.
const ROWS: usize = 4;
const LINE: u64 = 128;
/// This many low bits of a block's or page's number do not affect its cache line. A line that the processor's cache does
/// not have costs a read of 128 KiB 0.2 µs, so four blocks, that is two such reads, share one. More of them, or more pages,
/// would be taken for each other too often.
const NEIGHBOURS: u32 = 2;
const NEIGHBOURING_PAGES: u32 = 1;
/// The largest value of a 4-bit counter.
const LIMIT: u8 = 15;
/// The number of counters in a word.
const PER_WORD: u64 = 16;
/// The lowest bit of each counter of a word.
const LOWEST: u64 = 0x1111_1111_1111_1111;
/// The number of reads that make a block worth caching, if others must be evicted for it.
pub(super) const READS_BEFORE: u8 = 2;
/// The same for reads of a block or more that do not go on where the thread's last one ended. Of the blocks of a file four
/// times as large as memory, of which none is worth caching, random reads meet one in ten twice in a window, and one in a
/// hundred four times; to admit one costs eight times the CPU time of a direct read.
pub(super) const RANDOM_READS_BEFORE: u8 = 4;

/// A cache line of counters.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u64; (LINE / PER_WORD) as usize]);

/// See the module.
pub(super) struct Sketch {
    lines: Box<[Line]>,
    /// Counts are halved after this many bytes: data that is read again only later would not have stayed in the cache.
    window: u64,
    /// The number of bytes read since counts were last halved.
    bytes: u64,
    /// The number of counters that are not 0.
    used: usize,
}

impl Sketch {
    /// Creates a sketch for a file of `len` bytes and a cache of `room` bytes. The window is twice `room`: a block that
    /// is read repeatedly with `room` bytes in between is read twice in it.
    pub(super) fn new(len: u64, room: u64) -> Self {
        let window = room.saturating_mul(2);
        let blocks = len.div_ceil(BLOCK);
        let counters = (blocks * COUNTERS_PER_BLOCK).next_power_of_two().clamp(FEWEST, MOST);
        let empty = Line([0; (LINE / PER_WORD) as usize]);
        let lines = vec![empty; (counters / LINE) as usize].into_boxed_slice();
        Self { lines, window: window.max(BLOCK), bytes: 0, used: 0 }
    }

    /// Records a read. Returns how often most of its bytes had been read before, within the window.
    pub(super) fn note(&mut self, range: Range<u64>) -> u8 {
        let len = range.end - range.start;
        if len < BLOCK {
            return self.count((range.start / PAGE) | SMALL, len);
        }
        let (first, last) = (range.start / BLOCK, (range.end - 1) / BLOCK);
        // How many blocks were read so often.
        let mut blocks = [0_u64; LIMIT as usize + 1];
        for block in first..=last {
            let start = (block * BLOCK).max(range.start);
            let part = ((block + 1) * BLOCK).min(range.end) - start;
            // Blocks that the read barely touches are not counted: the next read will count them.
            if part >= BLOCK / 2 || first == last {
                blocks[usize::from(self.count(block, part))] += 1;
            }
        }
        let (all, mut known) = (blocks.iter().sum::<u64>(), 0);
        let is_most = |&times: &u8| {
            known += blocks[usize::from(times)];
            2 * known > all
        };
        (0..=LIMIT).rev().find(is_most).unwrap_or(0)
    }

    /// Counts a read of a block or page, and returns how often it was read before.
    fn count(&mut self, number: u64, len: u64) -> u8 {
        // Neighbours share one line, each with its own place in each quarter of it.
        let neighbours = if number < SMALL { NEIGHBOURS } else { NEIGHBOURING_PAGES };
        let at = mixed(number >> neighbours) & (self.lines.len() as u64 - 1);
        let line = &mut self.lines[at as usize];
        let (bits, quarter) = (mixed(number), LINE / ROWS as u64);
        let places: [u64; ROWS] =
            std::array::from_fn(|row| row as u64 * quarter + ((bits >> (8 * row)) & (quarter - 1)));
        let before = places.iter().map(|&place| line.get(place)).min().unwrap_or(0);
        if before < LIMIT {
            // Raises only the lowest counters, which are shared with the fewest other blocks.
            for place in places {
                if line.get(place) == before {
                    line.add_one(place);
                    self.used += usize::from(before == 0);
                }
            }
        }
        self.bytes += len.max(PAGE);
        // With more, one read in ten and more would be taken for others: all of its counters would be used by them.
        if self.bytes >= self.window || self.used >= self.lines.len() * LINE as usize / 2 {
            self.age();
        }
        before
    }

    fn age(&mut self) {
        self.bytes = 0;
        self.used = self.lines.iter_mut().map(Line::halve).sum();
    }
}

impl Line {
    fn get(&self, place: u64) -> u8 {
        (self.0[(place / PER_WORD) as usize] >> (place % PER_WORD * 4)) as u8 & LIMIT
    }

    fn add_one(&mut self, place: u64) {
        self.0[(place / PER_WORD) as usize] += 1 << (place % PER_WORD * 4);
    }

    /// Halves all counters. Returns how many are not 0 then.
    fn halve(&mut self) -> usize {
        let mut used = 0;
        for word in &mut self.0 {
            *word = (*word >> 1) & (7 * LOWEST);
            used += (*word | (*word >> 1) | (*word >> 2)) & LOWEST;
        }
        // Each four bits have the sum of eight counters.
        let bytes = (used & 0x0f0f_0f0f_0f0f_0f0f) + ((used >> 4) & 0x0f0f_0f0f_0f0f_0f0f);
        bytes.to_ne_bytes().into_iter().map(usize::from).sum()
    }
}

/// Mixes the bits of a number (splitmix64).
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const MIB: u64 = 1 << 20;

    /// Records a read. Returns whether it is the third or a later one.
    fn is_third(sketch: &mut Sketch, range: Range<u64>) -> bool {
        sketch.note(range) >= READS_BEFORE
    }

    fn note_blocks(sketch: &mut Sketch, blocks: Range<u64>) -> usize {
        blocks.filter(|block| is_third(sketch, block * BLOCK..(block + 1) * BLOCK)).count()
    }

    #[test]
    fn the_third_read_within_a_window_is_admitted() {
        let mut sketch = Sketch::new(64 * MIB, 64 * MIB);
        assert_eq!(note_blocks(&mut sketch, 0..100), 0);
        assert_eq!(note_blocks(&mut sketch, 0..100), 0);
        assert!(note_blocks(&mut sketch, 0..100) >= 99, "hardly any is forgotten");
        assert!(note_blocks(&mut sketch, 200..300) <= 1, "others are not taken for them");
    }

    #[test]
    fn a_read_of_several_blocks_was_read_as_often_as_most_of_them() {
        let mut sketch = Sketch::new(64 * MIB, 64 * MIB);
        (0..3).for_each(|_| _ = note_blocks(&mut sketch, 0..2));
        note_blocks(&mut sketch, 2..4);
        assert_eq!(sketch.note(0..3 * BLOCK), 3);
        assert_eq!(sketch.note(0..5 * BLOCK), 2);
        assert_eq!(sketch.note(10 * BLOCK..20 * BLOCK), 0);
    }

    #[test]
    fn scans_longer_than_the_window_are_never_admitted() {
        let mut sketch = Sketch::new(256 * MIB, 32 * MIB);
        let admitted: usize = (0..6).map(|_| note_blocks(&mut sketch, 0..4096)).sum();
        assert!(admitted < 6 * 4096 / 200, "{admitted} of {}", 6 * 4096);
    }

    #[test]
    fn a_file_that_the_cache_can_hold_is_admitted_with_its_third_scan() {
        for len in [MIB, 200 * MIB, 4096 * MIB] {
            let mut sketch = Sketch::new(len, 8192 * MIB);
            let blocks = len / BLOCK;
            assert!(note_blocks(&mut sketch, 0..blocks) as u64 <= blocks / 100);
            let second = note_blocks(&mut sketch, 0..blocks) as u64;
            assert!(second <= blocks / 20, "{second} of {blocks} one read early");
            let third = note_blocks(&mut sketch, 0..blocks) as u64;
            assert!(third >= blocks * 9 / 10, "{third} of {blocks}");
        }
    }

    #[test]
    fn a_hot_set_is_found_under_a_scan() {
        let mut random = Random::new();
        let mut sketch = Sketch::new(1024 * MIB, 64 * MIB);
        let (mut hot, mut scanned) = (0, 0);
        for block in 0..16_384 {
            let start = random.below(64) * BLOCK;
            hot += u32::from(is_third(&mut sketch, start..start + BLOCK));
            let start = block * BLOCK + 2048 * MIB;
            scanned += u32::from(is_third(&mut sketch, start..start + BLOCK));
        }
        assert!(hot > 14_000, "{hot} of 16384 reads of the hot set");
        assert!(scanned < 200, "{scanned} of 16384 reads of the scan");
    }

    #[test]
    fn pages_of_one_block_are_counted_apart_and_a_page_read_again_is_found() {
        let mut sketch = Sketch::new(64 * MIB, 64 * MIB);
        assert!((0..16).all(|page| !is_third(&mut sketch, page * PAGE..(page + 1) * PAGE)), "no page twice");
        assert!(!is_third(&mut sketch, 5 * PAGE..6 * PAGE));
        assert!(is_third(&mut sketch, 5 * PAGE..6 * PAGE));
        assert!(is_third(&mut sketch, 5 * PAGE + 100..5 * PAGE + 200), "a record of the page");
    }

    #[test]
    fn few_small_reads_of_different_pages_are_taken_for_repeated_ones() {
        const PAGES: u64 = 32_768;
        let mut sketch = Sketch::new(PAGES * PAGE, u64::MAX);
        let taken: Vec<u64> =
            (0..PAGES).filter(|page| is_third(&mut sketch, page * PAGE..(page + 1) * PAGE)).collect();
        assert!(taken.len() < 330, "{} of {PAGES}", taken.len());
        let most = (0..PAGES / 64).map(|part| taken.iter().filter(|&page| page / 64 == part).count()).max();
        assert!(most < Some(16), "{most:?} of 64 in a row");
    }

    #[test]
    fn a_hot_set_of_pages_is_found_among_as_many_reads_of_others() {
        const PAGES: u64 = 65_536;
        const HOT: u64 = 10_000;
        let mut random = Random::new();
        let mut sketch = Sketch::new(PAGES * PAGE, PAGES * PAGE / 4);
        let mut found = vec![false; HOT as usize];
        for read in 0..40 * HOT {
            let page = if read % 2 == 0 { random.below(HOT) } else { HOT + random.below(PAGES - HOT) };
            let is_hot = page < HOT;
            // One that was found is read from the cache from now on, and not counted.
            if !is_hot || !found[page as usize] {
                let was_read = is_third(&mut sketch, page * PAGE..(page + 1) * PAGE);
                if is_hot {
                    found[page as usize] = was_read;
                }
            }
        }
        let found = found.iter().filter(|&&found| found).count() as u64;
        assert!(found > HOT * 9 / 10, "{found} of {HOT}");
    }

    #[test]
    fn halving_rounds_each_counter_down_and_counts_those_that_are_left() {
        let mut line = Line([0; 8]);
        for place in 0..LINE {
            (0..place % 16).for_each(|_| line.add_one(place));
        }
        assert_eq!(line.halve(), LINE as usize / 16 * 14);
        for place in 0..LINE {
            assert_eq!(u64::from(line.get(place)), place % 16 / 2);
        }
    }

    #[test]
    fn counters_stop_at_their_limit_and_age() {
        let mut sketch = Sketch::new(MIB, u64::MAX);
        for _ in 0..40 {
            sketch.note(0..BLOCK);
        }
        assert_eq!(sketch.note(0..BLOCK), LIMIT);
        (0..3).for_each(|_| sketch.age());
        assert!(!is_third(&mut sketch, 0..BLOCK), "forgotten");
    }
}
