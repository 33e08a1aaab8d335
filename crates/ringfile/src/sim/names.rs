//! The names on a simulated disk: where a path leads, and changes of names and permissions.
//!
//! Paths and their errors are as in the kernel (`fs/namei.c`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::disk::{Contents, Node, ROOT};

/// The number of a file or a folder.
pub(super) type Inode = u64;

/// A name in a folder. An empty name is the folder itself.
pub(super) type Name = (Inode, Vec<u8>);

/// A path leads through at most this many symbolic links (`MAXSYMLINKS`).
const MOST_LINKS: usize = 40;

/// All names, and the permissions of what they lead to.
#[derive(Clone, Default)]
pub(super) struct Tree {
    pub(super) names: BTreeMap<Name, Inode>,
    pub(super) modes: BTreeMap<Inode, u32>,
}

/// A change of a name, or of permissions.
#[derive(Clone)]
pub(super) enum NameChange {
    /// The file or folder has this name too.
    Add(Name, Inode),
    Remove(Name),
    /// In one step.
    Rename {
        from: Name,
        to: Name,
    },
    /// In one step.
    Exchange(Name, Name),
    Mode(Inode, u32),
}

impl NameChange {
    fn names(&self) -> impl Iterator<Item = &Name> {
        let names = match self {
            Self::Add(name, _) | Self::Remove(name) => [Some(name), None],
            Self::Rename { from: one, to: other } | Self::Exchange(one, other) => [Some(one), Some(other)],
            Self::Mode(..) => [None, None],
        };
        names.into_iter().flatten()
    }

    /// Returns whether it changes the names in a folder, or the permissions of a file or folder.
    pub(super) fn is_of(&self, inode: Inode) -> bool {
        matches!(self, Self::Mode(of, _) if *of == inode) || self.names().any(|(folder, _)| *folder == inode)
    }

    /// Returns the files and folders whose metadata it changes.
    fn inodes(&self, before: &Tree) -> Vec<Inode> {
        let own = if let Self::Add(_, inode) | Self::Mode(inode, _) = self { Some(*inode) } else { None };
        let named = self.names().flat_map(|name| [Some(name.0), before.names.get(name).copied()]);
        named.flatten().chain(own).collect()
    }

    pub(super) fn apply(&self, tree: &mut Tree) {
        let names = &mut tree.names;
        match self {
            Self::Add(name, inode) => _ = names.insert(name.clone(), *inode),
            Self::Remove(name) => _ = names.remove(name),
            Self::Rename { from, to } => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            Self::Exchange(one, other) => {
                if let (Some(&first), Some(&second)) = (names.get(one), names.get(other)) {
                    names.insert(one.clone(), second);
                    names.insert(other.clone(), first);
                }
            }
            Self::Mode(inode, mode) => _ = tree.modes.insert(*inode, *mode),
        }
    }
}

/// A change of a name or of permissions.
#[derive(Clone)]
pub(super) struct Numbered {
    pub(super) number: u64,
    pub(super) change: NameChange,
    /// The files and folders whose metadata it changes.
    pub(super) inodes: Vec<Inode>,
}

impl Numbered {
    pub(super) fn new(number: u64, change: NameChange, before: &Tree) -> Self {
        Self { number, inodes: change.inodes(before), change }
    }
}

/// Returns which changes become durable if all that are wanted do: also those on whose outcome a later one depends.
pub(super) fn with_earlier(
    changes: &[Numbered],
    mut is_wanted: impl FnMut(&NameChange) -> bool,
) -> Vec<bool> {
    let mut needed = BTreeSet::new();
    let mut chosen: Vec<bool> = changes
        .iter()
        .rev()
        .map(|Numbered { change, .. }| {
            let is_chosen = is_wanted(change) || change.names().any(|name| needed.contains(name));
            if is_chosen {
                needed.extend(change.names());
            }
            is_chosen
        })
        .collect();
    chosen.reverse();
    chosen
}

fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
}

impl Contents {
    // ---- Looking up ----

