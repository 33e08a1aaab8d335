//! Test files that killed runs left behind: each run records its file, so that the next run finds it.
//!
//! Records lie in the user's state folder, one for each run, and are locked while the run lasts. The kernel releases
//! the lock of a killed process, and a lock, unlike a process number, cannot be mistaken for another process's.
//! Invariants: only a file that a run created is named, identified by its inode and creation time; only records are
//! removed here. If no record can be kept, left files go unreported.

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};

use crate::error::one_line;
use crate::values::{Bytes, shell_word};

/// The file name extension of records.
const EXTENSION: &str = "run";

/// More than a path and its numbers take.
const LARGEST: u64 = 8 << 10;

/// The record of a file that a run created. Dropping it removes the record if the file is gone.
#[derive(Debug)]
pub struct Record {
    made: Made,
    record: PathBuf,
    /// Holds the lock while it is open.
    _lock: File,
}

/// A created file, with what distinguishes it from another file of the same name.
#[derive(Debug, PartialEq, Eq)]
struct Made {
    path: PathBuf,
    /// Inode, and creation time in nanoseconds since 1970; 0 if the file system does not record it.
    identity: (u64, u128),
}

impl Record {
    /// Creates the record of a new file. Returns `None` if no record can be kept.
    pub fn of(path: &Path, file: &File) -> Option<Record> {
        let folder = folder()?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).ok()?;
        let made = Made { path: path.canonicalize().ok()?, identity: identity(&file.metadata().ok()?) };
        // Process numbers are reused, and every container counts its own.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_nanos();
        let record = folder.join(format!("{}-{now}.{EXTENSION}", std::process::id()));
        let mut lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&record).ok()?;
        try_lock(&lock)?;
        lock.write_all(&made.to_bytes()).ok()?;
        Some(Record { made, record, _lock: lock })
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.made.metadata().is_none() {
            // If this fails, the next run removes the record, since its file is gone.
            let _ = std::fs::remove_file(&self.record);
        }
    }
}

impl Made {
    fn to_bytes(&self) -> Vec<u8> {
        let (inode, born) = self.identity;
        [format!("{inode} {born}\n").as_bytes(), self.path.as_os_str().as_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Made> {
        let end = bytes.iter().position(|&byte| byte == b'\n')?;
        let (inode, born) = std::str::from_utf8(&bytes[..end]).ok()?.split_once(' ')?;
        let path = PathBuf::from(std::ffi::OsString::from_vec(bytes[end + 1..].to_vec()));
        Some(Made { path, identity: (inode.parse().ok()?, born.parse().ok()?) })
    }

    /// Returns what is known of the file, if it is there.
    fn metadata(&self) -> Option<Metadata> {
        self.path.symlink_metadata().ok().filter(|metadata| identity(metadata) == self.identity)
    }
}

fn identity(metadata: &Metadata) -> (u64, u128) {
    let born = metadata.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    (metadata.ino(), born.map_or(0, |born| born.as_nanos()))
}

/// Names the files that killed runs left behind, on standard error, with the command that removes them.
pub fn tell(quiet: bool) {
    let entries = folder().and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let records =
        entries.map(|entry| entry.path()).filter(|path| path.extension() == Some(OsStr::new(EXTENSION)));
    for message in records.filter_map(|record| left_behind(&record)) {
        if !quiet {
            // A closed standard error is no reason to fail.
            let _ = writeln!(std::io::stderr(), "{}", one_line(&message));
        }
    }
}

/// Returns the warning for a record whose run is over and whose file still exists. Removes a record without a file.
fn left_behind(record: &Path) -> Option<String> {
    let mut lock = File::open(record).ok()?;
    try_lock(&lock)?;
    let mut bytes = Vec::new();
    (&mut lock).take(LARGEST).read_to_end(&mut bytes).ok()?;
    // A record is empty if its run has only just begun.
    let made = Made::from_bytes(&bytes)?;
    let Some(metadata) = made.metadata() else {
        let _ = std::fs::remove_file(record);
        return None;
    };
    Some(format!(
        "warning: {} ({}) was left behind by a run that was killed; to remove it: rm {}",
        made.path.display(),
        Bytes(metadata.len()),
        shell_word(made.path.as_os_str())
    ))
}

/// Locks a record. Returns `None` while another process holds the lock.
fn try_lock(record: &File) -> Option<()> {
    flock(record, FlockOperation::NonBlockingLockExclusive).ok()
}

/// Returns the folder of the records.
fn folder() -> Option<PathBuf> {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = of("XDG_STATE_HOME").or_else(|| Some(of("HOME")?.join(".local/state")))?;
    Some(state.join("ringfile"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_whatever_the_path() {
        for path in ["/dev/shm/a b.bin", "/x/\n2 3\n", "/ä"] {
            let made = Made { path: path.into(), identity: (u64::MAX, u128::MAX) };
            assert_eq!(Made::from_bytes(&made.to_bytes()), Some(made));
        }
        for text in ["", "1", "1 2", "x y\n/a", "1\n/a", "\u{0}"] {
            assert_eq!(Made::from_bytes(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn a_file_is_named_only_while_no_run_has_it_and_it_is_the_one_that_was_made() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("it's.bin");
        let file = File::create(&path).expect("a file");
        let made = Made { path: path.clone(), identity: identity(&file.metadata().expect("metadata")) };
        let record = folder.path().join("1.run");
        std::fs::write(&record, made.to_bytes()).expect("written");
        let running = File::open(&record).expect("open");
        try_lock(&running).expect("locked");
        assert_eq!(left_behind(&record), None, "its run is under way");
        drop(running);
        let said = left_behind(&record).expect("it is left behind");
        assert!(said.contains("it's.bin (0 bytes) was left behind"), "{said}");
        assert!(said.ends_with(&format!("rm '{}/it'\\''s.bin'", folder.path().display())), "{said}");
        assert!(path.exists() && record.exists(), "nothing is removed");
        // Another file of that name, created while the first one exists, so that it has another inode.
        std::fs::write(folder.path().join("other"), "mine").expect("written");
        std::fs::rename(folder.path().join("other"), &path).expect("renamed");
        assert_eq!(left_behind(&record), None);
        assert!(path.exists() && !record.exists(), "the record is of no file");
    }
}
