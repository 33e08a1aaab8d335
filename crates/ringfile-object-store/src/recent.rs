//! The adaptive files that were read last, which stay open.
//!
//! An adaptive file counts what is read again and again, to have it cached; opened anew by each call, none would ever know.
//! What always holds: a file is found by device and inode, which no other has while it is open; and nothing that may wait
//! happens under the lock.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringfile::File;

/// So many stay open, each with two descriptors.
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
        // The last is that which was used last.
        entries[at..].rotate_left(1);
        entries.last().map(|entry| entry.file.clone())
    }

    /// Keeps a file, instead of the one that was not read for the longest time. Returns the one to use: where two calls opened
    /// the same, the other's.
    pub(crate) fn keep(&self, metadata: &Metadata, file: File) -> File {
        if let Some(other) = self.find(metadata) {
            return other;
        }
        self.close_removed();
        let mut entries = self.entries();
        let oldest = (entries.len() >= MOST).then(|| entries.remove(0));
        entries.push(Entry { device: metadata.dev(), inode: metadata.ino(), file: file.clone() });
        drop(entries);
        // Closes it.
        drop(oldest);
        file
    }

    /// Closes the files that have no name any more: their space is given back only then.
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
