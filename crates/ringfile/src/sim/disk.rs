//! What is on a simulated disk: the content of files and the names in folders, as programs see them, and as they are
//! after a power cut.
//!
//! Knows neither operations nor time. A file has the content that reads see, the content that is durable, and the
//! changes from the one to the other. Names have the same: those that programs see, those that are durable, and the
//! changes. Invariant: the durable content with all changes carried out is what reads see, unless a failed sync has
//! dropped changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::content::{Change, Data, PAGE, TornParts, split};
use super::fate::{Fate, Fates, Touched};
use super::faults::Faults;
use super::file_state::{FileState, Mark, Strictness};
use super::seed::Random;
use super::tree::{Inode, NameChange, Tree, with_earlier};

pub(super) const ROOT: Inode = 0;

/// After more changes than this, of a file or of names, the oldest are made durable: a real kernel too writes back by itself.
const MOST_CHANGES: usize = 8192;

#[derive(Clone)]
pub(super) enum Node {
    File(Box<FileState>),
    Folder,
    /// A symbolic link, and where it points.
    Link(Vec<u8>),
}

impl Node {
    /// Makes an empty file, which exists after so many changes of names.
    pub(super) fn new_file(names: u64) -> Self {
        Self::File(Box::new(FileState { new_metadata: vec![(0, names)], ..FileState::default() }))
    }
}

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct Contents {
    pub(super) nodes: BTreeMap<Inode, Node>,
    pub(super) next: Inode,
    /// The names that programs see.
    pub(super) live: Tree,
    pub(super) durable: Tree,
    pub(super) name_changes: Vec<NameChange>,
    /// How many changes of names there were.
    pub(super) names_changed: u64,
    /// What has neither a name nor a handle, and may come back by a power cut.
    removed: BTreeSet<Inode>,
    /// A file with many changes.
    long: Option<Inode>,
    pub(super) strictness: Strictness,
    /// Bytes that are written to no page yet; `None`: no limit.
    pub(super) room: Option<u64>,
    /// What was changed since this was taken.
    pub(super) touched: Touched,
}

impl Contents {
    pub(super) fn new() -> Self {
        Self { nodes: BTreeMap::from([(ROOT, Node::Folder)]), next: ROOT + 1, ..Self::default() }
    }

