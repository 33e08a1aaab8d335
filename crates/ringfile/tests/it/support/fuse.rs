//! A file system with one file, `data`, that fails on demand: with errors, short counts, and replies held back.
//!
//! Unless the server is a [caching](Server::caching) one, the file bypasses the page cache, so each operation gets the
//! server's answer. A reply that is held back goes out after [`super::patience`] at the latest, so that a failing test
//! does not hang in the kernel; the test then fails as the server is dropped.

use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};

use super::{Folder, comes_true, patience, wait_for};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Read,
    Write,
    Sync,
    /// What a `close(2)` waits for.
    Flush,
}

/// What the server does with a request that matches a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Answers with this errno.
    Fail(i32),
    /// Moves at most this many bytes.
    Short(usize),
    /// Answers once [`Server::release`] is called.
    Hold,
    /// Holds as `Hold` does, and then answers with this errno. [`Server::release`] does not forget such rules.
    HoldFail(i32),
    /// Answers after this time.
    Delay(Duration),
}

#[derive(Clone, Debug)]
struct Rule {
    op: Op,
    at: Range<u64>,
    direct_only: bool,
    /// Bytes that a write must have.
    having: &'static [u8],
    times: usize,
    act: Act,
}

/// The rules, and the replies that they hold back: one lock, so that a release ends the hold of every request that has
/// matched a rule before it.
#[derive(Default)]
struct Rules {
    list: Vec<Rule>,
    /// The replies held back.
    held: usize,
    /// How often replies were released.
    releases: u64,
    /// The replies that went out because nothing released them.
    overdue: usize,
    /// Whether the server ends, and holds back nothing more.
    is_ending: bool,
}

/// What a request gets.
#[derive(Clone, Copy)]
struct Matched {
    act: Option<Act>,
    /// The number of releases before it, if its reply is held back until the next one.
    held_after: Option<u64>,
}

struct State {
    data: Mutex<Vec<u8>>,
    /// The size that `stat` returns.
    shown: AtomicU64,
    rules: Mutex<Rules>,
    /// Notified when replies are released.
    released: Condvar,
    log: Mutex<Vec<(Op, u64, usize)>>,
    closed: AtomicU64,
    /// The minor version of the kernel's interface.
    minor: AtomicU32,
}

/// A mounted file system, unmounted when it is dropped.
pub struct Server {
    state: Arc<State>,
    session: Option<BackgroundSession>,
    folder: Folder,
}

impl Server {
    /// Mounts one whose file has this content, or says why that is not possible here.
    pub fn mount(data: Vec<u8>) -> Result<Self, String> {
        Self::make(data, InitFlags::FUSE_ASYNC_DIO, BYPASSES)
    }

    /// Mounts one whose file the kernel caches while it is open.
    pub fn caching(data: Vec<u8>) -> Result<Self, String> {
        Self::make(data, InitFlags::FUSE_ASYNC_DIO, FopenFlags::FOPEN_NOFLUSH)
    }

    /// Mounts one for whose answers the kernel waits in the requesting call: only then may a write be short, which
    /// otherwise is EIO.
    pub fn blocking_or_skip(test: &str, data: Vec<u8>) -> Option<Self> {
        Self::make(data, InitFlags::empty(), BYPASSES).map_err(|why| super::skip(test, why)).ok()
    }

    /// Mounts one whose answer each `close(2)` waits for; prints that `test` is skipped if that is not possible. A process that
    /// ends with its file open waits for itself.
    pub fn flushing_or_skip(test: &str, data: Vec<u8>) -> Option<Self> {
        let opened = BYPASSES.difference(FopenFlags::FOPEN_NOFLUSH);
        Self::make(data, InitFlags::FUSE_ASYNC_DIO, opened).map_err(|why| super::skip(test, why)).ok()
    }

