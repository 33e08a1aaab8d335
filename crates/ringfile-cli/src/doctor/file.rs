//! Tries what the file system that contains PATH can do.
//!
//! Invariants: nothing that existed is written to, and no name appears anywhere. Writes go to a file without a
//! name (O_TMPFILE), which the kernel removes when its last descriptor closes, whatever becomes of this process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, IFlags, StatxFlags, ioctl_getflags, statvfs, statx};
use serde::{Deserialize, Serialize};

use super::direct::Direct;
use super::durable::Durable;
use super::flags::NonBlocking;
use super::place::{self, Medium, Place};
use super::route::Taken;
use super::subjects::{Subjects, TRIED};
use crate::error::{Failure, cant, errno_text, refuse};
use crate::report::output;

/// The facts about PATH.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FileFacts {
    /// As given.
    pub path: String,
    /// What it is; `null` if it did not answer.
    pub kind: Option<PathKind>,
    /// Whether all facts were found in time.
    pub answered: bool,
    /// The stage that was reached, or the last one.
    pub stage: String,
    /// `ext4`, `tmpfs`, …
    pub filesystem: Option<String>,
    /// The kind of storage behind it.
    pub medium: Medium,
    /// Where it is mounted.
    pub mount_point: Option<String>,
    /// What is mounted: a device, a server, or a word.
    pub source: Option<String>,
    /// Mount options, those of the file system included.
    pub options: Vec<String>,
    /// The file system of an overlay's upper layer, where writes go.
    pub upper_filesystem: Option<String>,
    /// Bytes of the file system.
    pub space_total: Option<u64>,
    /// Bytes of it that this user may still write.
    pub space_available: Option<u64>,
    /// Bytes of a file.
    pub size: Option<u64>,
    /// Of `compressed`, `encrypted`, `immutable`, `append-only`, `verity`, `dax`, `nocow`.
    pub attributes: Vec<String>,
    /// What reads were tried on, or why they were not.
    pub reads_tried: String,
    /// What writes were tried on, or why they were not.
    pub writes_tried: String,
    /// Direct I/O.
    pub direct: Option<Direct>,
    /// Whether a file can be read adaptively: cached data from the page cache, other data past it. `null` if that was
    /// not tried.
    pub adaptive: Option<bool>,
    /// Which I/O can be done without blocking (RWF_NOWAIT).
    pub nonblocking: NonBlocking,
    /// The ways to write 4 KiB durably, quickest first; empty if writes were not tried.
    pub durable: Vec<Durable>,
    /// The routes that the library's operations took, on the same files.
    pub routes: Vec<Taken>,
}

/// What PATH is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A block device.
    Device,
}

fn kind(path: &Path) -> Result<PathKind, Failure> {
    let metadata = std::fs::metadata(path)
        .map_err(|error| cant("look at", path, &error, "name a file, folder or block device"))?;
    let file_type = metadata.file_type();
    match () {
        () if file_type.is_file() => Ok(PathKind::File),
        () if file_type.is_dir() => Ok(PathKind::Folder),
        () if file_type.is_block_device() => Ok(PathKind::Device),
        () => refuse(path, "is a pipe, socket or character device: name a file, folder or block device"),
    }
}

impl FileFacts {
    /// Returns the facts about PATH that need neither its mount nor opening it.
    pub fn of(path: &Path) -> Result<FileFacts, Failure> {
        Ok(FileFacts { path: path.display().to_string(), kind: Some(kind(path)?), ..FileFacts::default() })
    }

    /// Records where it is mounted, and the free space.
    pub fn mounted(&mut self, path: &Path, place: &Place) {
        if let Some(mount) = &place.mount {
            self.filesystem = Some(mount.filesystem.clone());
            self.medium = Medium::of(&mount.filesystem);
            self.mount_point = Some(mount.point.display().to_string());
            self.source = Some(mount.source.clone());
            self.options.clone_from(&mount.options);
            let upper = place::upper(mount).map(place::of);
            self.upper_filesystem = upper.and_then(|upper| upper.mount).map(|mount| mount.filesystem);
        }
        if self.kind == Some(PathKind::Device) {
            // Its name is in a file system in memory, which says nothing about the device.
            (self.filesystem, self.medium, self.options) = (None, Medium::Disk, Vec::new());
            (self.mount_point, self.source) = (None, None);
            return;
        }
        if let Ok(space) = statvfs(path) {
            self.space_total = Some(space.f_blocks.saturating_mul(space.f_frsize)).filter(|&bytes| bytes > 0);
            self.space_available = self.space_total.map(|_| space.f_bavail.saturating_mul(space.f_frsize));
        }
    }

