//! The block device below a file, and what is below that: partitions, loop devices, md, dm, down to the disks.
//!
//! Read from sysfs, never from the device. The tree is given its root and a way to find the device below a file, so
//! that recorded trees can be read as well.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::process::chosen;
use crate::machine::{number, text};

/// A block device, or a part of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Major and minor number, `254:0`.
    pub number: String,
    /// The kernel's name, `sda1`.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
    /// The disk's own model name; for dm, the volume's name; for md, its level.
    pub model: Option<String>,
    /// How it is attached: `nvme`, `scsi`, `virtio`, `xen`, `usb`, `mmc`.
    pub bus: Option<String>,
    /// Bytes.
    pub size: Option<u64>,
    /// How it accepts requests; for a partition, those of its disk.
    pub queue: Queue,
    /// For a namespace of an NVMe drive: the character device that takes the drive's own commands.
    pub passthrough: Option<String>,
    /// For a loop device: the file that it shows.
    pub backing: Option<Backing>,
    /// The devices that it is made of.
    pub below: Vec<Device>,
}

/// What kind of device it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A disk, as seen by this machine.
    #[default]
    Disk,
    /// A part of one.
    Partition,
    /// A file shown as a device.
    Loop,
    /// Software RAID.
    Md,
    /// Device mapper of a kind not named here.
    Dm,
    /// Device mapper: encrypted.
    Crypt,
    /// Device mapper: a logical volume.
    Lvm,
    /// Compressed memory.
    Zram,
    /// Memory.
    Ram,
    /// Another machine's disk: nbd, rbd, drbd.
    Network,
}

/// How a device accepts requests; `null` for what the kernel does not report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// The I/O scheduler at work.
    pub scheduler: Option<String>,
    /// Requests that may wait in it (`nr_requests`).
    pub requests: Option<u64>,
    /// Requests that the disk takes at once, where it says (SCSI, SATA).
    pub depth: Option<u64>,
    /// Hardware queues.
    pub hardware_queues: Option<u64>,
    /// Whether completions can be polled (IOPOLL): there are poll queues.
    pub polling: Option<bool>,
    /// `write back`: it has a cache that loses what was not flushed; `write through`.
    pub write_cache: Option<String>,
    /// Whether single writes can be made to pass that cache (FUA).
    pub fua: Option<bool>,
    /// Whether it says that it is a spinning disk.
    pub rotational: Option<bool>,
    /// Bytes of the smallest request.
    pub logical_block: Option<u64>,
    /// Bytes that it writes without reading first.
    pub physical_block: Option<u64>,
    /// KiB of the largest request; larger I/O is split.
    pub max_sectors_kb: Option<u64>,
    /// KiB that the kernel reads ahead of sequential buffered reads.
    pub read_ahead_kb: Option<u64>,
}

/// The file below a loop device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backing {
    /// Its path.
    pub path: String,
    /// Its file system.
    pub filesystem: Option<String>,
    /// Whether the loop device reads and writes it directly, past the page cache.
    pub direct: Option<bool>,
}

/// Where a file lies: its file system, and the number of its device where there is one.
pub type Mounted = (Option<String>, Option<String>);

/// How deep stacks are followed: real ones are not deeper, and a loop device on itself would never end.
const DEEPEST: usize = 8;

/// Reads the device of this number, and all below it; `None` if sysfs does not have it.
pub fn look(sys: &Path, number: &str, place: &dyn Fn(&Path) -> Mounted) -> Option<Device> {
    let root = fs::canonicalize(sys.join("dev/block").join(number)).ok()?;
    Some(Tree { sys, place }.device(&root, DEEPEST))
}

struct Tree<'a> {
    sys: &'a Path,
    place: &'a dyn Fn(&Path) -> Mounted,
}