    fn make(data: Vec<u8>, flags: InitFlags, opened: FopenFlags) -> Result<Self, String> {
        if !Path::new("/dev/fuse").exists() {
            return Err("there is no /dev/fuse".into());
        }
        let state = Arc::new(State {
            shown: AtomicU64::new(data.len() as u64),
            data: Mutex::new(data),
            rules: Mutex::default(),
            released: Condvar::new(),
            log: Mutex::default(),
            closed: AtomicU64::new(0),
            minor: AtomicU32::new(0),
        });
        let folder = Folder::new();
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("ringfile-faults".into()), MountOption::RW];
        let session = fuser::spawn_mount(Served(Arc::clone(&state), flags, opened), folder.path(), &config)
            .map_err(|error| format!("a FUSE file system can't be mounted: {error}"))?;
        Ok(Self { state, session: Some(session), folder })
    }

    /// Mounts as [`Self::mount`] does; prints that `test` is skipped if that is not possible.
    pub fn or_skip(test: &str, data: Vec<u8>) -> Option<Self> {
        Self::mount(data).map_err(|why| super::skip(test, why)).ok()
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Makes the next `times` requests of this kind that touch `at` get `act`. Rules apply in the order given.
    pub fn rule(&self, op: Op, at: Range<u64>, times: usize, act: Act) -> &Self {
        self.state.rules.lock().unwrap().list.push(Rule {
            op,
            at,
            direct_only: false,
            having: b"",
            times,
            act,
        });
        self
    }

    /// Adds a rule as [`Self::rule`] does, for requests on descriptors with `O_DIRECT` only.
    pub fn direct_rule(&self, op: Op, at: Range<u64>, times: usize, act: Act) -> &Self {
        self.state.rules.lock().unwrap().list.push(Rule {
            op,
            at,
            direct_only: true,
            having: b"",
            times,
            act,
        });
        self
    }

    /// Holds back the next write that has these bytes at any place, before the content is changed.
    pub fn hold_write_of(&self, having: &'static [u8]) -> &Self {
        let rule =
            Rule { op: Op::Write, at: 0..u64::MAX, direct_only: false, having, times: 1, act: Act::Hold };
        self.state.rules.lock().unwrap().list.push(rule);
        self
    }

    /// Returns how many requests still match a rule: 0 once every fault has happened.
    pub fn faults_left(&self) -> usize {
        self.state.rules.lock().unwrap().list.iter().map(|rule| rule.times).sum()
    }

    /// Sets the size that `stat` returns, whatever the content.
    pub fn show_size(&self, size: u64) {
        self.state.shown.store(size, Ordering::SeqCst);
    }

    /// Cuts the content, and the size that `stat` returns.
    pub fn cut(&self, len: usize) {
        self.state.data.lock().unwrap().truncate(len);
        self.show_size(len as u64);
    }

    /// Waits until this number of requests is held back.
    #[track_caller]
    pub fn wait_held(&self, count: usize) {
        wait_for("requests at the server", || self.held() >= count);
    }

    /// Returns how many replies are held back.
    pub fn held(&self) -> usize {
        self.state.held()
    }

    /// Answers the requests that are held back, and removes rules that would hold more.
    pub fn release(&self) {
        self.state.release();
    }

    /// Releases on another thread as soon as this number of requests is held back, and another task has then had 200
    /// turns more. Joining that thread fails if the task did not have them while the requests were held back.
    pub fn release_after_turns(&self, held: usize, turns: &Arc<AtomicUsize>) -> JoinHandle<()> {
        let (state, turns) = (Arc::clone(&self.state), Arc::clone(turns));
        std::thread::spawn(move || {
            wait_for("requests at the server", || state.held() >= held);
            let had = turns.load(Ordering::SeqCst);
            let (mut new, mut is_held) = (0, true);
            // Replies that are overdue are not held any more.
            comes_true(|| {
                new = turns.load(Ordering::SeqCst) - had;
                is_held = state.held() > 0;
                new > 200 || !is_held
            });
            state.release();
            assert!(new > 200 && is_held, "another task had {new} turns while requests were held back");
        })
    }

    /// Returns the requests that were answered so far: kind, offset, bytes moved.
    pub fn log(&self) -> Vec<(Op, u64, usize)> {
        self.state.log.lock().unwrap().clone()
    }

    pub fn data(&self) -> Vec<u8> {
        self.state.data.lock().unwrap().clone()
    }

    /// Returns whether `EAGAIN` may be the answer to a direct read through the ring. Before Linux 6.14 (5.10, 6.1 and
    /// 6.12 do, 6.18 does not) `io_complete_rw` takes an answer from a thread of the same process, such as this server,
    /// for its own, and loses the operation. Prints that this part of `test` is skipped if not.
    pub fn may_answer_eagain(&self, test: &str) -> bool {
        let may = self.state.minor.load(Ordering::SeqCst) >= 42;
        if !may {
            super::skip(
                test,
                "EAGAIN is left out: this kernel (before 6.14) loses it where the server is in the same process",
            );
        }
        may
    }

    /// Returns whether the memory of a direct read in flight stays the parent's when the process forks. Older kernels
    /// take the pages without pinning them (5.10 and 6.1 do, 6.12 does not; open(2) warns of it), so the parent may get
    /// a copy of the page that the server's answer goes to. Prints that `test` is skipped if not.
    pub fn reads_survive_forks(&self, test: &str) -> bool {
        let survive = self.state.minor.load(Ordering::SeqCst) >= 41;
        if !survive {
            super::skip(
                test,
                "on this kernel (before 6.12) the answer to a FUSE read may miss a process that forked",
            );
        }
        survive
    }

    /// Returns whether the kernel reports what its cache holds of the file (Linux 6.5).
    pub fn shows_its_cache(&self) -> bool {
        let options = ringfile::OpenOptions::new().read(true).adaptive(true).clone();
        options.open_blocking(self.path()).unwrap().is_adaptive()
    }

    /// Returns how many open files were closed for good.
    pub fn closed(&self) -> u64 {
        self.state.closed.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let overdue = {
            let mut rules = self.state.rules.lock().unwrap();
            rules.is_ending = true;
            rules.overdue
        };
        self.release();
        if let Some(session) = self.session.take()
            && session.umount_and_join().is_err()
        {
            let _ = std::process::Command::new("umount").arg("-l").arg(self.folder.path()).status();
        }
        if !std::thread::panicking() {
            assert_eq!(overdue, 0, "replies were held back, and nothing released them");
        }
    }
}

