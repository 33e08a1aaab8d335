//! What a read may find in each block of a file that is being written.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ringfile::{File, block_on};

use super::writer::Writer;
use super::{BLOCK, BLOCKS, LEN};
use crate::support::Random;

/// The possible contents of a block.
#[derive(Default)]
struct Known {
    /// The last write that has started, and the last that has returned; a truncation counts as both.
    begun: AtomicU64,
    returned: AtomicU64,
    /// The last truncation that turned the block into zeros.
    zeroed: AtomicU64,
}

/// A file that is written, and what reads of it may return.
pub struct Model {
    blocks: Vec<Known>,
    version: AtomicU64,
    /// Only one write at a time may be in each region.
    regions: Vec<Mutex<()>>,
    /// Odd while the file is being truncated, when reads may return anything.
    truncations: AtomicU64,
}

/// 2 MiB, the most that the kernel caches as one folio: if a buffered write dirties a folio while a direct write
/// elsewhere in it invalidates it, the kernel gives up ("Page cache invalidation failure on direct I/O"), with any
/// reader.
const REGION: usize = 512;
/// The most blocks of one write.
const MOST: usize = 64;

impl Model {
    pub fn new() -> Self {
        let known = || Known { begun: 1.into(), returned: 1.into(), zeroed: 0.into() };
        Self {
            blocks: (0..BLOCKS).map(|_| known()).collect(),
            version: AtomicU64::new(2),
            regions: (0..BLOCKS / REGION).map(|_| Mutex::default()).collect(),
            truncations: AtomicU64::new(0),
        }
    }

    /// Writes some blocks.
    pub fn write(&self, random: &mut Random, writer: &mut Writer) {
        let region = random.below(self.regions.len() as u64) as usize;
        let _alone = self.regions[region].lock().unwrap_or_else(PoisonError::into_inner);
        let first = random.below(REGION as u64) as usize;
        let count = 1 + random.below(MOST.min(REGION - first) as u64) as usize;
        let first = region * REGION + first;
        let version = self.version.fetch_add(1, Ordering::SeqCst);
        let known = &self.blocks[first..first + count];
        known.iter().for_each(|block| block.begun.store(version, Ordering::SeqCst));
        writer.write(first, count, version);
        known.iter().for_each(|block| block.returned.store(version, Ordering::SeqCst));
    }

    /// Truncates the file, and extends it to its old length.
    pub fn truncate(&self, random: &mut Random, file: &File) {
        let _alone: Vec<_> =
            self.regions.iter().map(|region| region.lock().unwrap_or_else(PoisonError::into_inner)).collect();
        self.truncations.fetch_add(1, Ordering::SeqCst);
        let cut = random.below(BLOCKS as u64) as usize;
        block_on(file.set_len((cut * BLOCK) as u64)).unwrap();
        block_on(file.set_len(LEN as u64)).unwrap();
        let version = self.version.fetch_add(1, Ordering::SeqCst);
        for block in &self.blocks[cut..] {
            for at in [&block.begun, &block.returned, &block.zeroed] {
                at.store(version, Ordering::SeqCst);
            }
        }
        self.truncations.fetch_add(1, Ordering::SeqCst);
    }

    /// Reads by `read`, and checks each word of the result.
    pub fn read(&self, first: usize, count: usize, read: impl FnOnce() -> Vec<u8>) {
        let truncations = self.truncations.load(Ordering::SeqCst);
        let before: Vec<u64> = self.blocks[first..first + count]
            .iter()
            .map(|block| block.returned.load(Ordering::SeqCst))
            .collect();
        let got = read();
        let after: Vec<[u64; 2]> = self.blocks[first..first + count]
            .iter()
            .map(|block| [&block.begun, &block.zeroed].map(|at| at.load(Ordering::SeqCst)))
            .collect();
        if truncations % 2 == 1 || truncations != self.truncations.load(Ordering::SeqCst) {
            return;
        }
        assert_eq!(got.len(), count * BLOCK);
        for (at, bytes) in got.chunks_exact(8).enumerate() {
            let index = at * 8 / BLOCK;
            let got = u64::from_le_bytes(bytes.try_into().unwrap());
            let version = match got {
                0 => after[index][1],
                got => got & 0xff_ffff_ffff,
            };
            let block = first + index;
            assert!(got == 0 || got >> 40 == block as u64 + 1, "{got:#x} in block {block}");
            let (before, after) = (before[index], after[index][0]);
            assert!(
                before <= version && version <= after,
                "block {block}, word {}: version {version} ({got:#x}); {before} had returned before, {after} had begun",
                at % (BLOCK / 8)
            );
        }
    }
}
