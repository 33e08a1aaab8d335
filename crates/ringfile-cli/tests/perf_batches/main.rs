//! Runs `ringfile perf batch` and `ringfile perf multiread` as processes, as a user does.
//!
//! Tests assert exit codes, output, files and counts, never speed. Tests that this machine cannot run are skipped and
//! listed.

mod bad_input;
mod interrupted;
mod odd_places;
mod results;
#[path = "../perf_file/support.rs"]
#[allow(dead_code, reason = "shared with the tests of perf file, which use all of it")]
mod support;
mod terminal;
mod work;

use std::process::Command;

/// Returns a command that measures batches.
fn perf(command: &str) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ringfile"));
    // Files that the user's own runs left behind must not affect the tests.
    program.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    program.args(["perf", command]);
    program
}
