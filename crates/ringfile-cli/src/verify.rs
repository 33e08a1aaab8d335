//! What `--verify` knows of each block: whether the one that is read is the one that was written last.
//!
//! Every block is labelled with the number of times it was written, so lost writes are found as well as torn ones.
//! Invariant: no two operations are in flight on one block (each task owns its blocks, see `job`).

use std::sync::atomic::{AtomicU32, Ordering};

use crate::content::{Content, Label};

/// The smallest block that can be verified.
pub const SMALLEST_BLOCK: u64 = 32;

/// The expected content of every block of the file.
#[derive(Debug)]
pub struct Verifier {
    block: u64,
    content: Content,
    writes: Vec<AtomicU32>,
}

impl Verifier {
    /// Creates a verifier for a file of `blocks` blocks of `block` bytes, none of them written yet.
    pub fn new(block: u64, blocks: u64) -> Verifier {
        let writes = (0..blocks).map(|_| AtomicU32::new(0)).collect();
        Verifier { block, content: Content::new(block as usize), writes }
    }

    /// Puts the content of the next write at `offset` into `bytes`.
    pub fn stamp(&self, mut bytes: &mut [u8], offset: u64) {
        self.content.fill(&mut bytes, self.label(offset, 1));
    }

    /// Records that the write at `offset` has finished: later reads must return its content.
    pub fn written(&self, offset: u64) {
        self.count(offset).fetch_add(1, Ordering::Relaxed);
    }

    /// Checks that `bytes`, read at `offset`, are what was written there last; returns what is wrong.
    pub fn check(&self, bytes: &[u8], offset: u64) -> Result<(), String> {
        self.content.check(bytes, self.label(offset, 0))
    }

    /// Returns the label of a block after so many more writes.
    fn label(&self, offset: u64, more: u32) -> Label {
        let number = u64::from(self.count(offset).load(Ordering::Relaxed).wrapping_add(more));
        Label { producer: 0, number, offset }
    }

    fn count(&self, offset: u64) -> &AtomicU32 {
        &self.writes[(offset / self.block) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written_block(verifier: &Verifier, offset: u64) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        verifier.stamp(&mut bytes, offset);
        verifier.written(offset);
        bytes
    }

    #[test]
    fn written_blocks_pass_the_check() {
        let verifier = Verifier::new(4096, 4);
        for offset in [0, 4096, 4096, 3 * 4096] {
            let bytes = written_block(&verifier, offset);
            assert_eq!(verifier.check(&bytes, offset), Ok(()));
        }
    }

    #[test]
    fn every_changed_byte_is_found() {
        let verifier = Verifier::new(4096, 4);
        let bytes = written_block(&verifier, 4096);
        for at in (0..32).chain([4095]) {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            assert!(verifier.check(&torn, 4096).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_block_in_the_wrong_place_or_from_before_is_found() {
        let verifier = Verifier::new(4096, 4);
        let first = written_block(&verifier, 0);
        let elsewhere = written_block(&verifier, 4096);
        assert!(verifier.check(&elsewhere, 0).expect_err("misplaced").contains("for offset 4096, not"));
        written_block(&verifier, 0);
        assert!(verifier.check(&first, 0).expect_err("stale").contains("holds number 1 "));
    }

    #[test]
    fn the_smallest_block_works() {
        let verifier = Verifier::new(SMALLEST_BLOCK, 2);
        let mut bytes = vec![0; SMALLEST_BLOCK as usize];
        verifier.stamp(&mut bytes, 32);
        verifier.written(32);
        assert_eq!(verifier.check(&bytes, 32), Ok(()));
    }
}
