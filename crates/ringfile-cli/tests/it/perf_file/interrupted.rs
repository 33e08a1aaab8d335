//! Ctrl-C: prints and saves what was measured so far, removes the file, exits with 130.

use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    default_file, end, folder, interrupt, json, ringfile, runs, skip, skip_part, start, wait_for_thread,
    wait_for_work,
};

/// Options of two cells of ten minutes each.
const LONG: &str =
    "--size 8m --duration 10m --warmup 0s --rounds 3 --numjobs 1 --rw randread --iodepth 4 --json";

/// Returns whether children of this process inherit the signal as ignored.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("there is /proc");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("as in proc(5)");
    let mask = u64::from_str_radix(mask.trim(), 16).expect("a hexadecimal number");
    mask >> (signal.as_raw() - 1) & 1 == 1
}

#[test]
fn an_interrupted_run_prints_and_saves_its_measurements_and_removes_the_file() {
    // The second signal of a pair is of a different kind, because the kernel would merge two of the same kind.
    for signals in [&[Signal::HUP][..], &[Signal::TERM, Signal::INT]] {
        if is_ignored(signals[0]) {
            // If the tests were started under nohup, the program rightly ignores the signal.
            skip_part(" with SIGHUP", "started with SIGHUP ignored");
            continue;
        }
        let folder = folder();
        let out = folder.path().join("out.json");
        let child = start(ringfile(&format!("perf file {LONG}")).arg(&out));
        let path = default_file(&child);
        // Without a warm-up, the first operations start at once.
        wait_for_work(child.id(), "ringfile-0");
        for &signal in signals {
            kill_process(Pid::from_child(&child), signal).expect("the signal is sent");
        }
        let finished = end(child);
        assert!(!path.exists(), "{signals:?}: the file is left");
        assert!(finished.stdout.starts_with("|engine"), "{signals:?}: {finished:#?}");
        finished.says(&["|ringfile|", "interrupted during round 2 of 3"]);
        finished.fails(130);
        let results = json(&out);
        assert_eq!(results["interrupted"], true);
        assert_eq!(runs(&results).len(), 1, "the run under way counts as far as it went");
        assert!(runs(&results)[0]["ops"].as_u64() > Some(0));
        assert_eq!(runs(&results)[0]["errors"], 0);
    }
}

#[test]
fn nohup_lets_it_go_on() {
    let folder = folder();
    let out = folder.path().join("out.json");
    let mut command = Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_ringfile"));
    command.args(
        "perf file --tables --size 4m --duration 1s --warmup 0s --numjobs 1 --iodepth 1 --rw randread"
            .split(' '),
    );
    command.args(["--buffers", "normal", "--json"]).arg(&out).stdin(Stdio::null());
    let Ok(child) = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() else {
        return skip("there is no nohup");
    };
    wait_for_thread(child.id(), "ringfile-0");
    interrupt(child, Signal::HUP).ok().says(&["|ringfile|"]);
    assert_eq!(json(&out)["interrupted"], false);
}
