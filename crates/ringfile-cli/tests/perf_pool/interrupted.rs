//! Ctrl-C in every phase, and harder ends: results so far are printed and saved, and nothing is left behind.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{Finished, folder, interrupt, json, runs, wait_for_thread};
use crate::{files_in, perf_pool};

fn start(folder: &Path, arguments: &str, out: &Path) -> Child {
    let mut program = perf_pool(folder);
    program.args("--memory vec --bs 4k --size 16m --json".split(' ')).arg(out).args(arguments.split(' '));
    let child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    wait_for_thread(child.id(), "producer-0");
    child
}

#[test]
fn while_measuring() {
    for (signal, rate) in [(Signal::SIGINT, ""), (Signal::SIGTERM, " --rate-limit 1m")] {
        let (folder, results) = (folder(), folder());
        let out = results.path().join("out.json");
        let child = start(folder.path(), &format!("--duration 10m --warmup 0s{rate}"), &out);
        std::thread::sleep(Duration::from_millis(500));
        let finished = interrupt(child, signal);
        assert!(finished.stdout.contains("|producer|vec"), "{finished:#?}");
        assert!(
            !finished.stdout.contains("NOT carried"),
            "operations that were not due are not backlog: {finished:#?}"
        );
        finished.fails(130);
        let results = json(&out);
        assert_eq!((&results["interrupted"], runs(&results).len()), (&true.into(), 2));
        let producers = &runs(&results)[0];
        assert!(producers["ops"].as_u64() > Some(0) && producers["errors"] == 0, "{producers}");
        assert!(producers["pool"]["backlog_ops"].is_null(), "{producers}");
        assert_eq!(files_in(folder.path()), 0);
    }
}

#[test]
fn while_warming_up() {
    let (folder, results) = (folder(), folder());
    let out = results.path().join("out.json");
    let child = start(folder.path(), "--duration 1s --warmup 10m", &out);
    std::thread::sleep(Duration::from_millis(100));
    let finished = interrupt(child, Signal::SIGINT);
    assert_eq!(finished.stdout, "", "nothing was measured");
    finished.fails(130);
    assert_eq!(runs(&json(&out)).len(), 0);
    assert_eq!(files_in(folder.path()), 0);
}

/// At a rate with most time between two batches, the threads are waiting.
#[test]
fn while_all_wait() {
    let (folder, results) = (folder(), folder());
    let out = results.path().join("out.json");
    let child = start(folder.path(), "--duration 10m --warmup 0s --rate-limit 1k", &out);
    std::thread::sleep(Duration::from_millis(300));
    interrupt(child, Signal::SIGINT).fails(130);
    assert_eq!(files_in(folder.path()), 0);
}

#[test]
fn a_program_that_is_killed_leaves_nothing_either() {
    let (folder, results) = (folder(), folder());
    let out = results.path().join("out.json");
    let child = start(folder.path(), "--duration 10m --warmup 0s", &out);
    std::thread::sleep(Duration::from_millis(300));
    let finished: Finished = interrupt(child, Signal::SIGKILL);
    assert_eq!(finished.code, None);
    assert_eq!(files_in(folder.path()), 0);
}
