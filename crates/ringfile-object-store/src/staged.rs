//! Names of objects: given to files that were written under a temporary name, and to copies; and changed.
//!
//! Invariants: an object's own name shows the old object or the whole new one; with syncing, also after a crash. Nothing is
//! removed by a name that another call may have given to another file meanwhile.

use std::ffi::OsStr;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crate::names::{DurableNames, is_gone};

/// For how long the folders of an object are created again if other calls remove them. Any attempt may fail because of such
/// a call. How many attempts are needed depends on the file system and the other calls, so the limit is a time.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause after an attempt. Some file systems, such as /proc, let no attempt succeed.
const PAUSE: Duration = Duration::from_millis(1);

/// Returns a name beside an object: that of the object up to its first `#`, and `#` with a number. `LocalFileSystem` takes
/// such a name neither for an object nor for part of a listing. The number is random and never used again, so no other call
/// has the name, or gets it later; not even in a forked child, which has a copy of the random state.
fn temporary_name(path: &Path) -> PathBuf {
    hidden_name(path, "")
}

/// Returns such a name for an object that is renamed: the number begins with 0, as no other does. If a process ends in the
/// middle of [`rename_by_steps`], an operator finds the object by that (README, "After a crash").
fn renaming_name(path: &Path) -> PathBuf {
    hidden_name(path, "0")
}

fn hidden_name(path: &Path, digits: &str) -> PathBuf {
    const LONGEST: usize = 255 - "#018446744073709551615".len();
    let name = path.file_name().unwrap_or_default().as_bytes();
    let start = name.split(|&byte| byte == b'#').next().filter(|start| start.len() <= LONGEST);
    let mut name = OsStr::from_bytes(start.unwrap_or_default()).to_owned();
    name.push(format!("#{digits}{}", RandomState::new().hash_one(std::process::id())));
    path.with_file_name(name)
}

/// A temporary file next to an object. Removed when dropped, unless it was published.
pub(crate) struct Staged {
    path: PathBuf,
    target: PathBuf,
    is_open: bool,
    /// The file was created before this.
    created: SystemTime,
}

impl Staged {
    /// Creates the file, and its folder if that does not exist.
    pub(crate) fn create(target: &Path) -> Result<(Self, fs::File)> {
        let path = temporary_name(target);
        let file = in_folder_of(target, None, || {
            fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path)
        })?;
        Ok((Self { path, target: target.to_owned(), is_open: true, created: SystemTime::now() }, file))
    }

    /// Renames the file, which is written, to its place, and returns its metadata. With `replace` it replaces an existing
    /// object, otherwise that is an error.
    pub(crate) fn publish(
        mut self,
        file: &fs::File,
        replace: bool,
        sync: Option<&DurableNames>,
    ) -> Result<fs::Metadata> {
        flush(file)?;
        // After a failure, objects have the times that the file system gives them.
        let _ = self.set_time(file);
        if sync.is_some() {
            file.sync_all()?;
        }
        // A file system that caches writes knows the final time of change only now.
        let metadata = file.metadata()?;
        let publish = if replace { rename_over } else { rename_new };
        publish(&self.path, &self.target)?;
        self.is_open = false;
        sync.map_or(Ok(()), |names| names.sync(&self.target)).map(|()| metadata)
    }
}

impl Staged {
    /// Gives the file a time of change that no earlier file with its inode had, so that no object has the ETag of one that
    /// was there before: it consists of the inode, that time in microseconds, and the length. A file system may give all
    /// files that change within one tick of its clock (4 ms or more) the same time, and the inode of a removed file to the
    /// next one. An earlier file got its time before it was removed, so before this file was created; this waits until the
    /// system's clock, which shows microseconds, has another time. That holds across processes that do so too, as long as
    /// the clock is not set back. If the clock stands still, as a simulated one may, the file keeps its time.
    fn set_time(&self, file: &fs::File) -> Result<()> {
        time_after(self.created, SystemTime::now).map_or(Ok(()), |time| file.set_modified(time))
    }
}

