//! Runs `ringfile perf file` as a process, as a user does.
//!
//! Tests assert exit codes, output, files and counts, never speed. Tests that this machine cannot run are skipped and
//! listed.

mod bad_input;
mod devices;
mod interrupted;
mod old_kernel;
mod replaced;
mod results;
mod unprivileged;
mod verified;
