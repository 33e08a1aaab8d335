//! Runs `ringfile perf pool` as a process, as a user does.
//!
//! Tests assert exit codes, output, files and counts, never speed. Tests that this machine cannot run are skipped and
//! listed.

mod bad_input;
mod interrupted;
mod places;
mod results;
#[path = "../perf_file/support.rs"]
#[allow(dead_code, reason = "shared with the tests of perf file, which use all of it")]
mod support;

use std::path::Path;
use std::process::Command;

/// Returns a command that runs producers and consumers in that folder.
fn perf_pool(folder: &Path) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ringfile"));
    // Files that the user's own runs left behind must not affect the tests.
    program.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    program.args(["perf", "pool", "--folder"]).arg(folder);
    program
}

/// Returns such a command with few threads for a tenth of a second.
fn brief(folder: &Path) -> Command {
    let mut program = perf_pool(folder);
    program.args("--duration 100ms --warmup 20ms --producers 2 --consumers 2".split(' '));
    program
}

/// Returns such a command with little data.
fn short(folder: &Path) -> Command {
    let mut program = brief(folder);
    program.args("--size 8m --bs 4k".split(' '));
    program
}

/// Returns whether the folder supports direct I/O, or why not.
fn direct(folder: &Path) -> Result<(), String> {
    let path = folder.join("direct");
    std::fs::write(&path, [0; 4096]).map_err(|error| error.to_string())?;
    let opened = ringfile::OpenOptions::new().read(true).direct(true).open(&path);
    std::fs::remove_file(&path).map_err(|error| error.to_string())?;
    opened.map(drop).map_err(|error| error.to_string())
}

/// Returns how many files there are.
#[track_caller]
fn files_in(folder: &Path) -> usize {
    std::fs::read_dir(folder).expect("the folder is there").count()
}
