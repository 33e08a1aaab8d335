//! F50 on a file system whose server shows each descriptor the content that the object had when it was opened, as FUSE
//! servers for cloud storage do.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, Request,
};
use object_store_014::ObjectStoreExt;
use object_store_014::path::Path;
use ringfile_object_store::{Caching, RingfileStore};

use crate::support;

const LEN: usize = 100_000;
const ALWAYS_ASK: Duration = Duration::ZERO;

/// One file, `object`, of which each byte is the number of its version.
struct Versions(Arc<AtomicU64>);

impl Versions {
    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(self.0.load(Ordering::SeqCst));
        support::attributes(ino, LEN as u64, changed)
    }
}

impl Filesystem for Versions {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == "object" {
            reply.entry(&ALWAYS_ASK, &self.attributes(INodeNo(2)), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&ALWAYS_ASK, &self.attributes(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(self.0.load(Ordering::SeqCst)), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        version: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = LEN.saturating_sub(offset as usize);
        reply.data(&vec![version.0 as u8; left.min(size as usize)]);
    }
}

#[tokio::test]
async fn f50_a_descriptor_that_stays_open_shows_no_replaced_object() {
    let version = Arc::new(AtomicU64::new(1));
    let Some((folder, session)) = support::mount(Versions(Arc::clone(&version))) else { return };
    for caching in [Caching::Buffered, Caching::Direct, Caching::Adaptive] {
        let store = RingfileStore::builder().prefix(folder.path()).caching(caching).cache(1 << 20);
        let store = store.build().unwrap();
        for _ in 0..3 {
            let now = version.fetch_add(1, Ordering::SeqCst) + 1;
            let got = store.get(&Path::from("object")).await.unwrap();
            assert_eq!(got.meta.last_modified.timestamp() as u64, now);
            assert!(got.bytes().await.unwrap() == vec![now as u8; LEN], "{caching:?}, version {now}");
            assert_eq!(store.cache_metrics().bytes, 0, "another version may show the same metadata");
        }
    }
    support::unmount(session, folder.path());
}
