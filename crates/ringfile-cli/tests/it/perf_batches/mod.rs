//! Runs `ringfile perf batch` and `ringfile perf multiread` as processes, as a user does.
//!
//! Tests assert exit codes, output, files and counts, never speed. Tests that this machine cannot run are skipped and
//! listed.

mod bad_input;
mod interrupted;
mod odd_places;
mod results;
mod terminal;
mod work;
