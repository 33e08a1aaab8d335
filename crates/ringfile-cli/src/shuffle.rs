//! Computes random permutations of the numbers below a count, one number at a time: a random order of all blocks
//! without a table.
//!
//! Invariants: for each key, [`Shuffle::at`] is a bijection of the numbers below the count.

/// Permutations of the numbers below a count, one for each key.
#[derive(Debug, Clone, Copy)]
pub struct Shuffle {
    count: u64,
    /// The smallest `2^bits - 1` that is not below any of the numbers.
    mask: u64,
    /// About half of those bits.
    shift: u32,
}

/// Rounds of mixing. After two, neighbours still lie in visible patterns.
const ROUNDS: u32 = 4;

/// Odd, so that multiplication by it modulo a power of two can be undone (the multiplier of splitmix64's finalizer).
const MULTIPLIER: u64 = 0xbf58_476d_1ce4_e5b9;

impl Shuffle {
    /// Returns permutations of the numbers below `count`.
    pub fn new(count: u64) -> Shuffle {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        let mask = if bits == u64::BITS { u64::MAX } else { (1 << bits) - 1 };
        Shuffle { count, mask, shift: bits.div_ceil(2).max(1) }
    }

    /// Returns the number at `index`, which must be below the count.
    pub fn at(&self, index: u64, key: u64) -> u64 {
        debug_assert!(index < self.count);
        // Cycle walking: following a cycle of the larger permutation to its next number below the count is a permutation of
        // those numbers. They are more than half of all, so it takes fewer than two steps on average.
        let mut number = self.mix(index, key);
        while number >= self.count {
            number = self.mix(number, key);
        }
        number
    }

    /// Permutes the numbers up to the mask: each step is invertible.
    fn mix(&self, mut number: u64, key: u64) -> u64 {
        for round in 0..ROUNDS {
            number = number.wrapping_add(key.rotate_left(round * 17)) & self.mask;
            number = number.wrapping_mul(MULTIPLIER) & self.mask;
            number ^= number >> self.shift;
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    #[test]
    fn every_number_comes_once_whatever_the_count() {
        for count in (1..130).chain([255, 256, 257, 1000, 4095, 4097, 65_537]) {
            for key in [0, 1, u64::MAX, Rng::with_seed(count).u64(..)] {
                let shuffle = Shuffle::new(count);
                let mut seen = vec![false; count as usize];
                for index in 0..count {
                    let number = shuffle.at(index, key) as usize;
                    assert!(
                        !std::mem::replace(&mut seen[number], true),
                        "{number} of {count} twice, key {key}"
                    );
                }
            }
        }
    }

    #[test]
    fn counts_of_any_size_are_taken() {
        for count in [u64::MAX, 1 << 63, (1 << 63) + 1, (1 << 40) - 3] {
            let shuffle = Shuffle::new(count);
            let numbers = [0, 1, count / 2, count - 1].map(|index| shuffle.at(index, 7));
            assert!(numbers.iter().all(|&number| number < count), "{numbers:?} below {count}");
        }
    }

    #[test]
    fn the_order_looks_random() {
        let (count, key) = (262_144, Rng::with_seed(3).u64(..));
        let shuffle = Shuffle::new(count);
        let order: Vec<u64> = (0..count).map(|index| shuffle.at(index, key)).collect();
        // In a random order, half of the steps rise, the average step is a third of the count, and about two steps in
        // the whole order are between adjacent numbers.
        let rising = order.windows(2).filter(|pair| pair[0] < pair[1]).count() as f64 / count as f64;
        assert!((0.48..0.52).contains(&rising), "{rising}");
        let apart = order.windows(2).map(|pair| pair[0].abs_diff(pair[1]) as f64).sum::<f64>();
        let apart = apart / (count * count) as f64;
        assert!((0.31..0.36).contains(&apart), "{apart}");
        let next = order.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
        assert!(next < 20, "{next}");
        // Each quarter of the run visits the whole file.
        for part in order.chunks(order.len() / 4) {
            let low = part.iter().filter(|&&number| number < count / 2).count() as f64 / part.len() as f64;
            assert!((0.48..0.52).contains(&low), "{low}");
        }
    }

    #[test]
    fn keys_give_different_orders() {
        let shuffle = Shuffle::new(1000);
        let same = (0..1000).filter(|&index| shuffle.at(index, 5) == shuffle.at(index, 6)).count();
        assert!(same < 20, "{same}");
    }
}
