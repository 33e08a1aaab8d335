//! Calls while a drive does not answer: a FUSE server that holds back the answers to reads.

use std::ffi::OsStr;
use std::slice::from_ref;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, Request,
};
use futures::executor::block_on;
use object_store_014::ObjectStore;
use object_store_014::path::Path;
use ringfile_object_store::RingfileStore;

use crate::support;
use crate::support::threads::Thread;

const MIB: u64 = 1 << 20;
const CALLS: u64 = 12;
const ALWAYS: Duration = Duration::from_secs(3600);

/// One file, `object`, of sevens.
struct Sevens(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    answers: bool,
    held: Vec<(ReplyData, usize)>,
}

fn attributes(ino: INodeNo) -> FileAttr {
    support::attributes(ino, CALLS * MIB, SystemTime::UNIX_EPOCH)
}

impl Filesystem for Sevens {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == "object" {
            reply.entry(&ALWAYS, &attributes(INodeNo(2)), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&ALWAYS, &attributes(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Otherwise opening waits for the reads of others, whose pages it removes from the cache.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = (CALLS * MIB).saturating_sub(offset).min(size.into()) as usize;
        let mut state = self.0.lock().unwrap();
        if state.answers {
            reply.data(&vec![7; len]);
        } else {
            state.held.push((reply, len));
        }
    }
}

#[test]
fn while_a_drive_does_not_answer_calls_use_no_more_memory() {
    let state = Arc::default();
    let Some((folder, session)) = support::mount(Sevens(Arc::clone(&state))) else { return };
    let store = RingfileStore::builder().prefix(folder.path()).memory(4 * MIB as usize).build().unwrap();
    let calls: Vec<_> = (0..CALLS)
        .map(|at| {
            let store = store.clone();
            let range = at * MIB..(at + 1) * MIB;
            thread::spawn(move || block_on(store.get_ranges(&Path::from("object"), from_ref(&range))))
        })
        .collect();
    let began = std::time::Instant::now();
    while state.lock().unwrap().held.is_empty() {
        assert!(began.elapsed() < support::patience(), "waited in vain for a read at the server");
        thread::sleep(Duration::from_millis(10));
    }
    // Longer than calls wait for one that is not polled.
    thread::sleep(Duration::from_millis(1800));
    // F63: the thread that watches the calls gets no signal of the program.
    Thread::wait_for("ringfile-gate", Thread::blocks_all_but_faults);
    let metrics = store.pool().metrics();
    let held = {
        let mut state = state.lock().unwrap();
        state.answers = true;
        std::mem::take(&mut state.held)
    };
    let waited = held.len();
    held.into_iter().for_each(|(reply, len)| reply.data(&vec![7; len]));
    for call in calls {
        let got = call.join().unwrap().unwrap();
        assert!(got[0][..] == vec![7; MIB as usize]);
    }
    assert!(waited > 0, "reads have waited for the server");
    assert!(metrics.in_use > 0, "{metrics:?}");
    assert!(metrics.in_use + metrics.outside_bytes <= 5 * MIB as usize, "{metrics:?}");
    support::unmount(session, folder.path());
}
