//! What a simulated file has: what reads see, what is durable, and the changes from the one to the other.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::content::{Change, FileContent, PAGE, TornParts};
use super::fate::Fate;
use super::seed::Random;

#[derive(Clone, Default)]
pub(super) struct FileState {
    pub(super) live: FileContent,
    pub(super) durable: FileContent,
    pub(super) changes: VecDeque<Change>,
    /// How many changes were ever taken off the front of the list, so that a sync can name one.
    pub(super) before: u64,
    /// Changes of its size, or 0 for its existence, that are not known to be durable: a mark, and how many changes of names
    /// there were then. Of those with the same number, the first.
    pub(super) new_metadata: Vec<(u64, u64)>,
    /// How many syncs have failed: each open file reports each once.
    pub(super) failures: u64,
    /// The numbers of the changes of which they have lost any part.
    pub(super) unsynced: Vec<Range<u64>>,
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
    /// As ext4 and XFS: names, permissions, and sizes that a program sets change in their order. A sync of a folder, and
    /// [`sync_all`](crate::File::sync_all) of a file, makes all changes of names and permissions durable up to the last one in
    /// that folder or of that file. Each sync of a file that is new or has a new size makes those durable that came before
    /// that.
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
            Change::Zero(_) | Change::Reserve(_) | Change::Break(_) => false,
        }
    }

    /// Takes the metadata before a mark to be durable. Returns how many changes of names there were when it last changed;
    /// `None` if there was no metadata that was not durable.
    pub(super) fn take_new_metadata(&mut self, mark: Mark) -> Option<u64> {
        let covered = self.new_metadata.partition_point(|(number, _)| *number <= mark.file);
        self.new_metadata.drain(..covered).next_back().map(|(_, names)| names)
    }

    /// Notes that the journal has its existence: a sync of its data writes the journal only for a new size.
    pub(super) fn exists_durably(&mut self) {
        self.new_metadata.retain(|(mark, _)| *mark > 0);
    }

    /// Notes a change that reads see by now. After a failed sync, what reads see of its sectors may not be on the disk: the
    /// kernel writes whole sectors from its pages.
    pub(super) fn push(&mut self, change: Change) {
        self.changes.push_back(match change {
            Change::Write(data) if self.failures > 0 => Change::Write(self.live.whole_sectors(data)),
            change => change,
        });
    }

    /// Takes the oldest changes off the list: a sync of them has failed.
    pub(super) fn lose(&mut self, count: usize) -> Vec<Change> {
        let before = self.before;
        self.before += count as u64;
        self.failures += 1;
        self.unsynced.push(before..self.before);
        self.changes.drain(..count).collect()
    }

    /// Returns what has become of a change. `cut`: what a power cut has made of those that are not known to be durable.
    pub(super) fn fate(&self, number: u64, cut: Option<&[Fate]>) -> Fate {
        let Some(at) = number.checked_sub(self.before) else {
            let is_unsynced = self.unsynced.iter().any(|numbers| numbers.contains(&number));
            return if is_unsynced { Fate::Unsynced } else { Fate::Durable };
        };
        match (cut, self.changes.get(at as usize)) {
            (Some(fates), _) => fates.get(at as usize).copied().unwrap_or(Fate::Lost),
            (None, Some(change)) if change.is_durable() => Fate::Durable,
            (None, _) => Fate::Volatile,
        }
    }

    /// Makes the oldest changes durable.
    pub(super) fn settle(&mut self, count: usize) {
        self.changes.drain(..count).for_each(|change| self.durable.apply(&change));
        self.before += count as u64;
    }

    /// Returns what is left after a power cut, and what has become of each change.
    pub(super) fn after_cut(&self, random: &mut Random, how: Strictness) -> (Self, Vec<Fate>) {
        let mut fates = Vec::with_capacity(self.changes.len());
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
        // The size that reads saw.
        let mut size = content.size;
        let mut parts = TornParts::new(&mut content, random);
        for (at, change) in self.changes.iter().enumerate() {
            // Which part of the change is kept: nothing of all, all of all, the early ones, or of each any part.
            let part = match way {
                0 => 0.0,
                1 => 1.0,
                2 => [1.0, 0.5, 0.0][usize::from(at >= early) + usize::from(at > early)],
                _ => [0.0, 0.5, 1.0][parts.random.below(3) as usize],
            };
            let end_of_page = size.next_multiple_of(PAGE);
            let (grows_from, grown) = match change {
                Change::Write(data) => (data.range().start, size.max(data.range().end)),
                Change::Size(new) => (*new, *new),
                Change::Zero(_) | Change::Reserve(_) | Change::Break(_) => (0, size),
            };
            // What is behind the old end in its page is zeroed before. On XFS that page has its size when it is written.
            if size < end_of_page && end_of_page <= grows_from && parts.random.happens(part) {
                parts.content.size = parts.content.size.max(end_of_page.min(limit));
            }
            size = grown;
            fates.push(match change {
                Change::Break(_) => {
                    parts.content.apply(change);
                    Fate::Durable
                }
                Change::Write(data) if data.is_durable => {
                    parts.content.apply(change);
                    Fate::Durable
                }
                Change::Write(data) => parts
                    .put(data, limit, part, |sector| flushed.get(&sector).is_some_and(|flush| at < *flush)),
                _ if at < sizes => {
                    parts.content.apply(change);
                    Fate::Durable
                }
                Change::Zero(range) => parts.zero(range.start..range.end.min(limit), part),
                Change::Size(_) | Change::Reserve(_) if limit == u64::MAX && parts.random.happens(part) => {
                    parts.content.apply(change);
                    Fate::Kept
                }
                Change::Size(size) => {
                    // The rest of the page is zeroed in the page cache, and reaches the disk as data.
                    let end = size.next_multiple_of(PAGE).min(parts.content.size).min(limit);
                    parts.zero(*size..end, part);
                    if how == Strictness::Journal {
                        limit = limit.min(*size);
                    }
                    Fate::Lost
                }
                Change::Reserve(_) => Fate::Lost,
            });
        }
        (Self { live: content.clone(), durable: content, ..Self::default() }, fates)
    }
}
