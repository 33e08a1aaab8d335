//! Runs `ringfile perf pool` as a process, as a user does.
//!
//! Tests assert exit codes, output, files and counts, never speed. Tests that this machine cannot run are skipped and
//! listed.

mod bad_input;
mod interrupted;
mod places;
mod results;

use std::path::Path;
use std::process::Command;

use crate::support::ringfile;

/// Returns a command that runs producers and consumers in that folder.
fn perf_pool(folder: &Path, arguments: &str) -> Command {
    let mut program = ringfile(&format!("perf pool {arguments} --folder"));
    program.arg(folder);
    program
}

/// Returns such a command with few threads for a tenth of a second.
fn brief(folder: &Path, arguments: &str) -> Command {
    let options = "--duration 100ms --warmup 20ms --producers 2 --consumers 2";
    perf_pool(folder, format!("{options} {arguments}").trim_end())
}

/// Returns such a command with little data.
fn short(folder: &Path, arguments: &str) -> Command {
    brief(folder, &format!("--size 8m --bs 4k {arguments}"))
}

/// Returns whether the folder supports direct I/O, or why not.
fn direct(folder: &Path) -> Result<(), String> {
    let path = folder.join("direct");
    std::fs::write(&path, [0; 4096]).map_err(|error| error.to_string())?;
    let opened = ringfile::OpenOptions::new().read(true).direct(true).open_blocking(&path);
    std::fs::remove_file(&path).map_err(|error| error.to_string())?;
    opened.map(drop).map_err(|error| error.to_string())
}