    /// Opens the files for the trials, and records what that shows. Refuses a file that this user may not read.
    pub fn open(&mut self, path: &Path) -> Result<Subjects, Failure> {
        let mut subjects = Subjects::default();
        self.open_for_both(path, &mut subjects)?;
        self.reads_tried.clone_from(&subjects.reads_tried);
        self.writes_tried.clone_from(&subjects.writes_tried);
        Ok(subjects)
    }

    fn open_for_both(&mut self, path: &Path, subjects: &mut Subjects) -> Result<(), Failure> {
        if self.medium == Medium::Kernel {
            // A read of such a file may wait forever, or consume data that another process wants.
            let why = "not tried: the kernel's own files hold no data";
            (subjects.reads_tried, subjects.writes_tried) = (why.into(), why.into());
            return Ok(());
        }
        if self.kind == Some(PathKind::Device) {
            subjects.writes_tried = "not tried: a device is never written to".into();
        } else {
            self.open_for_writes(path, subjects);
        }
        if self.kind == Some(PathKind::Folder) {
            subjects.reads_tried.clone_from(&subjects.writes_tried);
            subjects.reads = subjects.writes.as_ref().and_then(|file| file.try_clone().ok());
            self.note_attributes(path, None);
            return Ok(());
        }
        match open_to_read(path, 0) {
            Ok(file) => {
                subjects.reads_tried = format!("{}, read only", self.path);
                self.size = io::Seek::seek(&mut &file, io::SeekFrom::End(0)).ok();
                self.note_attributes(path, Some(&file));
                subjects.direct_reads = Some(open_to_read(path, libc::O_DIRECT));
                subjects.reads = Some(file);
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(cant("open", path, &error, "run it as a user who may read it"));
            }
            Err(error) => {
                subjects.reads_tried = format!("not tried: can't open {}: {}", self.path, errno_text(&error))
            }
        }
        Ok(())
    }

    fn open_for_writes(&self, path: &Path, subjects: &mut Subjects) {
        let folder = match self.kind {
            Some(PathKind::Folder) => path.to_path_buf(),
            _ => folder_of(path),
        };
        let made = without_name(&folder, 0);
        match made {
            // A file that is a mount point itself is in another file system than its folder.
            Ok(file) if !same_device(&file, path) => {
                subjects.writes_tried = format!("not tried: {} is another file system", folder.display());
            }
            Ok(file) if file.write_all_at(&[7; TRIED], 0).is_err() => {
                subjects.writes_tried =
                    format!("not tried: {} has no room for {TRIED} bytes", folder.display());
            }
            Ok(file) => {
                subjects.writes_tried = format!("a file without a name in {}", folder.display());
                subjects.direct_writes = Some(without_name(&folder, libc::O_DIRECT));
                subjects.writes = Some(file);
            }
            Err(error) => {
                let (folder, error) = (folder.display(), errno_text(&error));
                subjects.writes_tried =
                    format!("not tried: {folder} takes no file without a name (O_TMPFILE): {error}");
            }
        }
    }

    fn note_attributes(&mut self, path: &Path, file: Option<&File>) {
        const NAMES: [(u64, &str); 6] = [
            (0x4, "compressed"),
            (0x10, "immutable"),
            (0x20, "append-only"),
            (0x800, "encrypted"),
            (0x10_0000, "verity"),
            (0x20_0000, "dax"),
        ];
        if let Ok(facts) = statx(rustix::fs::CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS) {
            let set = NAMES.iter().filter(|(bit, _)| facts.stx_attributes.bits() & bit != 0);
            self.attributes = set.map(|(_, name)| (*name).to_string()).collect();
        }
        let opened = if file.is_none() { File::open(path).ok() } else { None };
        if let Some(file) = file.or(opened.as_ref())
            && ioctl_getflags(file).is_ok_and(|flags| flags.contains(IFlags::NOCOW))
        {
            self.attributes.push("nocow".into());
        }
    }
}

/// Opens a file for reads, without changing its access time if the kernel permits that to this user.
fn open_to_read(path: &Path, flags: i32) -> io::Result<File> {
    let open = |flags| OpenOptions::new().read(true).custom_flags(flags).open(path);
    open(flags | libc::O_NOATIME).or_else(|error| match error.raw_os_error() {
        Some(libc::EPERM) => open(flags),
        _ => Err(error),
    })
}

fn without_name(folder: &Path, flags: i32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE | flags).open(folder)
}

fn same_device(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(a), Ok(b)) => a.dev() == b.dev(),
        _ => false,
    }
}

fn folder_of(path: &Path) -> PathBuf {
    // The folder of a symbolic link's target, not of the link.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    output::folder_of(&path).to_path_buf()
}
