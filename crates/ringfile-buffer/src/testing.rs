//! Random numbers for the tests of this folder, from a seed that is printed.

use std::time::{SystemTime, UNIX_EPOCH};

/// A xorshift64* generator.
pub(crate) struct Rng(u64);

impl Rng {
    /// Creates a generator seeded with `RINGFILE_TEST_SEED`, or the time; a failing test prints the seed.
    pub(crate) fn new() -> Self {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64);
        let seed =
            std::env::var("RINGFILE_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(now);
        println!("RINGFILE_TEST_SEED={seed}");
        Rng(seed | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
