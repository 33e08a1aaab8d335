//! Makes the names of objects durable, together with those of all folders above them.
//!
//! A folder that exists need not be durable: another call, or another process, may have created it just now. So each call
//! syncs every folder above its object that has changed since this store last synced it. Invariants: a folder counts as
//! unchanged only if its inode and its time of change are those that it had when a sync that succeeded began, and only
//! if every later change has another time; calls at the same time do not rely on each other's syncs.

use std::collections::HashMap;
use std::io::{ErrorKind, Result};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use ringfile::File;
use ringfile::fs::Metadata;

use crate::disk::{self, has_exact_inodes, is_gone};

/// The number of folders whose state is remembered.
const MOST: usize = 4096;
/// A folder that has not changed for this long has another time of change after its next change. The coarsest times, of
/// ext4 with small inodes, are whole seconds.
pub(crate) const SETTLED: Duration = Duration::from_secs(2);

/// The syncs that make an object durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Of what a put or an upload has written.
    PutContent,
    /// Of the folder in which it is renamed to its place.
    PutName,
    /// Of the folders above that of an object.
    FoldersAbove,
    /// Of an object that is copied or renamed.
    OldContent,
    /// Of the folders above that of its new name, before it loses the old one.
    NewFolders,
    /// Of the folder of its new name, before it loses the old one, if it has both.
    BothNames,
    /// Of the folder of its new name.
    NewName,
    /// Of the folder of the name that it had.
    OldName,
    /// Of the folder of an object that is deleted.
    Removal,
}

/// See the module.
#[derive(Default)]
pub(crate) struct DurableNames {
    folders: Mutex<HashMap<Inode, SystemTime>>,
    /// A sync that a test leaves out, to see whether a simulation misses it.
    left_out: Option<Step>,
}

/// Device and inode.
type Inode = (u64, u64);

fn inode(metadata: &Metadata) -> Inode {
    (metadata.device, metadata.inode)
}

impl DurableNames {
    pub(crate) fn without(left_out: Option<Step>) -> Self {
        Self { left_out, ..Self::default() }
    }

    /// Makes the content of a file durable, or the names in a folder.
    pub(crate) async fn sync_file(&self, file: &File, step: Step) -> Result<()> {
        if cfg!(feature = "sim") && self.left_out == Some(step) {
            return Ok(());
        }
        disk::sync(file).await
    }

    /// Makes the content of the object at a path durable, whoever has written it.
    pub(crate) async fn sync_content(&self, path: &Path) -> Result<()> {
        self.sync_file(&disk::open_to_sync(path).await?, Step::OldContent).await
    }

    /// Makes the name of an object durable, or its removal, and the names of all folders above it on its file system. Other
    /// calls may have removed the object by now, and its folders.
    pub(crate) async fn sync(&self, path: &Path, step: Step) -> Result<()> {
        self.sync_above(path, Some(step), Step::FoldersAbove).await
    }

    /// Makes the names of all folders above an object durable, before it is renamed there: if the power is cut then, it must
    /// have one of its names. Fails with `NotFound` if its folder does not exist: another call may create it before the
    /// rename.
    pub(crate) async fn sync_folders(&self, path: &Path) -> Result<()> {
        self.sync_above(path, None, Step::NewFolders).await
    }

    /// Syncs the folder of a path if `nearest` says so, and those above it.
    async fn sync_above(&self, path: &Path, nearest: Option<Step>, above: Step) -> Result<()> {
        let Some(folder) = path.parent() else { return Ok(()) };
        match disk::canonicalize(folder).await {
            // Symbolic links lead to it: both their names and those of the folders count.
            Ok(other) if other != folder => self.sync_with_those_above(&other, nearest, above).await?,
            Err(error) if nearest.is_none() || !is_gone(&error) => return Err(error),
            _ => {}
        }
        self.sync_with_those_above(folder, nearest, above).await
    }

