//! Ctrl-C in every phase: prints and saves what was measured so far, removes the file, exits with 130.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    children_of, default_file, end, folder, installed, interrupt, json as read, ringfile, runs, script, skip,
    start, wait_for_fio, wait_for_thread, wait_for_work, wait_until,
};

/// The commands with the engine that runs first, that engine, and the name of its thread.
const FIRST: [(&str, &str, &str); 4] = [
    ("batch --batch 4 --engines ringfile-blocking", "ringfile-blocking", "ringfile-0"),
    ("batch --batch 4 --engines ringfile-tokio", "ringfile-tokio", "tokio-0"),
    ("multiread --batch 4 --engines ringfile", "ringfile", "ringfile-0"),
    ("file --iodepth 4 --rw randread", "ringfile", "ringfile-0"),
];

/// Starts a command that saves its results in a folder; returns also its file and that folder.
fn start_with(arguments: &str) -> (Child, PathBuf, TempDir) {
    let folder = folder();
    let options = "--cache warm --numjobs 1 --json";
    let child = start(ringfile(&format!("perf {arguments} {options}")).arg(folder.path().join("out.json")));
    let path = default_file(&child);
    (child, path, folder)
}

/// Asserts that the file is gone, and returns the results.
#[track_caller]
fn saved_alone(path: &Path, folder: &TempDir) -> Value {
    assert!(!path.exists(), "the file is left");
    let results = read(&folder.path().join("out.json"));
    assert_eq!(results["interrupted"], true);
    results
}

#[test]
fn while_measuring() {
    for (command, engine, thread) in FIRST {
        for signal in [Signal::INT, Signal::TERM] {
            let (child, path, folder) =
                start_with(&format!("{command} --size 8m --duration 10m --warmup 0s"));
            // Without a warm-up, the first batch starts at once.
            wait_for_work(child.id(), thread);
            let finished = interrupt(child, signal);
            finished.says(&[&format!("|{engine}")]);
            finished.fails(130);
            let results = saved_alone(&path, &folder);
            assert_eq!(runs(&results).len(), 1, "the run under way counts as far as it went");
            assert!(runs(&results)[0]["ops"].as_u64() > Some(0) && runs(&results)[0]["errors"] == 0);
        }
    }
}

#[test]
fn while_warming_up() {
    for (command, _, thread) in FIRST {
        let (child, path, folder) = start_with(&format!("{command} --size 8m --duration 1s --warmup 10m"));
        wait_for_thread(child.id(), thread);
        let finished = interrupt(child, Signal::INT);
        assert_eq!(finished.stdout, "", "{command}: nothing was measured");
        finished.fails(130);
        assert_eq!(runs(&saved_alone(&path, &folder)).len(), 0);
    }
}

#[test]
fn while_the_file_is_filled() {
    for command in ["batch", "multiread"] {
        let (child, path, folder) = start_with(&format!("{command} --batch 4 --size 1g --duration 10m"));
        let open = format!("/proc/{}/fd", child.id());
        // Its name is gone already. Elsewhere are the libraries that the loader opens before signals are handled.
        let is_filled = |file: PathBuf| {
            std::fs::read_link(&file).is_ok_and(|name| name.parent() == path.parent())
                && std::fs::metadata(file).is_ok_and(|file| file.is_file() && file.len() > 0)
        };
        let has_bytes = || {
            let mut files = std::fs::read_dir(&open).into_iter().flatten().flatten();
            files.any(|file| is_filled(file.path()))
        };
        wait_until("the file does not come", has_bytes);
        interrupt(child, Signal::INT).fails(130);
        saved_alone(&path, &folder);
    }
}

#[test]
fn while_others_have_their_turn() {
    for (engine, thread) in [("by-hand", "by-hand-0"), ("pread", "pread-0")] {
        let arguments = "multiread --batch 4 --size 8m --duration 2s --warmup 0s --rounds 100";
        let (child, path, folder) = start_with(&format!("{arguments} --engines ringfile,{engine}"));
        wait_for_work(child.id(), thread);
        let finished = interrupt(child, Signal::INT);
        if finished.stderr.contains("a ring by hand failed") {
            skip(&finished.stderr);
            continue;
        }
        finished.says(&["|ringfile", engine]);
        finished.fails(130);
        assert_eq!(saved_alone(&path, &folder)["params"]["against"], json!([engine]));
    }
}

#[test]
fn a_fio_under_way_is_ended() {
    if !installed("fio") {
        return skip("fio is not installed");
    }
    for command in [
        "batch --batch 4 --engines ringfile-tokio,fio",
        "multiread --batch 4 --engines ringfile,fio",
        "file --iodepth 1 --rw randread --buffers normal --against fio",
    ] {
        let arguments = format!("{command} --size 4m --duration 2s --warmup 0s --rounds 100");
        let (child, path, folder) = start_with(&arguments);
        let fio = wait_for_fio(child.id());
        interrupt(child, Signal::INT).fails(130);
        assert!(!Path::new(&format!("/proc/{fio}")).exists(), "fio goes on");
        let against = &saved_alone(&path, &folder)["params"]["against"];
        if !command.starts_with("file") {
            assert_eq!(against, &json!([]), "an engine that was cut short did not take part");
        }
    }
}

/// While a fio never answers, the first signal has to wait.
#[test]
fn a_second_signal_ends_it_at_once_and_the_file_is_gone() {
    let folder = folder();
    script(&folder.path().join("fio"), "exec sleep 60");
    let search = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    let mut child = start(ringfile("perf batch --size 4m --cache warm").env("PATH", search));
    let (own, path) = (child.id(), default_file(&child));
    wait_until("no fio was started", || !children_of(own).is_empty());
    let sleeper = Pid::from_raw(children_of(own)[0].cast_signed()).expect("a child");
    let id = Pid::from_child(&child);
    kill_process(id, Signal::INT).expect("the first signal is sent");
    // Time for the program to react to the first signal; processes are not simulated.
    std::thread::sleep(Duration::from_millis(800));
    assert!(child.try_wait().expect("a state").is_none(), "one signal waits for what is under way");
    kill_process(id, Signal::INT).expect("the second signal is sent");
    child.wait().expect("the program ends");
    // The process that it left holds its outputs open.
    kill_process(sleeper, Signal::KILL).expect("the fio is ended");
    assert_eq!(end(child).code, Some(130));
    assert!(!path.exists(), "the file is left");
}
