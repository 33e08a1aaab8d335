//! What is on a simulated disk: the content of files and the names in folders, as programs see them, and as they are
//! after a power cut.
//!
//! Knows neither operations nor time. A file has the content that reads see, the content that is durable, and the
//! changes from the one to the other. Names have the same: those that programs see, those that are durable, and the
//! changes. Invariant: the durable content with all changes carried out is what reads see, unless a failed sync has
//! dropped changes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use super::seed::Random;

/// The unit of a drive: after a power cut, each has its content of before or after a write.
pub(super) const SECTOR: u64 = 512;
const PAGE: u64 = 4096;
type Page = [u8; PAGE as usize];
static ZEROS: Page = [0; PAGE as usize];

/// The number of a file or a folder.
pub(super) type Inode = u64;
pub(super) const ROOT: Inode = 0;

/// A file keeps at most this many changes: a real kernel too writes old ones to the disk by itself.
const MOST_CHANGES: usize = 1024;

/// The bytes of a file. Cloning it copies no page.
#[derive(Clone, Default)]
struct Content {
    size: u64,
    /// By number; pages that are missing are zeros.
    pages: BTreeMap<u64, Rc<Page>>,
}

impl Content {
    /// Passes the bytes on, a piece after the other.
    fn read(&self, offset: u64, len: usize, mut take: impl FnMut(&[u8])) {
        for piece in pieces(offset, len) {
            match self.pages.get(&piece.page) {
                Some(page) => take(&page[piece.in_page]),
                None => take(&ZEROS[piece.in_page]),
            }
        }
    }

    /// Writes a part of some data, and leaves the size as it is. A whole page is shared, and not copied.
    fn put(&mut self, data: &Data, part: Range<u64>) {
        for piece in pieces(part.start, (part.end - part.start) as usize) {
            let from = &data.pages[(piece.page - data.offset / PAGE) as usize];
            if piece.in_page.len() == PAGE as usize {
                self.pages.insert(piece.page, Rc::clone(from));
                continue;
            }
            let page = self.pages.entry(piece.page).or_insert_with(|| Rc::new(ZEROS));
            Rc::make_mut(page)[piece.in_page.clone()].copy_from_slice(&from[piece.in_page]);
        }
    }

    fn zero(&mut self, range: Range<u64>) {
        let first = self.pages.range(range.start / PAGE..).next().map(|(page, _)| *page);
        let pages = self.pages.range(first.unwrap_or(u64::MAX)..).map(|(page, _)| *page);
        let touched: Vec<u64> = pages.take_while(|page| page * PAGE < range.end).collect();
        for page in touched {
            let start = range.start.max(page * PAGE) - page * PAGE;
            let end = range.end.min((page + 1) * PAGE) - page * PAGE;
            if (start, end) == (0, PAGE) {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                Rc::make_mut(bytes)[start as usize..end as usize].fill(0);
            }
        }
    }

    fn resize(&mut self, size: u64) {
        if size < self.size {
            self.zero(size..self.size.next_multiple_of(PAGE));
        }
        self.size = size;
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Write(data) => {
                self.put(data, data.range());
                self.size = self.size.max(data.range().end);
            }
            Change::Size(size) => self.resize(*size),
            Change::Zero(range) => self.zero(range.clone()),
        }
    }
}

/// Bytes that are written at some place, in the pages that they will be in.
#[derive(Clone)]
pub(super) struct Data {
    offset: u64,
    len: usize,
    pages: Vec<Rc<Page>>,
    /// Whether a power cut leaves all of it or nothing.
    pub(super) is_atomic: bool,
    /// Whether it was durable at once. It stays among the changes, since older ones must not overwrite it later.
    is_durable: bool,
}

impl Data {
    /// Makes the data for a place; `fill` gives the bytes, a piece after the other.
    pub(super) fn new(offset: u64, len: usize, mut fill: impl FnMut(&mut [u8])) -> Self {
        let page = |piece: Piece| {
            let mut page = ZEROS;
            fill(&mut page[piece.in_page]);
            Rc::new(page)
        };
        Self {
            offset,
            len,
            pages: pieces(offset, len).map(page).collect(),
            is_atomic: false,
            is_durable: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.pages.truncate(pieces(self.offset, self.len).count());
    }

    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.len as u64
    }
}

/// The part of some data that lies in one page.
struct Piece {
    page: u64,
    in_page: Range<usize>,
}

fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let start = (at % PAGE) as usize;
        let take = (PAGE as usize - start).min(len - done);
        let piece = Piece { page: at / PAGE, in_page: start..start + take };
        done += take;
        (take > 0).then_some(piece)
    })
}

