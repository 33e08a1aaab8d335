//! Ctrl-C in every phase, and harder ends: results so far are printed and saved, and nothing is left behind.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::perf_pool;
use crate::support::{Finished, files_in, folder, interrupt, json, runs, start, wait_for_thread};

/// Starts a run with these arguments, sends a signal after a while, and returns the output and the saved results.
#[track_caller]
fn interrupted(arguments: &str, milliseconds: u64, signal: Signal) -> (Finished, Value) {
    let (folder, results) = (folder(), folder());
    let out = results.path().join("out.json");
    let mut program = perf_pool(folder.path(), &format!("--memory vec --bs 4k --size 16m {arguments}"));
    let child = start(program.arg("--json").arg(&out));
    wait_for_thread(child.id(), "log-0");
    // When to interrupt it; processes are not simulated.
    std::thread::sleep(Duration::from_millis(milliseconds));
    let finished = interrupt(child, signal);
    assert_eq!(files_in(folder.path()), 0);
    let saved = if out.exists() { json(&out) } else { Value::Null };
    (finished, saved)
}

#[test]
fn while_measuring() {
    for (signal, rate) in [(Signal::INT, ""), (Signal::TERM, " --rate-limit 2m")] {
        let (finished, results) = interrupted(&format!("--duration 10m --warmup 0s{rate}"), 500, signal);
        finished.says(&["|producer|vec"]);
        // Operations that were not due are not backlog. A busy machine may carry less than the rate.
        assert!(!finished.stdout.contains("due but not begun"), "{finished:#?}");
        finished.fails(130);
        assert_eq!((&results["interrupted"], runs(&results).len()), (&true.into(), 2));
        let producers = &runs(&results)[0];
        assert!(producers["ops"].as_u64() > Some(0) && producers["errors"] == 0, "{producers}");
        assert!(producers["pool"]["backlog_ops"].is_null(), "{producers}");
    }
}

#[test]
fn while_warming_up() {
    let (finished, results) = interrupted("--duration 1s --warmup 10m", 100, Signal::INT);
    assert_eq!(finished.stdout, "", "nothing was measured");
    finished.fails(130);
    assert_eq!(runs(&results).len(), 0);
}

/// At a rate with most time between two batches, the threads are waiting.
#[test]
fn while_all_wait() {
    let (finished, _) = interrupted("--duration 10m --warmup 0s --rate-limit 2k", 300, Signal::INT);
    finished.fails(130);
}

#[test]
fn a_program_that_is_killed_leaves_nothing_either() {
    let (finished, _) = interrupted("--duration 10m --warmup 0s", 300, Signal::KILL);
    assert_eq!(finished.code, None);
}
