//! Unfinished objects: written under a temporary name that listings omit, then renamed.
//!
//! Invariant: the object's own name shows the old object or the whole new one; with syncing, also after a crash.

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// For how long the folders of an object are created again if other calls remove them. Any attempt may fail because of such
/// a call. How many attempts are needed depends on the file system and the other calls, so the limit is a time.
const PATIENCE: Duration = Duration::from_secs(10);

/// A temporary file next to an object. Removed when dropped, unless it was published.
pub(crate) struct Staged {
    path: PathBuf,
    target: PathBuf,
    is_open: bool,
}

impl Staged {
    /// Creates the file, and its folder if that does not exist: `name#1`, or the next free number. `LocalFileSystem`
    /// leaves such names out of its listings.
    pub(crate) fn create(target: &Path, sync: bool) -> Result<(Self, fs::File)> {
        let (mut number, mut since, mut there) = (1, None, None::<PathBuf>);
        loop {
            let mut path = target.as_os_str().to_owned();
            path.push(format!("#{number}"));
            let path = PathBuf::from(path);
            match fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
                Ok(file) => {
                    let staged = Self { path, target: target.to_owned(), is_open: true };
                    // Now that the folder has a file, no other call removes it.
                    if let Some(there) = there.filter(|_| sync) {
                        sync_folders(target, &there)?;
                    }
                    return Ok((staged, file));
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                // Tries again as long as other calls remove the folder before the file is in it.
                Err(error)
                    if error.kind() == ErrorKind::NotFound
                        && since.get_or_insert_with(Instant::now).elapsed() < PATIENCE =>
                {
                    let nearest = nearest_folder(target);
                    there = Some(there.filter(|there| nearest.starts_with(there)).unwrap_or(nearest));
                    create_folder_of(target)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Renames the file, which is written, to its place, and returns its metadata. With `replace` it replaces an existing
    /// object, otherwise that is an error.
    pub(crate) fn publish(mut self, file: &fs::File, replace: bool, sync: bool) -> Result<fs::Metadata> {
        if sync {
            file.sync_all()?;
        }
        flush(file)?;
        // A file system that caches writes knows the final time of change only now.
        let metadata = file.metadata()?;
        if replace {
            fs::rename(&self.path, &self.target)?;
        } else {
            // The rename is one step: the file never has two names, and if another call was first, its object is kept.
            match rename_new(&self.path, &self.target) {
                Err(error) if error.kind() == ErrorKind::InvalidInput => {
                    fs::hard_link(&self.path, &self.target)?;
                    fs::remove_file(&self.path)?;
                }
                renamed => renamed?,
            }
        }
        self.is_open = false;
        match self.target.parent().filter(|_| sync) {
            Some(folder) => sync_folders(&self.target, folder).map(|()| metadata),
            None => Ok(metadata),
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if self.is_open {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The relation between the files, or symbolic links, that two paths name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Links {
    OfTwoFiles,
    /// Different names of one file.
    OfOneFile,
    /// The same directory entry, perhaps by another path.
    Same,
}

impl Links {
    pub(crate) fn of(from: &Path, to: &Path) -> Self {
        let file = |path: &Path| {
            let metadata = fs::symlink_metadata(path).ok().filter(|metadata| !metadata.is_dir())?;
            Some((metadata.dev(), metadata.ino()))
        };
        let name = |path: &Path| Some((fs::canonicalize(path.parent()?).ok()?, path.file_name()?.to_owned()));
        match file(from) {
            Some(one) if Some(one) == file(to) && name(from) == name(to) => Self::Same,
            Some(one) if Some(one) == file(to) => Self::OfOneFile,
            _ => Self::OfTwoFiles,
        }
    }
}

/// Returns failures of writes that the file system reports only when a descriptor is closed. NFS and FUSE servers may write
/// when the file is closed, and find only then that the disk or a quota is full. FUSE servers may ignore a sync.
fn flush(file: &fs::File) -> Result<()> {
    loop {
        // Closes a duplicate: the kernel does the same for each descriptor. Linux closes it in any case; if a signal
        // interrupted the writing, the next one continues.
        match nix::unistd::close(file.try_clone()?) {
            Err(nix::Error::EINTR) => {}
            closed => return Ok(closed?),
        }
    }
}

fn rename_new(from: &Path, to: &Path) -> Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

/// Creates an object's folder, and those above it. Another call may remove it again.
fn create_folder_of(path: &Path) -> Result<()> {
    let created = path.parent().map_or(Ok(()), fs::create_dir_all);
    created.or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) })
}

/// Returns the nearest folder above a path that exists.
pub(crate) fn nearest_folder(path: &Path) -> PathBuf {
    let there = path.ancestors().skip(1).find(|folder| folder.is_dir());
    there.unwrap_or_else(|| Path::new("/")).to_owned()
}

/// Makes durable the names in an object's folder, and those of folders that were created below `there`. Another call may
/// have removed the object by now, and its folders.
pub(crate) fn sync_folders(path: &Path, there: &Path) -> Result<()> {
    let above = path.ancestors().skip(1);
    for folder in above.take_while(|folder| folder.starts_with(there)) {
        match open_folder(folder) {
            Err(error) if is_gone(&error) => {}
            opened => opened?.sync_all()?,
        }
    }
    Ok(())
}

/// Makes the removal of a name below `root` durable. The name of a folder that was removed with it, because it became
/// empty, was in the nearest folder that is left, so that one is synced.
pub(crate) fn sync_removal(path: &Path, root: &Path) -> Result<()> {
    for folder in path.ancestors().skip(1) {
        match open_folder(folder) {
            Err(error) if is_gone(&error) && folder != root => {}
            opened => return opened?.sync_all(),
        }
    }
    Ok(())
}

fn open_folder(path: &Path) -> Result<fs::File> {
    let only_folders = rustix::fs::OFlags::DIRECTORY.bits().cast_signed();
    fs::OpenOptions::new().read(true).custom_flags(only_folders).open(path)
}

/// Returns whether the folder no longer exists, or an object has its name by now.
pub(crate) fn is_gone(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_folder_that_others_remove_is_created_again() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("new/deep");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = fs::remove_dir(&folder);
                    let _ = fs::remove_dir(root.path().join("new"));
                }
            });
            let results: Vec<_> =
                (0..200).map(|_| Staged::create(&folder.join("object"), true).map(drop)).collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            results.into_iter().for_each(|created| created.expect("it is created"));
        });
    }

    #[test]
    fn the_nearest_folder_is_the_one_that_is_there() {
        let root = tempfile::tempdir().expect("a folder");
        fs::write(root.path().join("file"), "").expect("written");
        assert_eq!(nearest_folder(&root.path().join("a/b/c")), root.path());
        assert_eq!(nearest_folder(&root.path().join("a")), root.path());
        assert_eq!(nearest_folder(&root.path().join("file/b")), root.path());
        assert_eq!(nearest_folder(Path::new("/")), Path::new("/"));
    }

    #[test]
    fn what_is_not_published_leaves_nothing_and_no_name_is_taken_twice() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("new/deep/object");
        let (first, mut file) = Staged::create(&target, true).expect("it is created");
        let (second, _) = Staged::create(&target, false).expect("with another number");
        assert_ne!(first.path, second.path);
        let there = second.path.clone();
        drop(second);
        assert!(!there.exists());
        file.write_all(b"content").expect("written");
        first.publish(&file, false, true).expect("published");
        assert_eq!(fs::read(&target).expect("read"), b"content");

        let (third, file) = Staged::create(&target, false).expect("it is created");
        let error = third.publish(&file, false, false).expect_err("it is there");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        let (fourth, file) = Staged::create(&target, false).expect("it is created");
        fourth.publish(&file, true, false).expect("published");
        assert_eq!(fs::read(&target).expect("read"), b"");
        let names = fs::read_dir(target.parent().expect("a folder")).expect("listed").count();
        assert_eq!(names, 1);
    }
}
