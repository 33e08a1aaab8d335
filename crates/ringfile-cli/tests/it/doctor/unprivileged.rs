//! A user other than root, little memory that may be locked, and no io_uring at all.

use serde_json::json;

use super::{doctor, feature, finds, parse, report_of, text};
use crate::support::{USERS, disk_folder, filtered, for_other_users, permit, run, unprivileged};

#[test]
fn another_user_with_little_memory() {
    let Some((folder, program)) = for_other_users() else { return };
    for memlock in ["65536", "8388608"] {
        let report = report_of(|| run(unprivileged(memlock, &program, "doctor --json").arg(folder.path())));
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
fn facts_that_a_user_may_not_read_are_named() {
    let Some((folder, program)) = for_other_users() else { return };
    let closed = folder.path().join("closed");
    std::fs::create_dir(&closed).expect("folder");
    std::fs::write(closed.join("file"), "secret").expect("write");
    permit(&closed, 0o700);
    let as_nobody = |path| run(unprivileged("8388608", &program, "doctor --json").arg(path));
    as_nobody(closed.join("file")).fails_with(2, &["Permission denied"]);
    let file = folder.path().join("closed-file");
    std::fs::write(&file, "secret").expect("write");
    permit(&file, 0o600);
    as_nobody(file).fails_with(2, &["can't open", "Permission denied"]);
    // The folder itself can be examined, although no file can be made in it.
    let report = parse(&as_nobody(closed).ok().stdout);
    assert!(text(&report["file"]["writes_tried"]).contains("Permission denied"));
    assert!(report["file"]["filesystem"].is_string());
    assert_eq!(report["file"]["durable"], json!([]));
}

/// Returns the report of a doctor that the kernel answers io_uring_setup with `answer` (`SECCOMP_RET_…`).
#[track_caller]
fn without_ring(answer: u32) -> serde_json::Value {
    let folder = disk_folder();
    let setup = libc::SYS_io_uring_setup;
    report_of(|| run(filtered(doctor(folder.path()).arg("--json"), setup, None, answer)))
}

#[test]
fn a_filter_that_forbids_io_uring_is_named() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let report = without_ring(libc::SECCOMP_RET_ERRNO | errno as u32);
        assert_eq!(report["process"]["io_uring_errno"], errno);
        assert_eq!(report["process"]["seccomp"], "filter");
        assert_eq!(feature(&report, "io_uring")["usable"], false);
        let finding = &report["findings"][0];
        assert_eq!(finding["severity"], "costly");
        assert!(text(&finding["fix"]).contains("seccomp"), "{finding}");
        assert_eq!(report["file"]["answered"], true, "everything else is examined");
        let ways = report["file"]["durable"].as_array().expect("a list");
        assert!(ways.iter().all(|durable| durable["way"] != "ring_linked"), "{ways:?}");
    }
}

#[test]
fn a_filter_that_kills_the_caller_is_named_and_survived() {
    let report = without_ring(libc::SECCOMP_RET_KILL_PROCESS);
    assert_eq!(report["process"]["io_uring_kills"], true);
    assert_eq!(feature(&report, "io_uring")["usable"], false);
    let finding = &report["findings"][0];
    assert!(text(&finding["fix"]).contains("RINGFILE_DISABLE=io_uring,aio"), "{finding}");
    assert_eq!(report["file"]["answered"], true, "everything else is examined: {}", report["file"]);
}
