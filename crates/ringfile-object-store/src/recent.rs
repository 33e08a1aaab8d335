//! The adaptive files that were read last, which stay open.
//!
//! An adaptive file counts repeated reads to decide what to cache; if each call opened it anew, it would never learn
//! that. Invariants: a file is found by device and inode, which no other has while it is open, on file
//! systems that are known to guarantee that; and nothing that may wait happens under the lock.

use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

use ringfile::File;
use ringfile::fs::Metadata;
use ringfile::internal::{Timer, now, wake_at};

/// The number of files that stay open, each with two descriptors.
const MOST: usize = 64;
/// How soon after a read to check for files that others have removed. Each check without a read since the last one doubles
/// that, up to [`LONGEST`].
const PERIOD: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(64);

/// See the module.
pub(crate) struct Recent {
    state: Mutex<RecentState>,
    own: Weak<Self>,
}

#[derive(Default)]
struct RecentState {
    /// In order of use, the most recently read one last.
    entries: Vec<OpenFile>,
    /// The next check, and how long before it was set.
    check: Option<(Timer, Duration)>,
}

#[derive(Clone)]
struct OpenFile {
    device: u64,
    inode: u64,
    file: File,
}

impl OpenFile {
    fn is_of(&self, device: u64, inode: u64) -> bool {
        (self.device, self.inode) == (device, inode)
    }

    fn is_there(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
    }
}

impl Recent {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new_cyclic(|own| Self { state: Mutex::default(), own: Weak::clone(own) })
    }

    /// Returns the file with these metadata, if it is open.
    pub(crate) fn find(&self, metadata: &Metadata) -> Option<File> {
        let mut inner = self.inner();
        let at = inner.entries.iter().rposition(|entry| entry.is_of(metadata.device, metadata.inode))?;
        self.check_soon(&mut inner);
        let entries = &mut inner.entries;
        entries[at..].rotate_left(1);
        entries.last().map(|entry| entry.file.clone())
    }

    /// Keeps a file, in place of the least recently read one. Returns the one to use: if two calls opened the same
    /// file, the other call's.
    pub(crate) fn keep(&self, metadata: &Metadata, file: File) -> File {
        let mut inner = self.inner();
        self.check_soon(&mut inner);
        let entries = &mut inner.entries;
        if let Some(other) = entries.iter().find(|entry| entry.is_of(metadata.device, metadata.inode)) {
            let other = other.file.clone();
            drop(inner);
            return other;
        }
        let oldest = (entries.len() >= MOST).then(|| entries.remove(0));
        entries.push(OpenFile { device: metadata.device, inode: metadata.inode, file: file.clone() });
        drop(inner);
        // Dropping it closes the file, which takes long only if the file was removed since the last check.
        drop(oldest);
        file
    }

    fn check_soon(&self, state: &mut RecentState) {
        if state.check.as_ref().is_none_or(|(_, after)| *after > PERIOD) {
            self.check_after(PERIOD, state);
        }
    }

    fn check_after(&self, after: Duration, state: &mut RecentState) {
        let check = Waker::from(Arc::new(Check(Weak::clone(&self.own))));
        state.check = wake_at(now() + after, check).map(|timer| (timer, after));
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

    fn inner(&self) -> MutexGuard<'_, RecentState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Woken, on a thread of the library, to check for removed files.
struct Check(Weak<Recent>);

impl Wake for Check {
    fn wake(self: Arc<Self>) {
        let Some(recent) = self.0.upgrade() else { return };
        recent.close_removed();
        let mut state = recent.inner();
        let after = state.check.take().map_or(PERIOD, |(_, after)| LONGEST.min(after * 2));
        if !state.entries.is_empty() {
            recent.check_after(after, &mut state);
        }
    }
}
