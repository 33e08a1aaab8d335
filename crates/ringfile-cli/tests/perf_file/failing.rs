//! I/O that fails while measuring: one line that names file, offset and errno, exit code 1, nothing left.

use std::fs::OpenOptions;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{Finished, file_with, folder, perf_file, run, wait_for_thread};

#[test]
fn a_file_that_gets_shorter_meanwhile() {
    let folder = folder();
    let path = file_with(&folder, &vec![7; 1 << 20]);
    let mut command = perf_file();
    command
        .args("--size 1m --duration 1m --warmup 0s --numjobs 1 --iodepth 4 --rw randread --file".split(' '));
    let spawned = command.arg(&path).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = spawned.expect("the program starts");
    wait_for_thread(child.id(), "ringfile-0");
    std::thread::sleep(Duration::from_millis(300));
    OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(8192)).expect("truncate");
    let error = Finished::from(child.wait_with_output().expect("the program ends")).fails(1);
    assert!(
        error.contains(&*path.to_string_lossy()) && error.contains("offset") && error.contains("truncated"),
        "{error}"
    );
}

#[test]
fn a_file_size_limit_is_an_error_and_the_file_is_gone() {
    let folder = folder();
    let path = folder.path().join("data.bin");
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 100; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_ringfile")]);
    shell.args("perf file --size 1m --duration 50ms --rw randread --file".split(' '));
    let error = run(shell.arg(&path)).fails(1);
    assert!(error.contains("errno 27") && error.contains("data.bin"), "{error}");
    assert!(!path.exists(), "the file is left");
}
