//! The content of blocks, which lets a reader check that it read what was written.
//!
//! Every block contains a checksum of itself, its writer, its number and its offset. The rest is random bytes, from a
//! different place of the same pattern for each block, so that remains of another block are found.

use std::fmt;

use bytes::BufMut;
use fastrand::Rng;

/// Checksum, writer, number and offset, in this order.
const HEADER: usize = 24;

/// The number of places in the pattern at which blocks may begin.
const PLACES: u64 = 4096;

/// The identity of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// The producer that wrote it.
    pub producer: u32,
    /// Its number among the writer's blocks, or that of the write.
    pub number: u64,
    /// Its offset in the file.
    pub offset: u64,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Label { producer, number, offset } = self;
        write!(f, "number {number} of writer {producer} for offset {offset}")
    }
}

/// Makes and checks blocks of one length.
#[derive(Debug)]
pub struct Content {
    block: usize,
    pattern: Vec<u8>,
}

impl Content {
    /// Makes contents for blocks of `block` bytes, which must be more than the header.
    pub fn new(block: usize) -> Content {
        let mut pattern = vec![0; block - HEADER + PLACES as usize];
        Rng::with_seed(block as u64).fill(&mut pattern);
        Content { block, pattern }
    }

    /// Fills an empty block.
    pub fn fill(&self, block: &mut impl BufMut, label: Label) {
        let (body, header) = (self.body(label), header(label));
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&header);
        checksum.update(body);
        block.put_slice(&checksum.finalize().to_le_bytes());
        block.put_slice(&header);
        block.put_slice(body);
    }

    /// Checks that `bytes` are the block with this label; returns what is wrong.
    pub fn check(&self, bytes: &[u8], label: Label) -> Result<(), String> {
        if bytes.len() != self.block {
            return Err(format!("it has {} of {} bytes", bytes.len(), self.block));
        }
        let (checksum, rest) = bytes.split_at(4);
        if checksum != crc32fast::hash(rest).to_le_bytes() {
            return Err("its checksum is wrong".into());
        }
        if rest[..HEADER - 4] != header(label) {
            return Err(format!("it holds {}, not {label}", label_of(rest)));
        }
        Ok(())
    }

    fn body(&self, label: Label) -> &[u8] {
        let place = Rng::with_seed(label.number ^ (u64::from(label.producer) << 48)).u64(..PLACES) as usize;
        &self.pattern[place..][..self.block - HEADER]
    }
}

/// Returns the label in a header.
fn label_of(header: &[u8]) -> Label {
    let field = |from: usize, to: usize| {
        header[from..to].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
    };
    Label { producer: field(0, 4) as u32, number: field(4, 12), offset: field(12, 20) }
}

fn header(label: Label) -> [u8; HEADER - 4] {
    let mut header = [0; HEADER - 4];
    header[..4].copy_from_slice(&label.producer.to_le_bytes());
    header[4..12].copy_from_slice(&label.number.to_le_bytes());
    header[12..].copy_from_slice(&label.offset.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: Label = Label { producer: 3, number: 70_000, offset: 8192 };

    fn filled(content: &Content, label: Label) -> Vec<u8> {
        let mut block = Vec::with_capacity(4096);
        content.fill(&mut block, label);
        block
    }

    #[test]
    fn a_filled_block_passes_its_own_check_and_no_other() {
        let content = Content::new(4096);
        let block = filled(&content, LABEL);
        assert_eq!(content.check(&block, LABEL), Ok(()));
        for other in [
            Label { producer: 2, ..LABEL },
            Label { number: 70_001, ..LABEL },
            Label { offset: 4096, ..LABEL },
        ] {
            assert!(content.check(&block, other).is_err_and(|wrong| wrong.contains("number ")));
        }
        assert!(content.check(&block[..512], LABEL).is_err_and(|wrong| wrong.contains("512 of 4096")));
    }

    #[test]
    fn every_changed_byte_is_found() {
        let content = Content::new(4096);
        let block = filled(&content, LABEL);
        for at in 0..4096 {
            let mut corrupt = block.clone();
            corrupt[at] ^= 1;
            assert!(content.check(&corrupt, LABEL).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_block_that_is_half_the_one_before_is_found() {
        let content = Content::new(4096);
        let mut torn = filled(&content, LABEL);
        torn[2048..].copy_from_slice(&filled(&content, Label { number: LABEL.number - 1, ..LABEL })[2048..]);
        assert!(content.check(&torn, LABEL).is_err());
    }
}