    fn file(&mut self, inode: Inode) -> Result<&mut FileState, i32> {
        match self.nodes.get_mut(&inode) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Folder) => Err(libc::EISDIR),
            Some(Node::Link(_)) => Err(libc::ELOOP),
            None => Err(libc::ESTALE),
        }
    }

    /// Returns the file with this number; `None` for a folder, or a symbolic link.
    fn file_of(&self, inode: Inode) -> Option<&FileState> {
        match self.nodes.get(&inode)? {
            Node::File(file) => Some(file),
            Node::Folder | Node::Link(_) => None,
        }
    }

    pub(super) fn is_folder(&self, inode: Inode) -> bool {
        matches!(self.nodes.get(&inode), Some(Node::Folder))
    }

    /// Returns what kind of file it is: `S_IF…`.
    pub(super) fn kind(&self, inode: Inode) -> u32 {
        match self.nodes.get(&inode) {
            Some(Node::Folder) => libc::S_IFDIR,
            Some(Node::Link(_)) => libc::S_IFLNK,
            Some(Node::File(_)) | None => libc::S_IFREG,
        }
    }

    /// Returns the kind and the permissions, as the `st_mode` of `stat(2)`.
    pub(super) fn mode(&self, inode: Inode) -> u32 {
        self.kind(inode) | self.live.modes.get(&inode).copied().unwrap_or(0o755)
    }

    pub(super) fn size(&self, inode: Inode) -> u64 {
        match self.nodes.get(&inode) {
            Some(Node::File(file)) => file.live.size,
            Some(Node::Link(to)) => to.len() as u64,
            Some(Node::Folder) | None => 0,
        }
    }

    /// Returns how many bytes of the disk a file takes.
    pub(super) fn allocated(&self, inode: Inode) -> u64 {
        self.file_of(inode).map_or(0, |file| file.live.allocated())
    }

    /// Prepares for a run: what an earlier one had open is closed.
    pub(super) fn begin(&mut self, faults: &Faults) {
        self.room = faults.room;
        for (path, range) in &faults.bad_sectors {
            // Nothing of it is broken if it is no file.
            _ = self.look_up(path, true).map(|inode| self.change(inode, Change::Break(range.clone())));
        }
        let named: BTreeSet<Inode> = self.live.names.values().copied().chain([ROOT]).collect();
        self.removed.extend(self.nodes.keys().filter(|inode| !named.contains(inode)));
        self.free_removed();
    }

    /// Forgets a file that has neither a name nor a handle any more.
    pub(super) fn forget(&mut self, inode: Inode) {
        if inode == ROOT {
            return;
        }
        let freed = self.allocated(inode);
        self.room = self.room.map(|room| room + freed);
        self.removed.insert(inode);
        if !self.may_return().any(|of| of == inode) {
            self.free_removed();
        }
    }

    /// Returns what may have a name after a power cut.
    fn may_return(&self) -> impl Iterator<Item = Inode> + '_ {
        let named = self.name_changes.iter().flat_map(NameChange::named);
        named.chain(self.durable.names.values().copied())
    }

    /// Frees what has gone, and what no power cut can bring back.
    fn free_removed(&mut self) {
        if self.removed.is_empty() {
            return;
        }
        let stay: BTreeSet<Inode> = self.may_return().filter(|inode| self.removed.contains(inode)).collect();
        for inode in self.removed.difference(&stay) {
            self.nodes.remove(inode);
            self.live.modes.remove(inode);
            self.durable.modes.remove(inode);
        }
        self.removed = stay;
    }

    // ---- Contents ----

    /// Passes the bytes on, a piece after the other. Returns how many there are: fewer at the end of the file.
    pub(super) fn read(
        &mut self,
        inode: Inode,
        offset: u64,
        len: usize,
        take: impl FnMut(&[u8]),
    ) -> Result<usize, i32> {
        let file = self.file(inode)?;
        let there = usize::try_from(file.live.size.saturating_sub(offset)).unwrap_or(usize::MAX).min(len);
        let readable = file.live.readable(offset, there);
        if readable == 0 && there > 0 {
            return Err(libc::EIO);
        }
        file.live.read(offset, readable, take);
        Ok(readable)
    }

    /// Returns what is in a range, without a drive; zeros behind the end of the file.
    pub(super) fn peek(&mut self, inode: Inode, range: Range<u64>) -> Result<Data, i32> {
        Ok(self.file(inode)?.live.data(range))
    }

    /// Returns how many of the bytes the drive can write.
    pub(super) fn writable(&self, inode: Inode, range: &Range<u64>) -> usize {
        self.file_of(inode).map_or(0, |file| file.live.writable(range))
    }

    /// Returns a page that a write may hit instead of its own: a file, the number of the page in it, and the file's size.
    pub(super) fn any_page(&self, random: &mut Random) -> Option<(Inode, u64, u64)> {
        let files = || self.nodes.keys().filter_map(|inode| Some((*inode, &self.file_of(*inode)?.live)));
        let all: usize = files().map(|(_, content)| content.pages.len()).sum();
        let chosen = if all == 0 { return None } else { random.below(all as u64) as usize };
        let mut pages = files()
            .flat_map(|(inode, content)| content.pages.keys().map(move |page| (inode, *page, content.size)));
        pages.nth(chosen)
    }

    /// Returns how many of the bytes have room on the disk.
    pub(super) fn fitting(&self, inode: Inode, offset: u64, len: usize) -> usize {
        let (Some(room), Some(file)) = (self.room, self.file_of(inode)) else { return len };
        let mut missing = 0;
        let fits = split(offset..offset + len as u64, PAGE).take_while(|(page, _)| {
            missing += if file.live.has_room_for(*page) { 0 } else { PAGE };
            missing <= room
        });
        fits.last().map_or(0, |(_, part)| (part.end - offset) as usize)
    }

    pub(super) fn change(&mut self, inode: Inode, change: Change) -> Result<(), i32> {
        let names = self.names_changed;
        let file = self.file(inode)?;
        if file.is_metadata(&change) && file.new_metadata.last().is_none_or(|(_, last)| *last < names) {
            file.new_metadata.push((file.before + file.changes.len() as u64 + 1, names));
        }
        let file = self.change_live(inode, &change)?;
        let number = file.before + file.changes.len() as u64;
        file.push(change);
        let durable = file.changes.iter().take_while(|change| change.is_durable()).count();
        file.settle(durable);
        let is_durable = file.changes.is_empty() || file.changes.back().is_some_and(Change::is_durable);
        if file.changes.len() > MOST_CHANGES {
            self.long = Some(inode);
        }
        self.touched.add_to_file(inode, number);
        let mark = self.mark(inode);
        if is_durable
            && let Some(names) = self.file(inode)?.take_new_metadata(mark)
            && self.strictness == Strictness::Journal
        {
            self.sync_names(names, |_| true);
        }
        Ok(())
    }

    /// Changes what reads see.
    fn change_live(&mut self, inode: Inode, change: &Change) -> Result<&mut FileState, i32> {
        let before = self.allocated(inode);
        self.file(inode)?.live.apply(change);
        let after = self.allocated(inode);
        self.room = self.room.map(|room| (room + before).saturating_sub(after));
        self.file(inode)
    }

    /// Writes what a durable write has written whose sync has failed: reads see it, and any part of it reaches the disk.
    pub(super) fn write_in_vain(&mut self, inode: Inode, data: Data, random: &mut Random) -> Result<(), i32> {
        for part in data.any_parts(random) {
            self.change(inode, Change::Write(part))?;
        }
        self.change_live(inode, &Change::Write(data))?.failures += 1;
        Ok(())
    }

    /// Reserves room for a range; all or nothing.
    pub(super) fn reserve(&mut self, inode: Inode, range: Range<u64>) -> Result<(), i32> {
        let missing = self.file_of(inode).map_or(0, |file| file.live.missing(&range));
        if self.room.is_some_and(|room| missing > room) {
            return Err(libc::ENOSPC);
        }
        self.change(inode, Change::Reserve(range))
    }

    /// Returns the lengths of the hole at an offset, and of the data behind it, within `most` bytes and the file.
    pub(super) fn hole_at(&self, inode: Inode, offset: u64, most: usize) -> (usize, usize) {
        self.file_of(inode).map_or((0, 0), |file| file.live.hole_at(offset, most))
    }

    /// Returns a mark: a sync that begins now covers the changes before it.
    pub(super) fn mark(&self, inode: Inode) -> Mark {
        let file = self.file_of(inode).map_or(0, |file| file.before + file.changes.len() as u64);
        Mark { file, names: self.names_changed }
    }

    /// Makes the changes before the mark durable. `data_only`: as `fdatasync`.
    pub(super) fn sync(&mut self, inode: Inode, mark: Mark, data_only: bool) {
        let is_journal = self.strictness == Strictness::Journal;
        let names = match self.nodes.get_mut(&inode) {
            Some(Node::File(file)) => {
                file.settle(file.covered(mark));
                let of_data = file.take_new_metadata(mark).unwrap_or(0);
                let of_name = if data_only { 0 } else { self.last_change_of(inode, mark) };
                match (is_journal, data_only) {
                    (true, _) => of_data.max(of_name),
                    (false, true) => 0,
                    (false, false) => mark.names,
                }
            }
            Some(Node::Folder) if is_journal => self.last_change_of(inode, mark),
            Some(Node::Folder) => mark.names,
            Some(Node::Link(_)) | None => 0,
        };
        if names > 0 {
            self.sync_names(names, |change| is_journal || change.is_of(inode));
        }
    }

    /// Returns how many changes of names there were after the last one before the mark that changed this file or folder.
    fn last_change_of(&self, inode: Inode, mark: Mark) -> u64 {
        let of_it = |change: &&NameChange| change.number < mark.names && change.inodes.contains(&inode);
        self.name_changes.iter().rev().find(of_it).map_or(0, |change| change.number + 1)
    }

    /// Makes the changes of names before a number durable that are wanted, and what they need.
    fn sync_names(&mut self, number: u64, is_wanted: impl Fn(&NameChange) -> bool) {
        let mut changes = std::mem::take(&mut self.name_changes);
        let later = changes.split_off(changes.partition_point(|change| change.number < number));
        let chosen = with_earlier(&changes, is_wanted);
        for (change, is_chosen) in changes.into_iter().zip(chosen) {
            if is_chosen {
                for inode in change.named() {
                    _ = self.file(inode).map(FileState::exists_durably);
                }
                change.apply(&mut self.durable);
            } else {
                self.name_changes.push(change);
            }
        }
        self.name_changes.extend(later);
        self.free_removed();
    }

    /// Makes the oldest changes durable where there are many; how many, the seed chooses.
    pub(super) fn write_back(&mut self, random: &mut Random) {
        let mut count = || 1 + random.below(MOST_CHANGES as u64);
        if let Some(inode) = self.long.take() {
            let mark =
                Mark { file: self.file(inode).map_or(0, |file| file.before + count()), ..self.mark(inode) };
            self.sync(inode, mark, true);
        }
        if self.name_changes.len() > MOST_CHANGES {
            let names = self.name_changes[0].number + count();
            self.sync_names(names, |_| true);
        }
    }

    /// Fails a sync as Linux does: any part of the changes before the mark never reaches the disk.
    pub(super) fn lose(&mut self, inode: Inode, mark: Mark, random: &mut Random) {
        if let Ok(file) = self.file(inode) {
            let lost = file.lose(file.covered(mark));
            let mut parts = TornParts::new(&mut file.durable, random);
            for change in &lost {
                match change {
                    // Sizes are metadata, which the journal has.
                    Change::Size(size) => parts.content.resize(*size),
                    Change::Write(data) if !data.is_durable => {
                        parts.put(data, data.range().end, 0.5, |_| false);
                    }
                    Change::Write(_) | Change::Zero(_) | Change::Reserve(_) | Change::Break(_) => {
                        parts.content.apply(change)
                    }
                }
            }
        }
    }

    /// Returns what has become of changes; `None` if there are none. `cut`: what a power cut has made of those that were not
    /// durable.
    pub(super) fn fate(&self, touched: &Touched, cut: Option<&Fates>) -> Option<Fate> {
        let names = touched.names.clone().map(|number| {
            match self.name_changes.binary_search_by_key(&number, |change| change.number) {
                Ok(at) => cut.map_or(Fate::Volatile, |cut| cut.names[at]),
                Err(_) => Fate::Durable,
            }
        });
        let in_files = touched.file.iter().flat_map(|(inode, numbers)| {
            numbers.clone().map(|number| self.fate_in_file(*inode, number, cut))
        });
        names.chain(in_files).reduce(Fate::and)
    }

    fn fate_in_file(&self, inode: Inode, number: u64, cut: Option<&Fates>) -> Fate {
        let Some(file) = self.file_of(inode) else { return Fate::Removed };
        match cut.map(|cut| cut.files.get(&inode)) {
            Some(None) if self.links(inode) > 0 => Fate::Nameless,
            Some(None) => Fate::Removed,
            Some(Some(fates)) => file.fate(number, Some(fates)),
            None => file.fate(number, None),
        }
    }

    /// Returns how many syncs of the file have failed.
    pub(super) fn failures(&self, inode: Inode) -> u64 {
        self.file_of(inode).map_or(0, |file| file.failures)
    }

    // ---- Power cuts ----

    /// Returns what is on the disk after a power cut now: what is durable, and any part of the rest. Says what has become of
    /// the rest.
    pub(super) fn cut(&self, random: &mut Random) -> (Self, Fates) {
        let (tree, names) = self.tree_after_cut(random);
        let mut fates = Fates { names, ..Fates::default() };
        let mut after = Self { room: self.room, strictness: self.strictness, next: self.next, ..Self::new() };
        // Folders and files that no name leads to are gone.
        let mut reached = BTreeSet::from([ROOT]);
        let mut folders = vec![ROOT];
        while let Some(folder) = folders.pop() {
            for (name, inode) in tree.in_folder(folder) {
                after.live.names.insert((folder, name.clone()), *inode);
                if reached.insert(*inode) && self.is_folder(*inode) {
                    folders.push(*inode);
                }
            }
        }
        for inode in reached {
            let node = match self.nodes.get(&inode) {
                Some(Node::File(file)) => {
                    let (file, changes) = file.after_cut(random, self.strictness);
                    fates.files.insert(inode, changes);
                    Node::File(Box::new(file))
                }
                Some(Node::Link(to)) => Node::Link(to.clone()),
                Some(Node::Folder) | None => Node::Folder,
            };
            after.nodes.insert(inode, node);
            after.live.modes.extend(tree.modes.get(&inode).map(|mode| (inode, *mode)));
        }
        after.durable.clone_from(&after.live);
        (after, fates)
    }

    fn tree_after_cut(&self, random: &mut Random) -> (Tree, Vec<Fate>) {
        let mut tree = self.durable.clone();
        let kept: Vec<bool> = match self.strictness {
            Strictness::Journal => {
                let kept = random.below(self.name_changes.len() as u64 + 1) as usize;
                (0..self.name_changes.len()).map(|at| at < kept).collect()
            }
            Strictness::Posix => with_earlier(&self.name_changes, |_| random.happens(0.5)),
        };
        for (change, is_kept) in self.name_changes.iter().zip(&kept) {
            if *is_kept {
                change.apply(&mut tree);
            }
        }
        (tree, kept.into_iter().map(|is_kept| if is_kept { Fate::Kept } else { Fate::Lost }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Contents {
        fn after_cut(&self, random: &mut Random) -> Self {
            self.cut(random).0
        }
    }

    fn bytes(contents: &mut Contents, path: &[u8]) -> Option<Vec<u8>> {
        let inode = contents.look_up(path, true).ok()?;
        let mut bytes = vec![0; contents.size(inode) as usize];
        read(contents, inode, 0, &mut bytes);
        Some(bytes)
    }

    fn write(contents: &mut Contents, inode: Inode, offset: u64, bytes: &[u8]) {
        contents.change(inode, Change::Write(Data::of(offset, bytes))).unwrap();
    }

    fn read(contents: &mut Contents, inode: Inode, offset: u64, mut to: &mut [u8]) {
        let taken = contents.read(inode, offset, to.len(), |bytes| {
            let (here, after) = std::mem::take(&mut to).split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            to = after;
        });
        taken.unwrap();
    }

    #[test]
    fn what_was_synced_survives_each_cut_and_the_rest_in_any_part() {
        let mut contents = Contents::new();
        let inode = contents.open(b"/log", libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
        write(&mut contents, inode, 0, &[1; 1000]);
        contents.sync(inode, contents.mark(inode), true);
        write(&mut contents, inode, 512, &[2; 1000]);
        let mut ends = BTreeSet::new();
        for seed in 0..500 {
            let mut after = contents.after_cut(&mut Random::new(seed));
            let found = bytes(&mut after, b"log").expect("it was created before the sync");
            assert_eq!(&found[..512], [1; 512]);
            assert!(found[512..1000].iter().all(|byte| *byte == found[512]), "a sector is whole");
            let rest = found.get(1024..).unwrap_or_default();
            assert!(rest.iter().all(|byte| *byte == *rest.first().unwrap()), "a sector is whole");
            ends.insert((found.len(), found[512], rest.first().copied()));
        }
        let (none, zeros, all) = (None, Some(0), Some(2));
        let possible = [
            (1000, 1, none),
            (1024, 2, none),
            (1512, 1, zeros),
            (1512, 1, all),
            (1512, 2, zeros),
            (1512, 2, all),
        ];
        assert_eq!(Vec::from_iter(ends), possible);
    }

    #[test]
    fn a_rename_is_lost_only_before_a_sync_and_never_half() {
        for strictness in [Strictness::Journal, Strictness::Posix] {
            let mut contents = Contents { strictness, ..Contents::new() };
            let old = contents.open(b"/a", libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
            contents.sync(old, contents.mark(old), false);
            contents.sync(ROOT, contents.mark(ROOT), false);
            contents.rename(b"/a", b"/b", 0).unwrap();
            let found: BTreeSet<(bool, bool)> = (0..100)
                .map(|seed| contents.after_cut(&mut Random::new(seed)))
                .map(|after| (after.look_up(b"/a", true).is_ok(), after.look_up(b"/b", true).is_ok()))
                .collect();
            assert_eq!(Vec::from_iter(found), [(false, true), (true, false)]);
            contents.sync(ROOT, contents.mark(ROOT), false);
            let after = contents.after_cut(&mut Random::new(1));
            assert!(after.look_up(b"/a", true).is_err() && after.look_up(b"/b", true).is_ok());
        }
    }

    #[test]
    fn a_failed_sync_loses_what_the_next_one_does_not_mention() {
        let found: BTreeSet<_> = (0..20)
            .map(|seed| {
                let mut contents = Contents::new();
                let inode = contents.open(b"x", libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
                contents.sync(inode, contents.mark(inode), false);
                write(&mut contents, inode, 0, &[1; 512]);
                contents.lose(inode, contents.mark(inode), &mut Random::new(seed));
                contents.sync(inode, contents.mark(inode), false);
                assert_eq!(bytes(&mut contents, b"x").unwrap(), [1; 512], "reads still see it");
                bytes(&mut contents.after_cut(&mut Random::new(3)), b"x").unwrap()
            })
            .collect();
        assert_eq!(Vec::from_iter(found), [vec![], vec![0; 512], vec![1; 512]]);
    }

    #[test]
    fn what_replaces_a_file_cut_to_nothing_is_never_mixed_with_it() {
        let mut contents = Contents::new();
        let inode = contents.open(b"x", libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
        write(&mut contents, inode, 0, &[1; 5000]);
        contents.sync(inode, contents.mark(inode), false);
        contents.change(inode, Change::Size(0)).unwrap();
        write(&mut contents, inode, 0, &[2; 1000]);
        for seed in 0..200 {
            let found = bytes(&mut contents.after_cut(&mut Random::new(seed)), b"x").unwrap();
            assert!(found == [1; 5000] || !found.contains(&1), "{}", found.len());
        }
    }

    #[test]
    fn a_sync_covers_the_names_and_sizes_of_before_it_began() {
        for strictness in [Strictness::Journal, Strictness::Posix] {
            let mut contents = Contents { strictness, ..Contents::new() };
            let inode = contents.open(b"a", libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
            let (of_folder, of_file) = (contents.mark(ROOT), contents.mark(inode));
            contents.rename(b"a", b"b", 0).unwrap();
            write(&mut contents, inode, 0, b"later");
            contents.sync(ROOT, of_folder, false);
            contents.sync(inode, of_file, true);
            let found: BTreeSet<_> = (0..100)
                .map(|seed| contents.after_cut(&mut Random::new(seed)))
                .map(|mut after| (bytes(&mut after, b"a"), bytes(&mut after, b"b")))
                .map(|(a, b)| (a.is_some(), b.is_some(), a.or(b).unwrap()))
                .collect();
            assert!(found.iter().all(|(a, b, _)| a != b));
            let kinds =
                [(true, vec![]), (true, b"later".to_vec()), (false, vec![]), (false, b"later".to_vec())];
            for (is_a, content) in kinds {
                assert!(found.contains(&(is_a, !is_a, content)), "{strictness:?}: {found:?}");
            }
            // Its size is new still, so this one writes the journal.
            contents.sync(inode, contents.mark(inode), true);
            let names = |seed| contents.after_cut(&mut Random::new(seed)).look_up(b"b", true).is_ok();
            assert_eq!((0..100).all(names), strictness == Strictness::Journal);
        }
    }

    #[test]
    fn a_removed_file_is_freed_once_no_power_cut_can_bring_it_back() {
        for strictness in [Strictness::Journal, Strictness::Posix] {
            let mut contents = Contents { strictness, ..Contents::new() };
            for _ in 0..100 {
                let inode = contents.open(b"x", libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
                write(&mut contents, inode, 0, &[1; 5000]);
                contents.sync(inode, contents.mark(inode), false);
                contents.sync(ROOT, contents.mark(ROOT), false);
                contents.remove(b"x", false).unwrap();
                contents.forget(inode);
                let found =
                    (0..100).filter_map(|seed| bytes(&mut contents.after_cut(&mut Random::new(seed)), b"x"));
                assert!(found.into_iter().all(|found| found == [1; 5000]));
                contents.sync(ROOT, contents.mark(ROOT), false);
                assert_eq!((contents.nodes.len(), contents.durable.modes.len()), (1, 0));
            }
        }
    }

    #[test]
    fn what_is_never_synced_is_written_back_when_there_is_much_of_it() {
        for strictness in [Strictness::Journal, Strictness::Posix] {
            let mut durable = BTreeSet::new();
            for seed in 0..3 {
                let mut random = Random::new(seed);
                let mut contents = Contents { strictness, ..Contents::new() };
                let log = contents.open(b"log", libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
                for number in 0..MOST_CHANGES as u64 + 1 {
                    write(&mut contents, log, number, &[1]);
                    contents.link(b"log", b"x").unwrap();
                    contents.remove(b"x", false).unwrap();
                    contents.write_back(&mut random);
                    assert!(contents.name_changes.len() <= MOST_CHANGES);
                }
                let Some(Node::File(file)) = contents.nodes.get(&log) else { unreachable!() };
                assert!(file.changes.len() <= MOST_CHANGES);
                durable.insert(file.durable.size);
                let after = contents.after_cut(&mut random);
                assert!(after.look_up(b"log", true).is_ok(), "its name is the oldest change");
            }
            assert_eq!(durable.len(), 3, "the seed chooses: {durable:?}");
        }
    }

    #[test]
    fn a_file_that_only_an_earlier_run_had_open_is_freed_when_the_next_begins() {
        let mut contents = Contents::new();
        let inode = contents.open(b"x", libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
        contents.remove(b"x", false).unwrap();
        contents.begin(&Faults::none());
        assert!(contents.nodes.contains_key(&inode), "a power cut may bring it back");
        contents.sync(ROOT, contents.mark(ROOT), false);
        contents.begin(&Faults::none());
        assert!(!contents.nodes.contains_key(&inode));
    }

    #[test]
    fn a_sync_writes_the_journal_only_up_to_the_last_change_of_its_own() {
        let mut contents = Contents::new();
        let (file, folder) = (
            contents.open(b"a", libc::O_CREAT | libc::O_RDWR, 0o644).unwrap(),
            contents.create_dir(b"d", 0o755).and_then(|()| contents.look_up(b"d", false)).unwrap(),
        );
        let other = contents.open(b"x", libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
        contents.sync(ROOT, contents.mark(ROOT), false);
        contents.rename(b"x", b"y", 0).unwrap();
        let is_lost = |contents: &Contents| {
            (0..100).any(|seed| contents.after_cut(&mut Random::new(seed)).look_up(b"x", true).is_ok())
        };
        write(&mut contents, file, 0, &[1; 512]);
        contents.sync(file, contents.mark(file), true);
        assert!(!is_lost(&contents), "its size has changed later");
        contents.rename(b"y", b"x", 0).unwrap();
        contents.rename(b"x", b"z", 0).unwrap();
        // Nothing of these is new.
        contents.sync(file, contents.mark(file), false);
        contents.sync(folder, contents.mark(folder), false);
        // Nor is what of this one a sync of data needs.
        contents.sync(other, contents.mark(other), true);
        assert!(is_lost(&contents));
        contents.sync(other, contents.mark(other), false);
        assert!(!is_lost(&contents));
    }

    /// Returns what is found of a file with a page of ones, and two of its sectors in the next one, after a change.
    fn after(change: Change) -> BTreeSet<(usize, Vec<u8>)> {
        let mut contents = Contents::new();
        let inode = contents.open(b"x", libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
        write(&mut contents, inode, 0, &[1; 5 * 1024]);
        contents.sync(inode, contents.mark(inode), false);
        contents.change(inode, change).unwrap();
        let found = (0..2000).map(|seed| {
            let bytes = bytes(&mut contents.after_cut(&mut Random::new(seed)), b"x").unwrap();
            let ends = [3000, 3072, 3583, 3584, 4095, 4096].map(|at| bytes.get(at).copied().unwrap_or(9));
            (bytes.len(), ends.to_vec())
        });
        found.collect()
    }

    #[test]
    fn a_new_size_that_is_lost_may_have_zeroed_the_rest_of_its_page() {
        let sectors = [[0, 0], [0, 1], [1, 0], [1, 1]];
        let possible = sectors.map(|[one, other]| (5120, vec![1, one, one, other, other, 1]));
        let cut = (3072, vec![1, 9, 9, 9, 9, 9]);
        assert_eq!(after(Change::Size(3072)), BTreeSet::from_iter(possible.into_iter().chain([cut])));
    }

    #[test]
    fn a_range_is_zeroed_in_any_part() {
        let sectors = [[0, 0], [0, 1], [1, 0], [1, 1]];
        let possible = sectors.map(|[one, other]| (5120, vec![1, one, one, other, other, 1]));
        assert_eq!(after(Change::Zero(3072..4096)), BTreeSet::from(possible));
    }

    #[test]
    fn a_file_that_grows_behind_its_last_page_may_have_that_page_alone() {
        let sizes = |change: Change| after(change).into_iter().map(|(size, _)| size).collect::<BTreeSet<_>>();
        assert_eq!(sizes(Change::Size(10_000)), BTreeSet::from([5120, 8192, 10_000]));
        assert_eq!(sizes(Change::Write(Data::of(8192, &[1; 512]))), BTreeSet::from([5120, 8192, 8704]));
        assert_eq!(sizes(Change::Write(Data::of(8000, &[1; 8]))), BTreeSet::from([5120, 8008]));
    }

    #[test]
    fn terabytes_of_holes_take_no_memory() {
        let mut contents = Contents::new();
        let inode = contents.open(b"x", libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
        contents.change(inode, Change::Size(1 << 42)).unwrap();
        write(&mut contents, inode, 1 << 41, b"far");
        let mut found = [9; 5];
        read(&mut contents, inode, (1 << 41) - 1, &mut found);
        assert_eq!((&found, contents.allocated(inode)), (b"\0far\0", 4096));
        contents.change(inode, Change::Zero(0..1 << 42)).unwrap();
        assert_eq!(contents.allocated(inode), 0);
    }
}
