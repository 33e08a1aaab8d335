//! Ctrl-C in every phase: prints and saves what was measured so far, removes the file, exits with 130.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::perf;
use crate::support::{
    Finished, children_of, folder, installed, interrupt, json, runs, skip, wait_for_thread, wait_for_work,
};

/// The commands, with the engine that runs first and the name of its thread.
const FIRST: [(&str, &str, &str); 3] = [
    ("batch", "ringfile-blocking", "ringfile-0"),
    ("batch", "ringfile-tokio", "tokio-0"),
    ("multiread", "ringfile", "ringfile-0"),
];

fn start(command: &str, arguments: &str, out: &Path) -> (Child, PathBuf) {
    let mut program = perf(command);
    program.args("--cache warm --numjobs 1 --batch 4 --json".split(' ')).arg(out).args(arguments.split(' '));
    let spawned = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = spawned.expect("the program starts");
    let path = PathBuf::from(format!("/dev/shm/ringfile-perf-{}.bin", child.id()));
    (child, path)
}

#[track_caller]
fn assert_nothing_is_left(path: &Path, out: &Path) {
    assert!(!path.exists(), "the file is left");
    assert_eq!(json(out)["interrupted"], true);
}

#[test]
fn while_measuring() {
    for (command, engine, thread) in FIRST {
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            let folder = folder();
            let out = folder.path().join("out.json");
            let arguments = format!("--size 8m --duration 10m --warmup 0s --engines {engine}");
            let (child, path) = start(command, &arguments, &out);
            // Without a warm-up, the first batch starts at once.
            wait_for_work(child.id(), thread);
            assert!(path.exists(), "the run ended early");
            let finished = interrupt(child, signal);
            assert!(finished.stdout.contains(&format!("|{engine}")), "{command} {engine}: {finished:#?}");
            finished.fails(130);
            assert_nothing_is_left(&path, &out);
            let results = json(&out);
            assert_eq!(runs(&results).len(), 1, "the run under way counts as far as it went");
            assert!(runs(&results)[0]["ops"].as_u64() > Some(0) && runs(&results)[0]["errors"] == 0);
        }
    }
}

#[test]
fn while_warming_up() {
    for (command, engine, thread) in FIRST {
        let folder = folder();
        let out = folder.path().join("out.json");
        let arguments = format!("--size 8m --duration 1s --warmup 10m --engines {engine}");
        let (child, path) = start(command, &arguments, &out);
        wait_for_thread(child.id(), thread);
        let finished = interrupt(child, Signal::SIGINT);
        assert_eq!(finished.stdout, "", "{command} {engine}: nothing was measured");
        finished.fails(130);
        assert_nothing_is_left(&path, &out);
        assert_eq!(runs(&json(&out)).len(), 0);
    }
}

#[test]
fn while_the_file_is_filled() {
    for command in ["batch", "multiread"] {
        let folder = folder();
        let out = folder.path().join("out.json");
        let (child, path) = start(command, "--size 1g --duration 10m", &out);
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::fs::metadata(&path).map_or(0, |file| file.len()) == 0 {
            assert!(Instant::now() < deadline, "the file does not come");
            std::thread::sleep(Duration::from_millis(1));
        }
        interrupt(child, Signal::SIGINT).fails(130);
        assert_nothing_is_left(&path, &out);
    }
}

#[test]
fn while_others_have_their_turn() {
    for (engine, thread) in [("two-rings", "by-hand-0"), ("submit-only", "by-hand-0"), ("pread", "pread-0")] {
        let folder = folder();
        let out = folder.path().join("out.json");
        let arguments =
            format!("--size 8m --duration 2s --warmup 0s --rounds 100 --engines ringfile,{engine}");
        let (child, path) = start("multiread", &arguments, &out);
        wait_for_work(child.id(), thread);
        let finished = interrupt(child, Signal::SIGINT);
        if finished.stderr.contains("a ring by hand failed") {
            skip("while_others_have_their_turn", &finished.stderr);
            continue;
        }
        assert!(finished.stdout.contains("|ringfile") && finished.stdout.contains(engine), "{finished:#?}");
        finished.fails(130);
        assert_nothing_is_left(&path, &out);
        assert_eq!(json(&out)["params"]["against"], serde_json::json!([engine]));
    }
}

#[test]
fn while_fio_runs_it_is_ended() {
    if !installed("fio") {
        skip("while_fio_runs_it_is_ended", "fio is not installed");
        return;
    }
    for (command, ours) in [("batch", "ringfile-tokio"), ("multiread", "ringfile")] {
        let folder = folder();
        let out = folder.path().join("out.json");
        let arguments = format!("--size 4m --duration 2s --warmup 0s --rounds 100 --engines {ours},fio");
        let (child, path) = start(command, &arguments, &out);
        let own = child.id();
        // The first fio only prints its version; wait for one that lasts.
        let deadline = Instant::now() + Duration::from_secs(60);
        let fio = loop {
            assert!(Instant::now() < deadline, "no fio was started");
            if let Some(&fio) = children_of(own).first() {
                std::thread::sleep(Duration::from_millis(900));
                if children_of(own).contains(&fio) {
                    break fio;
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        interrupt(child, Signal::SIGINT).fails(130);
        assert!(!Path::new(&format!("/proc/{fio}")).exists(), "fio goes on");
        assert_nothing_is_left(&path, &out);
        let others = json(&out)["params"]["against"].clone();
        assert_eq!(others, serde_json::json!([]), "what was cut short did not take part");
    }
}

/// While a fio never answers, the first signal has to wait.
#[test]
fn a_second_signal_ends_it_at_once_and_the_file_is_gone() {
    let folder = folder();
    let fio = folder.path().join("fio");
    std::fs::write(&fio, "#!/bin/sh\nexec sleep 60\n").expect("write");
    std::fs::set_permissions(&fio, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    let mut program = perf("batch");
    let search = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    program
        .env("PATH", search)
        .args("--size 4m --cache warm".split(' '))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = program.spawn().expect("the program starts");
    let own = child.id();
    let path = PathBuf::from(format!("/dev/shm/ringfile-perf-{own}.bin"));
    let deadline = Instant::now() + Duration::from_secs(30);
    let sleeper = loop {
        assert!(Instant::now() < deadline, "no fio was started");
        if let Some(&child) = children_of(own).first() {
            break Pid::from_raw(child.cast_signed());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let id = Pid::from_raw(own.cast_signed());
    kill(id, Signal::SIGINT).expect("the first signal is sent");
    std::thread::sleep(Duration::from_millis(800));
    assert!(path.exists(), "one signal waits for what is under way");
    kill(id, Signal::SIGINT).expect("the second signal is sent");
    let code = Finished::from(end(child, sleeper)).code;
    assert_eq!(code, Some(130));
    assert!(!path.exists(), "the file is left");
}

/// Waits for the end of the program, then ends the processes it left, which hold its outputs open.
fn end(mut child: Child, left: Pid) -> std::process::Output {
    child.wait().expect("the program ends");
    kill(left, Signal::SIGKILL).expect("what is left is ended");
    child.wait_with_output().expect("its output")
}
