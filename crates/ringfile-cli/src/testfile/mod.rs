//! The file or device that is measured: found or created, checked, filled, and removed if it was created here.
//!
//! Invariants: an existing file is written to only with `--overwrite`, and a file or device that the system uses never
//! (mounted, behind a loop device, swap, part of a volume); both are checked before the first byte is read or written. A
//! file created here loses its name at once, so that nothing is left of it however the run ends. Engines and other
//! programs open the file by its descriptor, so that a file which takes its name during the run is left alone.

pub mod cache;
pub mod device;
mod fill;
pub mod mounts;

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::statvfs;

use crate::cli::TestFileArgs;
use crate::error::{Failure, cant, errno_text, io_on, library, refuse, usage};
use crate::interrupt::Interrupt;
use crate::machine;
use crate::report::output::{check_folder, folder_of};
use crate::sys;
use crate::values::Bytes;
use crate::verify::Verifier;

/// The folder of the default file: memory, so that only the software is measured.
const DEFAULT_FOLDER: &str = "/dev/shm";

/// The folder of the default file for measurements of a disk: not /tmp, which is in memory on many machines.
const DEFAULT_DISK_FOLDER: &str = "/var/tmp";

/// The advice for a file that cannot be used.
const ANOTHER: &str = "name another --file";

/// The name in place of a file system for a block device.
const BLOCK_DEVICE: &str = "block device";

/// What a command will do with its test file, for the checks beforehand.
#[derive(Debug, Clone, Copy)]
pub struct Intent {
    /// Bytes of each operation.
    pub block: u64,
    /// Whether operations write, or the file is filled for `--verify`.
    pub writes: bool,
    /// Whether operations use O_DIRECT.
    pub direct: bool,
    /// Whether the file is filled with blocks that can be checked.
    pub verify: bool,
    /// Where the file is created if none is named.
    pub default_place: DefaultPlace,
}

/// Where a file is created if none is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultPlace {
    /// In memory.
    Memory,
    /// On a disk: the folder that TMPDIR names, or /var/tmp.
    Disk,
}

impl DefaultPlace {
    /// Returns the folder.
    pub fn folder(self) -> PathBuf {
        match self {
            DefaultPlace::Memory => DEFAULT_FOLDER.into(),
            DefaultPlace::Disk => std::env::var_os("TMPDIR")
                .filter(|folder| !folder.is_empty())
                .map_or_else(|| DEFAULT_DISK_FOLDER.into(), PathBuf::from),
        }
    }
}

/// A file or device, ready to be measured.
#[derive(Debug)]
pub struct TestFile {
    /// Its path, for people: the file has no name if it was created here.
    pub path: PathBuf,
    /// The path that leads to it, in this process and in its children.
    pub reopened: PathBuf,
    /// Whether it was created here.
    pub created: bool,
    /// Whether it has no contents yet.
    pub unfilled: bool,
    /// The number of blocks that are used, from its start.
    pub blocks: u64,
    /// The size of a block in bytes.
    pub block: u64,
    /// Its file system, `block device` or `NVMe namespace`.
    pub filesystem: String,
    /// What the user should know about it.
    pub notes: Vec<String>,
    /// The file opened without O_DIRECT, whatever the measurement uses. For an NVMe namespace, its block device.
    buffered: File,
    /// The block device of an NVMe namespace.
    pub block_device: Option<PathBuf>,
    interrupt: Interrupt,
    /// Whether the page cache was made warm and has not been dropped since: its pages are on the kernel's list of active
    /// pages.
    is_active: AtomicBool,
}

/// The arguments for creating or opening a test file.
struct Opening<'a> {
    args: &'a TestFileArgs,
    intent: Intent,
    interrupt: &'a Interrupt,
}

