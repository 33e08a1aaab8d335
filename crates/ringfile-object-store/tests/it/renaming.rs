//! Renames that do not replace, where `RENAME_NOREPLACE` is refused: by a FUSE file system, as NFS and many FUSE servers do, or
//! by a filter (F71).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, Filesystem, Generation, INodeNo, RenameFlags, ReplyAttr,
    ReplyEmpty, ReplyEntry, Request,
};
use object_store_014::path::Path;
use object_store_014::{Error, ObjectStore, ObjectStoreExt, PutMode, Result};
use ringfile_object_store::RingfileStore;
use tempfile::TempDir;

use crate::support;

const NOT_CACHED: Duration = Duration::ZERO;
/// The inode of the object that is renamed from `from` to `to`.
const OBJECT: u64 = 2;
/// That of another object.
const OTHER: u64 = 3;

type Names = BTreeMap<String, u64>;

/// One folder of files without content.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    names: Names,
    refuses_links: bool,
    /// Whether each name has its own inode number, as with servers that know only paths.
    numbers_names: bool,
    /// Whether the object had neither name at some time.
    was_hidden: bool,
}

impl State {
    fn changed(&mut self) {
        let has = |name| self.names.get(name) == Some(&OBJECT);
        self.was_hidden |= !has("from") && !has("to");
    }
}

impl Server {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

fn attributes(ino: INodeNo) -> FileAttr {
    support::attributes(ino, 0, SystemTime::UNIX_EPOCH)
}

fn text(name: &OsStr) -> String {
    name.to_str().unwrap().into()
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.state().names.get(&text(name)) {
            Some(&ino) => reply.entry(&NOT_CACHED, &attributes(INodeNo(ino)), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&NOT_CACHED, &attributes(ino));
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        from: &OsStr,
        _: INodeNo,
        to: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let mut state = self.state();
        let Some(ino) = state.names.remove(&text(from)) else { return reply.error(Errno::ENOENT) };
        state.names.insert(text(to), ino);
        state.changed();
        reply.ok();
    }

    fn link(&self, _: &Request, ino: INodeNo, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut state = self.state();
        if state.refuses_links {
            return reply.error(Errno::EPERM);
        }
        let last = state.names.values().max().copied().unwrap_or_default();
        let ino = if state.numbers_names { INodeNo(last + 1) } else { ino };
        state.names.insert(text(name), ino.0);
        state.changed();
        reply.entry(&NOT_CACHED, &attributes(ino), Generation(0));
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut state = self.state();
        state.names.remove(&text(name));
        state.changed();
        reply.ok();
    }
}

/// Mounts a folder with these names, or says why that is not possible here.
fn mount<const N: usize>(names: [(&str, u64); N]) -> Option<(Server, TempDir, BackgroundSession)> {
    let server = Server::default();
    server.state().names = names.map(|(name, ino)| (name.into(), ino)).into();
    let (folder, session) = support::mount(server.clone())?;
    Some((server, folder, session))
}

async fn rename(folder: &TempDir) -> Result<()> {
    let store = RingfileStore::new_with_prefix(folder.path()).unwrap();
    store.rename_if_not_exists(&Path::from("from"), &Path::from("to")).await
}

#[track_caller]
fn assert_names<const N: usize>(server: &Server, names: [(&str, u64); N]) {
    assert_eq!(server.state().names, names.map(|(name, ino)| (name.into(), ino)).into());
}

#[tokio::test]
async fn an_object_is_renamed() {
    let Some((server, folder, _session)) = mount([("from", OBJECT)]) else { return };
    rename(&folder).await.unwrap();
    assert_names(&server, [("to", OBJECT)]);
}

#[tokio::test]
async fn an_object_that_cannot_be_renamed_keeps_its_name() {
    let Some((server, folder, _session)) = mount([("from", OBJECT), ("to", OTHER)]) else { return };
    assert!(matches!(rename(&folder).await, Err(Error::AlreadyExists { .. })));
    assert_names(&server, [("from", OBJECT), ("to", OTHER)]);

    server.state().names.remove("to");
    server.state().refuses_links = true;
    rename(&folder).await.unwrap_err();
    assert_names(&server, [("from", OBJECT)]);
    assert!(!server.state().was_hidden, "a crash would have lost it");
}

#[tokio::test]
async fn names_with_inode_numbers_of_their_own_are_renamed() {
    let Some((server, folder, _session)) = mount([("from", OBJECT)]) else { return };
    server.state().numbers_names = true;
    rename(&folder).await.unwrap();
    assert!(server.state().names.keys().eq(["to"]), "{:?}", server.state().names);
}

#[test]
fn f71_objects_are_created_and_renamed_where_renameat2_is_refused() {
    if !support::in_child("f71_objects_are_created_and_renamed_where_renameat2_is_refused") {
        return;
    }
    for errno in [libc::EPERM, libc::ENOSYS] {
        // Before the threads of the runtime, which then have this filter too.
        support::filters::deny(libc::SYS_renameat2, errno);
        let folder = tempfile::tempdir().unwrap();
        let store = RingfileStore::new_with_prefix(folder.path()).unwrap();
        let (one, two) = (Path::from("one"), Path::from("two"));
        let create = |path| store.put_opts(path, "new".into(), PutMode::Create.into());
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            create(&one).await.unwrap();
            assert!(matches!(create(&one).await, Err(Error::AlreadyExists { .. })));
            store.rename_if_not_exists(&one, &two).await.unwrap();
            create(&one).await.unwrap();
            assert!(matches!(store.rename_if_not_exists(&one, &two).await, Err(Error::AlreadyExists { .. })));
            assert_eq!(store.get(&one).await.unwrap().bytes().await.unwrap(), "new");
        });
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary name is left");
    }
}
