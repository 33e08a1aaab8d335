//! `ringfile perf file` as a user meets it: the program run as a process.
//!
//! Tests assert exit codes, output, files and counts, never speed. What a machine can't do is skipped by name.

mod bad_input;
mod devices;
mod failing;
mod interrupted;
mod killed;
mod old_kernel;
mod results;
mod support;
mod unprivileged;
mod verified;
