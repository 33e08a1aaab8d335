//! A control group for this process alone, which limits its memory including the page cache of what it reads.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Keeps the process in its own control group until dropped.
pub struct MemoryGroup {
    before: PathBuf,
    own: PathBuf,
}

impl MemoryGroup {
    /// Creates a group below the process's current one (in cgroup v2, below the root) and moves the process into it.
    pub fn enter(bytes: u64) -> io::Result<MemoryGroup> {
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let name = format!("ringfile-{}", std::process::id());
        let of_version_1 = groups.lines().find_map(|line| line.split_once(":memory:").map(|(_, path)| path));
        let (before, folder, limit) = match of_version_1 {
            Some(path) => {
                let before = Path::new("/sys/fs/cgroup/memory").join(path.trim_start_matches('/'));
                (before.clone(), before, "memory.limit_in_bytes")
            }
            None => {
                let root = Path::new("/sys/fs/cgroup");
                let path = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
                fs::write(root.join("cgroup.subtree_control"), "+memory")?;
                (root.join(path.trim_start_matches('/')), root.into(), "memory.max")
            }
        };
        let group = MemoryGroup { before, own: folder.join(name) };
        fs::create_dir(&group.own)?;
        fs::write(group.own.join(limit), bytes.to_string())?;
        group.move_to(&group.own)?;
        Ok(group)
    }

    fn move_to(&self, group: &Path) -> io::Result<()> {
        fs::write(group.join("cgroup.procs"), std::process::id().to_string())
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // If this fails, an empty group remains after the process has ended.
        let _ = self.move_to(&self.before);
        let _ = fs::remove_dir(&self.own);
    }
}
