//! Runs `ringfile doctor` as a process, as a user does.
//!
//! Tests assert exit codes, fields, files and bytes, never times. Tests that this machine cannot run are skipped and
//! listed.

mod harmless;
mod odd_places;
mod output;
mod unprivileged;

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{Finished, ringfile, run};

/// Returns the command for a path.
fn doctor(path: &Path) -> Command {
    let mut command = ringfile("doctor");
    command.arg(path);
    command
}

/// Returns the doctor's JSON for a path.
#[track_caller]
fn report(path: &Path) -> Value {
    report_of(|| run(doctor(path).arg("--json")))
}

/// Returns the JSON of a run. A busy machine may be slower than the doctor waits, so the run is repeated then.
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

/// Returns the feature of that name, or null.
fn feature<'a>(report: &'a Value, name: &str) -> &'a Value {
    let features = report["features"].as_array().expect("a list");
    features.iter().find(|feature| feature["name"] == name).unwrap_or(&Value::Null)
}

/// Asserts that a finding has a title that contains these words.
#[track_caller]
fn assert_finds(report: &Value, words: &str) {
    assert!(finds(report, words), "{words}: {:#}", report["findings"]);
}

/// Returns a text of the report.
#[track_caller]
fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

/// Returns whether the title of some finding contains these words.
fn finds(report: &Value, words: &str) -> bool {
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().any(|finding| text(&finding["title"]).contains(words))
}
