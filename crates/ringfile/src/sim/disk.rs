//! What is on a simulated disk: the content of files and the names in folders, as programs see them, and as they are
//! after a power cut.
//!
//! Knows neither operations nor time. A file has the content that reads see, the content that is durable, and the
//! changes from the one to the other. Names have the same: those that programs see, those that are durable, and the
//! changes. Invariant: the durable content with all changes carried out is what reads see, unless a failed sync has
//! dropped changes.

use std::collections::{BTreeMap, BTreeSet};

use super::content::{Change, PAGE, Parts, pieces};
use super::file_state::{FileState, Mark, Strictness};
use super::names::{NameChange, Names, Numbered, with_earlier};
use super::seed::Random;

/// The number of a file or a folder.
pub(super) type Inode = u64;
pub(super) const ROOT: Inode = 0;

/// A file keeps at most this many changes: a real kernel too writes old ones to the disk by itself.
const MOST_CHANGES: usize = 8192;

#[derive(Clone)]
enum Node {
    File(FileState),
    Folder,
}

/// Returns whether a path is that of a folder by its form.
pub(super) fn names_folder(path: &[u8]) -> bool {
    path.ends_with(b"/") || path.ends_with(b"/.")
}

/// See the module.
#[derive(Clone)]
pub(super) struct Contents {
    nodes: BTreeMap<Inode, Node>,
    next: Inode,
    names: Names,
    durable_names: Names,
    name_changes: Vec<Numbered>,
    /// How many changes of names there were.
    names_changed: u64,
    pub(super) strictness: Strictness,
    /// Bytes that are written to no page yet; `None`: no limit.
    pub(super) room: Option<u64>,
}

impl Contents {
    pub(super) fn new() -> Self {
        Self {
            nodes: BTreeMap::from([(ROOT, Node::Folder)]),
            next: ROOT + 1,
            names: Names::new(),
            durable_names: Names::new(),
            name_changes: Vec::new(),
            names_changed: 0,
            strictness: Strictness::default(),
            room: None,
        }
    }

