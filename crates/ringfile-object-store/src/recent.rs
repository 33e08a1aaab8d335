//! The adaptive files that were read last, which stay open.
//!
//! An adaptive file counts repeated reads to decide what to cache; if each call opened it anew, it would never learn
//! that. What always holds: a file is found by device and inode, which no other has while it is open; and nothing that
//! may wait happens under the lock.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringfile::File;

/// The number of files that stay open, each with two descriptors.
const MOST: usize = 64;

/// See the module.
#[derive(Default)]
pub(crate) struct Recent(Mutex<Vec<Entry>>);

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
    /// The file with these metadata, if it is open.
    pub(crate) fn find(&self, metadata: &Metadata) -> Option<File> {
        let mut entries = self.entries();
        let at = entries.iter().rposition(|entry| entry.is_of(metadata.dev(), metadata.ino()))?;
        // In order of use, the most recent one last.
        entries[at..].rotate_left(1);
        entries.last().map(|entry| entry.file.clone())
    }

    /// Keeps a file, in place of the least recently read one. Returns the one to use: if two calls opened the same
    /// file, the other call's.
    pub(crate) fn keep(&self, metadata: &Metadata, file: File) -> File {
        self.close_removed();
        let mut entries = self.entries();
        if let Some(other) = entries.iter().find(|entry| entry.is_of(metadata.dev(), metadata.ino())) {
            let other = other.file.clone();
            drop(entries);
            return other;
        }
        let oldest = (entries.len() >= MOST).then(|| entries.remove(0));
        entries.push(Entry { device: metadata.dev(), inode: metadata.ino(), file: file.clone() });
        drop(entries);
        // Closes it.
        drop(oldest);
        file
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }

    /// Closes files that have no name any more, since their space is freed only then.
    pub(crate) fn close_removed(&self) {
        let mut removed = self.entries().clone();
        removed.retain(|entry| !entry.is_there());
        if !removed.is_empty() {
            self.entries()
                .retain(|entry| !removed.iter().any(|other| other.is_of(entry.device, entry.inode)));
        }
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
