//! Folders, files and pipes that tests make, and that are gone afterwards.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A new folder, removed when it is dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// Makes a folder in the system's temporary folder, which is usually on a disk.
    pub fn new() -> Self {
        Self::inside(&std::env::temp_dir())
    }

    pub fn inside(parent: &Path) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        std::fs::create_dir_all(parent).unwrap();
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("ringfile-fault-{}-{number}", std::process::id()));
            match std::fs::create_dir(&path) {
                // Left by a process that was killed and had the same number.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                created => return created.map(|()| Self(path)).unwrap(),
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The path of a file, which is removed at the end.
pub struct TempPath(PathBuf);

impl TempPath {
    pub fn new(folder: impl AsRef<Path>, name: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = folder.as_ref().join(format!("ringfile-test-{name}-{}-{number}", std::process::id()));
            // Otherwise left by a process that was killed and had the same number.
            if !path.exists() {
                return Self(path);
            }
        }
    }

    /// Makes a path in the build folder, which is usually on a disk.
    pub fn on_disk(name: &str) -> Self {
        Self::new(env!("CARGO_TARGET_TMPDIR"), name)
    }
}

impl std::ops::Deref for TempPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for TempPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Makes a pipe: a file whose reads wait until the test writes.
pub fn pipe() -> (ringfile::File, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let reader = std::fs::File::from(std::os::fd::OwnedFd::from(reader));
    (ringfile::File::from(reader), writer)
}

/// Returns whether reads of a direct file can be started without waiting for the device; on an overlay they cannot.
pub fn reads_without_waiting(file: &ringfile::File) -> Result<(), String> {
    use rustix::io::{Errno, IoSliceMut, ReadWriteFlags, preadv2};
    let mut page = ringfile::Pool::new(4096).get(4096).unwrap();
    page.resize(4096, 0);
    match preadv2(file, &mut [IoSliceMut::new(&mut page)], 0, ReadWriteFlags::NOWAIT) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(format!("the file system has no direct I/O that does not wait: {error}")),
    }
}
