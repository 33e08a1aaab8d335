//! Input that cannot be carried out: one line that says what to do, exit code 2, and no change to any file.

use std::path::Path;
use std::process::Command;

use crate::support::{SHORT, file_with, folder, json, perf_file, run, skip};

/// Arguments that are refused, and a word that the error must contain.
const REFUSED: [(&[&str], &str); 34] = [
    (&["--size", "0"], "at least 1"),
    (&["--size", "big"], "powers of 1024"),
    (&["--bs", "3000", "--direct"], "--bs 4k"),
    (&["--bs", "8k", "--size", "4k"], "smaller blocks"),
    (&["--bs", "0"], "at least 1"),
    (&["--rw", ""], "empty"),
    (&["--rw", "randread,,read"], "between the commas"),
    (&["--rw", "sideways"], "randwrite"),
    (&["--buffers", "registered"], "fixed"),
    (&["--against", "dd"], "fio-psync"),
    (&["--cache", "hot"], "warm"),
    (&["--cache", "mixed,cold"], "stands alone"),
    (&["--cache", "mixed", "--against", "pread"], "stands alone"),
    (&["--cache", "mixed", "--open", "direct"], "stands alone"),
    (&["--cache", "mixed", "--size", "1m"], "256m"),
    (&["--route", "path"], "inline"),
    (&["--route", ""], "empty"),
    (&["--route", "auto,aio"], "--direct"),
    (&["--executor", "smol"], "tokio"),
    (&["--executor", "tokio,"], "between the commas"),
    (&["--numjobs", "0"], "1 to"),
    (&["--numjobs", ""], "empty"),
    (&["--iodepth", "0"], "1 to"),
    (&["--iodepth=-1"], "1 to"),
    (&["--rounds", "0"], "1 to"),
    (&["--duration", "0s"], "at least 1ms"),
    (&["--duration", "2"], "unit"),
    (&["--direct"], "--file on a disk"),
    (&["--verify", "--against", "fio"], "leave fio out"),
    (&["--verify", "--bs", "16"], "raise --bs"),
    (&["--numjobs", "1024", "--iodepth", "32768", "--bs", "1m"], "use fewer"),
    (&["--nonsense"], "--help"),
    (&["--duration", "99999999999y"], "at most 24h"),
    (&["--warmup", "25h"], "at most 24h"),
];

#[test]
fn every_refusal_is_one_line_that_says_what_to_do() {
    for (arguments, advice) in REFUSED {
        let finished = run(perf_file().args(arguments));
        assert_eq!(finished.stdout, "", "{arguments:?}");
        let error = finished.fails(2);
        assert!(error.contains(advice), "{arguments:?}: {error}");
    }
}

#[test]
fn a_command_that_does_not_exist_is_refused() {
    for arguments in [&["perf", "nonsense"][..], &["nonsense"]] {
        run(Command::new(env!("CARGO_BIN_EXE_ringfile")).args(arguments)).fails(2);
    }
}

#[test]
fn files_that_can_not_be_measured() {
    let folder = folder();
    let empty = file_with(&folder, b"");
    let missing = folder.path().join("missing/data.bin");
    let dangling = folder.path().join("link.bin");
    std::os::unix::fs::symlink(folder.path().join("missing.bin"), &dangling).expect("link");
    let cases = [
        (missing.as_path(), "does not exist"),
        (folder.path(), "neither a file nor a block device"),
        (Path::new("/dev/null"), "neither a file nor a block device"),
        (Path::new("/dev/ringfile-there-is-no-such-device"), "no device"),
        (dangling.as_path(), "link to nothing"),
        (empty.as_path(), "is empty"),
    ];
    for (path, advice) in cases {
        let error = run(perf_file().args(["--rw", "randread", "--file"]).arg(path)).fails(2);
        assert!(
            error.contains(advice)
                && error.contains(&*folder.path().to_string_lossy()) != path.starts_with("/dev"),
            "{error}"
        );
    }
    assert!(!missing.exists());
}

#[test]
fn a_new_file_larger_than_the_disk_is_refused_and_not_left() {
    let folder = folder();
    let path = folder.path().join("large.bin");
    let error = run(perf_file().args(["--size", "1000000g", "--file"]).arg(&path)).fails(2);
    assert!(error.contains("--size"), "{error}");
    assert!(!path.exists());
}

#[test]
fn more_threads_than_blocks_are_refused_and_nothing_is_left() {
    let folder = folder();
    let path = folder.path().join("small.bin");
    for arguments in [&["--rw", "read"][..], &["--verify"]] {
        let mut command = perf_file();
        command.args("--size 16k --numjobs 8 --iodepth 1".split(' ')).args(arguments);
        let error = run(command.arg("--file").arg(&path)).fails(2);
        assert!(error.contains("raise --size"), "{error}");
        assert!(!path.exists());
    }
}

