//! The seeds that tests on simulated disks try.

use std::ops::Range;

/// Returns 200 seeds, or as many as `RINGFILE_SIM_SEEDS` says, or its range: `1000..2000`.
pub fn seeds() -> Range<u64> {
    let Ok(asked) = std::env::var("RINGFILE_SIM_SEEDS") else { return 0..200 };
    let number =
        |text: &str| text.parse().expect("RINGFILE_SIM_SEEDS must be a number, or two as in 1000..2000");
    asked.split_once("..").map_or_else(|| 0..number(&asked), |(first, end)| number(first)..number(end))
}
