//! `ringfile perf batch` and `ringfile perf multiread` as a user meets them: the program run as a process.
//!
//! Tests assert exit codes, output, files and counts, never speed. What a machine can't do is skipped by name.

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

/// The program, about to measure batches.
fn perf(command: &str) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ringfile"));
    // What runs of the user's left behind is no matter of the tests.
    program.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    program.args(["perf", command]);
    program
}
