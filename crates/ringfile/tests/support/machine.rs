//! What tests know of the machine that they run on.

use std::sync::OnceLock;
use std::time::Duration;

/// Longest that a test waits for what must come; what takes longer is a hang. `RINGFILE_TEST_PATIENCE` says how many times
/// slower than usual this machine is.
pub fn patience() -> Duration {
    static SLOWER: OnceLock<u32> = OnceLock::new();
    let given = || std::env::var("RINGFILE_TEST_PATIENCE").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(20) * *SLOWER.get_or_init(|| given().unwrap_or(1))
}

/// Whether rings have a table for registered memory here; without one nothing is done in the fixed form.
pub fn has_registered_buffers() -> bool {
    ringfile::ring_features().is_ok_and(|features| features.iter().any(|name| name == "registered_buffers"))
}

/// Whether one registration does for all threads here (Linux 6.13). Else each ring registers for itself, and a pool does not
/// know whether that was refused.
pub fn has_shared_registrations() -> bool {
    ringfile::ring_features().is_ok_and(|features| features.iter().any(|name| name == "clone_buffers"))
}

/// As [`has_registered_buffers`]; says that `test` is skipped where not.
pub fn needs_registered_buffers(test: &str) -> bool {
    let has = has_registered_buffers();
    if !has {
        super::skip(test, "this kernel (before 5.19) has no tables of registered memory");
    }
    has
}
