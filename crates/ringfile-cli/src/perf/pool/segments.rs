//! Segment files: made without a name, filled from front to back, and removed when nobody has them any more.
//!
//! What always holds: no more of the disk is taken at once than was allowed; a segment is gone when the process is,
//! however that ends, for no folder has it. Where a file system knows no files without a name, it has one for a moment.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use ringfile::{AllocateMode, File, OpenOptions};

use super::run::TICK;
use crate::error::{Failure, errno_text, library};

/// Where segments are made, and how much of the disk they may take.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    direct: bool,
    segment_bytes: u64,
    room: Arc<Room>,
    remover: Sender<File>,
    made: AtomicU64,
}

/// Removes segments that nobody has any more, on a thread of its own: cutting a file takes milliseconds, which a log
/// does not let its readers wait for.
#[derive(Debug)]
pub struct Remover {
    segment_bytes: u64,
    room: Arc<Room>,
    unused: Receiver<File>,
}

/// One segment; removed when it is dropped.
#[derive(Debug)]
pub struct Segment {
    /// Its file, until it is dropped.
    file: Option<File>,
    remover: Sender<File>,
}

impl Store {
    /// For segments of so many bytes, of which `room` bytes may be there at once; at least one for each that makes some.
    pub fn new(folder: &Path, direct: bool, segment_bytes: u64, room: u64) -> (Arc<Store>, Remover) {
        let (remover, unused) = mpsc::channel();
        let room = Arc::new(Room::new(room));
        let store = Store {
            folder: folder.to_path_buf(),
            direct,
            segment_bytes,
            room: room.clone(),
            remover,
            made: AtomicU64::new(0),
        };
        (Arc::new(store), Remover { segment_bytes, room, unused })
    }

    /// Times that somebody waited for room.
    pub fn room_waits(&self) -> u64 {
        self.room.waits.load(Ordering::Relaxed)
    }

    /// A new segment, with its place on the disk. Blocks until there is room for it; `None` if `stopped` says so before.
    async fn make(self: &Arc<Self>, stopped: &dyn Fn() -> bool) -> Result<Option<Segment>, Failure> {
        if !self.room.take(self.segment_bytes, stopped) {
            return Ok(None);
        }
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let file = open_unnamed(&self.folder, self.direct, number).map_err(|error| library(&error))?;
        let segment = Segment { file: Some(file), remover: self.remover.clone() };
        match segment.file().allocate(AllocateMode::Extend, 0, self.segment_bytes).await {
            // Without room of its own it grows as it is written.
            Err(error) if !matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                let advice = match error.errno() {
                    Some(libc::ENOSPC | libc::EDQUOT) => "; make room there, or use a smaller --size",
                    Some(libc::EFBIG) => "; raise the limit (ulimit -f), or use a smaller --size",
                    _ => "",
                };
                Err(Failure::Io(format!("{}{advice}", library(&error))))
            }
            _ => Ok(Some(segment)),
        }
    }
}

impl Segment {
    /// The file.
    pub fn file(&self) -> &File {
        self.file.as_ref().expect("it is there until the segment is dropped")
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // Without its remover the run is over, and closing the file is enough.
            let _ = self.remover.send(file);
        }
    }
}

impl Remover {
    /// Removes segments until the store and all segments are gone.
    pub fn run(self) {
        for file in self.unused {
            // Its blocks come back now: the library's threads may have the file open for a while. Should it fail, they come
            // back then.
            let _ = nix::unistd::ftruncate(&file, 0);
            drop(file);
            self.room.give_back(self.segment_bytes);
        }
    }
}

/// Where one producer writes next.
#[derive(Debug)]
pub struct Log {
    store: Arc<Store>,
    current: Option<Arc<Segment>>,
    used: u64,
}

impl Log {
    /// An empty one.
    pub fn new(store: Arc<Store>) -> Log {
        Log { store, current: None, used: 0 }
    }

    /// The segment and offset for the next so many bytes, in a new segment where the one before is full. `None` if
    /// `stopped` says so before there is room.
    pub async fn place(
        &mut self,
        bytes: u64,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<(Arc<Segment>, u64)>, Failure> {
        if self.used + bytes > self.store.segment_bytes {
            // Given up before there is another: it may be the room that is waited for.
            self.current = None;
        }
        let segment = match &self.current {
            Some(segment) => segment.clone(),
            None => {
                let Some(segment) = self.store.make(stopped).await? else { return Ok(None) };
                self.used = 0;
                self.current.insert(Arc::new(segment)).clone()
            }
        };
        let offset = self.used;
        self.used += bytes;
        Ok(Some((segment, offset)))
    }
}

/// Bytes of the disk that may still be taken.
#[derive(Debug)]
struct Room {
    left: Mutex<u64>,
    came_back: Condvar,
    waits: AtomicU64,
}

impl Room {
    fn new(bytes: u64) -> Room {
        Room { left: Mutex::new(bytes), came_back: Condvar::new(), waits: AtomicU64::new(0) }
    }

