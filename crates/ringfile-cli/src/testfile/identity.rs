//! What distinguishes the test file from another file that takes its name during the run.
//!
//! Invariant: the test file stays open during the run, so no other file can have its inode.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Stat, fstat, lstat, stat};
use serde::{Deserialize, Serialize};

use crate::error::{Failure, io_on};

/// Device and inode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    device: u64,
    /// The inode.
    pub inode: u64,
}

impl Identity {
    /// Returns the identity of an open file; errors name `path`.
    pub fn of(file: impl AsFd, path: &Path) -> Result<Identity, Failure> {
        Self::from(fstat(file), path)
    }

    /// Returns the identity of the file that a path leads to.
    pub fn at(path: &Path) -> Result<Identity, Failure> {
        Self::from(stat(path), path)
    }

    fn from(stat: rustix::io::Result<Stat>, path: &Path) -> Result<Identity, Failure> {
        let stat = stat.map_err(|error| io_on("can't look at", path, &error.into()))?;
        Ok(Identity { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Fails if another file was found at the path of the test file.
    pub fn check(self, found: Identity, path: &Path) -> Result<(), Failure> {
        if found == self { Ok(()) } else { Err(Failure::Io(replaced(path, "not written to"))) }
    }

    /// Removes the file. Returns a warning if another one has its path.
    pub fn remove(self, path: &Path) -> Option<String> {
        // If there is no file, or removing it fails, the file or its folder is already gone.
        if Self::from(lstat(path), path).ok()? == self {
            let _ = std::fs::remove_file(path);
            return None;
        }
        Some(replaced(path, "not removed"))
    }
}

fn replaced(path: &Path, what: &str) -> String {
    format!("{} was replaced by another file during the run; that file is {what}", path.display())
}
