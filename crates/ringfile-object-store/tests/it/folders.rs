//! Folders that are created, removed and synced beside a store's calls, on a FUSE file system that reports each sync of a
//! folder.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use crate::support;
use crate::support::patience;
use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry, ReplyWrite, Request,
    WriteFlags,
};
use object_store_014::path::Path;
use object_store_014::{ObjectStore, ObjectStoreExt, PutMode, Result};
use ringfile_object_store::RingfileStore;
use tempfile::TempDir;

const NOT_CACHED: Duration = Duration::ZERO;
const ROOT: u64 = INodeNo::ROOT.0;

/// Folders of files without content.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The inode of each name in each folder.
    names: HashMap<(u64, OsString), u64>,
    folders: BTreeSet<u64>,
    last: u64,
    /// The folders whose syncs have succeeded, by inode.
    synced: BTreeSet<u64>,
    /// The number of the next syncs that fail.
    failures: usize,
    /// A folder whose syncs are not answered.
    held_folder: Option<u64>,
    held: Vec<ReplyEmpty>,
    /// The number of the next folders that appear to be there when they are created, and no longer when they are looked up.
    vanishing: usize,
    /// Whether a folder is created again as soon as it is removed.
    returns: bool,
}

impl State {
    fn find(&self, parent: INodeNo, name: &OsStr) -> Option<u64> {
        self.names.get(&(parent.0, name.to_owned())).copied()
    }

    fn add(&mut self, parent: INodeNo, name: &OsStr) -> u64 {
        self.last = self.last.max(ROOT) + 1;
        self.names.insert((parent.0, name.to_owned()), self.last);
        self.last
    }

    fn add_folder(&mut self, parent: INodeNo, name: &OsStr) -> u64 {
        let ino = self.add(parent, name);
        self.folders.insert(ino);
        ino
    }

    fn attributes(&self, ino: u64) -> FileAttr {
        let mut attributes = support::attributes(INodeNo(ino), 0, SystemTime::UNIX_EPOCH);
        if self.folders.contains(&ino) {
            attributes.kind = FileType::Directory;
        }
        attributes
    }

    /// Returns the folders from this one up to the root, by inode.
    fn with_those_above(&self, folder: u64) -> BTreeSet<u64> {
        let above = |ino| self.names.iter().find(|(_, child)| **child == ino).map(|((parent, _), _)| *parent);
        std::iter::successors(Some(folder), |ino| above(*ino)).collect()
    }
}

impl Server {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Answers the syncs that are held.
    fn release(&self) {
        let mut state = self.state();
        let folder = state.held_folder.take();
        state.synced.extend(folder);
        state.held.drain(..).for_each(ReplyEmpty::ok);
    }

    /// Returns the inode of a path.
    fn find(&self, path: &str) -> Option<u64> {
        let state = self.state();
        path.split('/').try_fold(ROOT, |parent, name| state.find(INodeNo(parent), name.as_ref()))
    }
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let state = self.state();
        match state.find(parent, name) {
            Some(ino) => reply.entry(&NOT_CACHED, &state.attributes(ino), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&NOT_CACHED, &self.state().attributes(ino.0));
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let mut state = self.state();
        if state.vanishing > 0 {
            state.vanishing -= 1;
            return reply.error(Errno::EEXIST);
        }
        let ino = state.add_folder(parent, name);
        reply.entry(&NOT_CACHED, &state.attributes(ino), Generation(0));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut state = self.state();
        let Some(ino) = state.find(parent, name) else { return reply.error(Errno::ENOENT) };
        if state.names.keys().any(|(parent, _)| *parent == ino) {
            return reply.error(Errno::ENOTEMPTY);
        }
        state.names.remove(&(parent.0, name.to_owned()));
        if state.returns {
            state.add_folder(parent, name);
        }
        reply.ok();
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        let mut state = self.state();
        let ino = state.add(parent, name);
        let attributes = state.attributes(ino);
        reply.created(&NOT_CACHED, &attributes, Generation(0), FileHandle(0), FopenFlags::empty());
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.written(data.len() as u32);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        from: &OsStr,
        new_parent: INodeNo,
        to: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut state = self.state();
        if !flags.is_empty() && state.find(new_parent, to).is_some() {
            return reply.error(Errno::EEXIST);
        }
        let Some(ino) = state.names.remove(&(parent.0, from.to_owned())) else {
            return reply.error(Errno::ENOENT);
        };
        state.names.insert((new_parent.0, to.to_owned()), ino);
        reply.ok();
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut state = self.state();
        state.names.insert((parent.0, name.to_owned()), ino.0);
        reply.entry(&NOT_CACHED, &state.attributes(ino.0), Generation(0));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.state().names.remove(&(parent.0, name.to_owned()));
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let mut state = self.state();
        if state.held_folder == Some(ino.0) {
            return state.held.push(reply);
        }
        if state.failures > 0 {
            state.failures -= 1;
            return reply.error(Errno::EIO);
        }
        state.synced.insert(ino.0);
        reply.ok();
    }
}

