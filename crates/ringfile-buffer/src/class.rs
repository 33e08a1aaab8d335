//! Size classes: the sizes of blocks, and which one serves a request.
//!
//! Pure arithmetic. Invariants: `size(of(n)) >= n`; for n of 16 KiB or more the class is
//! at most a quarter larger than n; every multiple of a power of two A has a class that is a multiple of A.

/// The number of classes. Their sizes are 512, 1024, 2048; 4, 8, 12, 16 KiB; then four steps for each doubling, up to
/// 1 GiB.
pub(crate) const CLASSES: usize = 3 + 4 + 4 * 16;

/// The largest block: as large as one registered buffer may be.
pub const LARGEST: usize = 1 << 30;

/// The smallest block, and the unit of allocation.
pub(crate) const UNIT: usize = 512;

/// Blocks of this size and more are aligned to it at least; smaller ones to their own size.
pub(crate) const SLAB: usize = 4096;

/// Returns the class that serves `n` bytes; none above [`LARGEST`].
#[inline]
pub(crate) fn of(n: usize) -> Option<usize> {
    let last = n.saturating_sub(1);
    if last >= LARGEST {
        return None;
    }
    Some(match last {
        0..512 => 0,
        512..1024 => 1,
        1024..2048 => 2,
        2048..16384 => 3 + (last >> 12),
        _ => {
            let doubling = last.ilog2() as usize;
            7 + (doubling - 14) * 4 + (last >> (doubling - 2)) - 4
        }
    })
}

/// Returns the block size of a class, in bytes.
pub(crate) fn size(class: usize) -> usize {
    match class {
        0..3 => UNIT << class,
        3..7 => (class - 2) << 12,
        _ => {
            let step = class - 7;
            let doubling = 14 + step / 4;
            (1 << doubling) + ((step % 4 + 1) << (doubling - 2))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    #[test]
    fn a_class_serves_sizes_from_just_above_the_class_before_up_to_its_own() {
        assert_eq!(of(0), Some(0));
        for class in 0..CLASSES {
            assert_eq!(of(size(class)), Some(class), "size {}", size(class));
            if class > 0 {
                assert!(size(class) > size(class - 1));
                assert_eq!(of(size(class - 1) + 1), Some(class), "above {}", size(class - 1));
            }
        }
        assert_eq!(size(CLASSES - 1), LARGEST);
        assert_eq!(of(LARGEST + 1), None);
        assert_eq!(of(usize::MAX), None);
    }

    #[test]
    fn at_most_a_quarter_is_wasted_from_16_kib_on() {
        let mut rng = Rng::new();
        for _ in 0..1_000_000 {
            let n = (rng.next() >> rng.below(30)) as usize % LARGEST + 1;
            let size = size(of(n).unwrap());
            assert!(size >= n, "{n} in {size}");
            if n >= 16 << 10 {
                assert!((size - n) * 4 <= n, "{n} in {size}");
            } else {
                assert!(size - n < 4096, "{n} in {size}");
            }
        }
    }

    #[test]
    fn multiples_of_an_alignment_get_blocks_that_are_multiples_of_it() {
        let mut rng = Rng::new();
        for shift in 9..=30 {
            for _ in 0..1000 {
                let align = 1 << shift;
                let n = (rng.next() as usize % LARGEST + 1).next_multiple_of(align);
                assert_eq!(size(of(n).unwrap()) % align, 0, "{n} aligned to {align}");
            }
        }
    }
}