    fn file(&mut self, inode: Inode) -> Result<&mut FileState, i32> {
        match self.nodes.get_mut(&inode) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Folder) => Err(libc::EISDIR),
            None => Err(libc::ESTALE),
        }
    }

    pub(super) fn is_folder(&self, inode: Inode) -> bool {
        matches!(self.nodes.get(&inode), Some(Node::Folder))
    }

    pub(super) fn size(&self, inode: Inode) -> u64 {
        match self.nodes.get(&inode) {
            Some(Node::File(file)) => file.live.size,
            _ => 0,
        }
    }

    /// Returns how many bytes have pages.
    pub(super) fn allocated(&self, inode: Inode) -> u64 {
        match self.nodes.get(&inode) {
            Some(Node::File(file)) => file.live.pages.len() as u64 * PAGE,
            _ => 0,
        }
    }

    pub(super) fn links(&self, inode: Inode) -> usize {
        self.names.values().filter(|of| **of == inode).count()
    }

    /// Forgets the content of a file that nothing reaches any more. A power cut may still bring its name back.
    pub(super) fn forget(&mut self, inode: Inode) {
        let changes_name = |of: &Numbered| matches!(of.change, NameChange::Add(_, of) if of == inode);
        let may_return =
            self.durable_names.values().any(|of| *of == inode) || self.name_changes.iter().any(changes_name);
        if let Some(room) = self.room {
            self.room = Some(room + self.allocated(inode));
        }
        if !may_return && inode != ROOT {
            self.nodes.remove(&inode);
        }
    }

    // ---- Names ----

    /// Returns the folder that a path's last component is in, and that component; the root's is empty.
    pub(super) fn parent(&self, path: &[u8]) -> Result<(Inode, Vec<u8>), i32> {
        if path.is_empty() {
            return Err(libc::ENOENT);
        }
        let mut folders = vec![ROOT];
        let mut parts =
            path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").peekable();
        let mut last = Vec::new();
        while let Some(part) = parts.next() {
            let folder = folders.last().copied().unwrap_or(ROOT);
            if part == b".." {
                folders.truncate((folders.len() - 1).max(1));
                last.clear();
            } else if parts.peek().is_none() {
                last = part.to_vec();
            } else {
                match self.names.get(&(folder, part.to_vec())) {
                    Some(inode) if self.is_folder(*inode) => folders.push(*inode),
                    Some(_) => return Err(libc::ENOTDIR),
                    None => return Err(libc::ENOENT),
                }
            }
        }
        Ok((folders.last().copied().unwrap_or(ROOT), last))
    }

    pub(super) fn look_up(&self, path: &[u8]) -> Result<Inode, i32> {
        let (folder, name) = self.parent(path)?;
        match self.names.get(&(folder, name.clone())) {
            Some(inode) if !self.is_folder(*inode) && names_folder(path) => Err(libc::ENOTDIR),
            Some(inode) => Ok(*inode),
            None if name.is_empty() => Ok(folder),
            None => Err(libc::ENOENT),
        }
    }

    fn change_names(&mut self, change: NameChange) {
        let change = Numbered::new(self.names_changed, change, &self.names);
        change.change.apply(&mut self.names);
        self.name_changes.push(change);
        self.names_changed += 1;
    }

    /// Makes a file or a folder.
    pub(super) fn create(&mut self, path: &[u8], is_folder: bool) -> Result<Inode, i32> {
        let (folder, name) = self.parent(path)?;
        if name.is_empty() || self.names.contains_key(&(folder, name.clone())) {
            return Err(libc::EEXIST);
        }
        let inode = self.next;
        self.next += 1;
        let file = FileState { new_metadata: vec![(0, self.names_changed + 1)], ..FileState::default() };
        self.nodes.insert(inode, if is_folder { Node::Folder } else { Node::File(file) });
        self.change_names(NameChange::Add((folder, name), inode));
        Ok(inode)
    }

    pub(super) fn remove(&mut self, path: &[u8], is_folder: bool) -> Result<(), i32> {
        let inode = self.look_up(path)?;
        let (folder, name) = self.parent(path)?;
        match (self.is_folder(inode), is_folder) {
            (true, false) => return Err(libc::EISDIR),
            (false, true) => return Err(libc::ENOTDIR),
            (true, true) if inode == ROOT => return Err(libc::EBUSY),
            (true, true) if !self.is_empty(inode) => return Err(libc::ENOTEMPTY),
            (true, true) | (false, false) => {}
        }
        self.change_names(NameChange::Remove((folder, name)));
        Ok(())
    }

    fn is_empty(&self, folder: Inode) -> bool {
        self.names.range((folder, Vec::new())..).next().is_none_or(|((of, _), _)| *of != folder)
    }

    /// Renames; `flags` as for `renameat2(2)`. Returns the file that had the new name, and has lost it.
    pub(super) fn rename(&mut self, from: &[u8], to: &[u8], flags: u32) -> Result<Option<Inode>, i32> {
        let inode = self.look_up(from)?;
        let (from, to) = (self.parent(from)?, self.parent(to)?);
        if from.1.is_empty() || to.1.is_empty() {
            return Err(libc::EBUSY);
        }
        let replaced = self.names.get(&to).copied();
        let moves_into_itself = |inode, folder| self.is_folder(inode) && self.contains(inode, folder);
        if moves_into_itself(inode, to.0) {
            return Err(libc::EINVAL);
        }
        if flags & libc::RENAME_EXCHANGE != 0 {
            let replaced = replaced.ok_or(libc::ENOENT)?;
            if moves_into_itself(replaced, from.0) {
                return Err(libc::EINVAL);
            }
            self.change_names(NameChange::Exchange(from, to));
            return Ok(None);
        }
        if let Some(replaced) = replaced {
            match (self.is_folder(inode), self.is_folder(replaced)) {
                _ if flags & libc::RENAME_NOREPLACE != 0 => return Err(libc::EEXIST),
                _ if replaced == inode => return Ok(None),
                (false, true) => return Err(libc::EISDIR),
                (true, false) => return Err(libc::ENOTDIR),
                (true, true) if !self.is_empty(replaced) => return Err(libc::ENOTEMPTY),
                (true, true) | (false, false) => {}
            }
        }
        self.change_names(NameChange::Rename { from, to });
        Ok(replaced)
    }

    /// Gives a file another name.
    pub(super) fn link(&mut self, from: &[u8], to: &[u8]) -> Result<(), i32> {
        let (inode, to) = (self.look_up(from)?, self.parent(to)?);
        if to.1.is_empty() || self.names.contains_key(&to) {
            return Err(libc::EEXIST);
        }
        if self.is_folder(inode) {
            return Err(libc::EPERM);
        }
        self.change_names(NameChange::Add(to, inode));
        Ok(())
    }

    /// Returns the names in a folder, and which of them are folders.
    pub(super) fn list(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, bool)>, i32> {
        let folder = self.look_up(path)?;
        if !self.is_folder(folder) {
            return Err(libc::ENOTDIR);
        }
        let names = self.names.range((folder, Vec::new())..).take_while(|((of, _), _)| *of == folder);
        Ok(names.map(|((_, name), inode)| (name.clone(), self.is_folder(*inode))).collect())
    }

    /// Returns whether a folder is, or lies in, another one.
    fn contains(&self, outer: Inode, mut inner: Inode) -> bool {
        while inner != outer {
            match self.names.iter().find(|(_, of)| **of == inner) {
                Some(((folder, _), _)) => inner = *folder,
                None => return false,
            }
        }
        true
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
        file.live.read(offset, there, take);
        Ok(there)
    }

    /// Returns how many of the bytes have room on the disk.
    pub(super) fn fitting(&self, inode: Inode, offset: u64, len: usize) -> usize {
        let (Some(room), Some(Node::File(file))) = (self.room, self.nodes.get(&inode)) else { return len };
        let mut missing = 0;
        let fits = pieces(offset, len).take_while(|piece| {
            missing += if file.live.pages.contains_key(&piece.page) { 0 } else { PAGE };
            missing <= room
        });
        fits.map(|piece| piece.in_page.len()).sum()
    }

    pub(super) fn change(&mut self, inode: Inode, change: Change) -> Result<(), i32> {
        let (before, names) = (self.allocated(inode), self.names_changed);
        let file = self.file(inode)?;
        if file.is_metadata(&change) && file.new_metadata.last().is_none_or(|(_, last)| *last < names) {
            file.new_metadata.push((file.before + file.changes.len() as u64 + 1, names));
        }
        file.live.apply(&change);
        file.changes.push_back(change);
        let durable = file.changes.iter().take_while(|change| change.is_durable()).count();
        file.settle(durable);
        let is_durable = file.changes.is_empty() || file.changes.back().is_some_and(Change::is_durable);
        if file.changes.len() > MOST_CHANGES {
            file.settle(MOST_CHANGES / 2);
        }
        let after = self.allocated(inode);
        self.room = self.room.map(|room| (room + before).saturating_sub(after));
        let mark = self.mark(inode);
        if is_durable
            && let Some(names) = self.file(inode)?.take_new_metadata(mark)
            && self.strictness == Strictness::Journal
        {
            self.sync_names(names, |_| true);
        }
        Ok(())
    }

    /// Changes what reads see, and never what is on the disk: a durable write whose sync has failed.
    pub(super) fn change_in_vain(&mut self, inode: Inode, change: &Change) -> Result<(), i32> {
        let file = self.file(inode)?;
        file.live.apply(change);
        file.failures += 1;
        Ok(())
    }

    /// Returns a mark: a sync that begins now covers the changes before it.
    pub(super) fn mark(&self, inode: Inode) -> Mark {
        let file = match self.nodes.get(&inode) {
            Some(Node::File(file)) => file.before + file.changes.len() as u64,
            _ => 0,
        };
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
                if is_journal { of_data.max(of_name) } else { 0 }
            }
            Some(Node::Folder) if is_journal => self.last_change_of(inode, mark),
            Some(Node::Folder) => mark.names,
            None => 0,
        };
        self.sync_names(names, |change| is_journal || change.is_in(inode));
    }

    /// Returns how many changes of names there were after the last one before the mark that changed this file or folder.
    fn last_change_of(&self, inode: Inode, mark: Mark) -> u64 {
        let of_it = |change: &&Numbered| change.number < mark.names && change.inodes.contains(&inode);
        self.name_changes.iter().rev().find(of_it).map_or(0, |change| change.number + 1)
    }

    /// Makes the changes of names before a number durable that are wanted, and what they need.
    fn sync_names(&mut self, number: u64, is_wanted: impl Fn(&NameChange) -> bool) {
        let mut changes = std::mem::take(&mut self.name_changes);
        let later = changes.split_off(changes.partition_point(|change| change.number < number));
        let chosen = with_earlier(&changes, is_wanted);
        for (change, is_chosen) in changes.into_iter().zip(chosen) {
            if is_chosen {
                if let NameChange::Add(_, inode) = change.change
                    && let Some(Node::File(file)) = self.nodes.get_mut(&inode)
                {
                    file.exists_durably();
                }
                change.change.apply(&mut self.durable_names);
            } else {
                self.name_changes.push(change);
            }
        }
        self.name_changes.extend(later);
    }

    /// Fails a sync as Linux does: any part of the changes before the mark never reaches the disk.
    pub(super) fn lose(&mut self, inode: Inode, mark: Mark, random: &mut Random) {
        if let Ok(file) = self.file(inode) {
            let count = file.covered(mark);
            let lost: Vec<Change> = file.changes.drain(..count).collect();
            file.before += count as u64;
            file.failures += 1;
            let mut parts = Parts::new(&mut file.durable, random);
            for change in &lost {
                match change {
                    // Sizes are metadata, which the journal has.
                    Change::Size(size) => parts.content.resize(*size),
                    Change::Write(data) if !data.is_durable => {
                        parts.put(data, data.range().end, 0.5, |_| false)
                    }
                    Change::Write(_) | Change::Zero(_) => parts.content.apply(change),
                }
            }
        }
    }

    /// Returns how many syncs of the file have failed.
    pub(super) fn failures(&self, inode: Inode) -> u64 {
        match self.nodes.get(&inode) {
            Some(Node::File(file)) => file.failures,
            _ => 0,
        }
    }

    // ---- Power cuts ----

    /// Returns what is on the disk after a power cut now: what is durable, and any part of the rest.
    pub(super) fn after_cut(&self, random: &mut Random) -> Self {
        let names = self.names_after_cut(random);
        let mut after = Self { room: self.room, strictness: self.strictness, next: self.next, ..Self::new() };
        // Folders and files that no name leads to are gone.
        let mut reached = BTreeSet::from([ROOT]);
        let mut folders = vec![ROOT];
        while let Some(folder) = folders.pop() {
            for ((_, name), inode) in
                names.range((folder, Vec::new())..).take_while(|((of, _), _)| *of == folder)
            {
                after.names.insert((folder, name.clone()), *inode);
                if reached.insert(*inode) && self.is_folder(*inode) {
                    folders.push(*inode);
                }
            }
        }
        after.durable_names.clone_from(&after.names);
        for inode in reached {
            let node = match self.nodes.get(&inode) {
                Some(Node::File(file)) => Node::File(file.after_cut(random, self.strictness)),
                _ => Node::Folder,
            };
            after.nodes.insert(inode, node);
        }
        after
    }

    fn names_after_cut(&self, random: &mut Random) -> Names {
        let mut names = self.durable_names.clone();
        let kept = match self.strictness {
            Strictness::Journal => {
                let kept = random.below(self.name_changes.len() as u64 + 1) as usize;
                (0..self.name_changes.len()).map(|at| at < kept).collect()
            }
            Strictness::Posix => with_earlier(&self.name_changes, |_| random.happens(0.5)),
        };
        for (change, is_kept) in self.name_changes.iter().zip::<Vec<bool>>(kept) {
            if is_kept {
                change.change.apply(&mut names);
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::super::content::Data;
    use super::*;

    fn bytes(contents: &mut Contents, path: &[u8]) -> Option<Vec<u8>> {
        let inode = contents.look_up(path).ok()?;
        let mut bytes = vec![0; contents.size(inode) as usize];
        read(contents, inode, 0, &mut bytes);
        Some(bytes)
    }

    fn data(offset: u64, bytes: &[u8]) -> Data {
        let mut rest = bytes;
        Data::new(offset, bytes.len(), |to| {
            let (here, after) = rest.split_at(to.len());
            to.copy_from_slice(here);
            rest = after;
        })
    }

    fn write(contents: &mut Contents, inode: Inode, offset: u64, bytes: &[u8]) {
        contents.change(inode, Change::Write(data(offset, bytes))).unwrap();
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
        let inode = contents.create(b"/log", false).unwrap();
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
            let old = contents.create(b"/a", false).unwrap();
            contents.sync(old, contents.mark(old), false);
            contents.sync(ROOT, contents.mark(ROOT), false);
            contents.rename(b"/a", b"/b", 0).unwrap();
            let found: BTreeSet<(bool, bool)> = (0..100)
                .map(|seed| contents.after_cut(&mut Random::new(seed)))
                .map(|after| (after.look_up(b"/a").is_ok(), after.look_up(b"/b").is_ok()))
                .collect();
            assert_eq!(Vec::from_iter(found), [(false, true), (true, false)]);
            contents.sync(ROOT, contents.mark(ROOT), false);
            let after = contents.after_cut(&mut Random::new(1));
            assert!(after.look_up(b"/a").is_err() && after.look_up(b"/b").is_ok());
        }
    }

    #[test]
    fn a_failed_sync_loses_what_the_next_one_does_not_mention() {
        let found: BTreeSet<_> = (0..20)
            .map(|seed| {
                let mut contents = Contents::new();
                let inode = contents.create(b"x", false).unwrap();
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
        let inode = contents.create(b"x", false).unwrap();
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
            let inode = contents.create(b"a", false).unwrap();
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
            let names = |seed| contents.after_cut(&mut Random::new(seed)).look_up(b"b").is_ok();
            assert_eq!((0..100).all(names), strictness == Strictness::Journal);
        }
    }

    #[test]
    fn a_sync_writes_the_journal_only_up_to_the_last_change_of_its_own() {
        let mut contents = Contents::new();
        let (file, folder) = (contents.create(b"a", false).unwrap(), contents.create(b"d", true).unwrap());
        let other = contents.create(b"x", false).unwrap();
        contents.sync(ROOT, contents.mark(ROOT), false);
        contents.rename(b"x", b"y", 0).unwrap();
        let is_lost = |contents: &Contents| {
            (0..100).any(|seed| contents.after_cut(&mut Random::new(seed)).look_up(b"x").is_ok())
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
        let inode = contents.create(b"x", false).unwrap();
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
        assert_eq!(sizes(Change::Write(data(8192, &[1; 512]))), BTreeSet::from([5120, 8192, 8704]));
        assert_eq!(sizes(Change::Write(data(8000, &[1; 8]))), BTreeSet::from([5120, 8008]));
    }

    #[test]
    fn terabytes_of_holes_take_no_memory() {
        let mut contents = Contents::new();
        let inode = contents.create(b"x", false).unwrap();
        contents.change(inode, Change::Size(1 << 42)).unwrap();
        write(&mut contents, inode, 1 << 41, b"far");
        let mut found = [9; 5];
        read(&mut contents, inode, (1 << 41) - 1, &mut found);
        assert_eq!((&found, contents.allocated(inode)), (b"\0far\0", 4096));
        contents.change(inode, Change::Zero(0..1 << 42)).unwrap();
        assert_eq!(contents.allocated(inode), 0);
    }
}