impl Tree<'_> {
    fn device(&self, folder: &Path, deepest: usize) -> Device {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let partition = folder.join("partition").exists();
        let disk = folder.parent().filter(|_| partition).unwrap_or(folder);
        let kind = if partition { DeviceKind::Partition } else { kind(&name, folder) };
        let backing = (kind == DeviceKind::Loop).then(|| self.backing(folder)).flatten();
        let mut below: Vec<Device> = Vec::new();
        if deepest > 0 {
            if partition {
                below.push(self.device(disk, deepest - 1));
            }
            let mut slaves: Vec<PathBuf> = entries(&folder.join("slaves"));
            slaves.sort();
            let slaves = slaves.iter().filter_map(|slave| fs::canonicalize(slave).ok());
            let slaves = slaves.filter(|slave| slave.join("dev").exists());
            below.extend(slaves.map(|slave| self.device(&slave, deepest - 1)));
            let file = backing.as_ref().and_then(|backing| (self.place)(Path::new(&backing.path)).1);
            let folder =
                file.and_then(|number| fs::canonicalize(self.sys.join("dev/block").join(number)).ok());
            below.extend(folder.map(|folder| self.device(&folder, deepest - 1)));
        }
        Device {
            number: text(folder.join("dev")).unwrap_or_default(),
            kind,
            model: model(kind, folder),
            bus: bus(disk, &name),
            size: number(folder.join("size")).map(|sectors: u64| sectors * 512),
            queue: queue(disk),
            passthrough: (kind == DeviceKind::Disk).then(|| passthrough(folder, &name)).flatten(),
            backing,
            below,
            name,
        }
    }

    fn backing(&self, folder: &Path) -> Option<Backing> {
        let path = text(folder.join("loop/backing_file"))?;
        let filesystem = (self.place)(Path::new(&path)).0;
        Some(Backing { filesystem, direct: flag(&folder.join("loop/dio")), path })
    }
}

impl Device {
    /// This device and all below it, from the top.
    pub fn stack(&self) -> Vec<&Device> {
        let below = self.below.iter().flat_map(Device::stack);
        std::iter::once(self).chain(below).collect()
    }
}

fn kind(name: &str, folder: &Path) -> DeviceKind {
    let starts = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    match () {
        () if starts("loop") => DeviceKind::Loop,
        () if folder.join("md").exists() => DeviceKind::Md,
        () if folder.join("dm").exists() => {
            let id = text(folder.join("dm/uuid")).unwrap_or_default();
            match id.split('-').next() {
                Some("CRYPT") => DeviceKind::Crypt,
                Some("LVM") => DeviceKind::Lvm,
                _ => DeviceKind::Dm,
            }
        }
        () if starts("zram") => DeviceKind::Zram,
        () if starts("ram") || starts("pmem") => DeviceKind::Ram,
        () if starts("nbd") || starts("rbd") || starts("drbd") => DeviceKind::Network,
        () => DeviceKind::Disk,
    }
}

fn model(kind: DeviceKind, folder: &Path) -> Option<String> {
    match kind {
        DeviceKind::Md => text(folder.join("md/level")),
        DeviceKind::Dm | DeviceKind::Crypt | DeviceKind::Lvm => text(folder.join("dm/name")),
        DeviceKind::Partition => None,
        _ => text(folder.join("device/model")).or_else(|| text(folder.join("device/name"))),
    }
    .filter(|model| !model.is_empty())
}

/// Returns how a disk is attached, by its real place in the tree of devices.
fn bus(disk: &Path, name: &str) -> Option<String> {
    let place = disk.to_string_lossy();
    let device = fs::canonicalize(disk.join("device")).unwrap_or_default();
    let device = device.to_string_lossy();
    let has = |word: &str| place.contains(word) || device.contains(word);
    // USB disks are SCSI disks too: the outer word counts.
    let known = [
        ("/usb", "usb"),
        ("/mmc", "mmc"),
        ("/nvme", "nvme"),
        ("/virtio", "virtio"),
        ("/vbd-", "xen"),
        ("/ata", "sata"),
        ("/session", "iscsi"),
        ("/host", "scsi"),
    ];
    let found = known.into_iter().find(|(word, _)| has(word)).map(|(_, bus)| bus);
    found.or_else(|| name.starts_with("xvd").then_some("xen")).map(str::to_string)
}

