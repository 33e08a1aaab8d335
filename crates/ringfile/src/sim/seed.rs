//! The source of all chance in a simulation.

/// A generator of numbers, of which the same seed always gives the same (SplitMix64).
#[derive(Clone)]
pub(super) struct Random(u64);

impl Random {
    #[cfg(test)]
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the generator of a run: the first on an empty disk, or a later one on what the run before has left.
    pub(super) fn of_run(seed: u64, run: u64) -> Self {
        Self(Self(seed).next().wrapping_add(Self(run).next()))
    }

    /// Returns the generator for one place of a run, of which this is the first state.
    pub(super) fn at(&self, kind: u64, number: u64) -> Self {
        let mut place = Self(kind << 56 ^ number);
        Self(self.0 ^ place.next())
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, which is not 0.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns true with this probability.
    pub(super) fn happens(&mut self, probability: f64) -> bool {
        // Nothing is drawn for what never happens: a fault that is switched off changes nothing else.
        probability > 0.0 && ((self.next() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }

    /// Returns a number up to `most`, of any order of magnitude.
    pub(super) fn of_any_size(&mut self, most: u64) -> u64 {
        let bits = u64::from(most.checked_ilog2().unwrap_or(0)) + 1;
        let size = self.below(bits + 1);
        let limit = 1_u64.checked_shl(size as u32).unwrap_or(u64::MAX);
        self.below(limit.min(most).max(1)) + 1
    }
}
