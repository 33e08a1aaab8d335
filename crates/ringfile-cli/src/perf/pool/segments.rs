//! Segment files: made without a name, filled from front to back, and used again when no thread needs them any more.
//!
//! They are recycled, as in many logs, because deleting would measure the file system: truncating a file by 64 MiB
//! takes 15 to 29 ms on a disk that is mounted with `discard`, and stalls every write meanwhile. Invariants: segments
//! use no more of the disk than allowed; they disappear with the process, however it ends, because they have a name for
//! a moment only.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ringfile::fs::AllocateMode;
use ringfile::{File, OpenOptions};

use std::time::Duration;

use crate::error::{Failure, cant, library, refuse};
use crate::model::Memory;
use crate::values;

/// How often a waiting thread checks whether the run was stopped.
pub const TICK: Duration = Duration::from_millis(50);

/// The store of segments.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    memory: Memory,
    segment_bytes: u64,
    /// The most segments.
    most: u64,
    files: Mutex<Files>,
    came_back: Condvar,
    waits: AtomicU64,
}

#[derive(Debug, Default)]
struct Files {
    made: u64,
    /// Those that no thread needs, in the order in which they became so.
    unused: VecDeque<File>,
}

/// One segment; its file goes back to the store when it is dropped.
#[derive(Debug)]
pub struct Segment {
    /// `None` once it is dropped.
    file: Option<File>,
    store: Arc<Store>,
}

/// The source of a segment.
enum FoundSegment {
    /// A file that was used before.
    Unused(File),
    /// A new file, with this number.
    ToMake(u64),
    /// Nothing: the run was stopped before.
    Nothing,
}

impl Store {
    /// Makes a store of segments of `segment_bytes`, which use at most `room` bytes.
    pub fn new(folder: &Path, memory: Memory, segment_bytes: u64, room: u64) -> Arc<Store> {
        Arc::new(Store {
            folder: folder.to_path_buf(),
            memory,
            segment_bytes,
            most: room / segment_bytes,
            files: Mutex::default(),
            came_back: Condvar::new(),
            waits: AtomicU64::new(0),
        })
    }

    /// Returns how often a thread waited for a segment.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Returns a segment with allocated space. Blocks until one is available; `None` if `stopped` returns true before.
    async fn take(self: &Arc<Self>, stopped: &dyn Fn() -> bool) -> Result<Option<Segment>, Failure> {
        let file = match self.find(stopped) {
            FoundSegment::Unused(file) => file,
            FoundSegment::ToMake(number) => self.make(number).await?,
            FoundSegment::Nothing => return Ok(None),
        };
        Ok(Some(Segment { file: Some(file), store: self.clone() }))
    }

