//! I/O that fails while measuring: one line that names file, offset and errno, exit code 1, nothing left.

use std::process::Command;

use crate::support::{end, file_with, folder, ringfile, run, start, truncate, wait_for_thread};

#[test]
fn a_file_that_gets_shorter_meanwhile() {
    let folder = folder();
    let path = file_with(&folder, &vec![7; 1 << 20]);
    // While it is measured, and while the run is warming up.
    for warmup in ["0s", "1s"] {
        std::fs::write(&path, vec![7; 1 << 20]).expect("write");
        let arguments =
            format!("--size 1m --duration 1m --warmup {warmup} --numjobs 1 --iodepth 4 --rw randread");
        let child = start(ringfile(&format!("perf file {arguments} --file")).arg(&path));
        wait_for_thread(child.id(), "ringfile-0");
        truncate(&path, 8192);
        let error = end(child).fails(1);
        assert!(error.starts_with("error: read at offset ") && error.contains("truncated"), "{error}");
        assert!(error.contains(&*path.to_string_lossy()), "{error}");
    }
}

#[test]
fn a_file_size_limit_is_an_error_and_the_file_is_gone() {
    let folder = folder();
    let path = folder.path().join("data.bin");
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 100; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_ringfile")]);
    shell.args("perf file --size 1m --duration 50ms --rw randread --file".split(' '));
    run(shell.arg(&path)).fails_with(1, &["errno 27", "data.bin"]);
    assert!(!path.exists(), "the file is left");
}
