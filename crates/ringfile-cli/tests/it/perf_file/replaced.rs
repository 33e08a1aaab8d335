//! Another file takes the name of the test file during the run: it is neither written to nor removed.

use rustix::process::Signal;

use crate::support::{children_of, end, folder, interrupt, ringfile, start, wait_for_thread, wait_until};

/// Runs with these arguments, puts a file of the user in the place of the test file meanwhile, and asserts that this
/// file stays as it is. `stop` ends the run that is under way. Returns what the program said.
fn replaced_during(arguments: &str, stop: bool) -> (Option<i32>, String) {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("precious"), vec![7; 4 << 20]).expect("write");
    let arguments = format!("{arguments} --size 4m --warmup 0s --iodepth 2 --file");
    let child = start(ringfile(&arguments).arg(at("n.bin")));
    if arguments.contains("buffers") {
        // Before the test file is made, a child says which fio is installed.
        let works = || at("n.bin").exists() && !children_of(child.id()).is_empty();
        wait_until("no worker process came up", works);
    } else {
        wait_for_thread(child.id(), "ringfile-0");
    }
    std::fs::hard_link(at("precious"), at("n.tmp")).expect("link");
    std::fs::rename(at("n.tmp"), at("n.bin")).expect("rename");
    let finished = if stop { interrupt(child, Signal::INT) } else { end(child) };
    assert!(at("n.bin").exists(), "it was removed: {finished:#?}");
    let bytes = std::fs::read(at("precious")).expect("read");
    assert!(bytes.iter().all(|&byte| byte == 7), "it was written to: {finished:#?}");
    (finished.code, finished.stderr)
}

#[test]
fn a_run_that_writes_ends() {
    let arguments = "perf file --rw randwrite --numjobs 1 --duration 400ms --rounds 9";
    let (code, stderr) = replaced_during(arguments, false);
    assert!(code == Some(1) && stderr.contains("n.bin was replaced"), "{stderr}");
    assert!(stderr.contains("not written to") && stderr.contains("not removed"), "{stderr}");
}

#[test]
fn worker_processes_end() {
    let arguments = "perf buffers --rw randwrite --bs 4k --numjobs 1 --duration 400ms --rounds 9";
    let (code, stderr) = replaced_during(arguments, false);
    assert!(code == Some(1) && stderr.contains("n.bin was replaced"), "{stderr}");
}

#[test]
fn an_interrupted_run_says_what_it_left() {
    let arguments = "perf file --rw randread --numjobs 1 --duration 10m";
    let (code, stderr) = replaced_during(arguments, true);
    assert!(code == Some(130) && stderr.contains("n.bin was replaced"), "{stderr}");
}
