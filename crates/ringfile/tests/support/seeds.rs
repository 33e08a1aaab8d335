//! The seeds that tests on simulated disks try.

use std::ops::Range;

/// Returns 200 seeds, or as many as `RINGFILE_SIM_SEEDS` says.
pub fn seeds() -> Range<u64> {
    let asked = std::env::var("RINGFILE_SIM_SEEDS");
    0..asked.map_or(200, |seeds| seeds.parse().expect("RINGFILE_SIM_SEEDS must be a number"))
}
