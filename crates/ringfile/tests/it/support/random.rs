//! Random numbers, the same for the same seed.

/// A small random generator (xorshift*), seeded from `RINGFILE_TEST_SEED` or the clock; it prints the seed.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new() -> Self {
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let given = std::env::var("RINGFILE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or(clock.as_nanos() as u64 | 1);
        println!("RINGFILE_TEST_SEED={seed}");
        Self(seed)
    }

    /// Makes one of several generators that follow from another one's seed, which is not 0.
    pub fn from_seed(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) % bound
    }

    /// Returns an index below `len`, which is not 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    pub fn chance(&mut self, one_in: usize) -> bool {
        self.index(one_in) == 0
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len.div_ceil(4)).flat_map(|_| (self.below(1 << 32) as u32).to_ne_bytes()).take(len).collect()
    }
}
