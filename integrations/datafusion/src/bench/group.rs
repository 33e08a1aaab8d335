//! A memory control group, version 1.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const MEMORY: &str = "/sys/fs/cgroup/memory";

/// A group whose processes share a memory limit, which includes the page cache. The group is removed when this is dropped;
/// its processes must have ended by then.
pub(super) struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// Creates a group for a query, with a limit in bytes.
    pub(super) fn new(query: usize, limit: u64) -> Result<Self> {
        let path = Path::new(MEMORY).join(format!("ringfile-tpch-{}-{query}", std::process::id()));
        fs::create_dir(&path).with_context(|| {
            format!(
                "cannot create {}: this needs root, and version 1 of control groups at {MEMORY}",
                path.display()
            )
        })?;
        let group = Self(path);
        fs::write(group.0.join("memory.limit_in_bytes"), limit.to_string())
            .context("cannot set the memory limit")?;
        eprintln!("at most {} MiB", limit >> 20);
        Ok(group)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Drops the file pages that are still charged to the group.
        let _ = fs::write(self.0.join("memory.force_empty"), "0");
        if let Err(error) = fs::remove_dir(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}
