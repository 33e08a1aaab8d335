//! Unusual places, names, outputs and programs: a clear line, nothing left behind, nothing overwritten.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::perf;
use crate::support::{Finished, file_with, folder, installed, is_root, json, run, runs, skip};

/// Returns a command for one short cell, with that command's options.
fn short(command: &str) -> Command {
    let engine = if command == "batch" { "ringfile-blocking" } else { "ringfile" };
    let mut program = perf(command);
    program
        .args("--duration 30ms --warmup 0s --numjobs 1 --batch 4 --bs 4k --size 256k --engines".split(' '));
    program.arg(engine);
    program
}

/// A mounted tmpfs, unmounted at the end.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(folder: &Path, options: &str) -> Option<Tmpfs> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(folder);
        let mounted = is_root() && mount.output().is_ok_and(|output| output.status.success());
        mounted.then(|| Tmpfs(folder.to_path_buf()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg(&self.0).status().is_ok_and(|status| status.success()));
    }
}

#[test]
fn files_that_can_not_be_measured() {
    let folder = folder();
    let data = file_with(&folder, b"mine");
    let circle = folder.path().join("circle");
    std::os::unix::fs::symlink(&circle, &circle).expect("link");
    for command in ["batch", "multiread"] {
        let cases = [
            (folder.path().join("missing/data.bin"), "does not exist"),
            (folder.path().to_path_buf(), "neither a file nor a block device"),
            (PathBuf::from("/dev/zero"), "neither a file nor a block device"),
            (PathBuf::from("/proc/version"), "name another --file"),
            (data.join("below"), "name another --file"),
            (circle.clone(), "name another --file"),
            (data.clone(), "smaller blocks"),
        ];
        for (path, advice) in cases {
            let error = run(short(command).arg("--file").arg(&path)).fails(2);
            let named = if advice == "does not exist" { path.parent().expect("a folder") } else { &path };
            assert!(error.contains(advice) && error.contains(&*named.to_string_lossy()), "{error}");
        }
    }
    assert_eq!(std::fs::read(&data).expect("still there"), b"mine");
}

#[test]
fn read_only_full_and_unlimited_places() {
    let folder = folder();
    for (options, advice) in [("ro", "Read-only"), ("size=64k", "has room for"), ("size=0", "")] {
        let Some(_mounted) = Tmpfs::mount(folder.path(), options) else {
            skip("read_only_full_and_unlimited_places", "nothing can be mounted here");
            return;
        };
        let (path, out) = (folder.path().join("data.bin"), folder.path().join("out.json"));
        for command in ["batch", "multiread"] {
            let finished = run(short(command).arg("--file").arg(&path));
            if advice.is_empty() {
                finished.ok();
            } else {
                let error = finished.fails(2);
                assert!(error.contains(advice), "{options}: {error}");
            }
            assert!(!path.exists(), "{options}");
            // No room for results, or no permission to write them: reported before measuring, not after.
            let mut program = short(command);
            if options == "size=64k" {
                std::fs::write(folder.path().join("filler"), vec![1; 60 << 10]).expect("write");
            }
            let finished = run(program.arg("--json").arg(&out));
            if advice.is_empty() {
                finished.ok();
                std::fs::remove_file(&out).expect("results");
            } else {
                assert_eq!(finished.stdout, "");
                assert!(finished.fails(2).contains("name another"));
                assert!(!out.exists());
            }
        }
    }
}

#[test]
fn an_empty_file_is_filled_if_it_may_be_overwritten() {
    let folder = folder();
    for command in ["batch", "multiread", "file"] {
        let path = file_with(&folder, b"");
        let program = || {
            if command != "file" {
                return short(command);
            }
            let mut program = perf(command);
            program.args("--duration 30ms --warmup 0s --numjobs 1 --iodepth 1 --size 256k".split(' '));
            program
        };
        let error = run(program().arg("--file").arg(&path)).fails(2);
        assert!(error.contains("--overwrite"), "{error}");
        assert_eq!(std::fs::read(&path).expect("still there"), b"");
        let finished = run(program().arg("--overwrite").arg("--file").arg(&path)).ok();
        assert!(finished.stderr.contains("was empty"), "{}", finished.stderr);
        let contents = std::fs::read(&path).expect("still there");
        assert_eq!(contents.len(), 256 << 10);
        assert!(contents.iter().any(|&byte| byte != 0), "filled with data, not holes");
    }
}

#[test]
fn a_name_with_a_line_in_it_stays_in_its_line() {
    let folder = folder();
    let name = "a\nb\u{1b}[2J|c.bin";
    let (path, out) = (folder.path().join(name), folder.path().join("out.json"));
    for command in ["batch", "multiread"] {
        let finished =
            run(short(command).arg("--force").arg("--file").arg(&path).arg("--json").arg(&out)).ok();
        let printed = finished.stdout;
        assert!(printed.contains("a\\nb\\u{1b}[2J|c.bin on "), "{printed}");
        let strange = |line: &&str| !(line.is_empty() || line.starts_with('|') || line.starts_with("- "));
        assert_eq!(printed.lines().find(strange), None, "{printed}");
        assert_eq!(json(&out)["params"]["file"], path.to_string_lossy().as_ref());
        let error = run(short(command).arg("--file").arg(folder.path().join("x\ny/z"))).fails(2);
        assert!(error.contains("x\\ny does not exist"), "{error}");
    }
}

