//! The expected value of each byte of a file, and a piece of a file that one actor owns.
//!
//! Does no I/O. Content consists of words of 8 bytes: 48 bits that depend only on the file and the offset, and 16 bits
//! of generation, so that a word from another offset, another file or an earlier write shows. Generation 0 is zeros.

use std::ops::Range;

use ringfile::File;

pub const PAGE: usize = 4096;
/// Pages of one actor in each file, whose generation it knows.
pub const OWNED: usize = 48;
/// Pages after those, for writes whose end nobody waits for: they may have any generation.
pub const SCRATCH: usize = 16;
pub const STRIDE: usize = OWNED + SCRATCH;
/// Generations of scratch pages are smaller, so that even a torn word was written by some write.
const SCRATCH_GENERATIONS: u16 = 255;

/// Returns the word at `offset`, a multiple of 8.
fn word(file: u64, offset: u64, generation: u16) -> u64 {
    if generation == 0 {
        return 0;
    }
    let place = (file ^ offset).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (place ^ place >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) & !0xFFFF | u64::from(generation)
}

pub fn page(file: u64, offset: u64, generation: u16) -> Vec<u8> {
    (0..PAGE as u64 / 8).flat_map(|i| word(file, offset + 8 * i, generation).to_le_bytes()).collect()
}

/// Returns whether some write, or none, left these bytes there: `offset` and length are multiples of 8.
#[track_caller]
pub fn assert_of_any_generation(file: u64, offset: u64, bytes: &[u8], what: &str) {
    for (i, bytes) in bytes.chunks_exact(8).enumerate() {
        let is = u64::from_le_bytes(bytes.try_into().unwrap());
        let at = offset + 8 * i as u64;
        assert!(is == 0 || is == word(file, at, is as u16), "{what}: {is:#x} at {at}, which nobody wrote");
    }
}

/// A piece of a file, and its content.
pub struct Region {
    pub file: File,
    /// The number of the file, which is part of the content.
    pub seed: u64,
    pub name: String,
    /// The start of the piece, in bytes.
    pub start: u64,
    generations: Vec<u16>,
    scratch: u16,
}

impl Region {
    pub fn new(file: File, seed: u64, name: String, actor: usize) -> Self {
        let start = (actor * STRIDE * PAGE) as u64;
        Self { file, seed, name, start, generations: vec![0; OWNED], scratch: 0 }
    }

    /// Returns the offset of a page of the piece in the file.
    pub fn at(&self, page: usize) -> u64 {
        self.start + (page * PAGE) as u64
    }

    /// Returns the range of the owned pages in the file, in bytes.
    pub fn bytes(&self) -> Range<u64> {
        self.start..self.at(OWNED)
    }

    /// Returns new content for these pages, which is the expected content from now on.
    pub fn renew(&mut self, pages: Range<usize>) -> Vec<u8> {
        let mut content = Vec::with_capacity(pages.len() * PAGE);
        for page in pages {
            let generation = self.generations[page].checked_add(1).unwrap_or(1);
            self.generations[page] = generation;
            content.extend_from_slice(&self::page(self.seed, self.at(page), generation));
        }
        content
    }

    /// Makes zeros the expected content of these pages.
    pub fn clear(&mut self, pages: Range<usize>) {
        self.generations[pages].fill(0);
    }

    /// Returns new content for a scratch page.
    pub fn scratch(&mut self, page: usize) -> Vec<u8> {
        self.scratch = if self.scratch == SCRATCH_GENERATIONS { 1 } else { self.scratch + 1 };
        self::page(self.seed, self.at(OWNED + page), self.scratch)
    }

    /// Fails with the first wrong byte. `offset` is in the file.
    #[track_caller]
    pub fn assert(&self, offset: u64, bytes: &[u8], what: &str) {
        assert!(offset >= self.start && offset + bytes.len() as u64 <= self.bytes().end);
        let mut at = offset;
        while at < offset + bytes.len() as u64 {
            let from = at & !7;
            let page = (at - self.start) as usize / PAGE;
            let generation = self.generations[page];
            let expected = word(self.seed, from, generation).to_le_bytes();
            let end = (from + 8).min(offset + bytes.len() as u64);
            let got = &bytes[(at - offset) as usize..(end - offset) as usize];
            assert_eq!(
                got,
                &expected[(at - from) as usize..(end - from) as usize],
                "{what} of {}: byte {at}, page {page} of actor {}, generation {generation}, read from {offset}",
                self.name,
                self.start as usize / STRIDE / PAGE,
            );
            at = end;
        }
    }
}
