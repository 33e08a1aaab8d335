//! Unusual places: another user, a disk that is small or becomes full, one that is read-only.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{folder, installed, is_root, json, run, runs, skip, unprivileged};
use crate::{brief, files_in, perf_pool, short};

/// A file system mounted for a test.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(folder: &Path, options: &str) -> Option<Mounted> {
        Mounted::mount(Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]), folder)
    }

    /// Mounts an ext4 of 32 MiB on a loop device.
    fn small_disk(folder: &Path, image: &Path) -> Option<Mounted> {
        std::fs::File::create(image).and_then(|file| file.set_len(32 << 20)).ok()?;
        let made = Command::new("mkfs.ext4").arg("-q").arg(image).output();
        made.ok().filter(|output| output.status.success())?;
        Mounted::mount(Command::new("mount").args(["-o", "loop"]).arg(image), folder)
    }

    fn mount(command: &mut Command, folder: &Path) -> Option<Mounted> {
        let mounted = is_root() && command.arg(folder).output().is_ok_and(|output| output.status.success());
        mounted.then(|| Mounted(folder.to_path_buf()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The kernel closes the files of a ring a moment after the program has ended.
        let unmounted =
            || Command::new("umount").arg(&self.0).output().is_ok_and(|done| done.status.success());
        let deadline = Instant::now() + Duration::from_secs(60);
        while !unmounted() {
            assert!(Instant::now() < deadline, "{} stays busy", self.0.display());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_small_disk_is_told_before_and_a_smaller_size_fits() {
    let (folder, images) = (folder(), folder());
    let image = images.path().join("image");
    let Some(_mounted) = Mounted::small_disk(folder.path(), &image) else {
        skip("a_small_disk_is_told_before_and_a_smaller_size_fits", "no loop device can be mounted here");
        return;
    };
    let before = files_in(folder.path());
    let error = run(brief(folder.path()).args(["--size", "64m"])).fails(2);
    assert!(error.contains("has room for") && error.contains("--size"), "{error}");
    // Several times its size passes through it.
    let out = images.path().join("out.json");
    run(brief(folder.path()).args("--size 16m --rounds 3 --json".split(' ')).arg(&out)).ok();
    for run in runs(&json(&out)) {
        assert_eq!(run["pool"]["written_blocks"], run["pool"]["checked_blocks"], "{run}");
    }
    assert_eq!(files_in(folder.path()), before);
}

/// A disk with room, but not for all files: the third one runs out of inodes.
#[test]
fn a_disk_that_gets_full_meanwhile_is_one_error() {
    let (folder, results) = (folder(), folder());
    let Some(_mounted) = Mounted::tmpfs(folder.path(), "size=64m,nr_inodes=3") else {
        skip("a_disk_that_gets_full_meanwhile_is_one_error", "nothing can be mounted here");
        return;
    };
    let out = results.path().join("out.json");
    let mut program = perf_pool(folder.path());
    program.args("--memory vec --size 48m --duration 10m --warmup 0s --json".split(' ')).arg(&out);
    let error = run(&mut program).fails(1);
    assert!(error.contains("errno 28") && error.contains("smaller --size"), "{error}");
    assert_eq!(json(&out)["interrupted"], false);
    assert_eq!(files_in(folder.path()), 0);
}

#[test]
fn a_read_only_disk_is_told() {
    let folder = folder();
    let Some(_mounted) = Mounted::tmpfs(folder.path(), "ro") else {
        skip("a_read_only_disk_is_told", "nothing can be mounted here");
        return;
    };
    let error = run(short(folder.path()).args(["--memory", "vec"])).fails(2);
    assert!(error.contains("Read-only") && error.contains("--folder"), "{error}");
}

#[test]
fn a_file_size_limit_is_an_error() {
    let folder = folder();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 100; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_ringfile")]);
    shell.args("perf pool --memory vec --size 8m --duration 100ms --folder".split(' '));
    let error = run(shell.arg(folder.path())).fails(1);
    assert!(error.contains("errno 27") && error.contains("ulimit -f"), "{error}");
    assert_eq!(files_in(folder.path()), 0);
}

/// A user that owns nothing, with the usual memlock limit and with a tiny one.
#[test]
fn another_user() {
    if !is_root() || !installed("setpriv") || !installed("prlimit") {
        skip("another_user", "needs root, setpriv and prlimit");
        return;
    }
    let place = tempfile::tempdir_in("/var/tmp").expect("temporary folder");
    let (folder, closed) = (place.path().join("open"), place.path().join("closed"));
    for (path, mode) in [(place.path(), 0o755), (&*folder, 0o777), (&*closed, 0o700)] {
        std::fs::create_dir_all(path).expect("folder");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("permissions");
    }
    // The build folder may be closed to other users.
    let program = place.path().join("ringfile");
    std::fs::copy(env!("CARGO_BIN_EXE_ringfile"), &program).expect("copy");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    let as_nobody = |memlock: &str, folder: &Path| {
        let mut command = unprivileged(memlock, &program);
        command.args("perf pool --size 16m --bs 16k --duration 100ms --warmup 20ms --folder".split(' '));
        run(command.arg(folder))
    };
    if let Err(why) = crate::direct(&folder) {
        skip("another_user", why);
        return;
    }
    for memlock in ["8388608", "65536"] {
        let finished = as_nobody(memlock, &folder).ok();
        // One warning about memory that cannot be registered, one about threads without a ring.
        assert!(finished.stderr.lines().count() <= 2, "{memlock}: {}", finished.stderr);
        assert!(finished.stdout.contains("are right, warm-up included"), "{memlock}: {}", finished.stdout);
        assert_eq!(files_in(&folder), 0);
    }
    let error = as_nobody("8388608", &closed).fails(2);
    assert!(error.contains("errno 13") && error.contains("--folder"), "{error}");
}