/// Returns the first time of the clock that is in another microsecond. `None` if there is none for much longer than the tick
/// of a coarse clock lasts.
fn time_after(time: SystemTime, mut clock: impl FnMut() -> SystemTime) -> Option<SystemTime> {
    /// Each takes 20 ns to 0.3 µs.
    const LOOKS: usize = 1 << 18;
    let micros =
        |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
    (0..LOOKS).map(|_| clock()).find(|&now| micros(now) != micros(time))
}

impl Drop for Staged {
    fn drop(&mut self) {
        if self.is_open {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Gives the file `from` the name `to` too, as a hard link. With `replace` this replaces an existing object, otherwise that is
/// an error.
pub(crate) fn copy(from: &Path, to: &Path, replace: bool, sync: Option<&DurableNames>) -> Result<()> {
    name_file(from, to, sync, || {
        if !replace {
            return fs::hard_link(from, to);
        }
        let link = temporary_name(to);
        fs::hard_link(from, &link)?;
        let copied = rename_over(&link, to);
        // After a failure, or if `to` was a link to the file already, so that the rename did nothing.
        remove_if_there(&link).and(copied)
    })
}

/// Renames the file `from` to `to`. With `replace` this replaces an existing object, otherwise that is an error.
pub(crate) fn rename(from: &Path, to: &Path, replace: bool, sync: Option<&DurableNames>) -> Result<()> {
    name_file(from, to, sync, || {
        if replace {
            // Renaming one link of a file to another does nothing.
            return if are_links(from, to) {
                rename_by_steps(from, to, rename_over)
            } else {
                rename_over(from, to)
            };
        }
        if fs::symlink_metadata(from)?.is_dir() {
            return Err(ErrorKind::IsADirectory.into());
        }
        match renameat_new(from, to) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                if fs::symlink_metadata(to).is_ok() {
                    return Err(ErrorKind::AlreadyExists.into());
                }
                // Giving the object its new name, or its old one back, needs links: fails while it still has its name.
                let link = temporary_name(from);
                fs::hard_link(from, &link)?;
                remove_if_there(&link)?;
                rename_by_steps(from, to, rename_new)
            }
            renamed => renamed,
        }
    })
}

/// Renames by way of a temporary name, so that a file which another call gives the name `from` meanwhile is not removed.
///
/// If the process ends after the first step, and the object has no other name, listings hide it until an operator gives it a
/// name again. No order of these calls avoids that without losing data in another way: if the object got its new name first, a
/// rename that another one has overtaken would have to remove that name again, which a copy may have been told to
/// create meanwhile. The next process cannot put the object back by itself, since it does not know whether the rename
/// is still under way on another machine.
fn rename_by_steps(from: &Path, to: &Path, rename: fn(&Path, &Path) -> Result<()>) -> Result<()> {
    let temporary = renaming_name(from);
    fs::rename(from, &temporary)?;
    let renamed = rename(&temporary, to);
    if renamed.is_err() {
        match rename_new(&temporary, from) {
            // A newer object has the name, and has replaced this one.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            returned => {
                return returned
                    .map_err(|error| about(&error, "the object is left as", &temporary))
                    .and(renamed);
            }
        }
    }
    // After a failure, or if `to` was a link to the file already.
    remove_if_there(&temporary).and(renamed)
}

/// Runs `name`, which gives the file `from` the name `to`. With `sync`, first makes its content durable, then the name.
fn name_file(
    from: &Path,
    to: &Path,
    sync: Option<&DurableNames>,
    name: impl FnMut() -> Result<()>,
) -> Result<()> {
    if sync.is_some() {
        match crate::store::open_to_read(from) {
            // `name` reports this error, unless it is a symbolic link that leads nowhere.
            Err(error) if is_gone(&error) => {}
            opened => opened?.sync_all()?,
        }
    }
    in_folder_of(to, Some(from), name)?;
    sync.map_or(Ok(()), |names| names.sync(to))
}

