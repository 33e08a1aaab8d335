//! What is said of tests that cannot run here. Unit tests and those of other crates of the workspace include this file too.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Write;
use std::sync::{Mutex, Once, PoisonError};

/// How many tests of this process were skipped, by reason.
static SKIPPED: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());

/// Prints `skipped TEST: WHY`, and counts the test by its reason in the last line that this process prints.
pub fn skip(test: &str, why: impl Display) {
    record(test, &why.to_string());
}

/// Prints and counts the lines of another process that begin with `skipped`.
pub fn repeat(lines: &str) {
    let skipped = lines.lines().filter_map(|line| line.strip_prefix("skipped ")?.split_once(": "));
    skipped.for_each(|(test, why)| record(test, why));
}

/// Writes to standard error itself, in one call: the harness swallows what `eprintln` prints, and other threads print too.
fn record(test: &str, why: &str) {
    let _ = std::io::stderr().write_all(format!("skipped {test}: {why}\n").as_bytes());
    *SKIPPED.lock().unwrap_or_else(PoisonError::into_inner).entry(why.to_owned()).or_default() += 1;
    static AT_EXIT: Once = Once::new();
    // SAFETY: the function uses only what lives as long as the process.
    AT_EXIT.call_once(|| _ = unsafe { libc::atexit(print_sum) });
}

extern "C" fn print_sum() {
    let skipped = SKIPPED.lock().unwrap_or_else(PoisonError::into_inner);
    let reasons: Vec<String> = skipped.iter().map(|(why, tests)| format!("{tests} × {why}")).collect();
    let sum: u32 = skipped.values().sum();
    let line = format!("{sum} tests skipped: {}\n", reasons.join("; "));
    let _ = std::io::stderr().write_all(line.as_bytes());
}
