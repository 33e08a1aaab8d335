//! Block devices: refused if the system uses them, and without `--overwrite`.

use std::path::Path;

use crate::support::{Loop, disk_folder, json, perf_file, ring_is_forbidden, run, runs, skip};

#[test]
fn a_device_is_written_to_only_with_overwrite() {
    let folder = disk_folder();
    let backing = folder.path().join("backing.bin");
    std::fs::write(&backing, vec![5; 8 << 20]).expect("write");
    let Some(device) = Loop::over(&backing, &[]) else {
        skip("a_device_is_written_to_only_with_overwrite", "no loop device can be made here");
        return;
    };
    let error = run(perf_file().args(["--rw", "randwrite", "--file"]).arg(&device.0)).fails(2);
    assert!(error.contains("--overwrite"), "{error}");
    assert!(std::fs::read(&device.0).expect("read").iter().all(|&byte| byte == 5), "it was written to");

    let out = folder.path().join("out.json");
    let mut command = perf_file();
    command.args("--direct --verify --overwrite --rw randwrite,randread --iodepth 16".split(' '));
    command.args("--duration 100ms --warmup 20ms --file".split(' ')).arg(&device.0);
    run(command.arg("--json").arg(&out)).ok();
    let results = json(&out);
    assert_eq!(results["machine"]["filesystem"], "block device");
    assert_eq!(results["params"]["size_bytes"], 8 << 20);
    for run in runs(&results) {
        assert_eq!(run["errors"], 0, "{run}");
        if run["buffers"] == "fixed" && !ring_is_forbidden() {
            assert_eq!(run["fixed_ops"], run["ops"], "{run}");
        }
    }
    assert!(device.0.exists(), "a device is never removed");
}

#[test]
fn a_mounted_device_is_always_refused() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounted = mounts.lines().filter_map(|line| line.split_once(' ')).map(|(source, _)| source);
    let Some(device) =
        mounted.filter(|source| source.starts_with("/dev/")).find(|source| Path::new(source).exists())
    else {
        skip("a_mounted_device_is_always_refused", "no device is mounted here");
        return;
    };
    for arguments in
        [&["--overwrite"][..], &["--overwrite", "--rw", "randwrite", "--force"], &["--rw", "randread"]]
    {
        let error = run(perf_file().args(arguments).args(["--file", device])).fails(2);
        assert!(error.contains(device), "{error}");
    }
}

#[test]
fn a_device_that_is_held_without_being_mounted_is_refused() {
    let folder = disk_folder();
    let backing = folder.path().join("backing.bin");
    std::fs::write(&backing, vec![0; 8 << 20]).expect("write");
    let Some(device) = Loop::over(&backing, &[]) else {
        skip("a_device_that_is_held_without_being_mounted_is_refused", "no loop device can be made here");
        return;
    };
    // A mount, swap or a volume claims a device exclusively, as this does.
    let claim =
        std::os::unix::fs::OpenOptionsExt::custom_flags(std::fs::OpenOptions::new().read(true), libc::O_EXCL)
            .open(&device.0)
            .expect("claim");
    let error = run(perf_file().args(["--overwrite", "--file"]).arg(&device.0)).fails(2);
    assert!(error.contains("in use"), "{error}");
    drop(claim);
}

#[test]
fn a_device_error_names_device_offset_and_errno() {
    let folder = disk_folder();
    let backing = folder.path().join("backing.bin");
    std::fs::write(&backing, vec![5; 8 << 20]).expect("write");
    let Some(device) = Loop::over(&backing, &[]) else {
        skip("a_device_error_names_device_offset_and_errno", "no loop device can be made here");
        return;
    };
    // Reads beyond the end of the shortened file fail with EIO.
    let file = std::fs::OpenOptions::new().write(true).open(&backing).expect("open");
    file.set_len(4096).expect("truncate");
    let out = folder.path().join("out.json");
    let mut command = perf_file();
    command.args(
        "--size 8m --direct --rw randread --iodepth 4 --duration 200ms --buffers normal --file".split(' '),
    );
    let finished = run(command.arg(&device.0).arg("--json").arg(&out));
    assert!(finished.stdout.starts_with("|engine"), "what was measured is printed: {finished:#?}");
    let error = finished.fails(1);
    for part in [&*device.0.to_string_lossy(), "offset ", "errno 5"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    assert!(runs(&json(&out))[0]["errors"].as_u64() > Some(0));
}
