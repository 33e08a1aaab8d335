//! The newest bytes of a log, kept in memory for its readers.
//!
//! Knows no files. Invariants: the pieces are in the order of the log, and each begins where the one before it ends, or
//! earlier; what is not in the file yet is never given up.

use std::collections::VecDeque;

use bytes::Bytes;

/// Memory that was passed to a write, or is about to be.
pub(super) struct KeptPiece {
    /// Where it begins in the log.
    start: u64,
    bytes: Bytes,
    /// How much memory it takes.
    memory: usize,
}

/// What a piece takes besides its bytes: its place here, and the owner that its `Bytes` share.
const PIECE: usize = 128;

impl KeptPiece {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

#[derive(Default)]
pub(super) struct Kept {
    /// How much memory to keep; 0 if nothing is kept.
    budget: usize,
    pieces: VecDeque<KeptPiece>,
    /// How much memory the pieces take.
    memory: usize,
}

impl Kept {
    pub fn new(budget: usize) -> Self {
        Self { budget, ..Self::default() }
    }

    pub fn keeps(&self) -> bool {
        self.budget > 0
    }

    /// Returns whether more is kept than should be.
    pub fn is_over(&self) -> bool {
        self.memory > self.budget
    }

    pub fn add(&mut self, start: u64, bytes: Bytes, memory: usize) {
        let memory = memory + PIECE;
        self.memory += memory;
        self.pieces.push_back(KeptPiece { start, bytes, memory });
    }

    /// Gives up the oldest piece if its bytes are in the file, of which the first `written` are. The caller drops it without
    /// the lock.
    pub fn take_oldest(&mut self, written: u64) -> Option<Bytes> {
        self.pieces.front().filter(|oldest| oldest.end() <= written)?;
        let oldest = self.pieces.pop_front()?;
        self.memory -= oldest.memory;
        Some(oldest.bytes)
    }

    /// Returns where the oldest piece begins.
    pub fn start(&self) -> Option<u64> {
        self.pieces.front().map(|oldest| oldest.start)
    }

    /// Returns the bytes of one piece from `position` on, up to `limit`.
    pub fn at(&self, position: u64, limit: u64) -> Option<Bytes> {
        let after = self.pieces.partition_point(|piece| piece.start <= position);
        let piece = self.pieces.get(after.checked_sub(1)?)?;
        let end = piece.end().min(limit);
        let at = |offset: u64| (offset - piece.start) as usize;
        (position < end).then(|| piece.bytes.slice(at(position)..at(end)))
    }

    /// Takes out what was cut: the log ends at `len` now. The caller drops it without the lock.
    #[must_use]
    pub fn cut(&mut self, len: u64) -> VecDeque<KeptPiece> {
        let kept = self.pieces.partition_point(|piece| piece.start < len);
        let cut = self.pieces.split_off(kept);
        self.memory -= cut.iter().map(|piece| piece.memory).sum::<usize>();
        for piece in &mut self.pieces {
            piece.bytes.truncate((len - piece.start) as usize);
        }
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_overlap_are_one_log() {
        let mut kept = Kept::new(100 + 2 * PIECE);
        kept.add(0, Bytes::from_static(b"abcdef"), 8);
        // A block that was written when it had two bytes, and again.
        kept.add(4, Bytes::from_static(b"efgh"), 60);
        kept.add(8, Bytes::from_static(b"ij"), 40);
        assert_eq!(kept.at(0, 100).unwrap(), "abcdef");
        assert_eq!(kept.at(5, 100).unwrap(), "fgh");
        assert_eq!(kept.at(5, 7).unwrap(), "fg");
        assert_eq!(kept.at(8, 100).unwrap(), "ij");
        assert!(kept.at(10, 100).is_none() && kept.at(5, 5).is_none());
        assert!(kept.is_over() && kept.take_oldest(5).is_none(), "not yet in the file");
        assert_eq!(kept.take_oldest(6).unwrap(), "abcdef");
        assert!(!kept.is_over() && kept.at(3, 100).is_none());
        assert_eq!((kept.start(), kept.cut(6).len()), (Some(4), 1));
        assert_eq!(kept.at(4, 100).unwrap(), "ef");
        assert_eq!((kept.memory, kept.cut(4).len(), kept.memory), (60 + PIECE, 1, 0));
    }
}
