//! Input that cannot be carried out: one line that says what to do, exit code 2, and no change to any file.

use std::process::Command;

use crate::support::{disk_folder, file_with, folder, ringfile, run};

#[test]
fn impossible_requests_are_errors_of_one_line() {
    for (arguments, part) in [
        ("--numjobs 1000", "lower --numjobs"),
        ("--bs 1g --iodepth 4096 --size 2g", "less --iodepth"),
        ("--bs 4m --size 1m", "smaller blocks"),
        ("--bs 0", "size of 0"),
        ("--iodepth 0", "whole number"),
        ("--buffers odd", "choose from normal, fixed, vectored, vectored-fixed"),
        ("--direct --buffered", "cannot be used with"),
        ("--rounds 0", "whole number"),
        ("--ring-flags odd", "choose from none, coop, defer, sqpoll"),
        ("--ring-flags coop --route inline", "--ring-flags is about rings"),
        ("--by-hand --route workers", "--by-hand is about rings"),
        ("--file /dev/shm --rw randread", "neither a file nor a block device"),
        ("--file /dev/shm/ringfile-no-such.bin --direct --size 1m --bs 4k", "--direct"),
        ("--json /nonexistent/out.json", "does not exist"),
        ("--emit-config /nonexistent/out.toml", "does not exist"),
        ("--json /dev/null", "never replaced"),
    ] {
        run(&mut ringfile(&format!("perf buffers {arguments}"))).fails_with(2, &[part]);
    }
    assert!(!std::path::Path::new("/dev/shm/ringfile-no-such.bin").exists());
}

#[test]
fn too_many_open_files_come_with_advice() {
    let program = env!("CARGO_BIN_EXE_ringfile");
    for command in ["buffers --size 8m --bs 4k --iodepth 1 --rounds 1 --numjobs 1", "pool --size 8m"] {
        let script = format!("ulimit -n 11; exec {program} perf {command} --duration 20ms");
        let finished =
            run(Command::new("sh").arg("-c").arg(script).env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR")));
        assert!(finished.code != Some(0) && finished.stderr.contains("ulimit -n"), "{finished:#?}");
    }
}

#[test]
fn no_output_is_replaced_and_none_is_another() {
    let folder = folder();
    let there = file_with(&folder, b"mine");
    for option in ["--json", "--emit-config"] {
        run(ringfile("perf buffers").arg(option).arg(&there)).fails_with(2, &["--force"]);
    }
    let same = folder.path().join("same");
    let mut command = ringfile("perf buffers --json");
    run(command.arg(&same).arg("--emit-config").arg(&same))
        .fails_with(2, &["name another one for the configuration"]);
    let disk = disk_folder();
    let data = file_with(&disk, &vec![1; 1 << 20]);
    let mut command = ringfile("perf buffers --force --file");
    run(command.arg(&data).arg("--emit-config").arg(&data)).fails_with(2, &["the file that is measured"]);
    assert_eq!(std::fs::read(&there).expect("read"), b"mine");
    assert_eq!(std::fs::read(&data).expect("read").len(), 1 << 20);
}