    async fn sync_with_those_above(&self, folder: &Path, first: Option<Step>, above: Step) -> Result<()> {
        let mut nearest = None;
        for folder in folder.ancestors() {
            let found = match disk::metadata(folder).await {
                Err(error) if is_gone(&error) => continue,
                found => found?,
            };
            if nearest.as_ref().is_some_and(|(device, _)| *device != found.device) {
                // What is mounted there keeps its name without this folder.
                break;
            }
            // The nearest one has just been changed.
            if nearest.is_some() && self.is_durable(&found) {
                continue;
            }
            match (disk::open_folder(folder).await, &nearest) {
                (Err(error), _) if is_gone(&error) => {}
                (Err(error), Some((_, nearest))) if error.kind() == ErrorKind::PermissionDenied => {
                    // Without the permission to read the folder, only the whole file system can be synced.
                    self.sync_by(&found, nearest, async { Ok(rustix::fs::syncfs(nearest)?) }).await?;
                }
                (opened, _) => {
                    let opened = opened?;
                    let step = if nearest.is_none() { first } else { Some(above) };
                    if let Some(step) = step {
                        let state = disk::metadata_of(&opened).await?;
                        self.sync_by(&state, &opened, self.sync_file(&opened, step)).await?;
                    }
                    nearest.get_or_insert((found.device, opened));
                }
            }
        }
        Ok(())
    }

    /// Syncs a folder with this state by `sync`, and remembers that if it has succeeded. `file` is on the same file system.
    async fn sync_by(
        &self,
        state: &Metadata,
        file: &File,
        sync: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let remembers =
            !disk::is_simulated() && is_settled(state, SystemTime::now()) && has_exact_inodes(file);
        sync.await?;
        if remembers {
            let mut folders = self.folders();
            if folders.len() >= MOST {
                folders.clear();
            }
            folders.insert(inode(state), state.changed);
        }
        Ok(())
    }

    /// Returns whether the names in a folder with this state are durable.
    fn is_durable(&self, state: &Metadata) -> bool {
        self.folders().get(&inode(state)) == Some(&state.changed)
    }

    fn folders(&self) -> MutexGuard<'_, HashMap<Inode, SystemTime>> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the next change of a folder with this state gives it another time of change.
fn is_settled(state: &Metadata, now: SystemTime) -> bool {
    now.duration_since(state.changed).is_ok_and(|age| age > SETTLED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{open_folder, wait};
    use std::fs;

    fn state(path: &Path) -> Metadata {
        wait(disk::metadata(path)).expect("it is there")
    }

    fn sync(names: &DurableNames, path: &Path) -> Result<()> {
        wait(names.sync(path, Step::NewName))
    }

    /// Returns which of these folders count as durable.
    fn durable<const N: usize>(names: &DurableNames, folders: [&Path; N]) -> [bool; N] {
        folders.map(|folder| names.is_durable(&state(folder)))
    }

    #[test]
    fn f53_only_folders_that_have_not_changed_for_a_while_are_remembered() {
        let root = tempfile::tempdir().expect("a folder");
        let (old, new) = (root.path().join("old"), root.path().join("old/new"));
        fs::create_dir_all(&new).expect("created");
        let names = DurableNames::default();
        sync(&names, &new.join("object")).expect("synced");
        assert_eq!(durable(&names, [root.path(), &old, &new]), [false; 3], "they have just been created");

        let file = wait(open_folder(root.path())).expect("opened");
        if !has_exact_inodes(&file) {
            eprintln!("SKIPPED: this file system's inodes are not known to be exact");
            return;
        }
        while !is_settled(&state(&new), SystemTime::now()) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let state_of_old = state(&old);
        let failing = names.sync_by(&state_of_old, &file, async { Err(ErrorKind::Other.into()) });
        wait(failing).expect_err("it is passed on");
        assert_eq!(durable(&names, [&old]), [false], "its sync has failed");

        sync(&names, &new.join("object")).expect("synced");
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
        sync(&names, &root.path().join("a/b/object")).expect("the root is synced");
        fs::create_dir_all(root.path().join("real/deep")).expect("created");
        std::os::unix::fs::symlink("real/deep", root.path().join("link")).expect("linked");
        sync(&names, &root.path().join("link/object")).expect("both ways are synced");
        fs::write(root.path().join("a"), "").expect("written");
        sync(&names, &root.path().join("a/b/object")).expect("an object has the folder's name by now");
    }
}
