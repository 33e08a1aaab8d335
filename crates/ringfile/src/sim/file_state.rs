//! What a simulated file has: what reads see, what is durable, and the changes from the one to the other.

use std::collections::{BTreeMap, VecDeque};

use super::content::{Change, Content, Parts};
use super::seed::Random;

#[derive(Clone, Default)]
pub(super) struct FileState {
    pub(super) live: Content,
    pub(super) durable: Content,
    pub(super) changes: VecDeque<Change>,
    /// How many changes were ever taken off the front of the list, so that a sync can name one.
    pub(super) before: u64,
    /// The marks of the first and the last change of its size or its existence that is not known to be durable.
    pub(super) new_metadata: Option<(u64, u64)>,
    /// How many syncs have failed: each open file reports each once.
    pub(super) failures: u64,
}

/// What a sync covers: the changes before it began.
#[derive(Clone, Copy, Default)]
pub(super) struct Mark {
    pub(super) file: u64,
    pub(super) names: u64,
}

/// How much a file system promises beyond POSIX.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Strictness {
    /// As ext4 and XFS: names and permissions change in their order, and a sync of a folder, of a file that is new or has a
    /// new size, and each [`sync_all`](crate::File::sync_all) makes all earlier changes of them durable. Sizes that a
    /// program sets change in their order.
    #[default]
    Journal,
    /// As POSIX allows: a name is durable only when its folder was synced, permissions only after a
    /// [`sync_all`](crate::File::sync_all) of the file, and names, permissions and sizes change in any order.
    Posix,
}

impl FileState {
    /// Returns how many changes are before a mark.
    pub(super) fn covered(&self, mark: Mark) -> usize {
        mark.file.saturating_sub(self.before).min(self.changes.len() as u64) as usize
    }

    pub(super) fn is_metadata(&self, change: &Change) -> bool {
        match change {
            Change::Write(data) => data.range().end > self.live.size,
            Change::Size(_) => true,
            Change::Zero(_) | Change::Reserve(_) => false,
        }
    }

    /// Takes the metadata before a mark to be durable. Returns whether there was some that was not.
    pub(super) fn take_new_metadata(&mut self, mark: Mark) -> bool {
        let Some((first, last)) = self.new_metadata else { return false };
        if last <= mark.file {
            self.new_metadata = None;
        } else if first <= mark.file {
            self.new_metadata = Some((mark.file + 1, last));
        }
        first <= mark.file
    }

    /// Notes that the journal has its existence: a sync of its data writes the journal only for a new size.
    pub(super) fn exists_durably(&mut self) {
        if let Some((0, last)) = self.new_metadata {
            self.new_metadata = (last > 0).then_some((1, last));
        }
    }

    /// Makes the oldest changes durable.
    pub(super) fn settle(&mut self, count: usize) {
        self.changes.drain(..count).for_each(|change| self.durable.apply(&change));
        self.before += count as u64;
    }

    pub(super) fn after_cut(&self, random: &mut Random, how: Strictness) -> Self {
        let mut content = self.durable.clone();
        let way = random.below(4);
        let early = random.below(self.changes.len() as u64 + 1) as usize;
        // A durable write makes the sizes that were set before it durable too.
        let sizes = self.changes.iter().rposition(Change::is_durable).unwrap_or(0);
        // Where later writes have lost their space, because a size that was set before them is lost.
        let mut limit = u64::MAX;
        // A durable write takes with it what the page cache has of its sectors.
        let mut flushed = BTreeMap::new();
        for (at, change) in self.changes.iter().enumerate() {
            if let Change::Write(data) = change
                && data.is_durable
            {
                flushed.extend(data.partial_sectors().map(|sector| (sector, at)));
            }
        }
        let mut parts = Parts::new(&mut content, random);
        for (at, change) in self.changes.iter().enumerate() {
            // Which part of the change is kept: nothing of all, all of all, the early ones, or of each any part.
            let part = match way {
                0 => 0.0,
                1 => 1.0,
                2 => [1.0, 0.5, 0.0][usize::from(at >= early) + usize::from(at > early)],
                _ => [0.0, 0.5, 1.0][parts.random.below(3) as usize],
            };
            match change {
                Change::Write(data) if data.is_durable => parts.content.apply(change),
                Change::Write(data) => parts
                    .put(data, limit, part, |sector| flushed.get(&sector).is_some_and(|flush| at < *flush)),
                _ if at < sizes || limit == u64::MAX && parts.random.happens(part) => {
                    parts.content.apply(change);
                }
                Change::Size(size) if how == Strictness::Journal => limit = limit.min(*size),
                Change::Size(_) | Change::Zero(_) | Change::Reserve(_) => {}
            }
        }
        Self { live: content.clone(), durable: content, ..Self::default() }
    }
}
