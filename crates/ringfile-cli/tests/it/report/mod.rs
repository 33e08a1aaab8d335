//! Runs `ringfile report` and `--report` as processes, as a user does, and shows their pages in a browser.
//!
//! Tests assert exit codes, output and files. Tests that this machine cannot run are skipped and listed.

mod bad_input;
mod browser;
mod pages;
mod samples;
mod stored;