fn mount() -> Option<(Server, TempDir, BackgroundSession)> {
    let server = Server::default();
    let (folder, session) = support::mount(server.clone())?;
    Some((server, folder, session))
}

fn store(folder: &TempDir, sync: bool, removes_empty_folders: bool) -> RingfileStore {
    let store = RingfileStore::builder().prefix(folder.path()).sync(sync);
    store.removes_empty_folders(removes_empty_folders).build().unwrap()
}

/// The ways in which an object gets a name.
const WAYS: [&str; 7] =
    ["put", "create", "upload", "copy", "copy_if_not_exists", "rename", "rename_if_not_exists"];

/// Gives the object `to` its name in one of these ways, from the object `from` or with a content of its own.
async fn name(store: &RingfileStore, way: &str, from: &Path, to: &Path) -> Result<()> {
    match way {
        "put" => store.put(to, "content".into()).await.map(drop),
        "create" => store.put_opts(to, "content".into(), PutMode::Create.into()).await.map(drop),
        "upload" => {
            let mut upload = store.put_multipart(to).await?;
            upload.put_part("content".into()).await?;
            upload.complete().await.map(drop)
        }
        "copy" => store.copy(from, to).await,
        "copy_if_not_exists" => store.copy_if_not_exists(from, to).await,
        "rename" => store.rename(from, to).await,
        "rename_if_not_exists" => store.rename_if_not_exists(from, to).await,
        _ => unreachable!("{way}"),
    }
}

#[track_caller]
fn assert_names_are_durable(server: &Server, folder: &str, what: &str) {
    let folder = server.find(folder).unwrap();
    let state = server.state();
    let missing: Vec<_> = state.with_those_above(folder).difference(&state.synced).copied().collect();
    drop(state);
    assert!(missing.is_empty(), "{what}: the folders {missing:?} were not synced; the root is {ROOT}");
}

/// F53: another process, or a put that has not ended yet, has created the folders.
#[tokio::test]
async fn f53_an_object_makes_the_names_of_all_folders_above_it_durable() {
    let Some((server, folder, _session)) = mount() else { return };
    let store = store(&folder, true, false);
    let from = Path::from("from");
    for (at, way) in WAYS.into_iter().enumerate() {
        store.put(&from, "content".into()).await.unwrap();
        fs::create_dir_all(folder.path().join(format!("{at}/deep"))).unwrap();
        server.state().synced.clear();
        name(&store, way, &from, &Path::from(format!("{at}/deep/object"))).await.unwrap();
        assert_names_are_durable(&server, &format!("{at}/deep"), way);
    }
}