#[test]
fn outputs_that_are_gone_or_full() {
    for command in ["batch", "multiread", "file"] {
        let program = || {
            if command == "file" {
                let mut program = perf(command);
                program.args("--duration 30ms --warmup 0s --numjobs 1 --iodepth 1 --size 256k".split(' '));
                program
            } else {
                short(command)
            }
        };
        let folder = folder();
        let out = folder.path().join("out.json");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut gone = program();
        let output = gone.arg("--json").arg(&out).stdout(writer).stderr(Stdio::piped()).output();
        let finished = Finished::from(output.expect("the program starts"));
        assert_eq!((finished.code, &*finished.stderr), (Some(0), ""), "{command} | true");
        assert!(!runs(&json(&out)).is_empty(), "the results are saved all the same");
        for arguments in [&[][..], &["--help"]] {
            let full = File::options().write(true).open("/dev/full").expect("/dev/full");
            let output = program().args(arguments).stdout(full).stderr(Stdio::piped()).output();
            let error = Finished::from(output.expect("the program starts")).fails(1);
            assert!(error.contains("errno 28"), "{error}");
        }
    }
}

#[test]
fn no_color_and_pipes_get_plain_text() {
    for arguments in [&["--help"][..], &["--duration", "30ms", "--size", "256k", "--numjobs", "1"]] {
        for (key, value) in [("NO_COLOR", "1"), ("TERM", "xterm-256color")] {
            let finished = run(perf("batch").args(arguments).env(key, value)).ok();
            assert!(
                !finished.stdout.contains('\u{1b}') && !finished.stderr.contains('\u{1b}'),
                "{finished:#?}"
            );
        }
    }
}

/// A broken fio: what it does on `--version`, what it does otherwise, and what the warning says.
const STRANGE: [(&str, &str, &str); 5] = [
    ("exit 3", "", "exit status: 3"),
    ("echo fio-2.0", "echo 'unrecognized option' >&2; exit 1", "fio-2.0 failed: unrecognized option"),
    ("echo fio-9", "echo '{}'", "fio-9 failed: its output is not known"),
    ("printf 'fio\\033[2J\\nmore\\n'", "kill -9 $$", "SIGKILL"),
    ("echo fio-9", "exit 0", "no output"),
];

#[test]
fn a_fio_that_is_missing_or_another_is_left_out_with_one_warning() {
    let folder = folder();
    let (fio, out) = (folder.path().join("fio"), folder.path().join("out.json"));
    for command in ["batch", "multiread"] {
        let ours = if command == "batch" { "ringfile-blocking" } else { "ringfile" };
        let program = |search: &str| {
            let mut program = perf(command);
            program
                .args("--duration 30ms --warmup 0s --numjobs 1 --batch 4,8 --size 256k --force".split(' '));
            program.args(["--engines", &format!("{ours},fio"), "--json"]).arg(&out).env("PATH", search);
            program
        };
        let check = |finished: Finished, warning: &str| {
            let finished = finished.ok();
            assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
            assert!(
                finished.stderr.starts_with("warning: ") && finished.stderr.contains(warning),
                "{finished:#?}"
            );
            assert!(!finished.stdout.contains("fio"), "nothing of it is shown: {}", finished.stdout);
            let results = json(&out);
            assert_eq!(results["params"]["against"], serde_json::json!([]));
            assert_eq!(results["machine"]["fio"], serde_json::Value::Null);
        };
        let empty = folder.path().join("empty");
        check(run(&mut program(&empty.to_string_lossy())), "apt-get install fio");
        for (version, job, warning) in STRANGE {
            let script = format!("#!/bin/sh\nif [ \"$1\" = --version ]; then {version}; exit; fi\n{job}\n");
            std::fs::write(&fio, script).expect("write");
            std::fs::set_permissions(&fio, std::fs::Permissions::from_mode(0o755)).expect("permissions");
            check(run(&mut program(&folder.path().to_string_lossy())), warning);
        }
    }
}

#[test]
fn more_threads_than_may_be_started() {
    if !is_root() || !installed("setpriv") || !installed("prlimit") {
        skip("more_threads_than_may_be_started", "needs root, setpriv and prlimit");
        return;
    }
    let folder = folder();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).expect("permissions");
    // The build folder may be closed to other users.
    let program = folder.path().join("ringfile");
    std::fs::copy(env!("CARGO_BIN_EXE_ringfile"), &program).expect("copy");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    for command in ["batch", "multiread", "file"] {
        let mut limited = Command::new("prlimit");
        // A user that has no other processes.
        limited
            .args("--nproc=20 setpriv --reuid 64999 --regid 64999 --clear-groups".split(' '))
            .arg(&program);
        limited.args(["perf", command]).args("--duration 20ms --size 1m --numjobs 64 --file".split(' '));
        let path = folder.path().join("data.bin");
        let error = run(limited.arg(&path)).fails(1);
        assert!(error.contains("errno 11") && error.contains("ulimit -u"), "{error}");
        assert!(!path.exists(), "the file is left");
    }
}
