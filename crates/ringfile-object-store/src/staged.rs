//! Names of objects: given to files that were written under a temporary name, and to copies; and changed.
//!
//! Invariants: an object's own name shows the old object or the whole new one; with syncing, also after a crash. Nothing is
//! removed by a name that another call may have given to another file meanwhile.

use std::ffi::OsStr;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ringfile::fs::{FileType, Metadata};
use ringfile::{File, OpenOptions};
use rustix::fs::{Timespec, Timestamps, UTIME_OMIT, futimens};
use rustix::io::Errno;

use crate::disk::{self, is_gone};
use crate::names::{DurableNames, Step};

/// How often the folders of an object are created again, at once, if other calls remove them before the object has its name.
/// On ext4, one thread that does nothing but remove the folder wins hundreds of attempts in a row.
const AT_ONCE: u32 = 100_000;
/// How often after that, with pauses. Some file systems, such as /proc, let no attempt succeed.
const PAUSES: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(1);

/// Returns a name beside an object: that of the object up to its first `#`, and `#` with a number. `LocalFileSystem` takes
/// such a name neither for an object nor for part of a listing. The number is random and never used again, so no other call
/// has the name, or gets it later.
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
    name.push(format!("#{digits}{}", disk::new_number()));
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
    pub(crate) async fn create(target: &Path, options: &mut OpenOptions) -> Result<(Self, File)> {
        let path = temporary_name(target);
        let options = options.read(true).write(true).create_new(true);
        let file = in_folder_of(target, None, async || disk::open(&path, options).await).await?;
        Ok((Self { path, target: target.to_owned(), is_open: true, created: SystemTime::now() }, file))
    }

    /// Renames the file, which is written, to its place, and returns its metadata. With `replace` it replaces an existing
    /// object, otherwise that is an error. Removes the file if it is not renamed.
    pub(crate) async fn publish(
        mut self,
        file: &File,
        replace: bool,
        sync: Option<&DurableNames>,
    ) -> Result<Metadata> {
        match self.put_in_place(file, replace, sync).await {
            Ok(metadata) => sync_names(sync, &self.target, Step::PutName).await.map(|()| metadata),
            Err(error) => {
                self.remove().await;
                Err(error)
            }
        }
    }

    async fn put_in_place(
        &mut self,
        file: &File,
        replace: bool,
        sync: Option<&DurableNames>,
    ) -> Result<Metadata> {
        if !disk::is_simulated() {
            flush(file)?;
            // After a failure, objects have the times that the file system gives them.
            let _ = self.set_time(file);
        }
        if let Some(names) = sync {
            names.sync_file(file, Step::PutContent).await?;
        }
        // A file system that caches writes knows the final time of change only now.
        let metadata = disk::metadata_of(file).await?;
        if replace {
            rename_over(&self.path, &self.target).await?;
        } else {
            rename_new(&self.path, &self.target).await?;
        }
        self.is_open = false;
        Ok(metadata)
    }

    /// Removes the file.
    pub(crate) async fn remove(mut self) {
        self.is_open = false;
        let _ = disk::remove_file(&self.path).await;
    }
}

impl Staged {
    /// Gives the file a time of change that no earlier file with its inode had, so that no object has the ETag of one that
    /// was there before: it consists of the inode, that time in microseconds, and the length. A file system may give all
    /// files that change within one tick of its clock (4 ms or more) the same time, and the inode of a removed file to the
    /// next one. An earlier file got its time before it was removed, so before this file was created; this waits until the
    /// system's clock, which shows microseconds, has another time. That holds across processes that do so too, as long as
    /// the clock is not set back. If the clock stands still, as a simulated one may, the file keeps its time.
    fn set_time(&self, file: &File) -> Result<()> {
        let Some(time) = time_after(self.created, SystemTime::now) else { return Ok(()) };
        let since = time.duration_since(SystemTime::UNIX_EPOCH).map_err(Error::other)?;
        let modified = Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() };
        let accessed = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        Ok(futimens(file, &Timestamps { last_access: accessed, last_modification: modified })?)
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
            disk::remove_file_soon(std::mem::take(&mut self.path));
        }
    }
}

