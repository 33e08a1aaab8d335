//! Where a path lies: its mount, what kind of file system that is, and the number of the device below.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};
use rustix::fs::{major, minor};
use serde::{Deserialize, Serialize};

use crate::testfile::mounts::{self, Mount};

/// The storage behind a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// A block device.
    Disk,
    /// Memory: tmpfs and its like.
    Memory,
    /// A layer over another file system, as in containers.
    Overlay,
    /// A program that serves a file system, or a host that shares a folder.
    Fuse,
    /// Another machine.
    Network,
    /// No data: information of the kernel in the form of files.
    Kernel,
    /// Not known.
    #[default]
    Unknown,
}

impl Medium {
    /// Returns the medium for the name of a file system.
    pub fn of(filesystem: &str) -> Medium {
        match filesystem {
            "tmpfs" | "ramfs" | "devtmpfs" | "hugetlbfs" => Medium::Memory,
            "overlay" | "aufs" | "shiftfs" => Medium::Overlay,
            "nfs" | "nfs4" | "cifs" | "smb3" | "ceph" | "9p" | "afs" | "lustre" | "glusterfs" | "beegfs"
            | "gpfs" | "orangefs" | "fuse.sshfs" | "fuse.glusterfs" | "fuse.s3fs" | "fuse.rclone" => {
                Medium::Network
            }
            "proc" | "sysfs" | "cgroup" | "cgroup2" | "debugfs" | "tracefs" | "securityfs" | "configfs"
            | "devpts" | "mqueue" | "bpf" | "pstore" | "efivarfs" | "binfmt_misc" | "nsfs" | "selinuxfs"
            | "fusectl" => Medium::Kernel,
            // A real disk, through a program.
            "fuseblk" | "virtiofs" | "vboxsf" | "prl_fs" => Medium::Fuse,
            name if name.starts_with("fuse") => Medium::Fuse,
            "" => Medium::Unknown,
            _ => Medium::Disk,
        }
    }
}

/// A path that exists.
#[derive(Debug)]
pub struct Place {
    /// The mount that it lies in.
    pub mount: Option<Mount>,
    /// Major and minor number of the device below; `None` if there is none, or it is unknown.
    pub number: Option<String>,
}

/// How many layers of overlays are looked through.
const DEEPEST: usize = 4;

/// Finds a path's place. Blocks if the path's file system does.
pub fn of(path: &Path) -> Place {
    within(path, DEEPEST)
}

fn within(path: &Path, deepest: usize) -> Place {
    let Ok(facts) = statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::MNT_ID) else {
        return Place { mount: None, number: None };
    };
    let mount = mount_of(path, &facts);
    let number = match (facts.stx_mode & libc::S_IFMT as u16, facts.stx_dev_major) {
        (mode, _) if mode == libc::S_IFBLK as u16 => Some(pair(facts.stx_rdev_major, facts.stx_rdev_minor)),
        // Numbers with a major of 0 are made up: btrfs, overlay, network, memory.
        (_, 0) => mount.as_ref().and_then(|mount| below(mount, deepest)),
        (_, major) => Some(pair(major, facts.stx_dev_minor)),
    };
    Place { mount, number }
}

fn mount_of(path: &Path, facts: &Statx) -> Option<Mount> {
    let told = facts.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    let known = mounts::all().into_iter().find(|mount| told && mount.id == facts.stx_mnt_id);
    known.or_else(|| mounts::of(path))
}

fn below(mount: &Mount, deepest: usize) -> Option<String> {
    if let Some(upper) = upper(mount).filter(|_| deepest > 0) {
        return within(upper, deepest - 1).number;
    }
    let device =
        mount.source.starts_with("/dev/").then(|| std::fs::metadata(&mount.source).ok()).flatten()?;
    (device.rdev() != 0).then(|| pair(major(device.rdev()), minor(device.rdev())))
}

/// Returns the folder where an overlay keeps written data; `None` if it was mounted with a relative path, which no
/// longer leads there.
pub fn upper(mount: &Mount) -> Option<&Path> {
    option(mount, "upperdir").map(Path::new).filter(|upper| upper.is_absolute())
}

/// Returns the value of a mount option, `upperdir=/a`.
fn option<'a>(mount: &'a Mount, name: &str) -> Option<&'a str> {
    let of = |option: &'a String| option.strip_prefix(name)?.strip_prefix('=');
    mount.options.iter().find_map(of)
}

fn pair(major: u32, minor: u32) -> String {
    format!("{major}:{minor}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_by_their_names() {
        for (name, medium) in [
            ("ext4", Medium::Disk),
            ("zfs", Medium::Disk),
            ("tmpfs", Medium::Memory),
            ("overlay", Medium::Overlay),
            ("fuse.mergerfs", Medium::Fuse),
            ("fuse.sshfs", Medium::Network),
            ("nfs4", Medium::Network),
            ("sysfs", Medium::Kernel),
            ("", Medium::Unknown),
        ] {
            assert_eq!(Medium::of(name), medium, "{name}");
        }
    }

    #[test]
    fn options_with_values() {
        let line = b"36 35 0:50 / /mnt rw,noatime - overlay overlay rw,lowerdir=/a:/b,upperdir=/c\n";
        let mounts = mounts::parse(line);
        assert_eq!(option(&mounts[0], "upperdir"), Some("/c"));
        assert_eq!(option(&mounts[0], "noatime"), None);
    }

    #[test]
    fn files_of_the_kernel_have_a_mount() {
        let place = of(Path::new("/proc/self/status"));
        assert_eq!(place.mount.map(|mount| mount.filesystem).as_deref(), Some("proc"));
        assert_eq!(place.number, None);
        assert!(of(Path::new("/nonexistent")).mount.is_none());
    }
}
