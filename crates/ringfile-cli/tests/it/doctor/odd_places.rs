//! File systems and devices other than disks: in memory, the kernel's own, overlays, loop devices, one that never
//! answers.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::mount::MountFlags;
use serde_json::{Value, json};

use super::{assert_finds, doctor, report, text};
use crate::support::{Loop, Mounted, disk_folder, files_in, folder, run, skip};

#[test]
fn a_file_system_in_memory_is_reported_as_such() {
    let report = report(Path::new("/dev/shm"));
    if report["file"]["filesystem"] != "tmpfs" {
        return skip("/dev/shm is no tmpfs here");
    }
    assert_eq!((&report["file"]["medium"], &report["device"]), (&json!("memory"), &Value::Null));
    assert_finds(&report, "The files are in memory");
    assert_eq!(report["file"]["direct"]["usable"], false);
    for taken in report["file"]["routes"].as_array().expect("a list") {
        assert_eq!(taken["ring"], 0, "{taken}");
    }
}

#[test]
fn files_of_the_kernel_are_not_opened() {
    // Reading the second one would block forever, and take data from its real readers.
    for path in ["/proc", "/proc/kmsg", "/sys/kernel"] {
        if !Path::new(path).exists() {
            continue;
        }
        let report = report(Path::new(path));
        assert_eq!(report["file"]["medium"], "kernel", "{path}");
        assert!(text(&report["file"]["reads_tried"]).starts_with("not tried"));
        assert_eq!(report["file"]["routes"], json!([]));
    }
}

#[test]
fn a_read_only_file_system_is_looked_at() {
    let folder = folder();
    let Some(_mounted) = Mounted::tmpfs(folder.path(), MountFlags::RDONLY, "size=1m") else { return };
    let report = report(folder.path());
    assert!(text(&report["file"]["writes_tried"]).contains("Read-only"), "{}", report["file"]);
    assert_finds(&report, "Mounted read-only");
}

#[test]
fn a_full_file_system_is_reported_as_full() {
    let folder = folder();
    let Some(_mounted) = Mounted::tmpfs(folder.path(), MountFlags::empty(), "size=1m") else { return };
    let _ = std::fs::write(folder.path().join("all"), vec![1; 2 << 20]);
    let report = report(folder.path());
    assert_eq!(report["file"]["answered"], true);
    assert_finds(&report, "The file system is full");
}

#[test]
fn an_overlay_leads_to_the_disk_below() {
    let (folder, below) = (folder(), disk_folder());
    let at = |name: &str| {
        let path = below.path().join(name);
        std::fs::create_dir(&path).expect("folder");
        path.display().to_string()
    };
    let options = format!("lowerdir={},upperdir={},workdir={}", at("lower"), at("upper"), at("work"));
    let source = Path::new("overlay");
    let Some(_mounted) = Mounted::at(folder.path(), "overlay", source, MountFlags::empty(), &options) else {
        return;
    };
    let (over, under) = (report(folder.path()), report(below.path()));
    assert_eq!(over["file"]["medium"], "overlay");
    assert_eq!(over["file"]["upper_filesystem"], under["file"]["filesystem"]);
    assert_eq!(over["device"]["number"], under["device"]["number"]);
    assert_finds(&over, "container's layer");
    assert_eq!(files_in(folder.path()), 0);
}

#[test]
fn a_device_is_only_read() {
    let Some(device) = Loop::with(&[5; 8 << 20], &[]) else { return };
    let report = report(&device.path);
    let content = std::fs::read(&device.backing).expect("read");
    assert!(content.iter().all(|&byte| byte == 5), "it was written to");
    assert_eq!((&report["file"]["kind"], &report["file"]["size"]), (&json!("device"), &json!(8 << 20)));
    assert_eq!((&report["device"]["kind"], &report["device"]["size"]), (&json!("loop"), &json!(8 << 20)));
    let path = text(&report["device"]["backing"]["path"]);
    assert_eq!(Path::new(path), device.backing.canonicalize().expect("it is there"));
    assert_eq!(report["file"]["durable"], json!([]));
    // The finding depends on the file's place, and on whether the kernel itself made the device use direct I/O.
    let name = device.path.file_name().and_then(|name| name.to_str()).expect("text");
    assert_finds(&report, name);
}

/// A file system whose server never answers: every request blocks, and most signals cannot end it.
#[test]
fn a_file_system_that_never_answers_holds_nobody() {
    let Ok(server) = File::options().read(true).write(true).open("/dev/fuse") else {
        return skip("there is no /dev/fuse to open");
    };
    let (folder, source) = (folder(), Path::new("nobody"));
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
    let Some(_mounted) = Mounted::at(folder.path(), "fuse", source, MountFlags::empty(), &options) else {
        return;
    };
    let finished = run(doctor(folder.path()).arg("--json")).ok();
    let report = super::parse(&finished.stdout);
    assert_eq!((&report["file"]["answered"], &report["file"]["kind"]), (&json!(false), &Value::Null));
    assert!(text(&report["findings"][0]["title"]).contains("did not answer"), "{report:#}");
    assert_eq!(super::feature(&report, "io_uring")["why"].as_str().map(str::is_empty), Some(false));
    // The end of the server wakes those that wait for it.
    drop(server);
}