/// Runs `create`, which gives a file a name in the folder of `path`, and creates that folder if it does not exist. Tries again
/// as long as other calls remove the folder before the file is in it, unless `create` needs a file that does not exist.
fn in_folder_of<T>(path: &Path, needs: Option<&Path>, mut create: impl FnMut() -> Result<T>) -> Result<T> {
    let mut since = None::<Instant>;
    let is_there = |path: &Path| fs::symlink_metadata(path).is_ok();
    loop {
        match create() {
            Err(error)
                if error.kind() == ErrorKind::NotFound
                    && needs.is_none_or(is_there)
                    && since.is_none_or(|since| since.elapsed() < PATIENCE) =>
            {
                match since {
                    Some(_) => std::thread::sleep(PAUSE),
                    None => since = Some(Instant::now()),
                }
                create_folder_of(path)?;
            }
            created => return created,
        }
    }
}

/// Returns whether these are different names of one file or symbolic link. The same name by another path is not different.
fn are_links(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| {
        let metadata = fs::symlink_metadata(path).ok().filter(|metadata| !metadata.is_dir())?;
        Some((metadata.dev(), metadata.ino()))
    };
    let name = |path: &Path| Some((fs::canonicalize(path.parent()?).ok()?, path.file_name()?.to_owned()));
    file(one).is_some_and(|file_of_one| Some(file_of_one) == file(other)) && name(one) != name(other)
}

/// Renames a file, and replaces one, or a symbolic link, that has the name already.
fn rename_over(from: &Path, to: &Path) -> Result<()> {
    let replaced = fs::symlink_metadata(to).map(|metadata| metadata.file_type());
    if replaced.is_ok_and(|kind| !kind.is_file() && !kind.is_symlink() && !kind.is_dir()) {
        let why = format!("{} is not a regular file, and is not replaced", to.display());
        return Err(Error::new(ErrorKind::InvalidInput, why));
    }
    fs::rename(from, to)
}

/// Renames a file whose name no other call has, if `to` does not exist yet.
fn rename_new(from: &Path, to: &Path) -> Result<()> {
    // The rename is one step: the file never has two names, and if another call was first, its object is kept.
    match renameat_new(from, to) {
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        renamed => renamed,
    }
}

/// Fails with `InvalidInput` on file systems without such a rename.
fn renameat_new(from: &Path, to: &Path) -> Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

fn remove_if_there(path: &Path) -> Result<()> {
    fs::remove_file(path).or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) })
}