    /// Returns where a path leads, whether something is there or not. `follows`: also if its last component is a symbolic
    /// link.
    fn place(&self, path: &[u8], follows: bool) -> Result<Name, i32> {
        if path.is_empty() {
            return Err(libc::ENOENT);
        }
        let (mut folder, mut above) = (ROOT, Vec::new());
        let mut rest: VecDeque<&[u8]> = parts(path).collect();
        let mut followed = 0;
        while let Some(part) = rest.pop_front() {
            match part {
                b"." => continue,
                b".." => {
                    folder = above.pop().unwrap_or(ROOT);
                    continue;
                }
                _ => {}
            }
            let name = (folder, part.to_vec());
            let found = self.at(&name);
            match found.and_then(|inode| self.nodes.get(&inode)) {
                Some(Node::Link(to)) if follows || !rest.is_empty() => {
                    followed += 1;
                    if followed > MOST_LINKS {
                        return Err(libc::ELOOP);
                    }
                    if to.ends_with(b"/") {
                        rest.push_front(b".");
                    }
                    parts(to).rev().for_each(|part| rest.push_front(part));
                    if to.starts_with(b"/") {
                        (folder, above) = (ROOT, Vec::new());
                    }
                }
                _ if rest.is_empty() => return Ok(name),
                Some(Node::Folder) => {
                    above.push(folder);
                    folder = found.unwrap_or(folder);
                }
                Some(_) => return Err(libc::ENOTDIR),
                None => return Err(libc::ENOENT),
            }
        }
        Ok((folder, Vec::new()))
    }

    fn at(&self, name: &Name) -> Option<Inode> {
        if name.1.is_empty() { Some(name.0) } else { self.live.names.get(name).copied() }
    }

    pub(super) fn look_up(&self, path: &[u8], follows: bool) -> Result<Inode, i32> {
        let must_be_folder = path.ends_with(b"/");
        let inode = self.at(&self.place(path, follows || must_be_folder)?).ok_or(libc::ENOENT)?;
        if must_be_folder && !self.is_folder(inode) { Err(libc::ENOTDIR) } else { Ok(inode) }
    }

    /// Returns where a symbolic link points.
    pub(super) fn link_target(&self, path: &[u8]) -> Result<&[u8], i32> {
        match self.nodes.get(&self.look_up(path, false)?) {
            Some(Node::Link(to)) => Ok(to),
            _ => Err(libc::EINVAL),
        }
    }

    /// Returns the names in a folder, and the kind of each: `S_IF…`.
    pub(super) fn list(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, u32)>, i32> {
        let folder = self.look_up(path, true)?;
        if !self.is_folder(folder) {
            return Err(libc::ENOTDIR);
        }
        let names = self.live.names.range((folder, Vec::new())..).take_while(|((of, _), _)| *of == folder);
        Ok(names.map(|((_, name), inode)| (name.clone(), self.kind(*inode))).collect())
    }

    pub(super) fn links(&self, inode: Inode) -> usize {
        self.live.names.values().filter(|of| **of == inode).count()
    }

    fn is_empty(&self, folder: Inode) -> bool {
        self.live.names.range((folder, Vec::new())..).next().is_none_or(|((of, _), _)| *of != folder)
    }

    /// Returns whether a folder is, or lies in, another one.
    fn contains(&self, outer: Inode, mut inner: Inode) -> bool {
        while inner != outer {
            match self.live.names.iter().find(|(_, of)| **of == inner) {
                Some(((folder, _), _)) => inner = *folder,
                None => return false,
            }
        }
        true
    }

    // ---- Changing ----

    fn change_names(&mut self, change: NameChange) {
        let change = Numbered::new(self.names_changed, change, &self.live);
        change.change.apply(&mut self.live);
        self.name_changes.push(change);
        self.names_changed += 1;
    }

    fn add(&mut self, name: Name, node: Node, mode: u32) -> Inode {
        let inode = self.next;
        self.next += 1;
        self.nodes.insert(inode, node);
        // The permissions of creation are as durable as its existence.
        self.live.modes.insert(inode, mode & 0o7777);
        self.durable.modes.insert(inode, mode & 0o7777);
        self.change_names(NameChange::Add(name, inode));
        inode
    }

    /// Opens a file or a folder; `flags` as for `open(2)`.
    pub(super) fn open(&mut self, path: &[u8], flags: i32, mode: u32) -> Result<Inode, i32> {
        let has = |flag| flags & flag != 0;
        let makes_new = has(libc::O_CREAT) && has(libc::O_EXCL);
        let follows = !has(libc::O_NOFOLLOW) && !makes_new;
        let is_folder = path.ends_with(b"/");
        let inode = if has(libc::O_CREAT) {
            let name = self.place(path, follows && !is_folder)?;
            match self.at(&name) {
                _ if is_folder => return Err(libc::EISDIR),
                Some(_) if makes_new => return Err(libc::EEXIST),
                Some(inode) => inode,
                None => self.add(name, Node::new_file(self.names_changed + 1), mode),
            }
        } else {
            self.look_up(path, follows)?
        };
        match self.nodes.get(&inode) {
            Some(Node::Folder) if has(libc::O_CREAT) || flags & libc::O_ACCMODE != libc::O_RDONLY => {
                Err(libc::EISDIR)
            }
            Some(Node::File(_) | Node::Link(_)) if has(libc::O_DIRECTORY) => Err(libc::ENOTDIR),
            Some(Node::Link(_)) => Err(libc::ELOOP),
            _ => Ok(inode),
        }
    }