    fn find(&self, stopped: &dyn Fn() -> bool) -> FoundSegment {
        let mut files = self.lock();
        let mut waited = false;
        loop {
            // The log takes all of its room before it overwrites its oldest segment. If the segment that was read last were
            // used again, buffered logs would overwrite the same pages of memory and never write to the disk.
            if files.made < self.most {
                files.made += 1;
                return FoundSegment::ToMake(files.made);
            }
            if let Some(file) = files.unused.pop_front() {
                return FoundSegment::Unused(file);
            }
            if !std::mem::replace(&mut waited, true) {
                self.waits.fetch_add(1, Ordering::Relaxed);
            }
            if stopped() {
                return FoundSegment::Nothing;
            }
            files = self.came_back.wait_timeout(files, TICK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    async fn make(&self, number: u64) -> Result<File, Failure> {
        let file = open_unnamed(&self.folder, self.memory, number).map_err(|error| with_advice(&error))?;
        match file.allocate(AllocateMode::Extend, 0, self.segment_bytes.next_multiple_of(4096)).await {
            // Without allocated space it grows as it is written.
            Err(error) if !matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                Err(with_advice(&error))
            }
            _ => Ok(file),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a failure with advice what to do about it.
fn with_advice(error: &ringfile::Error) -> Failure {
    let advice = match error.errno() {
        Some(libc::ENOSPC | libc::EDQUOT) => "; make room there, or use a smaller --size",
        Some(libc::EFBIG) => "; raise the limit (ulimit -f), or use a smaller --size",
        _ => "",
    };
    Failure::Io(format!("{}{advice}", library(error)))
}

impl Segment {
    /// Returns the file.
    pub fn file(&self) -> &File {
        self.file.as_ref().expect("it is there until the segment is dropped")
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.store.lock().unused.extend(self.file.take());
        self.store.came_back.notify_one();
    }
}

/// The position at which one producer writes next.
#[derive(Debug)]
pub struct Log {
    store: Arc<Store>,
    current: Option<Arc<Segment>>,
    used: u64,
}

impl Log {
    /// Returns a position without a segment.
    pub fn new(store: Arc<Store>) -> Log {
        Log { store, current: None, used: 0 }
    }

    /// Begins another segment with the next bytes.
    pub fn leave_segment(&mut self) {
        self.current = None;
    }

    /// Returns the segment and offset for the next bytes, in a new segment if the current one is full. `None` if
    /// `stopped` returns true before there is room.
    pub async fn place(
        &mut self,
        bytes: u64,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<(Arc<Segment>, u64)>, Failure> {
        if self.used + bytes > self.store.segment_bytes {
            // Released before waiting for another: it may be the one that becomes available.
            self.current = None;
        }
        let segment = match &self.current {
            Some(segment) => segment.clone(),
            None => {
                let Some(segment) = self.store.take(stopped).await? else { return Ok(None) };
                self.used = 0;
                self.current.insert(Arc::new(segment)).clone()
            }
        };
        let offset = self.used;
        self.used += bytes;
        Ok(Some((segment, offset)))
    }
}

/// Makes a file that loses its name at once, and lasts until it is closed; `number` distinguishes this process's files.
fn open_unnamed(folder: &Path, memory: Memory, number: u64) -> ringfile::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).direct(memory.is_direct()).dont_cache(memory.is_uncached());
    let path = folder.join(format!(".ringfile-segment-{}-{number}", std::process::id()));
    let opened = options.create_new(true).open_blocking(&path);
    if !opened.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::AlreadyExists) {
        // Without direct I/O, opening fails but makes the file. If it was not made, there is nothing to remove.
        let _ = std::fs::remove_file(&path);
    }
    opened
}

/// Refuses a folder in which segments can't be made or used as this kind of memory does, and says what to do. Returns the
/// alignment of direct I/O there; 1 without direct I/O.
pub fn check_folder(folder: &Path, memory: Memory) -> Result<u64, Failure> {
    let metadata = std::fs::metadata(folder)
        .map_err(|error| cant("look at", folder, &error, "name another --folder"))?;
    if !metadata.is_dir() {
        return refuse(folder, "is no folder: name one with --folder");
    }
    match open_unnamed(folder, memory, 0) {
        Ok(file) if memory.is_uncached() && !leaves_the_cache(&file)? => {
            let name = values::name(&memory);
            let why = format!(
                "has no RWF_DONTCACHE, which --memory {name} measures: that needs Linux 6.14 and ext4, XFS or Btrfs; leave \
                 {name} out, or name another --folder"
            );
            refuse(folder, why)
        }
        Ok(file) => Ok(file.alignment().bytes as u64),
        Err(error) if error.kind() == std::io::ErrorKind::Unsupported => Err(Failure::Usage(format!(
            "{}; name a --folder on a disk, or measure --memory vec alone",
            library(&error)
        ))),
        Err(error) => {
            Err(Failure::Usage(format!("can't make files there: {}; name another --folder", library(&error))))
        }
    }
}

/// Returns whether the kernel and the file system have `RWF_DONTCACHE`, which the first operation finds out.
fn leaves_the_cache(file: &File) -> Result<bool, Failure> {
    ringfile::block_on(file.write_at(vec![0; 4096], 0)).map_err(|error| library(error.error()))?;
    Ok(file.is_uncached())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_log_takes_all_of_its_room_before_its_oldest_segment_is_used_again() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let store = Store::new(folder.path(), Memory::Vec, 4096, 3 * 4096);
        let take = || ringfile::block_on(store.take(&|| false)).expect("no error").expect("a segment");
        let inode = |segment: &Segment| segment.file().metadata().expect("metadata").ino();
        let first: Vec<u64> = (0..3).map(|_| inode(&take())).collect();
        assert!(first[0] != first[1] && first[0] != first[2] && first[1] != first[2], "{first:?}");
        let again: Vec<u64> = (0..3).map(|_| inode(&take())).collect();
        assert_eq!(again, first);
    }

    #[test]
    fn a_segment_has_no_name() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = open_unnamed(folder.path(), Memory::Vec, 7).expect("a file");
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 0);
        ringfile::block_on(file.write_at(vec![7; 4096], 0)).expect("written");
        assert_eq!(file.size().expect("a size"), 4096);
        let name = format!(".ringfile-segment-{}-7", std::process::id());
        std::fs::write(folder.path().join(&name), "mine").expect("write");
        assert!(open_unnamed(folder.path(), Memory::Vec, 7).is_err());
        assert_eq!(std::fs::read(folder.path().join(&name)).expect("still there"), b"mine");
    }

    #[test]
    fn no_more_is_taken_of_the_disk_than_was_allowed() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let store = Store::new(folder.path(), Memory::Vec, 8192, 2 * 8192);
        let mut log = Log::new(store.clone());
        let place = |log: &mut Log, stopped: bool| {
            let placed = ringfile::block_on(log.place(4096, &|| stopped)).expect("no error");
            placed.inspect(|(segment, _)| {
                assert_eq!(segment.file().size().expect("a size"), 8192, "it has its place on the disk");
            })
        };
        let first = place(&mut log, false).expect("room");
        let second = place(&mut log, false).expect("in the same segment");
        assert!(Arc::ptr_eq(&first.0, &second.0) && (first.1, second.1) == (0, 4096));
        let third = place(&mut log, false).expect("in the next one");
        assert!(!Arc::ptr_eq(&first.0, &third.0) && third.1 == 0);
        assert!(place(&mut log, false).is_some() && place(&mut log, true).is_none(), "two are there");
        assert_eq!(store.waits(), 1);
        let waiting = std::thread::spawn(move || place(&mut log, false).is_some());
        drop((first, second));
        assert!(waiting.join().expect("no panic"), "the first has come back");
        assert_eq!(store.lock().made, 2);
    }
}
