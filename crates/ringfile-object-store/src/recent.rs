//! The adaptive files that were read last, which stay open.
//!
//! An adaptive file counts repeated reads to decide what to cache; if each call opened it anew, it would never learn
//! that. Invariants: a file is found by device and inode, which no other has while it is open, on file
//! systems that are known to guarantee that; and nothing that may wait happens under the lock.

use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringfile::File;
use ringfile::fs::Metadata;

/// The number of files that stay open, each with two descriptors.
const MOST: usize = 64;
/// How often a store in use checks for files that others have removed.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct Recent(Mutex<Inner>);

struct Inner {
    /// In order of use, the most recently read one last.
    entries: Vec<Entry>,
    /// The time at which the last check for removed files began.
    checked: Instant,
}

#[derive(Clone)]
struct Entry {
    device: u64,
    inode: u64,
    file: File,
}

impl Entry {
    fn is_of(&self, device: u64, inode: u64) -> bool {
        (self.device, self.inode) == (device, inode)
    }

    fn is_there(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
    }
}

impl Recent {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Inner { entries: Vec::new(), checked: Instant::now() }))
    }

    /// Returns the file with these metadata, if it is open.
    pub(crate) fn find(&self, metadata: &Metadata) -> Option<File> {
        let entries = &mut self.inner().entries;
        let at = entries.iter().rposition(|entry| entry.is_of(metadata.device, metadata.inode))?;
        entries[at..].rotate_left(1);
        entries.last().map(|entry| entry.file.clone())
    }

    /// Keeps a file, in place of the least recently read one. Returns the one to use: if two calls opened the same
    /// file, the other call's.
    pub(crate) fn keep(&self, metadata: &Metadata, file: File) -> File {
        let mut inner = self.inner();
        let entries = &mut inner.entries;
        if let Some(other) = entries.iter().find(|entry| entry.is_of(metadata.device, metadata.inode)) {
            let other = other.file.clone();
            drop(inner);
            return other;
        }
        let oldest = (entries.len() >= MOST).then(|| entries.remove(0));
        entries.push(Entry { device: metadata.device, inode: metadata.inode, file: file.clone() });
        drop(inner);
        // Dropping it closes the file, which takes long only if the file was removed since the last check.
        drop(oldest);
        file
    }

    /// Returns whether it is time to call [`close_removed`](Self::close_removed), to one caller in each period.
    pub(crate) fn is_check_due(&self) -> bool {
        let mut inner = self.inner();
        let is_due = !inner.entries.is_empty() && inner.checked.elapsed() >= CHECK_PERIOD;
        if is_due {
            inner.checked = Instant::now();
        }
        is_due
    }

    /// Closes files that have no name any more, since only that frees their space. This may take long, so async threads must
    /// not call it.
    pub(crate) fn close_removed(&self) {
        let mut removed = self.inner().entries.clone();
        removed.retain(|entry| !entry.is_there());
        if !removed.is_empty() {
            self.inner()
                .entries
                .retain(|entry| !removed.iter().any(|other| other.is_of(entry.device, entry.inode)));
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
