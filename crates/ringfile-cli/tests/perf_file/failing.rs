//! I/O that fails while measuring: one line that names file, offset and errno, exit code 1, nothing left.

use std::process::Command;

use crate::support::{folder, run};

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
