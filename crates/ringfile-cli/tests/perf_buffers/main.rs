//! Runs `ringfile perf buffers` as a process, as a user does.
//!
//! Tests assert exit codes, output, files, counts and that figures agree with those of others, never speed. Tests that
//! this machine cannot run are skipped and listed.

mod agrees;
mod bad_input;
mod elsewhere;
mod results;
mod resumed;
#[path = "../perf_file/support.rs"]
#[allow(dead_code, reason = "shared with the tests of perf file, which use all of it")]
mod support;

use std::process::Command;

/// Returns a command that measures kinds of buffers.
fn perf_buffers() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ringfile"));
    // Files that the user's own runs left behind must not affect the tests.
    program.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    program.args(["perf", "buffers"]);
    program
}