impl State {
    /// Returns what a request gets. If its reply is held back, it counts as held from here on.
    fn act(&self, op: Op, offset: u64, len: usize, flags: OpenFlags, written: &[u8]) -> Matched {
        let direct = flags.0 & libc::O_DIRECT != 0;
        let end = offset + len.max(1) as u64;
        let mut rules = self.rules.lock().unwrap();
        let matching = |rule: &&mut Rule| {
            rule.op == op
                && rule.times > 0
                && (direct || !rule.direct_only)
                && rule.at.start < end
                && offset < rule.at.end
                && (rule.having.is_empty()
                    || written.windows(rule.having.len()).any(|window| window == rule.having))
        };
        let Some(rule) = rules.list.iter_mut().find(matching) else {
            return Matched { act: None, held_after: None };
        };
        rule.times -= 1;
        let act = rule.act;
        let is_held = matches!(act, Act::Hold | Act::HoldFail(_)) && !rules.is_ending;
        rules.held += usize::from(is_held);
        Matched { act: Some(act), held_after: is_held.then_some(rules.releases) }
    }

    fn held(&self) -> usize {
        self.rules.lock().unwrap().held
    }

    fn release(&self) {
        {
            let mut rules = self.rules.lock().unwrap();
            rules.list.retain(|rule| rule.act != Act::Hold);
            rules.held = 0;
            rules.releases += 1;
        }
        self.released.notify_all();
    }

    fn note(&self, op: Op, offset: u64, moved: usize) {
        self.log.lock().unwrap().push((op, offset, moved));
    }

