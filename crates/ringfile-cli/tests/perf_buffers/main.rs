//! `ringfile perf buffers` as a user meets it: the program run as a process.
//!
//! Tests assert exit codes, output, files, counts and that figures agree with those of others, never speed. What a machine
//! can't do is skipped by name.

mod agrees;
mod bad_input;
mod elsewhere;
mod results;
mod resumed;
#[path = "../perf_file/support.rs"]
#[allow(dead_code, reason = "shared with the tests of perf file, which use all of it")]
mod support;

use std::process::Command;

/// The program, about to measure kinds of buffers.
fn perf_buffers() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ringfile"));
    // What runs of the user's left behind is no matter of the tests.
    program.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    program.args(["perf", "buffers"]);
    program
}
