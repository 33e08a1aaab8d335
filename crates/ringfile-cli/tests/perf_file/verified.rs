//! `--verify`: correct content passes, and a changed byte is found.

use std::os::unix::fs::FileExt;
use std::process::Stdio;

use crate::support::{Finished, disk_folder, folder, json, perf_file, run, runs, skip, wait_for_thread};

#[test]
fn every_mode_passes() {
    let folder = disk_folder();
    for extra in [&[][..], &["--direct"]] {
        let (path, out) = (folder.path().join("data.bin"), folder.path().join("out.json"));
        let mut command = perf_file();
        command.args("--size 2m --duration 50ms --warmup 10ms --numjobs 2 --verify".split(' '));
        command.args("--iodepth 1,16 --rw randwrite,randread,randrw,write,read --force".split(' '));
        command.args(["--against", "pread"]).args(extra).arg("--file").arg(&path).arg("--json").arg(&out);
        let finished = run(&mut command);
        if finished.code == Some(2) && finished.stderr.contains("leave out --direct") {
            skip("every_mode_passes with --direct", format!("{} has none", path.display()));
            continue;
        }
        finished.ok();
        for run in runs(&json(&out)) {
            assert!(run["ops"].as_u64() > Some(0), "{run}");
            assert_eq!(run["errors"], 0, "{run}");
            if run["engine"] == "ringfile" && run["buffers"] == "fixed" {
                assert_eq!(run["fixed_ops"], run["route_ops"]["ring"], "{run}");
            }
        }
    }
}

#[test]
fn a_changed_byte_is_found() {
    for engine in ["ringfile", "pread"] {
        let folder = folder();
        let (path, out) = (folder.path().join("data.bin"), folder.path().join("out.json"));
        let mut command = perf_file();
        command.args("--size 256k --duration 2s --warmup 0s --numjobs 1 --iodepth 1".split(' '));
        command.args("--rw randread --buffers normal --verify --file".split(' ')).arg(&path);
        if engine == "pread" {
            command.args(["--against", "pread"]);
        }
        command.arg("--json").arg(&out).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("the program starts");
        // The file is complete and the run has started: bytes that are changed from here on stay changed.
        wait_for_thread(child.id(), &format!("{engine}-0"));
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
        for block in 0..64 {
            file.write_all_at(b"x", block * 4096 + 2000).expect("write");
        }
        let finished = Finished::from(child.wait_with_output().expect("the program ends"));
        let error = finished.fails(1);
        assert!(error.contains(&*path.to_string_lossy()) && error.contains("offset"), "{error}");
        assert!(error.contains("checksum"), "{error}");
        let results = json(&out);
        let last = runs(&results).last().expect("the run that failed");
        assert_eq!(last["engine"], engine);
        assert!(last["errors"].as_u64() > Some(0), "{last}");
        assert!(!path.exists());
    }
}

#[test]
fn a_file_that_shrinks_is_an_error_that_names_it() {
    let folder = folder();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, vec![1; 1 << 20]).expect("write");
    let mut command = perf_file();
    command.args("--duration 1m --numjobs 1 --iodepth 4 --rw randread --file".split(' ')).arg(&path);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    wait_for_thread(child.id(), "ringfile-0");
    std::fs::OpenOptions::new().write(true).open(&path).expect("open").set_len(4096).expect("truncate");
    let finished = Finished::from(child.wait_with_output().expect("the program ends"));
    assert_eq!(finished.code, Some(1), "{finished:#?}");
    let error = finished.stderr.lines().last().expect("an error");
    assert!(
        error.starts_with("error: read at offset ") && error.contains(&*path.to_string_lossy()),
        "{error}"
    );
}
