//! Makes the names of objects durable, together with those of all folders above them.
//!
//! A folder that exists need not be durable: another call, or another process, may have created it just now. So each call
//! syncs every folder above its object that has changed since this store last synced it. Invariants: a folder counts as
//! unchanged only if its inode and its time of change are those that it had when a sync that succeeded began, and only
//! if every later change has another time; calls at the same time do not rely on each other's syncs.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::store::has_exact_inodes;

/// The number of folders whose state is remembered.
const MOST: usize = 4096;
/// A folder that has not changed for this long has another time of change after its next change. The coarsest times, of
/// ext4 with small inodes, are whole seconds.
const SETTLED: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Default)]
pub(crate) struct DurableNames(Mutex<HashMap<Inode, Changed>>);

/// Device and inode.
type Inode = (u64, u64);
/// Seconds and nanoseconds.
type Changed = (i64, i64);

fn inode(metadata: &Metadata) -> Inode {
    (metadata.dev(), metadata.ino())
}

fn changed(metadata: &Metadata) -> Changed {
    (metadata.ctime(), metadata.ctime_nsec())
}

impl DurableNames {
    /// Makes the name of an object durable, or its removal, and the names of all folders above it on its file system. Other
    /// calls may have removed the object by now, and its folders.
    pub(crate) fn sync(&self, path: &Path) -> Result<()> {
        let Some(folder) = path.parent() else { return Ok(()) };
        match fs::canonicalize(folder) {
            // Symbolic links lead to it: both their names and those of the folders count.
            Ok(other) if other != folder => self.sync_with_those_above(&other)?,
            Err(error) if !is_gone(&error) => return Err(error),
            _ => {}
        }
        self.sync_with_those_above(folder)
    }

    fn sync_with_those_above(&self, folder: &Path) -> Result<()> {
        let mut nearest = None;
        for folder in folder.ancestors() {
            let found = match fs::metadata(folder) {
                Err(error) if is_gone(&error) => continue,
                found => found?,
            };
            if nearest.as_ref().is_some_and(|(device, _)| *device != found.dev()) {
                // What is mounted there keeps its name without this folder.
                break;
            }
            // The nearest one has just been changed.
            if nearest.is_some() && self.is_durable(&found) {
                continue;
            }
            match (open_folder(folder), &nearest) {
                (Err(error), _) if is_gone(&error) => {}
                (Err(error), Some((_, nearest))) if error.kind() == ErrorKind::PermissionDenied => {
                    // Without the permission to read the folder, only the whole file system can be synced.
                    self.sync_by(&found, nearest, || Ok(rustix::fs::syncfs(nearest)?))?;
                }
                (opened, _) => {
                    let opened = opened?;
                    self.sync_by(&opened.metadata()?, &opened, || opened.sync_all())?;
                    nearest.get_or_insert((found.dev(), opened));
                }
            }
        }
        Ok(())
    }

    /// Syncs a folder with this state by `sync`, and remembers that if it has succeeded. `file` is on the same file system.
    fn sync_by(&self, state: &Metadata, file: &fs::File, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        let remembers = is_settled(state, SystemTime::now()) && has_exact_inodes(file);
        sync()?;
        if remembers {
            let mut folders = self.folders();
            if folders.len() >= MOST {
                folders.clear();
            }
            folders.insert(inode(state), changed(state));
        }
        Ok(())
    }

    /// Returns whether the names in a folder with this state are durable.
    fn is_durable(&self, state: &Metadata) -> bool {
        self.folders().get(&inode(state)) == Some(&changed(state))
    }

    fn folders(&self) -> MutexGuard<'_, HashMap<Inode, Changed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the next change of a folder with this state gives it another time of change.
fn is_settled(state: &Metadata, now: SystemTime) -> bool {
    let (seconds, nanos) = changed(state);
    let since = Duration::new(seconds.try_into().unwrap_or_default(), nanos.try_into().unwrap_or_default());
    now.duration_since(SystemTime::UNIX_EPOCH + since).is_ok_and(|age| age > SETTLED)
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

    /// Returns which of these folders count as durable.
    fn durable<const N: usize>(names: &DurableNames, folders: [&Path; N]) -> [bool; N] {
        folders.map(|folder| names.is_durable(&fs::metadata(folder).expect("it is there")))
    }

    #[test]
    fn f53_only_folders_that_have_not_changed_for_a_while_are_remembered() {
        let root = tempfile::tempdir().expect("a folder");
        let (old, new) = (root.path().join("old"), root.path().join("old/new"));
        fs::create_dir_all(&new).expect("created");
        let names = DurableNames::default();
        names.sync(&new.join("object")).expect("synced");
        assert_eq!(durable(&names, [root.path(), &old, &new]), [false; 3], "they have just been created");

        let file = open_folder(root.path()).expect("opened");
        if !has_exact_inodes(&file) {
            eprintln!("SKIPPED: this file system's inodes are not known to be exact");
            return;
        }
        while !is_settled(&fs::metadata(&new).expect("there"), SystemTime::now()) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let sync = names.sync_by(&fs::metadata(&old).expect("there"), &file, || Err(ErrorKind::Other.into()));
        sync.expect_err("it is passed on");
        assert_eq!(durable(&names, [&old]), [false], "its sync has failed");

        names.sync(&new.join("object")).expect("synced");
        assert_eq!(durable(&names, [root.path(), &old, &new]), [true; 3]);

        // A folder of the same name, perhaps with the same inode, is another one, and so is one that was renamed away and back.
        fs::remove_dir(&new).expect("removed");
        fs::create_dir(&new).expect("created");
        assert_eq!(durable(&names, [root.path(), &old, &new]), [true, false, false]);
        fs::rename(&old, root.path().join("away")).expect("renamed");
        fs::rename(root.path().join("away"), &old).expect("renamed");
        assert_eq!(durable(&names, [root.path(), &old]), [false, false]);
    }

    #[test]
    fn folders_that_are_gone_and_symbolic_links_are_followed_up_to_what_is_there() {
        let root = tempfile::tempdir().expect("a folder");
        let names = DurableNames::default();
        names.sync(&root.path().join("a/b/object")).expect("the root is synced");
        fs::create_dir_all(root.path().join("real/deep")).expect("created");
        std::os::unix::fs::symlink("real/deep", root.path().join("link")).expect("linked");
        names.sync(&root.path().join("link/object")).expect("both ways are synced");
        fs::write(root.path().join("a"), "").expect("written");
        names.sync(&root.path().join("a/b/object")).expect("an object has the folder's name by now");
    }
}
