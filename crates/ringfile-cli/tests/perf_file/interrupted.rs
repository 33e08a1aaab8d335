//! Ctrl-C: prints and saves what was measured so far, removes the file, exits with 130.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{
    Finished, children_of, folder, installed, interrupt, json, perf_file, runs, skip, wait_for_thread,
    wait_for_work,
};

/// Starts a run of two cells of ten minutes each, and waits until the first is running.
fn start(arguments: &[&str], out: &Path) -> (Child, PathBuf) {
    let mut command = perf_file();
    command.args("--size 8m --duration 10m --warmup 0s --numjobs 1 --rw randread".split(' '));
    command.args(arguments).arg("--json").arg(out).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the program starts");
    let path = PathBuf::from(format!("/dev/shm/ringfile-perf-{}.bin", child.id()));
    // Without a warm-up, the first operations start at once.
    wait_for_work(child.id(), "ringfile-0");
    assert!(path.exists(), "the run ended early");
    (child, path)
}

/// Returns whether children of this process inherit the signal as ignored.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("there is /proc");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("as in proc(5)");
    let mask = u64::from_str_radix(mask.trim(), 16).expect("a hexadecimal number");
    mask >> (signal as i32 - 1) & 1 == 1
}

#[test]
fn what_was_measured_is_printed_and_saved_and_the_file_is_gone() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        if is_ignored(signal) {
            // If the tests were started under nohup, the program rightly ignores the signal.
            skip(
                "what_was_measured_is_printed_and_saved_and_the_file_is_gone",
                "started with SIGHUP ignored",
            );
            continue;
        }
        let folder = folder();
        let out = folder.path().join("out.json");
        let (child, path) = start(&["--iodepth", "4"], &out);
        let finished = interrupt(child, signal);
        assert!(!path.exists(), "{signal}: the file is left");
        assert!(finished.stdout.starts_with("|engine"), "{signal}: {finished:#?}");
        assert!(finished.stdout.contains("|ringfile|"), "{signal}: {finished:#?}");
        finished.fails(130);
        let results = json(&out);
        assert_eq!(results["interrupted"], true);
        assert_eq!(runs(&results).len(), 1, "the run under way counts as far as it went");
        assert!(runs(&results)[0]["ops"].as_u64() > Some(0));
        assert_eq!(runs(&results)[0]["errors"], 0);
    }
}

#[test]
fn a_run_that_was_only_warming_up_is_not_a_cell() {
    let folder = folder();
    let out = folder.path().join("out.json");
    let mut command = perf_file();
    command.args("--size 8m --duration 1s --warmup 10m --numjobs 1 --rw randread --json".split(' '));
    let spawned = command.arg(&out).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = spawned.expect("the program starts");
    let path = PathBuf::from(format!("/dev/shm/ringfile-perf-{}.bin", child.id()));
    wait_for_thread(child.id(), "ringfile-0");
    let finished = interrupt(child, Signal::SIGINT);
    assert_eq!(finished.stdout, "", "nothing was measured");
    finished.fails(130);
    assert!(!path.exists(), "the file is left");
    assert_eq!((json(&out)["interrupted"].clone(), runs(&json(&out)).len()), (true.into(), 0));
}

#[test]
fn nohup_lets_it_go_on() {
    let folder = folder();
    let out = folder.path().join("out.json");
    let mut command = std::process::Command::new("nohup");
    command
        .arg(env!("CARGO_BIN_EXE_ringfile"))
        .args("perf file --size 4m --duration 1s --warmup 0s".split(' '));
    command.args("--numjobs 1 --iodepth 1 --rw randread --buffers normal --json".split(' ')).arg(&out);
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(child) = spawned else {
        skip("nohup_lets_it_go_on", "there is no nohup");
        return;
    };
    wait_for_thread(child.id(), "ringfile-0");
    let finished = interrupt(child, Signal::SIGHUP).ok();
    assert!(finished.stdout.contains("|ringfile|"), "{finished:#?}");
    assert_eq!(json(&out)["interrupted"], false);
}

#[test]
fn a_signal_that_comes_twice_at_once_is_one_request() {
    let folder = folder();
    let out = folder.path().join("out.json");
    let (child, path) = start(&["--iodepth", "1"], &out);
    let id = Pid::from_raw(child.id().cast_signed());
    kill(id, Signal::SIGTERM).expect("the signal is sent");
    // Of a different kind, because the kernel would merge two of the same kind.
    kill(id, Signal::SIGINT).expect("the signal is sent");
    let finished = Finished::from(child.wait_with_output().expect("the program ends"));
    assert!(finished.stdout.contains("|ringfile|"), "{finished:#?}");
    finished.fails(130);
    assert!(!path.exists(), "the file is left");
    assert_eq!(json(&out)["interrupted"], true);
}

#[test]
fn a_fio_under_way_is_ended() {
    if !installed("fio") {
        skip("a_fio_under_way_is_ended", "fio is not installed");
        return;
    }
    let folder = folder();
    let out = folder.path().join("out.json");
    let mut command = perf_file();
    command.args("--size 4m --duration 2s --warmup 0s --numjobs 1 --iodepth 1".split(' '));
    command.args("--rw randread --buffers normal --against fio --rounds 20 --json".split(' '));
    command.arg(&out).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the program starts");
    let own = child.id();
    let deadline = Instant::now() + Duration::from_secs(30);
    // The calibration before the first run is also a fio, of a third of a second; wait for one that lasts.
    let fio = loop {
        assert!(Instant::now() < deadline, "no fio was started");
        if let Some(fio) = children_of(own).first().copied() {
            std::thread::sleep(Duration::from_millis(900));
            if children_of(own).contains(&fio) {
                break fio;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let finished = interrupt(child, Signal::SIGINT);
    finished.fails(130);
    assert!(!Path::new(&format!("/proc/{fio}")).exists(), "fio goes on");
    assert!(!Path::new(&format!("/dev/shm/ringfile-perf-{own}.bin")).exists());
    assert_eq!(json(&out)["interrupted"], true);
}