/// Adds to an error what it means for a path. Its kind says nothing about an object any more.
fn about(error: &Error, what: &str, path: &Path) -> Error {
    Error::other(format!("{what} {}: {error}", path.display()))
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

/// Creates an object's folder, and those above it. Another call may remove it again.
fn create_folder_of(path: &Path) -> Result<()> {
    let created = path.parent().map_or(Ok(()), fs::create_dir_all);
    created.or_else(|error| match error.kind() {
        _ if is_gone(&error) => Ok(()),
        // Of the folder, not of the object.
        ErrorKind::AlreadyExists if is_below_broken_link(path) => {
            Err(about(&error, "failed to create the folder of", path))
        }
        // The folder was there, and another call has removed it before it was looked up; or an object has its name, which the
        // next attempt reports.
        ErrorKind::AlreadyExists => Ok(()),
        _ => Err(error),
    })
}

/// Returns whether a folder above a path is a symbolic link that leads nowhere.
fn is_below_broken_link(path: &Path) -> bool {
    let is_link = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    path.ancestors().skip(1).any(|folder| is_link(folder) && !folder.exists())
}

/// Removes the folders of an object, below `root`, that are empty.
pub(crate) fn remove_empty_folders(path: &Path, root: &Path) {
    let below = path.ancestors().skip(1).take_while(|folder| *folder != root);
    below.map_while(|folder| fs::remove_dir(folder).ok()).for_each(drop);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
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
                (0..200).map(|_| Staged::create(&folder.join("object")).map(drop)).collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            results.into_iter().for_each(|created| created.expect("it is created"));
        });
    }

    #[test]
    fn an_unpublished_object_leaves_nothing_and_no_name_is_taken_twice() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("new/deep/object");
        let (first, mut file) = Staged::create(&target).expect("it is created");
        let (second, _) = Staged::create(&target).expect("with another number");
        assert_ne!(first.path, second.path);
        let there = second.path.clone();
        drop(second);
        assert!(!there.exists());
        file.write_all(b"content").expect("written");
        first.publish(&file, false, Some(&DurableNames::default())).expect("published");
        assert_eq!(fs::read(&target).expect("read"), b"content");

        let (third, file) = Staged::create(&target).expect("it is created");
        let error = third.publish(&file, false, None).expect_err("it is there");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        let (fourth, file) = Staged::create(&target).expect("it is created");
        fourth.publish(&file, true, None).expect("published");
        assert_eq!(fs::read(&target).expect("read"), b"");
        let names = fs::read_dir(target.parent().expect("a folder")).expect("listed").count();
        assert_eq!(names, 1);
    }

    /// A file system gives the inode of a removed object to the next one, and before Linux 6.13 the same time of change
    /// to all files that change within one tick of its clock.
    #[test]
    fn f50_no_object_has_the_etag_of_one_that_was_there_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("object");
        let tick = SystemTime::now();
        let (mut tags, mut inodes) = (HashSet::new(), HashSet::new());
        for number in 0..300 {
            let (staged, mut file) = Staged::create(&target).expect("it is created");
            file.write_all(b"equal").expect("written");
            file.set_modified(tick).expect("as in one tick");
            let published = staged.publish(&file, true, None).expect("published");
            let tag = crate::store::etag(&published);
            assert_eq!(crate::store::etag(&fs::metadata(&target).expect("there")), tag);
            assert!(tags.insert(tag), "put {number} has the ETag of an earlier one");
            inodes.insert(published.ino());
        }
        if inodes.len() == tags.len() {
            eprintln!("skipped f50_no_object_has_the_etag…: this file system uses no inode number again");
        }
    }

    #[test]
    fn a_clock_that_stands_still_is_not_waited_for() {
        let (time, tick) = (SystemTime::UNIX_EPOCH + Duration::from_secs(1), Duration::from_nanos(400));
        assert_eq!(time_after(time, || time), None);
        let mut now = time;
        let ticks = || {
            now += tick;
            now
        };
        assert_eq!(time_after(time, ticks), Some(time + 3 * tick));
        let set_back = time - tick;
        assert_eq!(time_after(time, || set_back), Some(set_back));
    }

    #[test]
    fn an_object_whose_rename_was_interrupted_is_found_by_its_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::write(&from, "content").expect("written");
        // An upload that was interrupted too.
        let (upload, _) = Staged::create(&from).expect("it is created");
        std::mem::forget(upload);
        let interrupted = std::panic::catch_unwind(|| {
            rename_by_steps(&from, &to, |_, _| panic!("the process is killed here"))
        });
        assert!(interrupted.is_err());
        let names = fs::read_dir(folder.path()).expect("listed").map(|entry| entry.expect("listed").path());
        let is_hidden = |path: &PathBuf| path.to_string_lossy().contains("/from#0");
        let hidden: Vec<_> = names.filter(is_hidden).collect();
        assert_eq!(hidden.len(), 1, "{hidden:?}");
        assert_eq!(fs::metadata(&hidden[0]).expect("there").nlink(), 1, "it has no other name");
        assert_eq!(fs::read(&hidden[0]).expect("read"), b"content");
    }

    /// Where `renameat2` is refused, and after failures.
    #[test]
    fn a_rename_by_steps_removes_nothing_but_its_temporary_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let (from, to) = (folder.path().join("from#x"), folder.path().join("to"));
        let content = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let put = |path: &Path, text: &str| fs::write(path, text).expect("written");
        put(&from, "1");
        rename_by_steps(&from, &to, rename_new).expect("renamed");
        assert_eq!((content(&from), content(&to)), (String::new(), "1".into()));

        put(&from, "2");
        let error = rename_by_steps(&from, &to, rename_new).expect_err("it is there");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!((content(&from), content(&to)), ("2".into(), "1".into()));

        rename_by_steps(&from, &to, |temporary, to| {
            fs::write(temporary.with_file_name("from#x"), "newer")?;
            rename_new(temporary, to)
        })
        .expect_err("it is there");
        assert_eq!((content(&from), content(&to)), ("newer".into(), "1".into()));
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 2);
    }
}