    fn take(&self, bytes: u64, stopped: &dyn Fn() -> bool) -> bool {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if *left < bytes {
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
        while *left < bytes {
            if stopped() {
                return false;
            }
            left = self.came_back.wait_timeout(left, TICK).unwrap_or_else(PoisonError::into_inner).0;
        }
        *left -= bytes;
        true
    }

    fn give_back(&self, bytes: u64) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) += bytes;
        self.came_back.notify_all();
    }
}

/// A file that no folder has; `number` tells this process's files apart.
pub fn open_unnamed(folder: &Path, direct: bool, number: u64) -> ringfile::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).direct(direct);
    match options.clone().custom_flags(libc::O_TMPFILE).open(folder) {
        Err(error) if matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            open_and_remove(&mut options, folder, number)
        }
        opened => opened,
    }
}

/// The same where the file system knows no files without a name: it has one for a moment, and lasts until it is closed.
fn open_and_remove(options: &mut OpenOptions, folder: &Path, number: u64) -> ringfile::Result<File> {
    let path = folder.join(format!(".ringfile-segment-{}-{number}", std::process::id()));
    let opened = options.create_new(true).open(&path);
    if !opened.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::AlreadyExists) {
        // Where the file system has no direct I/O it was made all the same; where it could not be made there is nothing to
        // remove.
        let _ = std::fs::remove_file(&path);
    }
    opened
}

/// Refuses a folder that segments can't be made in, in one line that says what to do. Gives what direct I/O there must be
/// a multiple of; 1 without.
pub fn check_folder(folder: &Path, direct: bool) -> Result<u64, Failure> {
    let shown = folder.display();
    let metadata = std::fs::metadata(folder).map_err(|error| {
        Failure::Usage(format!("can't look at {shown}: {}; name another --folder", errno_text(&error)))
    })?;
    if !metadata.is_dir() {
        return Err(Failure::Usage(format!("{shown} is no folder: name one with --folder")));
    }
    match open_unnamed(folder, direct, 0) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_needs_a_name_has_none_afterwards() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut options = OpenOptions::new();
        let file = open_and_remove(options.read(true).write(true), folder.path(), 7).expect("a file");
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 0);
        ringfile::block_on(file.write_at(vec![7; 4096], 0)).expect("written");
        assert_eq!(file.size().expect("a size"), 4096);
        let name = format!(".ringfile-segment-{}-7", std::process::id());
        std::fs::write(folder.path().join(&name), "mine").expect("write");
        assert!(open_and_remove(&mut options, folder.path(), 7).is_err());
        assert_eq!(std::fs::read(folder.path().join(&name)).expect("still there"), b"mine");
    }

    #[test]
    fn no_more_is_taken_of_the_disk_than_was_allowed() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (store, remover) = Store::new(folder.path(), false, 8192, 2 * 8192);
        let mut log = Log::new(store.clone());
        let place = |log: &mut Log, stopped: bool| {
            ringfile::block_on(log.place(4096, &|| stopped)).expect("no error").map(|(segment, offset)| {
                assert_eq!(segment.file().size().expect("a size"), 8192, "it has its place on the disk");
                (segment, offset)
            })
        };
        let first = place(&mut log, false).expect("room");
        let second = place(&mut log, false).expect("in the same segment");
        assert!(Arc::ptr_eq(&first.0, &second.0) && (first.1, second.1) == (0, 4096));
        let third = place(&mut log, false).expect("in the next one");
        assert!(!Arc::ptr_eq(&first.0, &third.0) && third.1 == 0);
        assert!(place(&mut log, false).is_some() && place(&mut log, true).is_none(), "two are there");
        assert_eq!(store.room_waits(), 1);
        let remover = std::thread::spawn(|| remover.run());
        drop((first, second));
        assert!(place(&mut log, false).is_some(), "the first has gone");
        drop((third, log, store));
        remover.join().expect("it ends with the store and all segments");
    }
}