/// Gives the file `from` the name `to` too, as a hard link. With `replace` this replaces an existing object, otherwise that is
/// an error.
pub(crate) async fn copy(from: &Path, to: &Path, replace: bool, sync: Option<&DurableNames>) -> Result<()> {
    let link = async || {
        if !replace {
            return disk::hard_link(from, to).await;
        }
        let link = temporary_name(to);
        disk::hard_link(from, &link).await?;
        let copied = rename_over(&link, to).await;
        // After a failure, or if `to` was a link to the file already, so that the rename did nothing.
        remove_if_there(&link).await.and(copied)
    };
    name_file(from, to, sync, link).await
}

/// Renames the file `from` to `to`. With `replace` this replaces an existing object, otherwise that is an error.
pub(crate) async fn rename(from: &Path, to: &Path, replace: bool, sync: Option<&DurableNames>) -> Result<()> {
    let rename = async || {
        if let Some(names) = sync {
            names.sync_folders(to).await?;
        }
        if replace {
            // Renaming one link of a file to another does nothing.
            if !are_links(from, to).await {
                return rename_over(from, to).await;
            }
            sync_names(sync, to, Step::BothNames).await?;
            return rename_by_steps(from, to, rename_over).await;
        }
        if disk::symlink_metadata(from).await?.file_type == FileType::Directory {
            return Err(ErrorKind::IsADirectory.into());
        }
        match disk::rename_no_replace(from, to).await {
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                if disk::symlink_metadata(to).await.is_ok() {
                    return Err(ErrorKind::AlreadyExists.into());
                }
                // Giving the object its new name, or its old one back, needs links: fails while it still has its name.
                let link = temporary_name(from);
                disk::hard_link(from, &link).await?;
                remove_if_there(&link).await?;
                rename_by_steps(from, to, rename_new).await
            }
            renamed => renamed,
        }
    };
    name_file(from, to, sync, rename).await
}

