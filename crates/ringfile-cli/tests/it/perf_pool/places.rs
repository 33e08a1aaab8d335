//! Unusual places: another user, a disk that is small or becomes full, one that is read-only.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::MountFlags;

use super::{brief, perf_pool, short};
use crate::support::{
    Loop, Mounted, files_in, folder, for_other_users, measured, permit, run, runs, saved, skip, unprivileged,
};

/// Mounts an ext4 of 32 MiB on a loop device. Skips the test if that is not possible.
fn small_disk(folder: &Path) -> Option<(Mounted, Loop)> {
    let device = Loop::with(&vec![0; 32 << 20], &[])?;
    let made = Command::new("mkfs.ext4").arg("-q").arg(&device.path).output();
    if !made.is_ok_and(|output| output.status.success()) {
        skip("there is no mkfs.ext4");
        return None;
    }
    let mounted = Mounted::at(folder, "ext4", &device.path, MountFlags::empty(), "")?;
    Some((mounted, device))
}

#[test]
fn a_small_disk_is_refused_before_the_run_and_a_smaller_size_fits() {
    let folder = folder();
    let Some(_disk) = small_disk(folder.path()) else { return };
    let before = files_in(folder.path());
    run(&mut brief(folder.path(), "--size 64m")).fails_with(2, &["has room for", "--size"]);
    // Several times its size passes through it.
    let (_, results) = measured(&mut brief(folder.path(), "--size 16m --rounds 3"));
    for run in runs(&results) {
        assert_eq!(run["pool"]["written_blocks"], run["pool"]["checked_blocks"], "{run}");
    }
    assert_eq!(files_in(folder.path()), before);
}

/// A disk with room, but not for all files: the third one runs out of inodes.
#[test]
fn a_disk_that_gets_full_meanwhile_is_one_error() {
    let folder = folder();
    let options = "size=64m,nr_inodes=3";
    let Some(_mounted) = Mounted::tmpfs(folder.path(), MountFlags::empty(), options) else { return };
    let arguments = "--memory vec --size 48m --duration 10m --warmup 0s";
    let (finished, results) = saved(&mut perf_pool(folder.path(), arguments));
    finished.fails_with(1, &["errno 28", "smaller --size"]);
    assert_eq!(results["interrupted"], false);
    assert_eq!(files_in(folder.path()), 0);
}

#[test]
fn a_read_only_disk_is_refused() {
    let folder = folder();
    let Some(_mounted) = Mounted::tmpfs(folder.path(), MountFlags::RDONLY, "") else { return };
    run(&mut short(folder.path(), "--memory vec")).fails_with(2, &["Read-only", "--folder"]);
}

#[test]
fn a_file_size_limit_is_an_error() {
    let folder = folder();
    for (arguments, place, said) in [
        ("pool --memory vec --size 8m --duration 100ms --folder", folder.path(), "ulimit -f"),
        ("file --size 1m --duration 50ms --rw randread --file", &folder.path().join("data.bin"), "data.bin"),
    ] {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -f 100; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_ringfile"), "perf"]);
        run(shell.args(arguments.split(' ')).arg(place)).fails_with(1, &["errno 27", said]);
        assert_eq!(files_in(folder.path()), 0, "the file is left");
    }
}

/// A user that owns nothing, with the usual memlock limit and with a tiny one.
#[test]
fn another_user() {
    let Some((place, program)) = for_other_users() else { return };
    let folder = |name: &str, mode: u32| -> PathBuf {
        let path = place.path().join(name);
        std::fs::create_dir(&path).expect("folder");
        permit(&path, mode);
        path
    };
    let (open, closed) = (folder("open", 0o777), folder("closed", 0o700));
    if let Err(why) = super::direct(&open) {
        return skip(why);
    }
    let as_nobody = |memlock: &str, folder: &Path| {
        let arguments = "perf pool --tables --size 16m --bs 16k --duration 100ms --warmup 20ms --folder";
        run(unprivileged(memlock, &program, arguments).arg(folder))
    };
    for memlock in ["8388608", "65536"] {
        let finished = as_nobody(memlock, &open).ok();
        // One warning about memory that cannot be registered, one about threads without a ring.
        assert!(finished.stderr.lines().count() <= 2, "{memlock}: {}", finished.stderr);
        finished.says(&["are right, warm-up included"]);
        assert_eq!(files_in(&open), 0);
    }
    as_nobody("8388608", &closed).fails_with(2, &["errno 13", "--folder"]);
}
