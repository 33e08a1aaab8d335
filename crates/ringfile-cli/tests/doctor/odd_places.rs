//! File systems and devices other than disks: in memory, the kernel's own, overlays, loop devices, one that never
//! answers.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Loop, disk_folder, folder, run, skip};
use crate::{doctor, finds, report};

/// A mount on a new folder, unmounted when it is dropped.
struct Mount(TempDir);

impl Mount {
    /// Mounts it; `None` if this user or kernel cannot.
    fn of(filesystem: &str, source: &str, flags: MsFlags, options: &str) -> Option<Mount> {
        let folder = folder();
        mount(Some(source), folder.path(), Some(filesystem), flags, Some(options)).ok()?;
        Some(Mount(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // If unmounting fails, the mount stays visible; the test's own result matters more.
        let _ = umount2(self.path(), MntFlags::MNT_DETACH);
    }
}

#[test]
fn memory_is_said_to_be_memory() {
    let report = report(Path::new("/dev/shm"));
    if report["file"]["filesystem"] != "tmpfs" {
        skip("memory_is_said_to_be_memory", "/dev/shm is no tmpfs here");
        return;
    }
    assert_eq!((&report["file"]["medium"], &report["device"]), (&Value::from("memory"), &Value::Null));
    assert!(finds(&report, "The files are memory"));
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
        assert!(report["file"]["reads_tried"].as_str().expect("text").starts_with("not tried"));
        assert_eq!(report["file"]["routes"], Value::Array(Vec::new()));
    }
}

#[test]
fn a_read_only_file_system_is_looked_at() {
    let name = "a_read_only_file_system_is_looked_at";
    let Some(mount) = Mount::of("tmpfs", "none", MsFlags::MS_RDONLY, "size=1m") else {
        skip(name, "a tmpfs can't be mounted here");
        return;
    };
    let report = report(mount.path());
    assert!(
        report["file"]["writes_tried"].as_str().expect("text").contains("Read-only"),
        "{}",
        report["file"]
    );
    assert!(finds(&report, "Mounted read-only"));
}

#[test]
fn a_full_file_system_is_said_to_be_full() {
    let name = "a_full_file_system_is_said_to_be_full";
    let Some(mount) = Mount::of("tmpfs", "none", MsFlags::empty(), "size=1m") else {
        skip(name, "a tmpfs can't be mounted here");
        return;
    };
    let _ = std::fs::write(mount.path().join("all"), vec![1; 2 << 20]);
    let report = report(mount.path());
    assert_eq!(report["file"]["answered"], true);
    assert!(finds(&report, "The file system is full"), "{:#}", report["findings"]);
}

#[test]
fn an_overlay_leads_to_the_disk_below() {
    let (below, name) = (disk_folder(), "an_overlay_leads_to_the_disk_below");
    let at = |name: &str| {
        let path = below.path().join(name);
        std::fs::create_dir(&path).expect("folder");
        path.display().to_string()
    };
    let options = format!("lowerdir={},upperdir={},workdir={}", at("lower"), at("upper"), at("work"));
    let Some(mount) = Mount::of("overlay", "overlay", MsFlags::empty(), &options) else {
        skip(name, "an overlay can't be mounted here");
        return;
    };
    let (over, under) = (report(mount.path()), report(below.path()));
    assert_eq!(over["file"]["medium"], "overlay");
    assert_eq!(over["file"]["upper_filesystem"], under["file"]["filesystem"]);
    assert_eq!(over["device"]["number"], under["device"]["number"]);
    assert!(finds(&over, "container's layer"), "{:#}", over["findings"]);
    assert_eq!(std::fs::read_dir(mount.path()).expect("list").count(), 0);
}

#[test]
fn a_device_is_only_read() {
    let folder = disk_folder();
    let backing = folder.path().join("backing.bin");
    std::fs::write(&backing, vec![5; 8 << 20]).expect("write");
    let Some(device) = Loop::over(&backing, &[]) else {
        skip("a_device_is_only_read", "no loop device can be made here");
        return;
    };
    let report = report(&device.0);
    assert!(std::fs::read(&backing).expect("read").iter().all(|&byte| byte == 5), "it was written to");
    assert_eq!(
        (&report["file"]["kind"], &report["file"]["size"]),
        (&Value::from("device"), &Value::from(8 << 20))
    );
    assert_eq!(report["device"]["kind"], "loop");
    assert_eq!(report["device"]["size"], 8 << 20);
    let path = report["device"]["backing"]["path"].as_str().expect("text");
    assert_eq!(Path::new(path), backing.canonicalize().expect("it is there"));
    assert_eq!(report["file"]["durable"], Value::Array(Vec::new()));
    // The finding depends on the file's place, and on whether the kernel itself made the device use direct I/O.
    let name = device.0.file_name().and_then(|name| name.to_str()).expect("text");
    assert!(finds(&report, name), "{:#}", report["findings"]);
}

/// A file system whose server never answers: every request blocks, and most signals cannot end it.
#[test]
fn a_file_system_that_never_answers_holds_nobody() {
    let name = "a_file_system_that_never_answers_holds_nobody";
    let Ok(server) = File::options().read(true).write(true).open("/dev/fuse") else {
        skip(name, "there is no /dev/fuse to open");
        return;
    };
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
    let Some(mount) = Mount::of("fuse", "nobody", MsFlags::empty(), &options) else {
        skip(name, "a FUSE file system can't be mounted here");
        return;
    };
    let finished = run(doctor(mount.path()).arg("--json")).ok();
    let report = crate::parse(&finished.stdout);
    assert_eq!((&report["file"]["answered"], &report["file"]["kind"]), (&Value::from(false), &Value::Null));
    assert!(report["findings"][0]["title"].as_str().expect("text").contains("did not answer"), "{report:#}");
    assert_eq!(crate::feature(&report, "io_uring")["why"].as_str().map(str::is_empty), Some(false));
    // The end of the server wakes those that wait for it.
    drop(server);
}
