//! Another file takes the name of the test file during the run: it is neither written to nor removed.

use rustix::process::Signal;

use crate::support::{end, folder, interrupt, ringfile, start, wait_for_thread};

/// Runs with these arguments, gives the name of the test file to a file of the user meanwhile, and asserts that this file
/// stays as it is. `stop` ends the run that is under way.
fn replaced_during(arguments: &str, stop: bool) {
    let folder = folder();
    let named = folder.path().join("n.bin");
    let arguments = format!("{arguments} --size 4m --numjobs 1 --warmup 0s --iodepth 2 --file");
    let child = start(ringfile(&arguments).arg(&named));
    wait_for_thread(child.id(), "ringfile-0");
    assert!(!named.exists(), "the test file has no name");
    std::fs::write(&named, vec![7; 4 << 20]).expect("write");
    let finished = if stop { interrupt(child, Signal::INT) } else { end(child) };
    let bytes = std::fs::read(&named).unwrap_or_else(|_| panic!("it was removed: {finished:#?}"));
    assert!(bytes == [7; 4 << 20], "it was written to: {finished:#?}");
    assert_eq!(finished.code, Some(if stop { 130 } else { 0 }), "{finished:#?}");
}

#[test]
fn a_run_that_writes_goes_on_with_its_own() {
    replaced_during("perf file --rw randwrite --duration 400ms --rounds 9", false);
    replaced_during("perf buffers --rw randwrite --bs 4k --duration 400ms --rounds 2", false);
}

#[test]
fn an_interrupted_run_leaves_it() {
    replaced_during("perf file --rw randread --duration 10m", true);
}
