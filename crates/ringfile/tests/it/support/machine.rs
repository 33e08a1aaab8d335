//! Properties of the machine that the tests run on.

/// Returns whether rings have a table of registered memory here; without one, no operation uses a registered buffer.
pub fn has_registered_buffers() -> bool {
    ringfile::metrics::ring_features()
        .is_ok_and(|features| features.iter().any(|name| name == "registered_buffers"))
}

/// Returns whether all threads share one registration here (Linux 6.13). Otherwise each ring registers for itself, and
/// a pool does not know whether that was refused.
pub fn has_shared_registrations() -> bool {
    ringfile::metrics::ring_features()
        .is_ok_and(|features| features.iter().any(|name| name == "clone_buffers"))
}

/// Returns [`has_registered_buffers`]; prints that `test` is skipped if not.
pub fn needs_registered_buffers(test: &str) -> bool {
    let has = has_registered_buffers();
    if !has {
        super::skip(test, "this kernel (before 5.19) has no tables of registered memory");
    }
    has
}

/// Returns a value of `/proc/self/status`, in KiB.
pub fn status_kib(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches("kB").trim().parse().unwrap()
}
