//! How long tests wait.

use std::sync::OnceLock;
use std::time::Duration;

/// Longest that a test waits for what must come; what takes longer is a hang. `RINGFILE_TEST_PATIENCE` says how many times
/// slower than usual this machine is.
pub fn patience() -> Duration {
    static SLOWER: OnceLock<u32> = OnceLock::new();
    let given = || std::env::var("RINGFILE_TEST_PATIENCE").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(20) * *SLOWER.get_or_init(|| given().unwrap_or(1))
}
