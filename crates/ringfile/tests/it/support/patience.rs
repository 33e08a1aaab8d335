//! How long tests wait. Unit tests and those of other crates of the workspace include this file too.

use std::sync::OnceLock;
use std::time::Duration;

/// Returns how long a test waits for an event that must come: more is a hang. No test that passes spends this time, so
/// it is enough for a machine that is ten times slower than usual for a while, and whose cores others use too.
/// `RINGFILE_TEST_PATIENCE` multiplies it for an even slower machine.
pub fn patience() -> Duration {
    static SLOWER: OnceLock<u32> = OnceLock::new();
    let given = || std::env::var("RINGFILE_TEST_PATIENCE").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(60) * *SLOWER.get_or_init(|| given().unwrap_or(1))
}