/// Renames by way of a temporary name, so that a file which another call gives the name `from` meanwhile is not removed.
///
/// If the process ends after the first step, and the object has no other name, listings hide it until an operator gives it a
/// name again. No order of these calls avoids that without losing data in another way: if the object got its new name first, a
/// rename that another one has overtaken would have to remove that name again, which a copy may have been told to
/// create meanwhile. The next process cannot put the object back by itself, since it does not know whether the rename
/// is still under way on another machine.
async fn rename_by_steps(
    from: &Path,
    to: &Path,
    rename: impl AsyncFnOnce(&Path, &Path) -> Result<()>,
) -> Result<()> {
    let temporary = renaming_name(from);
    disk::rename(from, &temporary).await?;
    let renamed = rename(&temporary, to).await;
    if renamed.is_err() {
        match rename_new(&temporary, from).await {
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
    remove_if_there(&temporary).await.and(renamed)
}

/// Runs `name`, which gives the file `from` the name `to`. With `sync`, first makes its content durable, then the name.
async fn name_file(
    from: &Path,
    to: &Path,
    sync: Option<&DurableNames>,
    name: impl AsyncFnMut() -> Result<()>,
) -> Result<()> {
    if let Some(names) = sync {
        match names.sync_content(from).await {
            // `name` reports this error, unless it is a symbolic link that leads nowhere.
            Err(error) if is_gone(&error) => {}
            synced => synced?,
        }
    }
    in_folder_of(to, Some(from), name).await?;
    sync_names(sync, to, Step::NewName).await
}

async fn sync_names(names: Option<&DurableNames>, path: &Path, step: Step) -> Result<()> {
    match names {
        Some(names) => names.sync(path, step).await,
        None => Ok(()),
    }
}

/// Runs `create`, which gives a file a name in the folder of `path`, and creates that folder if it does not exist. Tries again
/// as long as other calls remove the folder before the file is in it, unless `create` needs a file that does not exist.
async fn in_folder_of<T>(
    path: &Path,
    needs: Option<&Path>,
    mut create: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let mut attempts = 0;
    loop {
        let created = create().await;
        attempts += 1;
        let is_gone = created.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if !is_gone || attempts > AT_ONCE + PAUSES {
            return created;
        }
        if let Some(needs) = needs
            && disk::symlink_metadata(needs).await.is_err()
        {
            return created;
        }
        if attempts > AT_ONCE {
            disk::pause(PAUSE).await;
        }
        create_folder_of(path).await?;
    }
}

/// Returns whether these are different names of one file or symbolic link. The same name by another path is not different.
async fn are_links(one: &Path, other: &Path) -> bool {
    let file = async |path: &Path| {
        let metadata = disk::symlink_metadata(path).await.ok()?;
        (metadata.file_type != FileType::Directory).then_some((metadata.device, metadata.inode))
    };
    let name = async |path: &Path| {
        Some((disk::canonicalize(path.parent()?).await.ok()?, path.file_name()?.to_owned()))
    };
    let Some(file_of_one) = file(one).await else { return false };
    Some(file_of_one) == file(other).await && name(one).await != name(other).await
}

/// Renames a file, and replaces one, or a symbolic link, that has the name already.
async fn rename_over(from: &Path, to: &Path) -> Result<()> {
    use FileType::{Directory, File, Symlink};
    let replaced = disk::symlink_metadata(to).await;
    if replaced.is_ok_and(|found| !matches!(found.file_type, File | Symlink | Directory)) {
        let why = format!("{to:?} is not a regular file, and is not replaced");
        return Err(Error::new(ErrorKind::InvalidInput, why));
    }
    disk::rename(from, to).await
}

/// Renames a file whose name no other call has, if `to` does not exist yet.
async fn rename_new(from: &Path, to: &Path) -> Result<()> {
    // The rename is one step: the file never has two names, and if another call was first, its object is kept.
    match disk::rename_no_replace(from, to).await {
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            disk::hard_link(from, to).await?;
            disk::remove_file(from).await
        }
        renamed => renamed,
    }
}

async fn remove_if_there(path: &Path) -> Result<()> {
    disk::remove_file(path).await.or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) })
}

/// Adds to an error what it means for a path. Its kind says nothing about an object any more.
fn about(error: &Error, what: &str, path: &Path) -> Error {
    Error::other(format!("{what} {path:?}: {error}"))
}

/// Returns failures of writes that the file system reports only when a descriptor is closed. NFS and FUSE servers may write
/// when the file is closed, and find only then that the disk or a quota is full. FUSE servers may ignore a sync.
fn flush(file: &File) -> Result<()> {
    loop {
        // Closes a duplicate: the kernel does the same for each descriptor. Linux closes it in any case; if a signal
        // interrupted the writing, the next one continues.
        match ringfile::internal::close(file.as_fd().try_clone_to_owned()?) {
            Err(Errno::INTR) => {}
            closed => return Ok(closed?),
        }
    }
}

/// Creates an object's folder, and those above it. Another call may remove it again.
async fn create_folder_of(path: &Path) -> Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    let Err(error) = disk::create_dir_all(folder).await else { return Ok(()) };
    match error.kind() {
        _ if is_gone(&error) => Ok(()),
        // Of the folder, not of the object.
        ErrorKind::AlreadyExists if is_below_broken_link(path).await => {
            Err(about(&error, "failed to create the folder of", path))
        }
        // The folder was there, and another call has removed it before it was looked up; or an object has its name, which the
        // next attempt reports.
        ErrorKind::AlreadyExists => Ok(()),
        _ => Err(error),
    }
}

/// Returns whether a folder above a path is a symbolic link that leads nowhere.
async fn is_below_broken_link(path: &Path) -> bool {
    for folder in path.ancestors().skip(1) {
        let found = disk::symlink_metadata(folder).await;
        if found.is_ok_and(|found| found.file_type == FileType::Symlink)
            && disk::metadata(folder).await.is_err()
        {
            return true;
        }
    }
    false
}

