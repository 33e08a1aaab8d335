//! A user other than root, little memory that may be locked, and no io_uring at all.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Finished, USERS, disk_folder, installed, is_root, run, skip, unprivileged};
use crate::{doctor, feature, finds, parse, report_of};

/// Makes a folder that everybody may write to, with the program in it, because the build folder may be closed to other
/// users.
fn open_folder() -> (TempDir, PathBuf) {
    let folder = disk_folder();
    let all = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("permissions");
    };
    let program = folder.path().join("ringfile");
    std::fs::copy(env!("CARGO_BIN_EXE_ringfile"), &program).expect("copy");
    all(folder.path());
    all(&program);
    (folder, program)
}

/// Runs the doctor as this user; `None`, with a line that says why, if that is not possible.
fn as_nobody(test: &str, memlock: &str, program: &Path, path: &Path) -> Option<Finished> {
    if !is_root() || !installed("setpriv") || !installed("prlimit") {
        skip(test, "needs root, setpriv and prlimit");
        return None;
    }
    let finished = run(unprivileged(memlock, program).args(["doctor", "--json"]).arg(path));
    if finished.code == Some(126) || finished.stderr.contains("failed to execute") {
        skip(test, "the folders above are closed to other users");
        return None;
    }
    Some(finished)
}

#[test]
fn another_user_with_little_memory() {
    let (folder, program) = open_folder();
    for memlock in ["65536", "8388608"] {
        let name = "another_user_with_little_memory";
        if as_nobody(name, memlock, &program, folder.path()).is_none() {
            return;
        }
        let again = || as_nobody(name, memlock, &program, folder.path()).expect("as before");
        let report = report_of(again);
        assert!(report["process"]["user"].as_u64() >= Some(USERS.into()));
        assert_eq!(report["process"]["memlock"]["limit"]["soft"].to_string(), memlock);
        assert_eq!(report["process"]["memlock"]["applies"], true);
        assert_eq!(report["file"]["answered"], true);
        if feature(&report, "io_uring")["usable"] == true {
            assert!(finds(&report, "Little memory can be registered"), "{memlock}: {:#}", report["findings"]);
            assert!(report["process"]["memlock"]["registered"].as_u64() < Some(16 << 20));
        }
    }
}

#[test]
fn what_is_closed_to_a_user_is_said() {
    let (folder, program) = open_folder();
    let closed = folder.path().join("closed");
    std::fs::create_dir(&closed).expect("folder");
    std::fs::write(closed.join("file"), "secret").expect("write");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).expect("permissions");
    let name = "what_is_closed_to_a_user_is_said";
    let Some(finished) = as_nobody(name, "8388608", &program, &closed.join("file")) else { return };
    assert!(finished.fails(2).contains("Permission denied"));
    // The folder itself can be examined, although no file can be made in it.
    let Some(finished) = as_nobody(name, "8388608", &program, &closed) else { return };
    let report = parse(&finished.ok().stdout);
    assert!(report["file"]["writes_tried"].as_str().expect("text").contains("Permission denied"));
    assert!(report["file"]["filesystem"].is_string());
    assert_eq!(report["file"]["durable"], Value::Array(Vec::new()));
}

/// Makes the kernel answer io_uring_setup with `answer` (`SECCOMP_RET_…`) in that process and its children.
fn without_ring(command: &mut Command, answer: u32) -> &mut Command {
    let deny = move || {
        let instruction = |code: u32, k: u32, otherwise: u8| libc::sock_filter {
            code: code as u16,
            jt: 0,
            jf: otherwise,
            k,
        };
        let mut program = [
            instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_io_uring_setup as u32, 1),
            instruction(libc::BPF_RET | libc::BPF_K, answer, 0),
            instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: sets a flag of this process, and hands over a valid program that the kernel copies.
        let set = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
        };
        if set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec it makes two system calls and allocates nothing.
    unsafe { command.pre_exec(deny) }
}

#[test]
fn a_filter_that_forbids_io_uring_is_named() {
    let folder = disk_folder();
    for errno in [libc::EPERM, libc::ENOSYS] {
        let report = report_of(|| {
            run(without_ring(doctor(folder.path()).arg("--json"), libc::SECCOMP_RET_ERRNO | errno as u32))
        });
        assert_eq!(report["process"]["io_uring_errno"], errno);
        assert_eq!(report["process"]["seccomp"], "filter");
        assert_eq!(feature(&report, "io_uring")["usable"], false);
        let finding = &report["findings"][0];
        assert_eq!(finding["severity"], "costly");
        assert!(finding["fix"].as_str().expect("text").contains("seccomp"), "{finding}");
        assert_eq!(report["file"]["answered"], true, "everything else is examined");
        let ways = report["file"]["durable"].as_array().expect("a list");
        assert!(ways.iter().all(|durable| durable["way"] != "ring_linked"), "{ways:?}");
    }
}

#[test]
fn a_filter_that_ends_who_tries_is_named_and_survived() {
    let folder = disk_folder();
    let report =
        report_of(|| run(without_ring(doctor(folder.path()).arg("--json"), libc::SECCOMP_RET_KILL_PROCESS)));
    assert_eq!(report["process"]["io_uring_kills"], true);
    assert_eq!(feature(&report, "io_uring")["usable"], false);
    let finding = &report["findings"][0];
    assert!(finding["fix"].as_str().expect("text").contains("RINGFILE_BACKEND=workers"), "{finding}");
    assert_eq!(report["file"]["answered"], true, "everything else is examined: {}", report["file"]);
}
