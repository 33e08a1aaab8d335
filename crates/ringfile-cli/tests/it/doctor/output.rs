//! The output: JSON of the documented form, text that fits the terminal, one line if the doctor cannot look.

use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use super::{assert_finds, doctor, feature, parse, report, report_of, text};
use crate::support::{disk_folder, file_with, folder, ringfile, run, terminal};

#[test]
fn json_has_the_documented_form() {
    let folder = disk_folder();
    let report = report(folder.path());
    assert_eq!(report["schema"], 1);
    assert!(report["kernel"].is_string());
    for feature in report["features"].as_array().expect("a list") {
        assert!(feature["name"].is_string() && feature["why"].is_string(), "{feature}");
        assert!(feature["usable"].is_boolean() || feature["usable"].is_null(), "{feature}");
    }
    assert_eq!(report["file"]["kind"], "folder");
    assert_eq!(report["file"]["answered"], true, "{}", report["file"]);
    assert_eq!(report["file"]["path"], folder.path().to_str().expect("text"));
    assert!(report["file"]["filesystem"].is_string());
    assert!(report["process"]["memlock"]["tried"].as_u64() > Some(0));
    assert!(report.as_object().expect("an object").contains_key("device"));
    let findings = report["findings"].as_array().expect("a list");
    assert!(!findings.is_empty());
    let order = ["costly", "notable", "fine"];
    let severity =
        |finding: &Value| order.iter().position(|word| finding["severity"] == *word).expect("known");
    assert!(findings.is_sorted_by_key(severity), "most costly first: {findings:#?}");
    for finding in findings {
        for field in ["title", "detail", "fix"] {
            assert!(finding[field].as_str().is_some_and(|text| !text.is_empty()), "{finding}");
        }
    }
}

#[test]
fn wrong_variables_of_the_environment_are_named() {
    let folder = folder();
    let wrong = [("RINGFILE_DEPHT", "4"), ("RINGFILE_DIRECT", "maybe"), ("RINGFILE_CAPACITY", "0")];
    let report =
        report_of(|| run(doctor(folder.path()).arg("--json").envs(wrong).env("RINGFILE_ROUTE", "ring")));
    assert_finds(&report, "Settings of the environment are wrong");
    let said = report["process"]["wrong_variables"].as_array().expect("a list");
    let said: Vec<_> = said.iter().map(text).collect();
    assert_eq!(said[0], "`RINGFILE_DEPHT` is not a setting: did you mean `RINGFILE_DEPTH`?");
    assert!(said[1].starts_with("`RINGFILE_CAPACITY` can't be 0: give 4096 bytes or more"), "{said:?}");
    assert_eq!(said[2..], ["`RINGFILE_DIRECT` can't be maybe: give true or false"]);
}

#[test]
fn every_part_of_io_uring_was_tried() {
    let folder = folder();
    let report = report(folder.path());
    if feature(&report, "io_uring")["usable"] != true {
        // Nothing else can be checked then, and the output says so.
        return assert_finds(&report, "io_uring can't be used");
    }
    let names = "submit_all coop_taskrun single_issuer defer_taskrun no_sqarray sqpoll iopoll registered_ring_fd \
                 sparse_files sparse_buffers registered_buffers clone_buffers readv_fixed no_iowait linked_fsync \
                 rwf_nowait_read rwf_nowait_write rwf_dsync rwf_dontcache";
    for name in names.split(' ') {
        assert!(feature(&report, name)["why"].is_string(), "{name} is missing");
    }
    // What the library says that it uses must work here too.
    for name in ringfile::metrics::ring_features().into_iter().flatten() {
        let found = feature(&report, &name);
        assert!(found.is_null() || found["usable"] == true, "the library uses {name}: {found}");
    }
}

#[test]
fn a_file_is_described() {
    let folder = disk_folder();
    let path = file_with(&folder, &[3; 10_000]);
    let report = report(&path);
    assert_eq!((&report["file"]["kind"], &report["file"]["size"]), (&json!("file"), &json!(10_000)));
    let first = &report["file"]["routes"][0];
    let reads = ["ring", "inline", "workers", "aio"].map(|way| first[way].as_u64().expect("a count"));
    assert!(reads.iter().sum::<u64>() >= 16, "{first}");
}

#[test]
fn text_says_what_to_do() {
    let folder = disk_folder();
    let finished = run(&mut doctor(folder.path())).ok();
    assert!(finished.stderr.is_empty(), "{}", finished.stderr);
    finished.says(&["ringfile doctor ", "Linux ", "\nProcess\n", "\nFile\n", "\nio_uring here\n", "seccomp"]);
    for line in finished.stdout.lines() {
        assert!(line.chars().count() <= 100 || !line.trim().contains(' ') || line.contains('`'), "{line}");
    }
}

#[test]
fn a_terminal_is_never_too_narrow() {
    let folder = disk_folder();
    for columns in [20_u16, 60] {
        let (mut screen, side) = terminal(columns);
        let mut command = doctor(folder.path());
        command.stdout(side.try_clone().expect("a descriptor")).stderr(Stdio::null());
        let mut child = command.env("NO_COLOR", "1").spawn().expect("the program starts");
        drop((command, side));
        let mut text = Vec::new();
        // Reading ends with EIO once nobody has the other side open.
        let _ = std::io::Read::read_to_end(&mut screen, &mut text);
        assert!(child.wait().expect("it ends").success());
        let text = String::from_utf8(text).expect("text");
        assert!(text.contains("Process") && !text.contains('\u{1b}'), "{text}");
        for line in text.lines() {
            let (words, length) = (line.trim().trim_start_matches("- ").contains(' '), line.chars().count());
            assert!(length <= usize::from(columns) || !words || line.contains('`'), "{columns}: {line}");
        }
    }
}

#[test]
fn a_path_that_cannot_be_examined_is_an_error_of_one_line() {
    for path in ["/nonexistent", "/dev/null", "/nonexistent/x"] {
        for json in [false, true] {
            let finished = run(doctor(Path::new(path)).args(json.then_some("--json")));
            assert!(finished.stdout.is_empty(), "{}", finished.stdout);
            finished.fails_with(2, &[path]);
        }
    }
    run(&mut ringfile("doctor --fix")).fails_with(2, &["--help"]);
}

#[test]
fn the_default_is_the_current_folder() {
    let folder = folder();
    let report = parse(&run(ringfile("doctor --json").current_dir(folder.path())).ok().stdout);
    assert_eq!(report["file"]["path"], ".");
}

#[test]
fn help_says_what_it_touches() {
    let help = run(&mut ringfile("doctor --help")).ok();
    help.says(&["changes nothing", "O_TMPFILE", "Examples:", "Exit codes:", "--json"]);
    // Each of the four things is a line, or has its further lines indented.
    help.says(&["cgroup limits, memory\n  file "]);
}