/// Makes it durable that an object has lost its name. With `root`, first removes its folders below that that are empty.
pub(crate) async fn settle(
    path: &Path,
    root: Option<&Path>,
    sync: Option<&DurableNames>,
    step: Step,
) -> Result<()> {
    if let Some(root) = root {
        for folder in path.ancestors().skip(1).take_while(|folder| *folder != root) {
            if disk::remove_dir(folder).await.is_err() {
                break;
            }
        }
    }
    sync_names(sync, path, step).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::wait;
    use std::collections::HashSet;
    use std::fs;

    fn create(target: &Path) -> Result<(Staged, File)> {
        wait(Staged::create(target, &mut OpenOptions::new()))
    }

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
            let results: Vec<_> = (0..200).map(|_| create(&folder.join("object")).map(drop)).collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            results.into_iter().for_each(|created| created.expect("it is created"));
        });
    }

    #[test]
    fn an_unpublished_object_leaves_nothing_and_no_name_is_taken_twice() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("new/deep/object");
        let (first, file) = create(&target).expect("it is created");
        let (second, _) = create(&target).expect("with another number");
        assert_ne!(first.path, second.path);
        let there = second.path.clone();
        drop(second);
        assert!(!there.exists());
        fs::write(&first.path, b"content").expect("written");
        wait(first.publish(&file, false, Some(&DurableNames::default()))).expect("published");
        assert_eq!(fs::read(&target).expect("read"), b"content");

        let (third, file) = create(&target).expect("it is created");
        let error = wait(third.publish(&file, false, None)).expect_err("it is there");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        let (fourth, file) = create(&target).expect("it is created");
        wait(fourth.publish(&file, true, None)).expect("published");
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
            let (staged, file) = create(&target).expect("it is created");
            fs::write(&staged.path, b"equal").expect("written");
            let same_file = fs::File::options().write(true).open(&staged.path).expect("it is there");
            same_file.set_modified(tick).expect("as in one tick");
            let published = wait(staged.publish(&file, true, None)).expect("published");
            let tag = crate::store::etag(&published);
            assert_eq!(crate::store::etag(&(&fs::metadata(&target).expect("there")).into()), tag);
            assert!(tags.insert(tag), "put {number} has the ETag of an earlier one");
            inodes.insert(published.inode);
        }
        if inodes.len() == tags.len() {
            let line = b"skipped f50_no_object_has_the_etag: this file system uses no inode number again\n";
            std::io::Write::write_all(&mut std::io::stderr(), line).expect("standard error");
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
        let (upload, _) = create(&from).expect("it is created");
        std::mem::forget(upload);
        let interrupted = std::panic::catch_unwind(|| {
            wait(rename_by_steps(&from, &to, async |_: &Path, _: &Path| panic!("the process is killed here")))
        });
        assert!(interrupted.is_err());
        let names = fs::read_dir(folder.path()).expect("listed").map(|entry| entry.expect("listed").path());
        let is_hidden = |path: &PathBuf| path.to_string_lossy().contains("/from#0");
        let hidden: Vec<_> = names.filter(is_hidden).collect();
        assert_eq!(hidden.len(), 1, "{hidden:?}");
        assert_eq!(
            fs::metadata(&hidden[0]).map(|found| Metadata::from(&found)).expect("there").links,
            1,
            "it has no other name"
        );
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
        wait(rename_by_steps(&from, &to, rename_new)).expect("renamed");
        assert_eq!((content(&from), content(&to)), (String::new(), "1".into()));

        put(&from, "2");
        let error = wait(rename_by_steps(&from, &to, rename_new)).expect_err("it is there");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!((content(&from), content(&to)), ("2".into(), "1".into()));

        let overtaken = async |temporary: &Path, to: &Path| {
            fs::write(temporary.with_file_name("from#x"), "newer")?;
            rename_new(temporary, to).await
        };
        wait(rename_by_steps(&from, &to, overtaken)).expect_err("it is there");
        assert_eq!((content(&from), content(&to)), ("newer".into(), "1".into()));
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 2);
    }
}
