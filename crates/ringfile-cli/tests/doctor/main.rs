//! `ringfile doctor` as a user meets it: the program run as a process.
//!
//! Tests assert exit codes, fields, files and bytes, never times. What a machine can't do is skipped by name.

mod harmless;
mod odd_places;
mod output;
#[path = "../perf_file/support.rs"]
#[allow(dead_code, reason = "shared with the tests of perf file, which use all of it")]
mod support;
mod unprivileged;

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use support::{Finished, run};

/// The program, about to look at a path.
fn doctor(path: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfile"));
    command.arg("doctor").arg(path);
    command
}

/// What it says of a path, as JSON.
#[track_caller]
fn report(path: &Path) -> Value {
    report_of(|| run(doctor(path).arg("--json")))
}

/// What a run prints as JSON. A machine that is busy may take longer than the doctor waits: then it is asked again.
#[track_caller]
fn report_of(mut doctor: impl FnMut() -> Finished) -> Value {
    let mut report = Value::Null;
    for _ in 0..20 {
        report = parse(&doctor().ok().stdout);
        if report["file"]["answered"] == true {
            break;
        }
    }
    report
}

#[track_caller]
fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("it is JSON")
}

/// The feature of that name; null where there is none.
fn feature<'a>(report: &'a Value, name: &str) -> &'a Value {
    let features = report["features"].as_array().expect("a list");
    features.iter().find(|feature| feature["name"] == name).unwrap_or(&Value::Null)
}

/// Whether some finding's title has these words.
fn finds(report: &Value, words: &str) -> bool {
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().any(|finding| finding["title"].as_str().expect("text").contains(words))
}
