//! Uploads that fail or are given up, on a FUSE file system: one that reports failed writes only when the file is closed,
//! as NFS and FUSE servers do, and one that does not answer.

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use crate::support;
use crate::support::patience;
use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry, ReplyWrite, Request, WriteFlags,
};
use object_store_014::path::Path;
use object_store_014::{ObjectStore, ObjectStoreExt, PutMode};
use ringfile_object_store::RingfileStore;
use tempfile::TempDir;

const NOT_CACHED: Duration = Duration::ZERO;

/// One folder of files without content.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The inode of each name.
    names: HashMap<OsString, u64>,
    last: u64,
    /// The answers to the flushes of the file that is created next, 0 for success; the last one is repeated. Descriptors of
    /// earlier files may be closed later.
    next_flushes: VecDeque<i32>,
    /// The same for the file that was created last.
    flushes: VecDeque<i32>,
    writes: Writes,
    held: Vec<ReplyWrite>,
    /// The threads that removed a file.
    removers: Vec<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Writes {
    #[default]
    Succeed,
    Fail,
    /// They are not answered.
    Wait,
}

impl Server {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

fn attributes(ino: INodeNo) -> FileAttr {
    support::attributes(ino, 0, SystemTime::UNIX_EPOCH)
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.state().names.get(name) {
            Some(&ino) => reply.entry(&NOT_CACHED, &attributes(INodeNo(ino)), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&NOT_CACHED, &attributes(ino));
    }

    fn create(&self, _: &Request, _: INodeNo, name: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        let mut state = self.state();
        state.last = state.last.max(INodeNo::ROOT.0) + 1;
        state.flushes = std::mem::take(&mut state.next_flushes);
        let ino = state.last;
        state.names.insert(name.to_owned(), ino);
        let flags = FopenFlags::empty();
        reply.created(&NOT_CACHED, &attributes(INodeNo(ino)), Generation(0), FileHandle(0), flags);
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
        let mut state = self.state();
        match state.writes {
            Writes::Succeed => reply.written(data.len() as u32),
            Writes::Fail => reply.error(Errno::ENOSPC),
            Writes::Wait => state.held.push(reply),
        }
    }

    fn flush(&self, _: &Request, ino: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        let mut state = self.state();
        let answer = match state.flushes.len() {
            _ if ino.0 != state.last => None,
            0 | 1 => state.flushes.front().copied(),
            _ => state.flushes.pop_front(),
        };
        match answer {
            None | Some(0) => reply.ok(),
            Some(errno) => reply.error(Errno::from_i32(errno)),
        }
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        from: &OsStr,
        _: INodeNo,
        to: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut state = self.state();
        if let Some(ino) = state.names.remove(from) {
            state.names.insert(to.to_owned(), ino);
        }
        reply.ok();
    }

    fn unlink(&self, request: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut state = self.state();
        state.names.remove(name);
        state.removers.push(request.pid());
        reply.ok();
    }
}

fn mount() -> Option<(Server, TempDir, BackgroundSession)> {
    let server = Server::default();
    let (folder, session) = support::mount(server.clone())?;
    Some((server, folder, session))
}

/// Removing may take the file system long, so that is not done on a thread with other tasks.
#[tokio::test]
async fn an_upload_that_failed_or_was_given_up_is_removed_by_another_thread() {
    let Some((server, folder, session)) = mount() else { return };
    let store = RingfileStore::new_with_prefix(folder.path()).unwrap();
    let path = Path::from("object");
    server.state().writes = Writes::Fail;
    let error = store.put(&path, "content".into()).await.unwrap_err().to_string();
    assert!(error.contains("space"), "{error}");
    assert!(server.state().names.is_empty(), "nothing is left");
    assert_eq!(server.state().removers.len(), 1);

    server.state().writes = Writes::Wait;
    let mut put = Box::pin(store.put(&path, "content".into()));
    let began = Instant::now();
    while server.state().held.is_empty() {
        assert!(futures::poll!(&mut put).is_pending() && began.elapsed() < patience());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The kernel does not remove a file while it is written.
    let answers = std::thread::spawn({
        let server = server.clone();
        move || {
            std::thread::sleep(Duration::from_millis(200));
            let mut state = server.state();
            state.writes = Writes::Succeed;
            state.held.drain(..).for_each(|reply| reply.written(7));
        }
    });
    drop(put);
    while server.state().removers.len() < 2 {
        assert!(began.elapsed() < patience(), "it is not removed");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    answers.join().unwrap();
    let state = server.state();
    assert!(state.names.is_empty());
    // The link is `PID/task/TID`.
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let own = own.file_name().unwrap().to_str().unwrap().parse().unwrap();
    assert!(!state.removers.contains(&own), "{own} is the thread of the tasks: {:?}", state.removers);
    drop(state);
    // A worker may not have closed the file yet.
    drop(session);
}

#[tokio::test]
async fn an_object_whose_file_cannot_be_closed_well_is_not_published() {
    const EINTR: i32 = rustix::io::Errno::INTR.raw_os_error();
    const EDQUOT: i32 = rustix::io::Errno::DQUOT.raw_os_error();
    let Some((server, folder, session)) = mount() else { return };
    let path = Path::from("object");
    // The server ignores the sync.
    for sync in [false, true] {
        let store = RingfileStore::builder().prefix(folder.path()).sync(sync).build().unwrap();
        let put = async || store.put(&path, "content".into()).await;
        let create = async || store.put_opts(&path, "content".into(), PutMode::Create.into()).await;
        let upload = async || {
            let mut upload = store.put_multipart(&path).await?;
            upload.put_part("content".into()).await?;
            upload.complete().await
        };
        let names = || server.state().names.keys().cloned().collect::<Vec<_>>();
        for answers in [vec![EDQUOT], vec![EINTR, EINTR, EDQUOT]] {
            for way in 0..3 {
                server.state().next_flushes = answers.clone().into();
                let failed = match way {
                    0 => put().await,
                    1 => create().await,
                    _ => upload().await,
                };
                let error = failed.expect_err("the server has refused the data").to_string();
                assert!(error.contains("uota"), "{error}");
                assert_eq!(names(), [""; 0], "nothing is left, sync {sync}");
            }
        }
        server.state().next_flushes = [EINTR, 0].into();
        put().await.unwrap();
        assert_eq!(names(), ["object"]);
        server.state().names.clear();
    }
    drop(session);
}