    /// Waits until replies have been released more than this often.
    fn wait_released(&self, releases: u64) {
        let rules = self.rules.lock().unwrap();
        let waits = |rules: &mut Rules| rules.releases == releases;
        let (mut rules, _) = self.released.wait_timeout_while(rules, patience(), waits).unwrap();
        if rules.releases == releases {
            rules.held -= 1;
            rules.overdue += 1;
        }
    }

    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let is_root = ino == INodeNo::ROOT;
        let size = if is_root { 0 } else { self.shown.load(Ordering::SeqCst) };
        let then = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino,
            size,
            blocks: size.div_ceil(512),
            atime: then,
            mtime: then,
            ctime: then,
            crtime: then,
            kind: if is_root { FileType::Directory } else { FileType::RegularFile },
            perm: 0o777,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

/// Calls `answer` when the request is to be answered.
fn answer(state: &Arc<State>, matched: Matched, answer: impl FnOnce() + Send + 'static) {
    if let Some(releases) = matched.held_after {
        let state = Arc::clone(state);
        std::thread::spawn(move || {
            state.wait_released(releases);
            answer();
        });
    } else if let Some(Act::Delay(time)) = matched.act {
        std::thread::spawn(move || {
            std::thread::sleep(time);
            answer();
        });
    } else {
        answer();
    }
}

struct Served(Arc<State>, InitFlags, FopenFlags);

/// Opened without a flush, so that a process that ends with the file open does not wait for its own dead server.
const BYPASSES: FopenFlags = FopenFlags::FOPEN_DIRECT_IO
    .union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES)
    .union(FopenFlags::FOPEN_NOFLUSH);

const DATA: INodeNo = INodeNo(2);
/// Nothing is cached: each request comes to the server.
const NEVER: Duration = Duration::ZERO;

impl Filesystem for Served {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.0.minor.store(config.kernel_abi().1, Ordering::SeqCst);
        // Without FUSE_ASYNC_DIO the kernel waits for each answer inside io_uring_enter: nothing is ever in flight.
        config
            .add_capabilities(self.1)
            .map_err(|_| std::io::Error::other("this kernel has no asynchronous direct I/O over FUSE"))
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == "data" {
            reply.entry(&NEVER, &self.0.attributes(DATA), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&NEVER, &self.0.attributes(ino));
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(1), self.2);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = Arc::clone(&self.0);
        let matched = state.act(Op::Read, offset, size as usize, flags, b"");
        let most = match matched.act {
            Some(Act::Fail(errno)) => {
                state.note(Op::Read, offset, 0);
                return reply.error(Errno::from_i32(errno));
            }
            Some(Act::Short(most)) => most.min(size as usize),
            _ => size as usize,
        };
        answer(&self.0, matched, move || {
            if let Some(Act::HoldFail(errno)) = matched.act {
                state.note(Op::Read, offset, 0);
                return reply.error(Errno::from_i32(errno));
            }
            let data = state.data.lock().unwrap();
            let start = (offset as usize).min(data.len());
            let end = start.saturating_add(most).min(data.len());
            state.note(Op::Read, offset, end - start);
            reply.data(&data[start..end]);
        });
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        bytes: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let state = Arc::clone(&self.0);
        let matched = state.act(Op::Write, offset, bytes.len(), flags, bytes);
        let most = match matched.act {
            Some(Act::Fail(errno)) => {
                state.note(Op::Write, offset, 0);
                return reply.error(Errno::from_i32(errno));
            }
            Some(Act::Short(most)) => most.min(bytes.len()),
            _ => bytes.len(),
        };
        let bytes = bytes[..most].to_vec();
        answer(&self.0, matched, move || {
            let mut data = state.data.lock().unwrap();
            let end = offset as usize + bytes.len();
            if data.len() < end {
                data.resize(end, 0);
                state.shown.fetch_max(end as u64, Ordering::SeqCst);
            }
            data[offset as usize..end].copy_from_slice(&bytes);
            state.note(Op::Write, offset, bytes.len());
            reply.written(bytes.len() as u32);
        });
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let state = Arc::clone(&self.0);
        let matched = state.act(Op::Sync, 0, usize::MAX >> 1, OpenFlags(0), b"");
        answer(&self.0, matched, move || {
            state.note(Op::Sync, 0, 0);
            match matched.act {
                Some(Act::Fail(errno) | Act::HoldFail(errno)) => reply.error(Errno::from_i32(errno)),
                _ => reply.ok(),
            }
        });
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        match self.0.act(Op::Flush, 0, usize::MAX >> 1, OpenFlags(0), b"").act {
            Some(Act::Fail(errno)) => reply.error(Errno::from_i32(errno)),
            _ => reply.ok(),
        }
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.0.closed.fetch_add(1, Ordering::SeqCst);
        reply.ok();
    }
}
