//! `ringfile report` and `--report` as a user meets them: the program run as a process, and its pages in a browser.
//!
//! Tests assert exit codes, output and files. What a machine can't do is skipped by name.

mod bad_input;
mod browser;
mod pages;
mod samples;
mod stored;
#[path = "../perf_file/support.rs"]
#[allow(dead_code, reason = "shared with the tests of perf file, which use all of it")]
mod support;
