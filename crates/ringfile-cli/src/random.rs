//! A small, fast random number generator (xorshift64*) whose cost does not show in a measurement.

/// State of one generator; each task has its own.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers; different seeds give streams that look unrelated.
    pub fn new(seed: u64) -> Random {
        // Splitmix64's finalizer: neighbouring seeds must not give neighbouring streams, and 0 is not allowed.
        let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Random((z ^ (z >> 31)) | 1)
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`, by multiplication: a division would cost more than all the rest.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(limit)) >> 64) as u64
    }

    /// Fills memory with bytes that do not compress.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.bits().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_below_the_limit_and_spread() {
        let mut random = Random::new(1);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[random.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
    }

    #[test]
    fn seeds_give_different_streams() {
        let first: Vec<u64> = (0..100).map(|seed| Random::new(seed).bits()).collect();
        let mut unique = first.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), first.len());
    }

    #[test]
    fn filled_memory_is_not_zero() {
        let mut bytes = [0; 37];
        Random::new(7).fill(&mut bytes);
        assert!(bytes.iter().filter(|&&byte| byte == 0).count() < 5);
    }
}