impl Opening<'_> {
    fn open(&self) -> Result<TestFile, Failure> {
        match &self.args.file {
            None => self.create_default(),
            Some(path) => match std::fs::metadata(path) {
                Ok(_) => self.open_existing(path),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    check_folder(folder_of(path), "another --file")?;
                    check_can_be_made(path)?;
                    check_space(path, self.args.size())?;
                    self.create(path, self.args.size(), Vec::new())
                }
                Err(error) => Err(cant("look at", path, &error, ANOTHER)),
            },
        }
    }

    fn create_default(&self) -> Result<TestFile, Failure> {
        let (wanted, intent) = (self.args.size(), self.intent);
        if intent.direct && intent.default_place == DefaultPlace::Memory {
            return refuse(
                DEFAULT_FOLDER.as_ref(),
                "is memory and has no direct I/O: name a --file on a disk",
            );
        }
        let folder = intent.default_place.folder();
        let path = folder.join(default_name());
        check_folder(&folder, "another --file")?;
        if self.args.asked_size.is_some() {
            check_space(&path, wanted)?;
        }
        let room = room_for(&path).map_err(|error| io_on("can't look at", &folder, &error))?;
        let folder = folder.display();
        // Three quarters of it, in whole MiB: other programs use the file system too.
        let usable = (room / 4 * 3) & !((1 << 20) - 1);
        let mut notes = Vec::new();
        if wanted > room {
            let (room, usable, wanted) = (Bytes(room), Bytes(usable), Bytes(wanted));
            let instead = format!("using a file of {usable} instead of {wanted}");
            notes.push(format!("{folder} has room for {room} only: {instead}"));
        }
        let size = if wanted > room { usable } else { wanted };
        if size < intent.block {
            return usage(format!("{folder} is full: make room there, or name a --file elsewhere"));
        }
        self.create(&path, size, notes)
    }

    fn create(&self, path: &Path, size: u64, notes: Vec<String>) -> Result<TestFile, Failure> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
        let buffered = file.map_err(|error| cant("create", path, &error, ANOTHER))?;
        std::fs::remove_file(path).map_err(|error| io_on("can't remove", path, &error))?;
        self.check(path, true, size, buffered, notes)
    }

    fn open_existing(&self, path: &Path) -> Result<TestFile, Failure> {
        let (args, intent) = (self.args, self.intent);
        let metadata = std::fs::metadata(path).map_err(|error| io_on("can't look at", path, &error))?;
        let kind = metadata.file_type();
        let namespace = device::block_device_of(path, &metadata);
        if !kind.is_file() && !kind.is_block_device() && namespace.is_none() {
            return refuse(path, "is neither a file nor a block device: name one");
        }
        match &namespace {
            Some(device) => device::check_namespace(path, device, intent)?,
            None => device::check_unused(path, &metadata)?,
        }
        if intent.writes && !args.overwrite {
            let what = if kind.is_file() { "exists already" } else { "is a device" };
            let advice = "add --overwrite if its contents may be lost, or only read with --rw randread and without --verify";
            return refuse(path, format!("{what} and this run would write to it: {advice}"));
        }
        let through_cache = namespace.as_deref().unwrap_or(path);
        let opened = OpenOptions::new().read(true).write(intent.writes).open(through_cache);
        let mut buffered = opened.map_err(|error| cant("open", path, &error, ANOTHER))?;
        let length = buffered
            .seek(SeekFrom::End(0))
            .map_err(|error| cant("tell the size of", path, &error, ANOTHER))?;
        if length == 0 && kind.is_file() && args.overwrite {
            return self.open_empty(path);
        }
        let mut notes = Vec::new();
        if length < args.size() {
            let (path, length, size) = (path.display(), Bytes(length), Bytes(args.size()));
            notes.push(format!("{path} has {length}: using all of it, not {size}"));
        }
        if kind.is_file() && metadata.blocks() * 512 < length / 100 * 99 {
            notes.push(format!("{} has holes: reading those costs no I/O", path.display()));
        }
        let mut test_file = self.check(path, false, args.size().min(length), buffered, notes)?;
        if namespace.is_some() {
            test_file.reopened = path.into();
            test_file.filesystem = "NVMe namespace".into();
            test_file.block_device = namespace;
        }
        Ok(test_file)
    }

    /// Opens an empty file that may be written to, to be filled to the size of a new one.
    fn open_empty(&self, path: &Path) -> Result<TestFile, Failure> {
        let size = self.args.size();
        check_space(path, size)?;
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let buffered = opened.map_err(|error| {
            let (path, error) = (path.display(), errno_text(&error));
            Failure::Usage(format!("can't open {path} to fill it: {error}; {ANOTHER}"))
        })?;
        let note = format!("{} was empty: filled to {}, and stays so", path.display(), Bytes(size));
        let mut test_file = self.check(path, false, size, buffered, vec![note])?;
        test_file.unfilled = true;
        Ok(test_file)
    }

    fn check(
        &self,
        path: &Path,
        created: bool,
        size: u64,
        buffered: File,
        mut notes: Vec<String>,
    ) -> Result<TestFile, Failure> {
        let filesystem = filesystem(if created { folder_of(path) } else { path }, &buffered);
        let block = self.intent.block;
        let used = size / block * block;
        if used != size && used > 0 {
            notes.push(format!("using {used} of {size} bytes: whole blocks of {block}"));
        }
        let reopened = sys::path_of(&buffered).map_err(|error| io_on("can't keep open", path, &error))?;
        let test_file = TestFile {
            path: path.to_path_buf(),
            reopened,
            created,
            unfilled: created,
            blocks: size / block,
            block,
            filesystem,
            notes,
            buffered,
            block_device: None,
            interrupt: self.interrupt.clone(),
            is_active: AtomicBool::new(false),
        };
        if size == 0 {
            let advice = match test_file.filesystem.as_str() {
                BLOCK_DEVICE => "has no size: set the device up first",
                _ => "is empty: add --overwrite to fill it, or name a file with contents",
            };
            return refuse(path, advice);
        }
        if test_file.blocks == 0 {
            let (block, size, path) = (Bytes(block), Bytes(size), path.display());
            return usage(format!(
                "--bs {block} is more than the {size} of {path}: use smaller blocks or a larger file"
            ));
        }
        if self.intent.direct {
            test_file.check_direct()?;
        }
        Ok(test_file)
    }
}

