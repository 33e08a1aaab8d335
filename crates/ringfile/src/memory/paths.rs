//! The memory of an operation on paths: the paths, room for a file's metadata, and what else the operation leaves.
//!
//! Invariants: the addresses given here do not change while the value is only moved; a descriptor that an operation
//! has opened is closed when the value is dropped, unless it was taken.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

use crate::descriptor;

/// See the module.
#[derive(Default)]
#[doc(hidden)]
pub struct Paths {
    path: CString,
    /// The open file that an operation with an empty path is about.
    file: Option<Arc<dyn AsFd + Send + Sync>>,
    /// The new path of a rename or a hard link; where a new symbolic link points.
    to: Option<CString>,
    /// Permission bits to set, or for a file or directory that is created.
    pub(crate) mode: u32,
    /// Room for one record, or none. The kernel writes to it, so it is accessed only through its raw pointer.
    stat: Vec<UnsafeCell<libc::statx>>,
    pub(crate) left: Left,
}

/// What an operation has left for its caller, besides metadata.
#[derive(Default)]
pub(crate) enum Left {
    #[default]
    Nothing,
    /// The file that was opened, or why it has no descriptor.
    File(rustix::io::Result<OwnedFd>),
    /// The file of a simulation that was opened, and the descriptor that stands for it.
    #[cfg_attr(not(feature = "sim"), allow(dead_code, reason = "there is no simulation"))]
    Simulated(OwnedFd, crate::sim::OpenRef),
    /// Where a symbolic link points.
    Link(PathBuf),
    Listing(Box<Listing>),
}

/// A directory that is being read.
pub(crate) struct Listing {
    /// `None` at the end.
    rest: Option<Dir>,
    /// The entries that were read and not taken.
    entries: Vec<io::Result<Found>>,
}

/// An entry of a directory.
pub(crate) struct Found {
    pub(crate) name: OsString,
    /// `S_IF…`; 0 if it cannot be found out.
    pub(crate) kind: u32,
}

impl Found {
    fn at(folder: &Dir, entry: &rustix::fs::DirEntry) -> Self {
        let name = entry.file_name();
        let kind = match entry.file_type() {
            FileType::Unknown => folder
                .fd()
                .and_then(|folder| rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW))
                .map_or(0, |status| status.st_mode & libc::S_IFMT),
            known => known.as_raw_mode(),
        };
        Self { name: OsStr::from_bytes(name.to_bytes()).to_owned(), kind }
    }
}

impl Listing {
    /// Entries that are read at once: about as many as glibc asks the kernel for.
    const AT_ONCE: usize = 1024;

    /// Returns all entries of a directory.
    #[cfg(feature = "sim")]
    pub(crate) fn of(entries: Vec<Found>) -> Box<Self> {
        Box::new(Self { rest: None, entries: entries.into_iter().map(Ok).collect() })
    }

    pub(crate) fn open(path: &Path) -> io::Result<Box<Self>> {
        let folder = descriptor::open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok(Box::new(Self { rest: Some(Dir::new(folder)?), entries: Vec::new() }))
    }

    /// Reads the next entries. Blocks, also because some file systems do not report the kinds with the names.
    pub(crate) fn go_on(&mut self) {
        let Some(rest) = &mut self.rest else { return };
        while self.entries.len() < Self::AT_ONCE {
            match rest.read() {
                Some(Ok(entry)) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
                Some(next) => {
                    self.entries.push(next.map(|entry| Found::at(rest, &entry)).map_err(Into::into))
                }
                // An error ends it too.
                None => {
                    self.rest = None;
                    return;
                }
            }
        }
    }

    /// Takes the entries that were read, and tells whether there may be more.
    pub(crate) fn take(&mut self) -> (Vec<io::Result<Found>>, bool) {
        (std::mem::take(&mut self.entries), self.rest.is_some())
    }
}

