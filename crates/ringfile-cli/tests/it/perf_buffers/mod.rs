//! Runs `ringfile perf buffers` as a process, as a user does.
//!
//! Tests assert exit codes, output, files, counts and that figures agree with those of others, never speed. Tests that
//! this machine cannot run are skipped and listed.

mod agrees;
mod bad_input;
mod elsewhere;
mod interrupted;
mod results;
