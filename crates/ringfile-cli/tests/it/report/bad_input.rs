//! Input that cannot be carried out: one line that says what to do, exit code 2, and no change to any file.

use std::path::Path;

use serde_json::{Value, json};

use super::pages::report;
use super::samples::{self, batch, buffers};
use crate::support::{folder, is_root, run, short, skip};

#[test]
fn files_that_hold_no_results() {
    let folder = folder();
    let (mut newer, mut empty, mut foreign) = (batch(), batch(), batch());
    newer["schema"] = json!(2);
    empty["runs"] = json!([]);
    foreign.as_object_mut().expect("an object").remove("machine");
    let text = |text: &str| {
        let path = folder.path().join("text.json");
        std::fs::write(&path, text).expect("write");
        path
    };
    let sample = |sample: &Value| samples::write(folder.path(), "sample.json", sample);
    let out = folder.path().join("out.html");
    let refused = |path: &Path, said: &str| {
        run(report().arg(path).arg("--out").arg(&out)).fails_with(2, &[said]);
        assert!(!out.exists());
    };
    for (content, said) in [
        ("", "is empty"),
        (" \n", "is empty"),
        ("not json", "is not whole JSON"),
        (r#"{"schema": 1, "runs": ["#, "is not whole JSON"),
        ("null", "no schema number"),
        ("[1, 2]", "no schema number"),
        (r#"{"version": 3, "rows": []}"#, "no schema number"),
        (r#"{"schema": "1"}"#, "no schema number"),
        (r#"{"schema": 0}"#, "schema 0"),
        (r#"{"schema": 1, "kind": "disk"}"#, "unknown variant `disk`"),
        (r#"{"schema": 1, "command": "x"}"#, "holds no results"),
    ] {
        refused(&text(content), said);
    }
    refused(&sample(&newer), "newer ringfile");
    refused(&sample(&empty), "has no runs");
    refused(&sample(&foreign), "missing field `machine`");
    refused(&folder.path().join("missing.json"), "No such file");
    refused(folder.path(), "is not a regular file");
    refused(Path::new("/dev/zero"), "is not a regular file");
    refused(Path::new("/dev/null"), "is not a regular file");
}

#[test]
fn results_that_can_not_be_compared() {
    let folder = folder();
    let buffers = samples::write(folder.path(), "buffers.json", &buffers(1, 1.0, 1.0));
    let batch_path = samples::write(folder.path(), "batch.json", &batch());
    let mut other = batch();
    for run in other["runs"].as_array_mut().expect("a list") {
        run["batch"] = json!(1000);
    }
    let other = samples::write(folder.path(), "other.json", &other);
    run(report().arg(&buffers).arg(&batch_path)).fails_with(2, &["perf buffers", "perf batch"]);
    run(report().arg(&batch_path).arg(&other)).fails_with(2, &["no cell in common"]);
    for arguments in [vec![&batch_path], vec![]] {
        run(report().args(arguments)).fails(2);
    }
    let page = folder.path().join("a.html");
    let error = run(report().args([&batch_path, &batch_path]).arg("--out").arg(&page)).fails(2);
    assert!(error.contains("--out") && !page.exists(), "{error}");
}

#[test]
fn output_that_can_not_be_written() {
    let folder = folder();
    let json = samples::write(folder.path(), "batch.json", &batch());
    let before = std::fs::read(&json).expect("read");
    let there = folder.path().join("there.html");
    std::fs::write(&there, "mine").expect("write");
    let cases = [
        (there.as_path(), "--force"),
        (folder.path(), "is a folder"),
        (Path::new("/dev/null"), "never replaced"),
        (&folder.path().join("missing/out.html"), "does not exist"),
    ];
    for (out, said) in cases {
        run(report().arg(&json).arg("--out").arg(out)).fails_with(2, &[said]);
        for option in ["--report", "--json"] {
            let finished = run(short(option).arg(out));
            assert_eq!(finished.stdout, "");
            finished.fails_with(2, &[said]);
        }
    }
    assert_eq!(std::fs::read_to_string(&there).expect("still there"), "mine");
    run(report().arg(&json).arg("--force").arg("--out").arg(&json)).fails_with(2, &["that are read"]);
    assert_eq!(std::fs::read(&json).expect("still there"), before);
    run(report().arg(&json).arg("--force").arg("--out").arg(&there)).ok();
    assert!(std::fs::read_to_string(&there).expect("written").starts_with("<!DOCTYPE"));
}

#[test]
fn the_page_never_takes_the_place_of_json() {
    let folder = folder();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, vec![7; 1 << 20]).expect("write");
    let out = folder.path().join("out");
    let mut command = short("--force --file");
    run(command.arg(&path).arg("--json").arg(&out).arg("--report").arg(&out)).fails_with(2, &["--json"]);
    assert!(!out.exists());
    assert_eq!(std::fs::read(&path).expect("still there"), vec![7; 1 << 20]);
}

#[test]
fn a_folder_that_is_not_ours() {
    if is_root() {
        return skip("root may write everywhere");
    }
    let json = folder();
    let json = samples::write(json.path(), "batch.json", &batch());
    run(report().arg(&json).args(["--out", "/proc/out.html"])).fails_with(2, &["name another"]);
}