/// F53: the second of two puts into a new folder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f53_a_put_waits_until_the_folder_that_another_put_has_created_is_durable() {
    let Some((server, folder, _session)) = mount() else { return };
    let store = store(&folder, true, false);
    server.state().held_folder = Some(ROOT);
    let put = |name: &str| {
        let (server, store, path) = (server.clone(), store.clone(), Path::from(format!("new/{name}")));
        tokio::spawn(async move {
            store.put(&path, "content".into()).await.unwrap();
            assert_names_are_durable(&server, "new", path.as_ref());
        })
    };
    let first = put("1");
    let began = Instant::now();
    while server.state().held.is_empty() {
        assert!(began.elapsed() < patience(), "the root is not synced");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let second = put("2");
    // Enough for it to return too early.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let is_early = second.is_finished();
    // In any case, so that the kernel does not wait for an answer for ever.
    server.release();
    first.await.unwrap();
    second.await.unwrap();
    assert!(!is_early, "it has returned before the root was synced");
}

#[tokio::test]
async fn f53_a_folder_whose_sync_failed_is_synced_again() {
    let Some((server, folder, _session)) = mount() else { return };
    let store = store(&folder, true, false);
    for failures in 1..=2 {
        let path = Path::from(format!("{failures}/object"));
        // First the sync of the new folder fails, then that of the root.
        for _ in 0..failures {
            server.state().failures = 1;
            store.put(&path, "content".into()).await.unwrap_err();
            server.state().synced.clear();
        }
        store.put(&path, "content".into()).await.unwrap();
        assert_names_are_durable(&server, &failures.to_string(), "put");
    }
}

/// F53: a folder that was removed with its last object is durable again, with all above, when the removal is.
#[tokio::test]
async fn f53_the_removal_of_an_object_is_durable_although_its_folder_is_created_again() {
    let Some((server, folder, _session)) = mount() else { return };
    let store = store(&folder, true, true);
    let (object, other) = (Path::from("new/object"), Path::from("other"));
    for way in ["delete", "rename"] {
        server.state().returns = false;
        store.put(&object, "content".into()).await.unwrap();
        server.state().synced.clear();
        server.state().returns = true;
        match way {
            "delete" => store.delete(&object).await.unwrap(),
            _ => store.rename(&object, &other).await.unwrap(),
        }
        assert_names_are_durable(&server, "new", way);
    }
}

/// F54: the folder is there when it is created, and another call has removed it when it is looked up.
#[tokio::test]
async fn f54_a_folder_that_vanishes_while_it_is_created_is_created_again() {
    let Some((server, folder, _session)) = mount() else { return };
    let store = store(&folder, false, true);
    let from = Path::from("from");
    for (at, way) in WAYS.into_iter().enumerate() {
        store.put(&from, "content".into()).await.unwrap();
        server.state().vanishing = 3;
        let to = Path::from(format!("{at}/deep/object"));
        name(&store, way, &from, &to).await.unwrap_or_else(|error| panic!("{way}: {error:?}"));
        assert!(server.find(to.as_ref()).is_some(), "{way}");
        assert_eq!(server.state().vanishing, 0);
    }
}

/// F54, on a usual file system: calls that create in two folders, and calls that empty them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f54_calls_that_create_in_a_folder_and_calls_that_empty_it_do_not_disturb_each_other() {
    const TASKS: u64 = 16;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (sync, rounds) in [(false, 1000), (true, 60)] {
        let store = store(&folder, sync, true);
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let store = store.clone();
                tokio::spawn(async move {
                    for round in 0..rounds {
                        let way = WAYS[((task + round) % WAYS.len() as u64) as usize];
                        let at = |folder: u64| Path::from(format!("{}/deep/{task}", folder % 2));
                        let (from, to) = (at(round), at(round + 1));
                        store.put(&from, "content".into()).await.unwrap();
                        let named = name(&store, way, &from, &to).await;
                        named.unwrap_or_else(|error| panic!("task {task}, round {round}: {way}: {error:?}"));
                        store.delete(&to).await.unwrap();
                        if !way.starts_with("rename") {
                            store.delete(&from).await.unwrap();
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    }
}