/// Returns the character device of an NVMe namespace, which is beside its block device and has the same numbers.
fn passthrough(disk: &Path, name: &str) -> Option<String> {
    let name = format!("ng{}", name.strip_prefix("nvme")?);
    disk.parent()?.join(&name).join("dev").exists().then(|| format!("/dev/{name}"))
}

fn queue(disk: &Path) -> Queue {
    let queue = disk.join("queue");
    let scheduler = text(queue.join("scheduler"));
    let hardware = entries(&disk.join("mq")).len() as u64;
    Queue {
        // Without a choice the file has the one word alone.
        scheduler: scheduler.and_then(|text| chosen(&text).or(Some(text))),
        requests: number(queue.join("nr_requests")),
        depth: number(disk.join("device/queue_depth")),
        hardware_queues: Some(hardware).filter(|&count| count > 0),
        polling: flag(&queue.join("io_poll")),
        write_cache: text(queue.join("write_cache")),
        fua: flag(&queue.join("fua")),
        rotational: flag(&queue.join("rotational")),
        logical_block: number(queue.join("logical_block_size")),
        physical_block: number(queue.join("physical_block_size")),
        max_sectors_kb: number(queue.join("max_sectors_kb")),
        read_ahead_kb: number(queue.join("read_ahead_kb")),
    }
}

