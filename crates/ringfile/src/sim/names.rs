//! The names on a simulated disk: where a path leads, and the calls that change names and permissions.
//!
//! Paths and their errors are as in the kernel (`fs/namei.c`).

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::disk::{Contents, Node, ROOT};
use super::tree::{Inode, Name, NameChange};

/// A path leads through at most this many symbolic links (`MAXSYMLINKS`).
const MOST_LINKS: usize = 40;
/// The longest name (`NAME_MAX`), in bytes.
const LONGEST_NAME: usize = 255;
/// The longest path, and the longest target of a symbolic link: `PATH_MAX` without the zero at the end.
const LONGEST_PATH: usize = 4095;

fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
}

/// Refuses a path that the kernel does not even look at (`getname`).
fn check_length(path: &[u8]) -> Result<(), i32> {
    match path.len() {
        0 => Err(libc::ENOENT),
        1..=LONGEST_PATH => Ok(()),
        _ => Err(libc::ENAMETOOLONG),
    }
}

/// Returns whether a path ends in no name, but in `.`, `..` or the root.
fn ends_in_dots(path: &[u8]) -> bool {
    matches!(parts(path).next_back(), None | Some(b"." | b".."))
}

impl Contents {
    // ---- Looking up ----

    /// Returns where a path leads, whether something is there or not. `follows`: also if its last component is a symbolic
    /// link. Only [`at`](Self::at) looks at that component's length, as in the kernel: a call may fail for another reason
    /// first.
    fn place(&self, path: &[u8], follows: bool) -> Result<Name, i32> {
        check_length(path)?;
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
            if rest.is_empty() && !follows {
                return Ok(name);
            }
            let found = self.at(&name)?;
            match found.and_then(|inode| self.nodes.get(&inode)) {
                Some(Node::Link(to)) => {
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

    /// Returns what has this name.
    fn at(&self, name: &Name) -> Result<Option<Inode>, i32> {
        match name.1.len() {
            0 => Ok(Some(name.0)),
            1..=LONGEST_NAME => Ok(self.live.names.get(name).copied()),
            _ => Err(libc::ENAMETOOLONG),
        }
    }

    pub(super) fn look_up(&self, path: &[u8], follows: bool) -> Result<Inode, i32> {
        let must_be_folder = path.ends_with(b"/");
        let inode = self.at(&self.place(path, follows || must_be_folder)?)?.ok_or(libc::ENOENT)?;
        if must_be_folder && !self.is_folder(inode) { Err(libc::ENOTDIR) } else { Ok(inode) }
    }

    /// Returns where a symbolic link points.
    pub(crate) fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, i32> {
        match self.nodes.get(&self.look_up(path, false)?) {
            Some(Node::Link(to)) => Ok(to.clone()),
            _ => Err(libc::EINVAL),
        }
    }

    /// Returns the names in a folder, and the kind of each: `S_IF…`.
    pub(super) fn list(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, u32)>, i32> {
        let folder = self.look_up(path, true)?;
        if !self.is_folder(folder) {
            return Err(libc::ENOTDIR);
        }
        let names = self.live.in_folder(folder);
        Ok(names.map(|(name, inode)| (name.clone(), self.kind(*inode))).collect())
    }

    pub(super) fn links(&self, inode: Inode) -> usize {
        self.live.names.values().filter(|of| **of == inode).count()
    }

    fn is_empty(&self, folder: Inode) -> bool {
        self.live.in_folder(folder).next().is_none()
    }

    /// Returns whether a folder is, or lies in, another one.
    fn contains(&self, outer: Inode, mut inner: Inode) -> bool {
        while inner != outer {
            let name = self.live.names.iter().find(|(_, of)| **of == inner);
            let Some(((folder, _), _)) = name else { return false };
            inner = *folder;
        }
        true
    }

    // ---- Changing ----

    fn change_names(&mut self, names: Vec<(Name, Option<Inode>)>, mode: Option<(Inode, u32)>) {
        let change = NameChange::new(self.names_changed, names, mode, &self.live);
        change.apply(&mut self.live);
        self.name_changes.push(change);
        self.touched.add_to_names(self.names_changed);
        self.names_changed += 1;
    }

    fn add(&mut self, name: Name, node: Node, mode: u32) -> Inode {
        let inode = self.next;
        self.next += 1;
        self.nodes.insert(inode, node);
        // The permissions of creation are as durable as its existence.
        self.live.modes.insert(inode, mode & 0o7777);
        self.durable.modes.insert(inode, mode & 0o7777);
        self.change_names(vec![(name, Some(inode))], None);
        inode
    }

    /// Opens a file or a folder; `flags` as for `open(2)`.
    pub(super) fn open(&mut self, path: &[u8], flags: i32, mode: u32) -> Result<Inode, i32> {
        let has = |flag| flags & flag != 0;
        let makes_new = has(libc::O_CREAT) && has(libc::O_EXCL);
        let follows = !has(libc::O_NOFOLLOW) && !makes_new;
        // With a `.` at the end, a slash behind it makes no difference.
        let is_folder = path.ends_with(b"/") && !ends_in_dots(path);
        let inode = if has(libc::O_CREAT) {
            let name = self.place(path, follows && !is_folder)?;
            if is_folder {
                return Err(libc::EISDIR);
            }
            match self.at(&name)? {
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

    /// Creates a folder.
    pub(crate) fn create_dir(&mut self, path: &[u8], mode: u32) -> Result<(), i32> {
        let name = self.new_name(path, true)?;
        self.add(name, Node::Folder, mode);
        Ok(())
    }

    /// Creates a folder and those above it, by the steps of std's `DirBuilder`. To that a path such as `a/.` has no `a`
    /// above it.
    pub(crate) fn create_dirs(&mut self, path: &[u8], mode: u32) -> Result<(), i32> {
        let above = Path::new(OsStr::from_bytes(path)).ancestors().map(|path| path.as_os_str().as_bytes());
        let mut missing = Vec::new();
        for path in above.take_while(|path| !path.is_empty()) {
            match self.find_or_create_dir(path, mode) {
                Err(libc::ENOENT) => missing.push(path),
                Err(errno) => return Err(errno),
                Ok(()) => break,
            }
        }
        missing.into_iter().rev().try_for_each(|path| self.find_or_create_dir(path, mode))
    }

    fn find_or_create_dir(&mut self, path: &[u8], mode: u32) -> Result<(), i32> {
        match self.create_dir(path, mode) {
            Err(libc::EEXIST) if self.look_up(path, true).is_ok_and(|found| self.is_folder(found)) => Ok(()),
            created => created,
        }
    }

    /// Makes a symbolic link.
    pub(crate) fn symlink(&mut self, to: &[u8], path: &[u8]) -> Result<(), i32> {
        check_length(to)?;
        let name = self.new_name(path, false)?;
        self.add(name, Node::Link(to.to_vec()), 0o777);
        Ok(())
    }

    /// Returns a name that nothing has.
    fn new_name(&self, path: &[u8], is_folder: bool) -> Result<Name, i32> {
        let name = self.place(path, false)?;
        match self.at(&name)? {
            Some(_) => Err(libc::EEXIST),
            None if path.ends_with(b"/") && !is_folder => Err(libc::ENOENT),
            None => Ok(name),
        }
    }

    /// Gives a file or a symbolic link another name.
    pub(crate) fn link(&mut self, from: &[u8], to: &[u8]) -> Result<(), i32> {
        let inode = self.look_up(from, false)?;
        let to = self.new_name(to, false)?;
        if self.is_folder(inode) {
            return Err(libc::EPERM);
        }
        self.change_names(vec![(to, Some(inode))], None);
        Ok(())
    }

    /// Refuses to take the place of anything but an empty folder, or of a folder.
    fn must_be(&self, folder: bool, replaced: Inode) -> Result<(), i32> {
        match (folder, self.is_folder(replaced)) {
            (false, true) => Err(libc::EISDIR),
            (true, false) => Err(libc::ENOTDIR),
            (true, true) if !self.is_empty(replaced) => Err(libc::ENOTEMPTY),
            (true, true) | (false, false) => Ok(()),
        }
    }

    /// Returns what had the name.
    pub(super) fn remove(&mut self, path: &[u8], is_folder: bool) -> Result<Inode, i32> {
        let name = self.place(path, false)?;
        if name.1.is_empty() {
            return Err(match parts(path).next_back() {
                _ if !is_folder => libc::EISDIR,
                Some(b"..") => libc::ENOTEMPTY,
                Some(b".") => libc::EINVAL,
                _ => libc::EBUSY,
            });
        }
        let inode = self.at(&name)?.ok_or(libc::ENOENT)?;
        self.must_be(is_folder, inode)?;
        if !is_folder && path.ends_with(b"/") {
            return Err(libc::ENOTDIR);
        }
        self.change_names(vec![(name, None)], None);
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
        let inode = self.at(&from)?.ok_or(libc::ENOENT)?;
        let replaced = self.at(&to)?;
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
            self.change_names(vec![(from, replaced), (to, Some(inode))], None);
            return Ok(None);
        }
        if let Some(replaced) = replaced {
            self.must_be(self.is_folder(inode), replaced)?;
        }
        self.change_names(vec![(from, None), (to, Some(inode))], None);
        Ok(replaced)
    }

    /// Sets the permissions.
    pub(crate) fn set_mode(&mut self, path: &[u8], mode: u32) -> Result<(), i32> {
        let inode = self.look_up(path, true)?;
        self.change_names(Vec::new(), Some((inode, mode & 0o7777)));
        Ok(())
    }
}