/// A change of a file that is not known to be durable.
#[derive(Clone)]
pub(super) enum Change {
    Write(Data),
    Size(u64),
    /// A hole, or a range that was zeroed.
    Zero(Range<u64>),
}

#[derive(Clone, Default)]
struct FileState {
    live: Content,
    durable: Content,
    changes: VecDeque<Change>,
    /// How many changes were ever taken off the front of the list, so that a sync can name one.
    before: u64,
    /// Whether its size or its existence is not known to be durable.
    has_new_metadata: bool,
}

#[derive(Clone)]
enum Node {
    File(FileState),
    Folder,
}

/// A change of a name.
#[derive(Clone)]
enum NameChange {
    /// The file or folder has this name too.
    Add {
        folder: Inode,
        name: Vec<u8>,
        inode: Inode,
    },
    Remove {
        folder: Inode,
        name: Vec<u8>,
    },
    /// In one step.
    Rename {
        from: (Inode, Vec<u8>),
        to: (Inode, Vec<u8>),
    },
}

impl NameChange {
    fn is_in(&self, folder: Inode) -> bool {
        match self {
            Self::Add { folder: of, .. } | Self::Remove { folder: of, .. } => *of == folder,
            Self::Rename { from, to } => from.0 == folder || to.0 == folder,
        }
    }
}

/// All names, by folder and name.
type Names = BTreeMap<(Inode, Vec<u8>), Inode>;

fn rename(names: &mut Names, change: &NameChange) {
    match change {
        NameChange::Add { folder, name, inode } => _ = names.insert((*folder, name.clone()), *inode),
        NameChange::Remove { folder, name } => _ = names.remove(&(*folder, name.clone())),
        NameChange::Rename { from, to } => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
    }
}

/// How much a file system promises beyond POSIX.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Strictness {
    /// As ext4 and XFS: names change in their order, and any sync makes all earlier changes of names durable; a file's
    /// size is never ahead of its data.
    #[default]
    Journal,
    /// As POSIX allows: a name is durable only when its folder was synced, names change in any order, and a file may
    /// have its new size without its data.
    Posix,
}