impl Paths {
    /// Creates the memory for one path; `None` if it contains a NUL byte.
    pub(crate) fn new(path: &Path) -> Option<Box<Self>> {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        Some(Box::new(Self { path, ..Self::default() }))
    }

    /// Names an open file, instead of one at a path.
    pub(crate) fn of_file(file: Arc<dyn AsFd + Send + Sync>) -> Box<Self> {
        Box::new(Self { file: Some(file), ..Self::default() })
    }

    /// Adds a second path; `None` if it contains a NUL byte.
    pub(crate) fn and(mut self: Box<Self>, to: &Path) -> Option<Box<Self>> {
        self.to = Some(CString::new(to.as_os_str().as_bytes()).ok()?);
        Some(self)
    }

    pub(crate) fn with_mode(mut self: Box<Self>, mode: u32) -> Box<Self> {
        self.mode = mode;
        self
    }

    pub(crate) fn with_stat(mut self: Box<Self>) -> Box<Self> {
        // SAFETY: the record consists of integers, for which zero is a valid value.
        self.stat = vec![UnsafeCell::new(unsafe { std::mem::zeroed() })];
        self
    }

    pub(crate) fn path(&self) -> &CStr {
        &self.path
    }

    pub(crate) fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.path.to_bytes()))
    }

    /// Returns the descriptor at which the path begins: of the open file, or that of the working directory.
    pub(crate) fn from(&self) -> BorrowedFd<'_> {
        self.file.as_ref().map_or(rustix::fs::CWD, |file| file.as_fd())
    }

    /// Returns whether the operation is about an open file, so that no path is looked up.
    pub(crate) fn is_about_open_file(&self) -> bool {
        self.file.is_some()
    }

    pub(crate) fn to(&self) -> Option<&CStr> {
        self.to.as_deref()
    }

    /// Returns the address to which the kernel writes metadata; null without room for it.
    pub(crate) fn stat_address(&self) -> *mut libc::statx {
        self.stat.first().map_or(std::ptr::null_mut(), UnsafeCell::get)
    }

    /// Returns whether the operation, which has ended successfully, has left a link or metadata.
    pub(crate) fn has_some(&self) -> bool {
        matches!(self.left, Left::Link(_)) || !self.stat.is_empty()
    }

    /// Returns where the symbolic link points that the operation has read.
    pub(crate) fn take_link(&mut self) -> Option<PathBuf> {
        if let Left::Link(to) = std::mem::take(&mut self.left) { Some(to) } else { None }
    }

    /// Returns the metadata, once the operation has ended successfully.
    pub(crate) fn take_stat(&mut self) -> Option<libc::statx> {
        self.stat.pop().map(UnsafeCell::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stay_while_the_value_moves_and_an_opened_descriptor_is_closed_once() {
        let paths = Paths::new(Path::new("a")).unwrap().and(Path::new("b")).unwrap().with_stat();
        let addresses =
            |paths: &Paths| (paths.path().as_ptr(), paths.to().unwrap().as_ptr(), paths.stat_address());
        let before = addresses(&paths);
        let mut memory = super::super::io_memory::IoMemory::Paths(paths);
        let moved = std::mem::take(&mut memory);
        let super::super::io_memory::IoMemory::Paths(mut paths) = moved else { unreachable!() };
        assert_eq!(addresses(&paths), before);
        assert!(paths.take_stat().is_some_and(|stat| stat.stx_mask == 0) && paths.take_stat().is_none());

        // A pipe shows when its other end is closed.
        let (reader, writer) = std::io::pipe().unwrap();
        paths.left = Left::File(Ok(writer.into()));
        drop(paths);
        assert_eq!(std::io::Read::read(&mut &reader, &mut [0]).unwrap(), 0, "it is still open");
    }

    #[test]
    fn a_path_with_a_nul_byte_is_none() {
        assert!(Paths::new(Path::new("a\0b")).is_none());
        assert!(Paths::new(Path::new("a")).unwrap().and(Path::new("\0")).is_none());
    }
}