fn flag(path: &Path) -> Option<bool> {
    Some(number::<u64>(path)? != 0)
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Returns a recorded sysfs: files below `base` with their text; `dev/block` links are made from the `dev` files.
    fn sysfs(base: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("temporary folder");
        let links = folder.path().join("dev/block");
        fs::create_dir_all(&links).expect("folder");
        for (path, text) in files {
            let path = folder.path().join(base).join(path);
            let device = path.parent().expect("it is in one");
            fs::create_dir_all(device).expect("folder");
            fs::write(&path, text).expect("write");
            if path.ends_with("dev") {
                symlink(device, links.join(text.trim())).expect("link");
            }
        }
        folder
    }

    fn nowhere(_: &Path) -> Mounted {
        (None, None)
    }

    #[test]
    fn a_partition_has_the_queue_of_its_disk() {
        let vda = "devices/pci0000:00/0000:00:02.0/virtio1/block/vda";
        let sys = sysfs(
            vda,
            &[
                ("dev", "254:0\n"),
                ("size", "2048\n"),
                ("queue/scheduler", "none [mq-deadline] kyber bfq \n"),
                ("queue/write_cache", "write back\n"),
                ("queue/rotational", "1\n"),
                ("queue/io_poll", "0\n"),
                ("mq/0/cpu_list", "0, 1\n"),
                ("vda1/dev", "254:1\n"),
                ("vda1/partition", "1\n"),
            ],
        );
        let device = look(sys.path(), "254:1", &nowhere).expect("it is there");
        assert_eq!(
            (device.kind, device.name.as_str(), device.number.as_str()),
            (DeviceKind::Partition, "vda1", "254:1")
        );
        assert_eq!(device.queue.scheduler.as_deref(), Some("mq-deadline"));
        let disk = &device.below[0];
        assert_eq!(
            (disk.kind, disk.bus.as_deref(), disk.size),
            (DeviceKind::Disk, Some("virtio"), Some(1 << 20))
        );
        assert_eq!(disk.queue, device.queue);
        assert_eq!((disk.queue.polling, disk.queue.rotational), (Some(false), Some(true)));
        let polls = ["254:1", "254:0", "254:9"]
            .map(|number| look(sys.path(), number, &nowhere).and_then(|device| device.queue.polling));
        assert_eq!(polls, [Some(false), Some(false), None]);
        assert_eq!(
            (disk.queue.write_cache.as_deref(), disk.queue.hardware_queues),
            (Some("write back"), Some(1))
        );
        assert_eq!(device.stack().len(), 2);
        assert_eq!(look(sys.path(), "9:9", &nowhere), None);
    }

    #[test]
    fn a_loop_device_leads_to_the_disk_of_its_file() {
        let sys = sysfs(
            "devices",
            &[
                ("virtual/block/loop3/dev", "7:3\n"),
                ("virtual/block/loop3/loop/backing_file", "/srv/image\n"),
                ("virtual/block/loop3/loop/dio", "0\n"),
                ("pci0000:00/nvme/nvme0/nvme0n1/dev", "259:0\n"),
                ("pci0000:00/nvme/nvme0/ng0n1/dev", "240:0\n"),
                ("pci0000:00/nvme/nvme0/nvme0n1/device/model", "A drive   \n"),
                ("pci0000:00/nvme/nvme0/nvme0n1/queue/scheduler", "none\n"),
            ],
        );
        let place = |path: &Path| {
            assert_eq!(path, Path::new("/srv/image"));
            (Some("xfs".to_string()), Some("259:0".to_string()))
        };
        let device = look(sys.path(), "7:3", &place).expect("it is there");
        let backing = device.backing.as_ref().expect("a file");
        assert_eq!(
            (device.kind, backing.filesystem.as_deref(), backing.direct),
            (DeviceKind::Loop, Some("xfs"), Some(false))
        );
        let disk = &device.below[0];
        assert_eq!((disk.bus.as_deref(), disk.model.as_deref()), (Some("nvme"), Some("A drive")));
        assert_eq!(disk.passthrough.as_deref(), Some("/dev/ng0n1"));
        assert_eq!(disk.queue.scheduler.as_deref(), Some("none"));
    }

    #[test]
    fn a_device_over_itself_comes_to_an_end() {
        let sys = sysfs(
            "devices",
            &[
                ("virtual/block/loop0/dev", "7:0\n"),
                ("virtual/block/loop0/loop/backing_file", "/mnt/image\n"),
            ],
        );
        let device = look(sys.path(), "7:0", &|_| (None, Some("7:0".into()))).expect("it is there");
        assert_eq!(device.stack().len(), DEEPEST + 1);
    }

    #[test]
    fn dm_and_md_are_distinguished() {
        let sys = sysfs(
            "devices",
            &[
                ("virtual/block/dm-0/dev", "252:0\n"),
                ("virtual/block/dm-0/dm/uuid", "CRYPT-LUKS2-0123-root\n"),
                ("virtual/block/dm-0/dm/name", "root\n"),
                ("virtual/block/dm-0/slaves/.keep", ""),
                ("virtual/block/md0/dev", "9:0\n"),
                ("virtual/block/md0/md/level", "raid5\n"),
                ("virtual/block/zram0/dev", "253:0\n"),
                ("virtual/block/nbd0/dev", "43:0\n"),
            ],
        );
        let md = fs::canonicalize(sys.path().join("devices/virtual/block/md0")).expect("it is there");
        symlink(md, sys.path().join("devices/virtual/block/dm-0/slaves/md0")).expect("link");
        let device = look(sys.path(), "252:0", &nowhere).expect("it is there");
        assert_eq!((device.kind, device.model.as_deref()), (DeviceKind::Crypt, Some("root")));
        let md = device.below.iter().find(|below| below.name == "md0").expect("below it");
        assert_eq!((md.kind, md.model.as_deref()), (DeviceKind::Md, Some("raid5")));
        assert_eq!(look(sys.path(), "253:0", &nowhere).map(|device| device.kind), Some(DeviceKind::Zram));
        assert_eq!(look(sys.path(), "43:0", &nowhere).map(|device| device.kind), Some(DeviceKind::Network));
    }
}
