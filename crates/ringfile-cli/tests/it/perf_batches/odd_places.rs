//! Unusual places, names, outputs and programs: a clear line, nothing left behind, nothing overwritten.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::mount::MountFlags;
use serde_json::{Value, json};

use crate::support::{
    Finished, Mounted, file_with, folder, for_other_users, json as read, measured, ringfile, run, runs,
    script,
};

/// Returns a command for one short cell, with that command's options.
fn short(command: &str) -> Command {
    let options = match command {
        "file" | "file --rw randread" => "--iodepth 1",
        "batch" => "--batch 4 --bs 4k --engines ringfile-blocking",
        _ => "--batch 4 --bs 4k --engines ringfile",
    };
    ringfile(&format!("perf {command} --duration 30ms --warmup 0s --numjobs 1 --size 256k {options}"))
}

#[test]
fn files_that_can_not_be_measured() {
    let folder = folder();
    let data = file_with(&folder, b"mine");
    let [circle, dangling, empty] = ["circle", "dangling", "empty"].map(|name| folder.path().join(name));
    symlink(&circle, &circle).expect("link");
    symlink(folder.path().join("missing.bin"), &dangling).expect("link");
    std::fs::write(&empty, "").expect("write");
    for command in ["batch", "multiread", "file --rw randread"] {
        let cases = [
            (folder.path().join("missing/data.bin"), "does not exist"),
            (PathBuf::from("/dev/null"), "neither a file nor a block device"),
            (PathBuf::from("/dev/ringfile-there-is-no-such-device"), "no device"),
            (dangling.clone(), "link to nothing"),
            (empty.clone(), "is empty"),
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
    assert!(!folder.path().join("missing").exists());
}

#[test]
fn read_only_full_and_unlimited_places() {
    let folder = folder();
    for (flags, options, advice) in [
        (MountFlags::RDONLY, "", "Read-only"),
        (MountFlags::empty(), "size=64k", "has room for"),
        (MountFlags::empty(), "size=0", ""),
    ] {
        let Some(_mounted) = Mounted::tmpfs(folder.path(), flags, options) else { return };
        let (path, out) = (folder.path().join("data.bin"), folder.path().join("out.json"));
        for command in ["batch", "multiread"] {
            let finished = run(short(command).arg("--file").arg(&path));
            if advice.is_empty() {
                finished.ok();
            } else {
                finished.fails_with(2, &[advice]);
            }
            assert!(!path.exists(), "{options}");
            // No room for results, or no permission to write them: reported before measuring, not after.
            if options == "size=64k" {
                std::fs::write(folder.path().join("filler"), vec![1; 60 << 10]).expect("write");
            }
            let finished = run(short(command).arg("--json").arg(&out));
            if advice.is_empty() {
                finished.ok();
                std::fs::remove_file(&out).expect("results");
            } else {
                assert_eq!(finished.stdout, "");
                finished.fails_with(2, &["name another"]);
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
        run(short(command).arg("--file").arg(&path)).fails_with(2, &["--overwrite"]);
        assert_eq!(std::fs::read(&path).expect("still there"), b"");
        let finished = run(short(command).arg("--overwrite").arg("--file").arg(&path)).ok();
        assert!(finished.stderr.contains("was empty"), "{}", finished.stderr);
        let contents = std::fs::read(&path).expect("still there");
        assert_eq!(contents.len(), 256 << 10);
        assert!(contents.iter().any(|&byte| byte != 0), "filled with data, not holes");
    }
}

#[test]
fn a_name_with_a_line_in_it_stays_in_its_line() {
    let folder = folder();
    let path = folder.path().join("a\nb\u{1b}[2J|c.bin");
    for command in ["batch", "multiread"] {
        let (finished, results) = measured(short(command).arg("--file").arg(&path));
        let printed = finished.stdout;
        assert!(printed.contains("a\\nb\\u{1b}[2J|c.bin on "), "{printed}");
        let strange = |line: &&str| !(line.is_empty() || line.starts_with('|') || line.starts_with("- "));
        assert_eq!(printed.lines().find(strange), None, "{printed}");
        assert_eq!(results["params"]["file"], path.to_string_lossy().as_ref());
        run(short(command).arg("--file").arg(folder.path().join("x\ny/z")))
            .fails_with(2, &["x\\ny does not exist"]);
    }
}

#[test]
fn outputs_that_are_gone_or_full() {
    for command in ["batch", "multiread", "file"] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let folder = folder();
        let out = folder.path().join("out.json");
        let mut gone = short(command);
        let output = gone.arg("--json").arg(&out).stdout(writer).stderr(Stdio::piped()).output();
        let finished = Finished::from(output.expect("the program starts"));
        assert_eq!((finished.code, &*finished.stderr), (Some(0), ""), "{command} | true");
        assert!(!runs(&read(&out)).is_empty(), "the results are saved all the same");
        for arguments in [&[][..], &["--help"]] {
            let full = File::options().write(true).open("/dev/full").expect("/dev/full");
            let output = short(command).args(arguments).stdout(full).stderr(Stdio::piped()).output();
            Finished::from(output.expect("the program starts")).fails_with(1, &["errno 28"]);
        }
    }
}

#[test]
fn no_color_and_pipes_get_plain_text() {
    for arguments in ["--help", "--duration 30ms --size 256k --numjobs 1"] {
        for (key, value) in [("NO_COLOR", "1"), ("TERM", "xterm-256color")] {
            let finished = run(ringfile(&format!("perf batch {arguments}")).env(key, value)).ok();
            let outputs = [&finished.stdout, &finished.stderr];
            assert!(outputs.iter().all(|output| !output.contains('\u{1b}')), "{finished:#?}");
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
    let fio = folder.path().join("fio");
    for engines in ["batch --engines ringfile-blocking,fio", "multiread --engines ringfile,fio"] {
        let check = |warning: &str| {
            let options = "--duration 30ms --warmup 0s --numjobs 1 --batch 4,8 --size 256k";
            let mut program = ringfile(&format!("perf {engines} {options}"));
            let (finished, results) = measured(program.env("PATH", folder.path()));
            assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
            let is_warning = finished.stderr.starts_with("warning: ") && finished.stderr.contains(warning);
            assert!(is_warning, "{finished:#?}");
            assert!(!finished.stdout.contains("fio"), "nothing of it is shown: {}", finished.stdout);
            assert_eq!(results["params"]["against"], json!([]));
            assert_eq!(results["machine"]["fio"], Value::Null);
        };
        check("apt-get install fio");
        for (version, job, warning) in STRANGE {
            script(&fio, &format!("if [ \"$1\" = --version ]; then {version}; exit; fi\n{job}"));
            check(warning);
        }
        std::fs::remove_file(&fio).expect("remove");
    }
}

#[test]
fn more_threads_than_may_be_started() {
    let Some((folder, program)) = for_other_users() else { return };
    for command in ["batch", "multiread", "file"] {
        let mut limited = Command::new("prlimit");
        // A user that has no other processes.
        limited.args("--nproc=20 setpriv --reuid 64999 --regid 64999 --clear-groups".split(' '));
        limited.arg(&program).args(["perf", command]);
        limited.args("--duration 20ms --size 1m --numjobs 64 --file".split(' '));
        let path = folder.path().join("data.bin");
        run(limited.arg(&path)).fails_with(1, &["errno 11", "ulimit -u"]);
        assert!(!path.exists(), "the file is left");
    }
}