impl TestFile {
    /// Opens or creates the test file, and checks everything that can be checked without I/O.
    pub fn open(args: &TestFileArgs, intent: Intent, interrupt: &Interrupt) -> Result<TestFile, Failure> {
        Opening { args, intent, interrupt }.open()
    }

    /// Checks direct I/O with the library, which recognises file systems that accept O_DIRECT without doing direct I/O.
    fn check_direct(&self) -> Result<(), Failure> {
        let alignment = self
            .direct_alignment()
            .map_err(|why| Failure::Usage(format!("{why}; leave out --direct or name another --file")))?;
        if self.block.is_multiple_of(alignment) {
            return Ok(());
        }
        let (block, path) = (self.block, self.path.display());
        usage(format!(
            "--bs {block} with --direct: {path} needs multiples of {alignment}; change --bs or leave out --direct"
        ))
    }

    /// Returns the alignment in bytes of offsets, lengths and memory for direct I/O, or why the file has none.
    pub fn direct_alignment(&self) -> Result<u64, Failure> {
        let opened = ringfile::OpenOptions::new().read(true).direct(true).open_blocking(&self.reopened);
        let alignment = opened.map_err(|error| self.naming(library(&error)))?.alignment();
        Ok(alignment.bytes.max(alignment.memory) as u64)
    }

    /// Returns a failure with the path of the file, where it has that of its descriptor.
    pub fn naming(&self, failure: Failure) -> Failure {
        failure.naming(&self.reopened, &self.path)
    }

    /// Returns the bytes that are used, from its start.
    pub fn size(&self) -> u64 {
        self.blocks * self.block
    }

    /// Writes the contents needed before the first measurement: data into a file created here, since reads of holes do
    /// no I/O, and for `--verify` blocks that can be checked.
    pub fn prepare(
        &mut self,
        intent: Intent,
        tick: &mut dyn FnMut(u64),
    ) -> Result<Option<Arc<Verifier>>, Failure> {
        let verifier = intent.verify.then(|| Arc::new(Verifier::new(self.block, self.blocks)));
        if self.unfilled || intent.verify {
            fill::fill(self, intent.direct, verifier.as_deref(), tick)?;
        }
        Ok(verifier)
    }
}

/// Returns the name of a file that is created, unless the user named it.
pub fn default_name() -> String {
    format!("ringfile-perf-{}.bin", std::process::id())
}

/// Refuses paths that cannot name a new file.
fn check_can_be_made(path: &Path) -> Result<(), Failure> {
    if path.symlink_metadata().is_ok() {
        return refuse(path, "is a link to nothing: name a file");
    }
    // A mistyped device would otherwise become a file in memory, measured as if it were the disk.
    let folder = folder_of(path).canonicalize().unwrap_or_default();
    if folder.starts_with("/dev") && !folder.starts_with(DEFAULT_FOLDER) {
        let path = path.display();
        return usage(format!("there is no device {path}: name one that exists (lsblk shows them)"));
    }
    Ok(())
}

fn check_space(path: &Path, size: u64) -> Result<(), Failure> {
    let folder = folder_of(path);
    let room = room_for(path).map_err(|error| io_on("can't look at", folder, &error))?;
    if size <= room {
        return Ok(());
    }
    let (size, room) = (Bytes(size), Bytes(room));
    refuse(folder, format!("has room for {room}, not {size}: use a smaller --size or another --file"))
}

/// Returns the bytes that a new file at `path` may take: those free in the file system and, if that is in memory, in
/// the machine.
pub fn room_for(path: &Path) -> std::io::Result<u64> {
    let folder = folder_of(path);
    let space = statvfs(folder)?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let in_memory =
        mounts::of(folder).is_some_and(|mount| matches!(mount.filesystem.as_str(), "tmpfs" | "ramfs"));
    match machine::memory_available() {
        // A tmpfs without a limit (size=0) reports no blocks at all.
        Some(memory) if in_memory && space.f_blocks == 0 => Ok(memory / 4 * 3),
        Some(memory) if in_memory => Ok(free.min(memory / 4 * 3)),
        _ => Ok(free),
    }
}

/// Returns the name of the file system that a file lies on.
pub fn filesystem(path: &Path, file: &File) -> String {
    if file.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device()) {
        return BLOCK_DEVICE.into();
    }
    mounts::of(path).map_or_else(|| "unknown".into(), |mount| mount.filesystem)
}