    /// Makes a folder or a symbolic link.
    pub(super) fn create(&mut self, path: &[u8], node: Node, mode: u32) -> Result<Inode, i32> {
        let name = self.new_name(path, matches!(node, Node::Folder))?;
        Ok(self.add(name, node, mode))
    }

    /// Returns a name that nothing has.
    fn new_name(&self, path: &[u8], is_folder: bool) -> Result<Name, i32> {
        let name = self.place(path, false)?;
        match self.at(&name) {
            Some(_) => Err(libc::EEXIST),
            None if path.ends_with(b"/") && !is_folder => Err(libc::ENOENT),
            None => Ok(name),
        }
    }

    /// Gives a file or a symbolic link another name.
    pub(super) fn link(&mut self, from: &[u8], to: &[u8]) -> Result<(), i32> {
        let inode = self.look_up(from, false)?;
        let to = self.new_name(to, false)?;
        if self.is_folder(inode) {
            return Err(libc::EPERM);
        }
        self.change_names(NameChange::Add(to, inode));
        Ok(())
    }

    /// Returns what had the name.
    pub(super) fn remove(&mut self, path: &[u8], is_folder: bool) -> Result<Inode, i32> {
        let name = self.place(path, false)?;
        if name.1.is_empty() {
            return Err(match path {
                _ if !is_folder => libc::EISDIR,
                path if path.ends_with(b"..") => libc::ENOTEMPTY,
                path if path.ends_with(b".") => libc::EINVAL,
                _ => libc::EBUSY,
            });
        }
        let inode = self.at(&name).ok_or(libc::ENOENT)?;
        match (self.is_folder(inode), is_folder) {
            (true, false) => return Err(libc::EISDIR),
            (false, true) => return Err(libc::ENOTDIR),
            (false, false) if path.ends_with(b"/") => return Err(libc::ENOTDIR),
            (true, true) if !self.is_empty(inode) => return Err(libc::ENOTEMPTY),
            (true, true) | (false, false) => {}
        }
        self.change_names(NameChange::Remove(name));
        Ok(inode)
    }

    /// Renames; `flags` as for `renameat2(2)`. Returns what had the new name, and has lost it.
    pub(super) fn rename(&mut self, path: &[u8], new_path: &[u8], flags: u32) -> Result<Option<Inode>, i32> {
        let (from, to) = (self.place(path, false)?, self.place(new_path, false)?);
        let is_exchange = flags & libc::RENAME_EXCHANGE != 0;
        let is_new = flags & libc::RENAME_NOREPLACE != 0;
        if from.1.is_empty() {
            return Err(libc::EBUSY);
        }
        if to.1.is_empty() {
            return Err(if is_new { libc::EEXIST } else { libc::EBUSY });
        }
        let inode = self.at(&from).ok_or(libc::ENOENT)?;
        let replaced = self.at(&to);
        let is_file = |inode: Inode| !self.is_folder(inode);
        match replaced {
            Some(_) if is_new => return Err(libc::EEXIST),
            None if is_exchange => return Err(libc::ENOENT),
            Some(replaced) if is_exchange && is_file(replaced) && new_path.ends_with(b"/") => {
                return Err(libc::ENOTDIR);
            }
            _ => {}
        }
        if is_file(inode) && (path.ends_with(b"/") || !is_exchange && new_path.ends_with(b"/")) {
            return Err(libc::ENOTDIR);
        }
        let would_contain = |outer: Inode, folder| self.is_folder(outer) && self.contains(outer, folder);
        if would_contain(inode, to.0) {
            return Err(libc::EINVAL);
        }
        if replaced.is_some_and(|replaced| would_contain(replaced, from.0)) {
            return Err(if is_exchange { libc::EINVAL } else { libc::ENOTEMPTY });
        }
        if replaced == Some(inode) {
            return Ok(None);
        }
        if is_exchange {
            self.change_names(NameChange::Exchange(from, to));
            return Ok(None);
        }
        if let Some(replaced) = replaced {
            match (self.is_folder(inode), self.is_folder(replaced)) {
                (false, true) => return Err(libc::EISDIR),
                (true, false) => return Err(libc::ENOTDIR),
                (true, true) if !self.is_empty(replaced) => return Err(libc::ENOTEMPTY),
                (true, true) | (false, false) => {}
            }
        }
        self.change_names(NameChange::Rename { from, to });
        Ok(replaced)
    }

    /// Sets the permissions.
    pub(super) fn set_mode(&mut self, path: &[u8], mode: u32) -> Result<(), i32> {
        let inode = self.look_up(path, true)?;
        self.change_names(NameChange::Mode(inode, mode & 0o7777));
        Ok(())
    }
}
