//! Block devices, and files that the system uses as devices: refused if they are in use, and without `--overwrite`.

use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::support::{Loop, measured, ring_is_forbidden, ringfile, run, runs, saved, skip, truncate};

#[test]
fn a_device_is_written_to_only_with_overwrite() {
    let Some(device) = Loop::with(&[5; 8 << 20], &[]) else { return };
    run(ringfile("perf file --rw randwrite --file").arg(&device.path)).fails_with(2, &["--overwrite"]);
    assert!(std::fs::read(&device.path).expect("read").iter().all(|&byte| byte == 5), "it was written to");

    let arguments =
        "--direct --verify --overwrite --rw randwrite,randread --iodepth 16 --duration 100ms --warmup 20ms";
    let (_, results) = measured(ringfile(&format!("perf file {arguments} --file")).arg(&device.path));
    assert_eq!(results["machine"]["filesystem"], "block device");
    assert_eq!(results["params"]["size_bytes"], 8 << 20);
    for run in runs(&results) {
        assert_eq!(run["errors"], 0, "{run}");
        if run["buffers"] == "fixed" && !ring_is_forbidden() {
            assert_eq!(run["fixed_ops"], run["ops"], "{run}");
        }
    }
    assert!(device.path.exists(), "a device is never removed");
}

#[test]
fn a_mounted_device_is_always_refused() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounted = mounts.lines().filter_map(|line| line.split_once(' ')).map(|(source, _)| source);
    let mut devices = mounted.filter(|source| source.starts_with("/dev/"));
    let Some(device) = devices.find(|source| Path::new(source).exists()) else {
        return skip("no device is mounted here");
    };
    for arguments in ["--overwrite", "--overwrite --rw randwrite --force", "--rw randread"] {
        run(ringfile(&format!("perf file {arguments} --file")).arg(device)).fails_with(2, &[device]);
    }
}

#[test]
fn a_device_that_is_held_without_being_mounted_is_refused() {
    let Some(device) = Loop::with(&[0; 8 << 20], &[]) else { return };
    // A mount, swap or a volume claims a device exclusively, as this does.
    let mut exclusive = std::fs::OpenOptions::new();
    let claim = exclusive.read(true).custom_flags(libc::O_EXCL).open(&device.path).expect("claim");
    run(ringfile("perf file --overwrite --file").arg(&device.path)).fails_with(2, &["in use"]);
    drop(claim);
}

/// By any of its names, also once the name that the loop device was made with is gone.
#[test]
fn the_backing_file_of_a_loop_device_is_always_refused() {
    let Some(device) = Loop::with(&[5; 8 << 20], &[]) else { return };
    let link = device.backing.with_extension("link");
    std::fs::hard_link(&device.backing, &link).expect("link");
    let refused = |file: &Path| {
        for arguments in ["--overwrite", "--overwrite --rw randwrite --force", "--rw randread"] {
            let device = device.path.to_string_lossy();
            run(ringfile(&format!("perf file {arguments} --file")).arg(file)).fails_with(2, &[&device]);
        }
    };
    refused(&device.backing);
    refused(&link);
    std::fs::remove_file(&device.backing).expect("remove");
    refused(&link);
    assert!(std::fs::read(&link).expect("read").iter().all(|&byte| byte == 5), "it was written to");
}

/// A device node of its own has the same number, as in a container.
#[test]
fn a_device_that_a_loop_device_shows_is_refused_under_any_name() {
    let Some(below) = Loop::with(&[5; 8 << 20], &[]) else { return };
    let shows = std::process::Command::new("losetup").args(["--find", "--show"]).arg(&below.path).output();
    let shows = shows.expect("losetup");
    assert!(shows.status.success(), "{shows:?}");
    let above = String::from_utf8_lossy(&shows.stdout).trim().to_owned();
    let number = std::fs::metadata(&below.path).expect("metadata").rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let node = below.backing.with_extension("node");
    let mut mknod = std::process::Command::new("mknod");
    let made = mknod.arg(&node).args(["b", &major.to_string(), &minor.to_string()]).status();
    let made = made.expect("mknod").success();
    let refused = [&below.path, &node].map(|file| run(ringfile("perf file --overwrite --file").arg(file)));
    let detached = std::process::Command::new("losetup").args(["--detach", &above]).status();
    assert!(detached.expect("losetup").success() && made);
    for refused in refused {
        refused.fails_with(2, &[&above]);
    }
}

#[test]
fn a_device_error_names_device_offset_and_errno() {
    let Some(device) = Loop::with(&[5; 8 << 20], &[]) else { return };
    // Reads beyond the end of the shortened file fail with EIO.
    truncate(&device.backing, 4096);
    let arguments = "--size 8m --direct --rw randread --iodepth 4 --duration 200ms --buffers normal";
    let (finished, results) = saved(ringfile(&format!("perf file {arguments} --file")).arg(&device.path));
    assert!(finished.stdout.starts_with("|engine"), "what was measured is printed: {finished:#?}");
    let error = finished.fails(1);
    for part in [&*device.path.to_string_lossy(), "offset ", "errno 5"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    assert!(runs(&results)[0]["errors"].as_u64() > Some(0));
}
