//! Plans the reads for the requested ranges: neighbours are merged, and blocks of the file are read whole.
//!
//! Pure functions of numbers.

use std::ops::Range;

/// One read, and the requested ranges inside it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// The range to read; its ends are multiples of the file's block.
    pub(crate) span: Range<u64>,
    /// The indices of the requested ranges inside it.
    pub(crate) wanted: Vec<usize>,
}

/// Returns the reads for `ranges`, in the order of their offsets. Ranges with at most `gap` bytes between them are
/// merged into one read, as long as it is not longer than `most`. Empty ranges need no read.
pub(crate) fn plan(ranges: &[Range<u64>], block: u64, gap: u64, most: u64) -> Vec<Piece> {
    let mut order: Vec<usize> = (0..ranges.len()).filter(|&at| !ranges[at].is_empty()).collect();
    order.sort_unstable_by_key(|&at| (ranges[at].start, ranges[at].end));
    let mut pieces: Vec<Piece> = Vec::with_capacity(order.len());
    for at in order {
        let span = align(&ranges[at], block);
        match pieces.last_mut() {
            Some(last) if joins(&last.span, &span, gap, most) => {
                last.span.end = last.span.end.max(span.end);
                last.wanted.push(at);
            }
            _ => pieces.push(Piece { span, wanted: vec![at] }),
        }
    }
    pieces
}

/// Returns the blocks that contain a range.
pub(crate) fn align(range: &Range<u64>, block: u64) -> Range<u64> {
    let start = range.start - range.start % block;
    start..range.end.checked_next_multiple_of(block).unwrap_or(range.end)
}

fn joins(last: &Range<u64>, next: &Range<u64>, gap: u64, most: u64) -> bool {
    let together = last.end.max(next.end) - last.start;
    // A range that lies or begins inside the last read is not read twice.
    next.start < last.end || next.start - last.end <= gap && together <= most
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(ranges: &[Range<u64>], block: u64, gap: u64) -> Vec<(Range<u64>, Vec<usize>)> {
        plan(ranges, block, gap, 1 << 20).into_iter().map(|piece| (piece.span, piece.wanted)).collect()
    }

    #[test]
    fn neighbours_are_read_together_in_whole_blocks() {
        assert_eq!(spans(&[], 1, 0), []);
        assert_eq!(spans(&[5..5, 9..9], 1, 100), []);
        assert_eq!(spans(&[10..20, 0..5], 1, 4), [(0..5, vec![1]), (10..20, vec![0])]);
        assert_eq!(spans(&[10..20, 0..5], 1, 5), [(0..20, vec![1, 0])]);
        assert_eq!(spans(&[600..700, 100..200], 512, 0), [(0..1024, vec![1, 0])]);
        assert_eq!(spans(&[0..1, 4096..4097], 512, 3584), [(0..4608, vec![0, 1])]);
        assert_eq!(spans(&[0..1, 4096..4097], 512, 3583), [(0..512, vec![0]), (4096..4608, vec![1])]);
    }

    #[test]
    fn overlapping_ranges_are_read_once_and_merging_has_a_limit() {
        assert_eq!(spans(&[0..100, 50..60, 90..120], 1, 0), [(0..120, vec![0, 1, 2])]);
        let half = 1 << 19;
        let all = [0..half, half..2 * half, 2 * half..3 * half];
        assert_eq!(spans(&all, 1, 0), [(0..2 * half, vec![0, 1]), (2 * half..3 * half, vec![2])]);
    }

    #[test]
    fn every_range_lies_in_one_read() {
        let mut seed = 1_u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..1000 {
            let ranges: Vec<_> = (0..next(20))
                .map(|_| {
                    let start = next(1 << 16);
                    start..start + next(5000)
                })
                .collect();
            let (block, gap) = ([1, 512, 4096][next(3) as usize], next(9000));
            let pieces = plan(&ranges, block, gap, 1 << 14);
            let mut seen = vec![0; ranges.len()];
            for piece in &pieces {
                assert!(piece.span.start.is_multiple_of(block) && piece.span.end.is_multiple_of(block));
                for &at in &piece.wanted {
                    seen[at] += 1;
                    assert!(piece.span.start <= ranges[at].start && ranges[at].end <= piece.span.end);
                }
            }
            assert!((0..ranges.len()).all(|at| seen[at] == u8::from(!ranges[at].is_empty())));
            assert!(
                pieces.windows(2).all(|two| two[0].span.end <= two[1].span.start),
                "nothing is read twice"
            );
        }
    }
}
