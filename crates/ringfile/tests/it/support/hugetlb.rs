//! A control group whose processes may use fewer huge pages than are reserved. The tests of other crates include this file
//! too.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

const RESERVED: &str = "/proc/sys/vm/nr_hugepages";
/// The groups of version 2, where the machine has them there.
const GROUPS: &str = "/sys/fs/cgroup";

/// See the module. Undone when it is dropped; its processes must have ended by then.
pub struct HugePageLimit {
    /// The size of a huge page, in bytes.
    pub page: usize,
    group: PathBuf,
    /// Where the groups of version 1 were mounted for this.
    mounted: Option<PathBuf>,
    /// How many pages were reserved before.
    before: String,
    /// Locked, since others that change it would restore the wrong number.
    _alone: File,
}

impl HugePageLimit {
    /// Reserves huge pages, and makes a group that may use `allowed` of them. The error says what this machine lacks.
    pub fn new(reserved: usize, allowed: usize) -> Result<Self, String> {
        let failed = |what: &str| format!("{what}, which needs root and control groups with huge pages");
        let alone = File::open(RESERVED).map_err(|error| failed(&format!("{RESERVED}: {error}")))?;
        // SAFETY: a descriptor that is open here.
        if unsafe { libc::flock(alone.as_raw_fd(), libc::LOCK_EX) } != 0 {
            return Err(failed(&format!("locking {RESERVED}")));
        }
        let before = fs::read_to_string(RESERVED).map_err(|error| error.to_string())?;
        let kib = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
            line.trim().strip_suffix(" kB")?.parse::<usize>().ok()
        });
        let page = kib.ok_or("no huge pages")? << 10;
        let has_second = fs::read_to_string(Path::new(GROUPS).join("cgroup.subtree_control"))
            .is_ok_and(|controllers| controllers.split_whitespace().any(|name| name == "hugetlb"));
        let name = format!("ringfile-huge-{}", std::process::id());
        let mounted = (!has_second).then(|| std::env::temp_dir().join(&name));
        let group = mounted.as_deref().unwrap_or(Path::new(GROUPS)).join(&name);
        let made = Self { page, group, mounted, before, _alone: alone };
        if let Some(folder) = &made.mounted {
            fs::create_dir_all(folder).map_err(|error| error.to_string())?;
            let mount = ["-t", "cgroup", "-o", "hugetlb", "none"];
            let mounts = Command::new("mount").args(mount).arg(folder).output();
            if !mounts.is_ok_and(|output| output.status.success()) {
                return Err(failed("mounting the groups of version 1"));
            }
        }
        fs::create_dir(&made.group).map_err(|error| failed(&format!("making a group: {error}")))?;
        let size = match page {
            0x4000_0000.. => format!("{}GB", page >> 30),
            0x10_0000.. => format!("{}MB", page >> 20),
            _ => format!("{}KB", page >> 10),
        };
        let limit = if has_second { "max" } else { "limit_in_bytes" };
        let limit = made.group.join(format!("hugetlb.{size}.{limit}"));
        fs::write(&limit, (allowed * page).to_string())
            .map_err(|error| failed(&format!("{}: {error}", limit.display())))?;
        let all = made.before.trim().parse().unwrap_or(0) + reserved;
        fs::write(RESERVED, all.to_string()).map_err(|error| failed(&format!("{RESERVED}: {error}")))?;
        let now = fs::read_to_string(RESERVED).ok().and_then(|text| text.trim().parse::<usize>().ok());
        if now.is_none_or(|now| now < all) {
            return Err(format!("{reserved} huge pages could not be reserved"));
        }
        Ok(made)
    }

    /// Moves the calling process into the group.
    pub fn enter(&self) {
        fs::write(self.group.join("cgroup.procs"), "0").unwrap();
    }
}

impl Drop for HugePageLimit {
    fn drop(&mut self) {
        let _ = fs::write(RESERVED, &self.before);
        let _ = fs::remove_dir(&self.group);
        if let Some(folder) = &self.mounted {
            let _ = Command::new("umount").arg(folder).output();
            let _ = fs::remove_dir(folder);
        }
    }
}