/// See the module.
#[derive(Clone)]
pub(super) struct Contents {
    nodes: BTreeMap<Inode, Node>,
    next: Inode,
    names: Names,
    durable_names: Names,
    name_changes: Vec<NameChange>,
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
        let changes_name = |change: &NameChange| match change {
            NameChange::Add { inode: of, .. } => *of == inode,
            NameChange::Remove { .. } | NameChange::Rename { .. } => false,
        };
        let may_return =
            self.durable_names.values().any(|of| *of == inode) || self.name_changes.iter().any(changes_name);
        if !may_return && inode != ROOT {
            self.nodes.remove(&inode);
        }
    }

    // ---- Names ----

    /// Returns the folder that a path's last component is in, and that component; the root's is empty.
    pub(super) fn parent(&self, path: &[u8]) -> Result<(Inode, Vec<u8>), i32> {
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
        if path.is_empty() {
            return Err(libc::ENOENT);
        }
        let (folder, name) = self.parent(path)?;
        match self.names.get(&(folder, name.clone())) {
            Some(inode) => Ok(*inode),
            None if name.is_empty() => Ok(folder),
            None => Err(libc::ENOENT),
        }
    }

    fn change_names(&mut self, change: NameChange) {
        rename(&mut self.names, &change);
        self.name_changes.push(change);
    }

    /// Makes a file or a folder.
    pub(super) fn create(&mut self, path: &[u8], is_folder: bool) -> Result<Inode, i32> {
        let (folder, name) = self.parent(path)?;
        if name.is_empty() || self.names.contains_key(&(folder, name.clone())) {
            return Err(libc::EEXIST);
        }
        let inode = self.next;
        self.next += 1;
        let file = FileState { has_new_metadata: true, ..FileState::default() };
        self.nodes.insert(inode, if is_folder { Node::Folder } else { Node::File(file) });
        self.change_names(NameChange::Add { folder, name, inode });
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
        self.change_names(NameChange::Remove { folder, name });
        Ok(())
    }

    fn is_empty(&self, folder: Inode) -> bool {
        self.names.range((folder, Vec::new())..).next().is_none_or(|((of, _), _)| *of != folder)
    }

    pub(super) fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<(), i32> {
        let inode = self.look_up(from)?;
        let (from, to) = (self.parent(from)?, self.parent(to)?);
        if from.1.is_empty() || to.1.is_empty() {
            return Err(libc::EBUSY);
        }
        if let Some(replaced) = self.names.get(&to).copied() {
            match (self.is_folder(inode), self.is_folder(replaced)) {
                _ if replaced == inode => return Ok(()),
                (false, true) => return Err(libc::EISDIR),
                (true, false) => return Err(libc::ENOTDIR),
                (true, true) if !self.is_empty(replaced) => return Err(libc::ENOTEMPTY),
                (true, true) | (false, false) => {}
            }
        }
        if self.is_folder(inode) && self.contains(inode, to.0) {
            return Err(libc::EINVAL);
        }
        self.change_names(NameChange::Rename { from, to });
        Ok(())
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

    pub(super) fn change(&mut self, inode: Inode, change: Change) -> Result<(), i32> {
        let before = self.allocated(inode);
        let mut room = self.room;
        let file = self.file(inode)?;
        if let (Change::Write(data), Some(room)) = (&change, room) {
            let pages = pieces(data.offset, data.len);
            let missing = pages.filter(|piece| !file.live.pages.contains_key(&piece.page));
            if missing.count() as u64 * PAGE > room {
                return Err(libc::ENOSPC);
            }
        }
        file.has_new_metadata |= match &change {
            Change::Write(data) => data.range().end > file.live.size,
            Change::Size(_) => true,
            Change::Zero(_) => false,
        };
        file.live.apply(&change);
        file.changes.push_back(change);
        if file.changes.len() > MOST_CHANGES {
            file.settle(MOST_CHANGES / 2);
        }
        let after = self.allocated(inode);
        if let Some(room) = &mut room {
            *room = (*room + before).saturating_sub(after);
        }
        self.room = room;
        Ok(())
    }

    /// Writes durably: this data alone is durable then, and the size that it needs.
    pub(super) fn write_durably(&mut self, inode: Inode, mut data: Data) -> Result<(), i32> {
        let mark = self.mark(inode);
        let file = self.file(inode)?;
        // A cut or a hole before it is not durable without it, or before it.
        let only_writes = file.changes.iter().all(|change| matches!(change, Change::Write(_)));
        let extends = data.range().end > file.durable.size;
        if only_writes {
            data.is_durable = true;
        }
        let change = Change::Write(data);
        self.change(inode, change.clone())?;
        if !only_writes {
            self.sync(inode, mark + 1, true);
            return Ok(());
        }
        let file = self.file(inode)?;
        file.durable.apply(&change);
        if extends && self.strictness == Strictness::Journal {
            self.sync_names();
        }
        Ok(())
    }

    /// Returns a mark: a sync that begins now covers the changes before it.
    pub(super) fn mark(&self, inode: Inode) -> u64 {
        match self.nodes.get(&inode) {
            Some(Node::File(file)) => file.before + file.changes.len() as u64,
            _ => self.name_changes.len() as u64,
        }
    }

    /// Makes the changes before the mark durable. `data_only`: as `fdatasync`.
    pub(super) fn sync(&mut self, inode: Inode, mark: u64, data_only: bool) {
        let with_names = match self.nodes.get_mut(&inode) {
            Some(Node::File(file)) => {
                let new = std::mem::take(&mut file.has_new_metadata);
                let count = mark.saturating_sub(file.before).min(file.changes.len() as u64);
                file.settle(count as usize);
                self.strictness == Strictness::Journal && (new || !data_only)
            }
            Some(Node::Folder) if self.strictness == Strictness::Posix => {
                let changes = std::mem::take(&mut self.name_changes);
                let (synced, left) = changes.into_iter().partition(|change: &NameChange| change.is_in(inode));
                self.name_changes = left;
                synced.iter().for_each(|change| rename(&mut self.durable_names, change));
                false
            }
            Some(Node::Folder) => true,
            None => false,
        };
        if with_names {
            self.sync_names();
        }
    }

    fn sync_names(&mut self) {
        self.name_changes.iter().for_each(|change| rename(&mut self.durable_names, change));
        self.name_changes.clear();
    }

    /// Fails a sync as Linux does: the changes before the mark never reach the disk, and later syncs say nothing of it.
    pub(super) fn lose(&mut self, inode: Inode, mark: u64) {
        if let Ok(file) = self.file(inode) {
            let count = mark.saturating_sub(file.before).min(file.changes.len() as u64) as usize;
            // Sizes are metadata, which the journal has.
            for change in file.changes.drain(..count) {
                if let Change::Size(size) = change {
                    file.durable.resize(size);
                }
            }
            file.before += count as u64;
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
        let kept = random.below(self.name_changes.len() as u64 + 1) as usize;
        for (at, change) in self.name_changes.iter().enumerate() {
            let is_kept = match self.strictness {
                Strictness::Journal => at < kept,
                Strictness::Posix => random.happens(0.5),
            };
            if is_kept {
                rename(&mut names, change);
            }
        }
        names
    }
}

impl FileState {
    /// Makes the oldest changes durable.
    fn settle(&mut self, count: usize) {
        self.changes.drain(..count).for_each(|change| self.durable.apply(&change));
        self.before += count as u64;
        if count > 0 {
            let is_durable = |change: &&Change| matches!(change, Change::Write(data) if data.is_durable);
            self.changes.iter().filter(is_durable).for_each(|change| self.durable.apply(change));
        }
    }

    fn after_cut(&self, random: &mut Random, strictness: Strictness) -> Self {
        let mut content = self.durable.clone();
        // Most cuts keep nothing, all, or an early part; some keep anything.
        let usual = [0.0, 1.0, 0.5][random.below(3) as usize];
        for change in &self.changes {
            match change {
                Change::Write(data) if data.is_durable => content.apply(change),
                Change::Write(data) if !data.is_atomic => {
                    put_part(&mut content, data, usual, random, strictness)
                }
                other if random.happens(usual) => content.apply(other),
                Change::Write(_) | Change::Size(_) | Change::Zero(_) => {}
            }
        }
        Self { live: content.clone(), durable: content, ..Self::default() }
    }
}

/// Writes any part of some data, in whole sectors.
fn put_part(content: &mut Content, data: &Data, usual: f64, random: &mut Random, how: Strictness) {
    let (Range { start, end }, size) = (data.range(), content.size);
    let mut reached = size;
    let mut is_whole = true;
    let mut at = start;
    while at < end {
        let next = end.min((at / SECTOR + 1) * SECTOR);
        let is_kept = random.happens(usual);
        let is_there = next <= size;
        // Beyond the end nothing is kept that the size does not reach.
        if is_kept && (is_there || is_whole || how == Strictness::Posix) {
            content.put(data, at..next);
            reached = reached.max(next);
        } else if !is_there {
            is_whole = false;
        }
        at = next;
    }
    content.size = match how {
        Strictness::Posix if random.happens(0.5) => size.max(end),
        _ => reached,
    };
}

#[cfg(test)]
mod tests {
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
            assert!(found[1000..].iter().all(|byte| *byte == 2), "no size is ahead of its data");
            ends.insert((found.len(), found[512]));
        }
        assert_eq!(Vec::from_iter(ends), [(1000, 1), (1024, 2), (1512, 2)]);
    }

    #[test]
    fn a_rename_is_lost_only_before_a_sync_and_never_half() {
        for strictness in [Strictness::Journal, Strictness::Posix] {
            let mut contents = Contents { strictness, ..Contents::new() };
            let old = contents.create(b"/a", false).unwrap();
            contents.sync(old, contents.mark(old), false);
            contents.sync(ROOT, contents.mark(ROOT), false);
            contents.rename(b"/a", b"/b").unwrap();
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
        let mut contents = Contents::new();
        let inode = contents.create(b"x", false).unwrap();
        contents.sync(inode, contents.mark(inode), false);
        write(&mut contents, inode, 0, &[1; 512]);
        contents.lose(inode, contents.mark(inode));
        contents.sync(inode, contents.mark(inode), false);
        assert_eq!(bytes(&mut contents, b"x").unwrap(), [1; 512], "reads still see it");
        let mut after = contents.after_cut(&mut Random::new(3));
        assert_eq!(bytes(&mut after, b"x").unwrap(), [0_u8; 0]);
    }

    #[test]
    fn a_durable_write_makes_no_other_data_durable() {
        let mut contents = Contents::new();
        let inode = contents.create(b"x", false).unwrap();
        write(&mut contents, inode, 0, &[1; 1024]);
        contents.sync(inode, contents.mark(inode), false);
        write(&mut contents, inode, 0, &[2; 1024]);
        contents.write_durably(inode, data(512, &[3; 512])).unwrap();
        let found: BTreeSet<(u8, u8)> = (0..100)
            .map(|seed| bytes(&mut contents.after_cut(&mut Random::new(seed)), b"x").unwrap())
            .map(|bytes| (bytes[0], bytes[512]))
            .collect();
        assert_eq!(Vec::from_iter(found), [(1, 3), (2, 3)]);
        contents.sync(inode, contents.mark(inode), false);
        let bytes = bytes(&mut contents.after_cut(&mut Random::new(1)), b"x").unwrap();
        assert_eq!((bytes[0], bytes[512]), (2, 3));
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
