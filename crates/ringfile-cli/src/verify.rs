//! The content of blocks for `--verify`, which shows whether a block is the one that was written last.
//!
//! Every block holds its offset, the number of times it was written, and a checksum of the whole block. The number of
//! writes of each block is remembered, so lost writes are found as well as torn ones. Invariant: no two operations are
//! in flight on one block (each task owns its blocks, see `job`).

use std::sync::atomic::{AtomicU32, Ordering};

use fastrand::Rng;

/// Checksum, write count and offset, in this order at the start of a block.
const HEADER: usize = 16;

/// The smallest block that can be verified.
pub const SMALLEST_BLOCK: u64 = 32;

/// The expected content of every block of the file.
#[derive(Debug)]
pub struct Verifier {
    block: u64,
    writes: Vec<AtomicU32>,
}

impl Verifier {
    /// Creates a verifier for a file of `blocks` blocks of `block` bytes, none of them written yet.
    pub fn new(block: u64, blocks: u64) -> Verifier {
        Verifier { block, writes: (0..blocks).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Puts the content of the next write at `offset` into `bytes`.
    pub fn stamp(&self, bytes: &mut [u8], offset: u64) {
        let count = self.count(offset).load(Ordering::Relaxed).wrapping_add(1);
        let (header, body) = bytes.split_at_mut(HEADER);
        Rng::with_seed(offset ^ (u64::from(count) << 40)).fill(body);
        header[4..8].copy_from_slice(&count.to_le_bytes());
        header[8..16].copy_from_slice(&offset.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[4..]);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Records that the write at `offset` has finished: later reads must return its content.
    pub fn written(&self, offset: u64) {
        self.count(offset).fetch_add(1, Ordering::Relaxed);
    }

    /// Checks that `bytes`, read at `offset`, are what was written there last; returns what is wrong.
    pub fn check(&self, bytes: &[u8], offset: u64) -> Result<(), String> {
        let field32 =
            |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (checksum, count) = (field32(0), field32(4));
        if checksum != crc32fast::hash(&bytes[4..]) {
            return Err("its checksum is wrong".into());
        }
        let holds = u64::from(field32(8)) | u64::from(field32(12)) << 32;
        if holds != offset {
            return Err(format!("it holds the block of offset {holds}"));
        }
        match self.count(offset).load(Ordering::Relaxed) {
            expected if expected == count => Ok(()),
            expected => Err(format!("it holds write number {count} of this block, the last was {expected}")),
        }
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
        assert!(verifier.check(&elsewhere, 0).expect_err("misplaced").contains("offset 4096"));
        written_block(&verifier, 0);
        assert!(verifier.check(&first, 0).expect_err("stale").contains("write number 1"));
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