#[test]
fn an_existing_file_is_not_written_to() {
    let folder = folder();
    let contents: Vec<u8> = (0..1 << 20).map(|index: u32| (index % 251) as u8).collect();
    let path = file_with(&folder, &contents);
    let writing = [
        &["--rw", "randwrite"][..],
        &["--rw", "randread,randrw"],
        &["--rw", "write"],
        &["--rw", "randread", "--verify"],
        &[],
    ];
    for arguments in writing {
        let error = run(perf_file().args(arguments).arg("--file").arg(&path)).fails(2);
        assert!(error.contains("--overwrite"), "{error}");
        // The permission to replace output files permits nothing else.
        run(perf_file().args(arguments).arg("--force").arg("--file").arg(&path)).fails(2);
        assert!(std::fs::read(&path).expect("still there") == contents, "{arguments:?} changed the file");
    }
}

#[test]
fn an_existing_file_is_read_as_it_is_and_kept() {
    let folder = folder();
    let contents: Vec<u8> = (0..1 << 20).map(|index: u32| (index % 251) as u8).collect();
    let path = file_with(&folder, &contents);
    let out = folder.path().join("out.json");
    let finished =
        run(perf_file().args(SHORT.split(' ')).arg("--file").arg(&path).arg("--json").arg(&out)).ok();
    assert!(finished.stderr.contains("1 MiB"), "says that it is smaller than asked: {}", finished.stderr);
    assert_eq!(json(&out)["params"]["size_bytes"], 1 << 20);
    assert_eq!(json(&out)["params"]["file_created"], false);
    assert!(std::fs::read(&path).expect("still there") == contents);
}

#[test]
fn overwrite_writes() {
    let folder = folder();
    let path = file_with(&folder, &vec![7; 1 << 20]);
    let short = "--duration 100ms --warmup 10ms --numjobs 1 --iodepth 1".split(' ');
    run(perf_file().args(short).args("--rw write --overwrite --file".split(' ')).arg(&path)).ok();
    let contents = std::fs::read(&path).expect("still there");
    assert_eq!(contents.len(), 1 << 20);
    assert!(contents.iter().any(|&byte| byte != 7));
}

#[test]
fn output_files_are_not_replaced_without_force() {
    let folder = folder();
    let out = folder.path().join("out.json");
    std::fs::write(&out, "mine").expect("write");
    let error = run(perf_file().args(SHORT.split(' ')).arg("--json").arg(&out)).fails(2);
    assert!(error.contains("--force"), "{error}");
    // The permission to write to the measured file permits nothing else.
    run(perf_file().args(SHORT.split(' ')).arg("--overwrite").arg("--json").arg(&out)).fails(2);
    assert_eq!(std::fs::read_to_string(&out).expect("still there"), "mine");
    run(perf_file().args(SHORT.split(' ')).arg("--force").arg("--json").arg(&out)).ok();
    assert_eq!(json(&out)["schema"], 1);
}

#[test]
fn results_never_take_the_place_of_what_is_measured() {
    let folder = folder();
    let path = file_with(&folder, b"mine");
    let (link, new) = (folder.path().join("link.bin"), folder.path().join("new.bin"));
    std::os::unix::fs::symlink(&path, &link).expect("link");
    for (measured, out) in [(&path, &path), (&link, &path), (&new, &new)] {
        let mut command = perf_file();
        command.args(SHORT.split(' ')).args(["--force", "--overwrite", "--file"]).arg(measured);
        let error = run(command.arg("--json").arg(out)).fails(2);
        assert!(error.contains("name another"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&path).expect("still there"), "mine");
    assert!(!new.exists());
}

#[test]
fn output_files_that_can_not_be_written_are_told_before_measuring() {
    let folder = folder();
    for out in [folder.path().join("missing/out.json"), folder.path().to_path_buf()] {
        let finished = run(perf_file().args(SHORT.split(' ')).arg("--json").arg(&out));
        assert_eq!(finished.stdout, "");
        finished.fails(2);
    }
}

#[test]
fn direct_on_memory_is_refused() {
    let path = Path::new("/dev/shm").join(format!("ringfile-test-direct-{}", std::process::id()));
    if !path.parent().is_some_and(Path::is_dir) {
        skip("direct_on_memory_is_refused", "there is no /dev/shm");
        return;
    }
    let error = run(perf_file().args("--size 1m --direct --file".split(' ')).arg(&path)).fails(2);
    assert!(error.contains("--direct"), "{error}");
    assert!(!path.exists());
}
