//! A file as the driver sees it.
//!
//! The descriptor of a [`Target`] is private: it is never handed out, so the program cannot close or replace it.

pub(super) mod alignment;
pub(super) mod choice;
pub(super) mod closing;
pub(super) mod copy_time;
pub(super) mod namespace;
pub(super) mod port_kind;
pub(super) mod route;
pub(super) mod timing;

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use linux_raw_sys::general::RWF_DSYNC;
use rustix::fs::OFlags;
use rustix::ioctl::{Getter, Opcode, ioctl};
use rustix::process::{Resource, getrlimit};

use super::op::{Kind, OpResult, Request, Rules};
use crate::descriptor;
use crate::lock::Lock;
use alignment::Alignment;
use closing::{Closes, Closing};
use namespace::Namespace;
use port_kind::PortKind;
use ringfile_buffer::internal::fork;
use route::{FileSystem, Lanes, Route};
use timing::{Timed, Timing};

/// Linux 6.14, include/uapi/linux/fs.h.
const RWF_DONTCACHE: u32 = 0x80;

/// The alignment of memory for NVMe drives, which read and write it in words of four bytes.
const COMMAND_MEMORY: usize = 4;

/// The alignment for buffered I/O.
const BUFFERED: Alignment = Alignment { bytes: 1, memory: 1, atomic: None };

/// The kind of file, as far as it matters for continuing short reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileKind {
    /// Reads end early only at the end.
    Regular,
    /// Reads end early only at the end, as for a regular file.
    Block,
    /// Pipes, sockets, terminals and other devices: a short read is an answer.
    Other,
}

/// Shows that the locks of this process are held over each fork: see [`hold_over_forks`](super::hold_over_forks).
#[derive(Clone, Copy)]
pub(crate) struct ForkLocks(pub(super) ());

/// What few files need. It is also there, though empty, if submitting to the file may wait. One check of the pointer rules
/// out all of it for the operations of most files.
#[derive(Default)]
struct Extra {
    /// The namespace, if operations are NVMe commands.
    namespace: Option<Namespace>,
    /// How latencies are measured, if they are.
    timing: Option<Timing>,
    /// The open file of a simulation.
    simulated: Option<crate::sim::OpenRef>,
}

/// A file, shared by its handles and by the drivers that use it.
pub(crate) struct Target {
    /// `None` for operations that name the path; they begin at the working directory.
    fd: Option<fs::File>,
    /// See [`Self::for_seeking`].
    for_seeking: OnceLock<Option<OwnedFd>>,
    /// A small number, unique among live targets.
    pub number: u32,
    pub kind: FileKind,
    /// Whether I/O is direct. Becomes false if the file system turns out to refuse direct I/O and the user allowed buffered
    /// I/O instead.
    is_direct: AtomicBool,
    /// What direct I/O requires, as found at opening; 1 for buffered I/O.
    multiples: Alignment,
    /// Whether I/O may become buffered if direct I/O turns out not to work.
    pub falls_back: bool,
    /// Additional flags of buffered operations: `RWF_DONTCACHE`, or 0.
    cache_flags: AtomicU32,
    /// Whether buffered operations carried `RWF_DONTCACHE` when the file was opened.
    must_not_cache: AtomicBool,
    /// Where its reads and writes go.
    pub ring: PortKind,
    /// A pipe, a socket or a terminal: there are no offsets.
    streams: bool,
    /// Whether writes go to the end, whatever their offset.
    pub appends: bool,
    /// The flags of all its writes: `RWF_DSYNC`, or 0.
    write_flags: u32,
    /// `None` for most files.
    extra: Option<Box<Extra>>,
    path: Option<PathBuf>,
    pub lanes: Lanes,
    /// The file's length when it was last checked: it may be longer by now, or shorter if it was cut.
    known_size: AtomicU64,
    /// The errno of the first sync or durable write that failed; 0 for none. Never forgotten, see [`Self::settle_sync`].
    failed_sync: AtomicI32,
    /// Those that wait until it is closed, if there are any.
    closing: OnceLock<Arc<Closes>>,
    process: fork::Mark,
}

/// Numbers that are free again, and the first number that was never used.
pub(super) static NUMBERS: Lock<(Vec<u32>, u32)> = Lock::new((Vec::new(), 0));

/// Returns whether the file can be read and written only where it is: a pipe, a socket, a terminal, a timer. Linux 6.0
/// lets timers and eventfds be sought, to no effect. A read into no memory does not call the file's driver.
fn has_no_offsets(fd: &OwnedFd) -> bool {
    rustix::fs::seek(fd, rustix::fs::SeekFrom::Current(0)).is_err()
        || rustix::io::preadv(fd, &mut [], 0) == Err(rustix::io::Errno::SPIPE)
}

impl Target {
    pub(crate) fn new(
        fd: OwnedFd,
        kind: FileKind,
        direct: Option<Alignment>,
        ring: PortKind,
        path: Option<PathBuf>,
        lanes: Lanes,
        memory: ForkLocks,
    ) -> Self {
        let mut target = Self::unopened(path, lanes, memory);
        target.kind = kind;
        if let Some(direct) = direct {
            target.is_direct = AtomicBool::new(direct.bytes != 0);
            target.multiples = direct;
        }
        target.ring = ring;
        target.streams = kind == FileKind::Other && has_no_offsets(&fd);
        let flags = rustix::fs::fcntl_getfl(&fd).unwrap_or(OFlags::empty());
        target.appends = flags.contains(OFlags::APPEND);
        // `O_SYNC` has this bit too; rustix's constant (1.1.6) has both bits.
        if kind != FileKind::Other && flags.bits() & libc::O_DSYNC.cast_unsigned() != 0 {
            target.write_flags = RWF_DSYNC;
        }
        target.fd = Some(fd.into());
        if target.lanes.file_system == FileSystem::Fuse {
            target.extra_mut();
        }
        target
    }

    /// Makes the target of an NVMe namespace: offsets and lengths must be multiples of its block, and memory aligned as
    /// the drive requires.
    pub(crate) fn of_namespace(
        fd: OwnedFd,
        namespace: Namespace,
        ring: PortKind,
        path: Option<PathBuf>,
        memory: ForkLocks,
    ) -> Self {
        let multiples = Alignment { bytes: 1 << namespace.shift, memory: COMMAND_MEMORY, atomic: None };
        let lanes = Lanes::new(Route::Ring, FileSystem::Other);
        let mut target = Self::new(fd, FileKind::Block, Some(multiples), ring, path, lanes, memory);
        target.extra_mut().namespace = Some(namespace);
        target
    }

    /// Returns the namespace, if operations on it are NVMe commands.
    #[inline]
    pub(crate) fn namespace(&self) -> Option<&Namespace> {
        self.extra.as_deref()?.namespace.as_ref()
    }

    /// Returns whether it is a namespace, is timed, or [`waits_in_submission`](Self::waits_in_submission) may be true.
    #[inline]
    pub(crate) fn has_extra(&self) -> bool {
        self.extra.is_some()
    }

    fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// Measures the latencies of its operations.
    pub(crate) fn set_timing(&mut self, timing: Timing) {
        self.extra_mut().timing = Some(timing);
    }

    /// Returns how the latencies of its operations are measured, if they are.
    pub(crate) fn timing(&self) -> Option<&Timing> {
        self.extra.as_deref()?.timing.as_ref()
    }

    /// Begins to time an operation, while its thread has `in_flight` operations, this one among them; `None` if it is
    /// not timed.
    pub(super) fn begin_timed(&self, request: &Request, in_flight: u32) -> Option<Timed> {
        Timed::begin(self.timing()?, request.kind.measured()?, in_flight)
    }

    /// Ends an operation that is timed, while its thread has `in_flight` operations, this one among them.
    pub(super) fn end_timed(&self, timed: Timed, request: &Request, ended: OpResult, in_flight: usize) {
        // Of a cancelled one, nothing was done.
        if let Some(timing) = self.timing().filter(|_| ended.errno != libc::ECANCELED)
            && let Some(took) = timed.end(timing, in_flight)
        {
            timed.report(took, self.path(), request.offset, ended.done, ended.errno);
        }
    }

    /// Makes the target of a simulated file, which the descriptor stands for. `flags`: `O_…`, which that does not have.
    pub(crate) fn of_simulated(
        stand_in: OwnedFd,
        file: crate::sim::OpenRef,
        direct: Option<Alignment>,
        flags: i32,
        path: PathBuf,
        memory: ForkLocks,
    ) -> Self {
        let lanes = Lanes::new(Route::Workers, FileSystem::Other);
        let mut target =
            Self::new(stand_in, FileKind::Regular, direct, PortKind::Main, Some(path), lanes, memory);
        target.appends = flags & libc::O_APPEND != 0;
        target.write_flags = if flags & libc::O_DSYNC != 0 { RWF_DSYNC } else { 0 };
        target.extra_mut().simulated = Some(file);
        target
    }

    /// Returns the number of the open file of a simulation, or 0 for the stand-in of a path there.
    #[inline]
    pub(crate) fn simulated(&self) -> Option<crate::sim::OpenNumber> {
        self.extra.as_deref()?.simulated.as_ref().map(crate::sim::number_of)
    }

    /// Makes a stand-in for a path, in operations that name it.
    pub(crate) fn of_path(path: PathBuf, memory: ForkLocks) -> Self {
        if let Some(stand_in) = crate::sim::open_path() {
            let mut target =
                Self::unopened(Some(path), Lanes::new(Route::Workers, FileSystem::Other), memory);
            target.extra_mut().simulated = Some(stand_in);
            return target;
        }
        Self::unopened(Some(path), Lanes::new(Route::Auto, FileSystem::Other), memory)
    }

    fn unopened(path: Option<PathBuf>, lanes: Lanes, _: ForkLocks) -> Self {
        let mut numbers = NUMBERS.lock();
        let (free, never_used) = &mut *numbers;
        let number = free.pop().unwrap_or(*never_used);
        *never_used = (*never_used).max(number + 1);
        drop(numbers);
        Self {
            fd: None,
            for_seeking: OnceLock::new(),
            number,
            kind: FileKind::Regular,
            is_direct: AtomicBool::new(false),
            multiples: BUFFERED,
            falls_back: false,
            cache_flags: AtomicU32::new(0),
            must_not_cache: AtomicBool::new(false),
            ring: PortKind::Main,
            streams: false,
            appends: false,
            write_flags: 0,
            extra: None,
            path,
            lanes,
            known_size: AtomicU64::new(0),
            failed_sync: AtomicI32::new(0),
            closing: OnceLock::new(),
            process: fork::Mark::current(),
        }
    }

    /// Returns the multiples that direct I/O requires; `None` for buffered I/O.
    #[inline]
    pub(crate) fn direct(&self) -> Option<Alignment> {
        self.is_direct.load(Ordering::Relaxed).then_some(self.multiples)
    }

    /// Returns the multiples that I/O requires now.
    pub(crate) fn alignment(&self) -> Alignment {
        self.direct().unwrap_or(BUFFERED)
    }

    /// Returns the path by which the file was opened, or that operations name.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Rounds `done` down to a block. The block size stays the same when I/O becomes buffered, which does no harm: an
    /// operation that is in flight then must still know where it began.
    #[inline]
    pub(crate) fn block_before(&self, done: usize) -> usize {
        done - done % self.multiples.bytes.max(1)
    }

    /// Records the kernel's result of a sync or a durable write, which has written `done` bytes, and returns the result
    /// for its caller. `fails_alike` makes the same write without its sync, and returns whether it fails in the same way.
    ///
    /// After a failed `fsync` Linux may mark the lost pages clean, and it reports the failure once for each open file:
    /// the next `fsync` succeeds although data is lost (PostgreSQL's fsyncgate). So the first failure is kept, and is
    /// the answer to every later sync of this open file. Errnos that mean that nothing was tried (cancelled,
    /// interrupted, not possible with this file) are only passed on, and so are those of a write that was
    /// [refused](Self::has_refused). Called only with the kernel's answer: an operation that was never submitted, for
    /// want of a ring for instance, has lost nothing.
    ///
    /// EPERM and EACCES, with which seccomp filters refuse calls, are not among these errnos: NFS reports lost pages with
    /// whatever the server has answered to their write (`nfs_mapping_set_error`). The same holds for ENOMEM, EMFILE and
    /// ENFILE in the kernel's answer to a durable write: the answer does not tell whether the write was refused or its
    /// sync has reported pages that were lost for want of memory (XFS), or of a FUSE server's descriptors.
    #[cold]
    pub(crate) fn settle_sync(
        &self,
        request: &Request,
        OpResult { done, errno }: OpResult,
        fails_alike: impl FnOnce() -> bool,
    ) -> i32 {
        match errno {
            0 => self.failed_sync(),
            libc::ECANCELED
            | libc::EINTR
            | libc::EAGAIN
            | libc::EINVAL
            | libc::EBADF
            | libc::EFAULT
            | libc::EOPNOTSUPP
            | libc::ENOSYS
            | libc::ESPIPE => errno,
            _ if self.has_refused(request, OpResult { done, errno }, fails_alike) => errno,
            _ => {
                let first = self.failed_sync.compare_exchange(0, errno, Ordering::AcqRel, Ordering::Acquire);
                first.map_or_else(|first| first, |_| errno)
            }
        }
    }

    /// Returns whether the kernel has refused a durable write, so that no sync has failed.
    ///
    /// A write without a sync reports no lost pages, except on NFS: there it reports those for which the server had no
    /// room (`nfs_file_write`). With `RWF_DSYNC`, the want of room may be that of the sync, because blocks are allocated
    /// late or the device is thin: it is the write's if the write also fails without the flag. That is not tried where a
    /// server may not answer, where it would append twice, and where the file itself has `O_DSYNC`; there the failure
    /// counts as that of a sync. Of a local file, only a write can be too far behind the start (EFBIG).
    fn has_refused(&self, request: &Request, ended: OpResult, fails_alike: impl FnOnce() -> bool) -> bool {
        let syncs = request.op_flags & RWF_DSYNC != 0;
        let has_a_server = self.lanes.file_system.has_a_server();
        request.kind.is_write()
            && match ended.errno {
                // A seccomp filter, a sealed or immutable file, or one that is executed.
                libc::EPERM | libc::ETXTBSY if !syncs => true,
                libc::EFBIG => !has_a_server || is_beyond_limit(request.offset + ended.done as u64),
                libc::ENOSPC | libc::EDQUOT | libc::EPERM | libc::ETXTBSY => match self.lanes.file_system {
                    FileSystem::Memory => true,
                    FileSystem::Network => false,
                    FileSystem::Fuse | FileSystem::Other if !syncs => true,
                    FileSystem::Fuse => false,
                    FileSystem::Other => !self.appends && self.write_flags == 0 && fails_alike(),
                },
                _ => false,
            }
    }

    /// Returns the errno of a sync or a durable write that failed before; 0 for none.
    #[inline]
    pub(crate) fn failed_sync(&self) -> i32 {
        self.failed_sync.load(Ordering::Acquire)
    }

    /// Makes all further I/O buffered.
    pub(crate) fn turn_buffered(&self) -> std::io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(self.as_fd())?;
        rustix::fs::fcntl_setfl(self.as_fd(), flags - OFlags::DIRECT)?;
        self.is_direct.store(false, Ordering::Relaxed);
        self.lanes.reset();
        Ok(())
    }

    /// Makes further buffered operations drop their pages from the cache, if the file system supports it.
    pub(crate) fn do_not_cache(&self) {
        self.must_not_cache.store(true, Ordering::Relaxed);
        self.cache_flags.store(RWF_DONTCACHE, Ordering::Relaxed);
    }

    /// Returns the flags that a new operation of this kind has on this file. A write to a file that was opened with `O_DSYNC`
    /// or `O_SYNC` is a durable one in any case; the flag says so.
    #[inline]
    pub(crate) fn flags_of(&self, kind: Kind) -> u32 {
        if kind.is_write() { self.write_flags } else { 0 }
    }

    /// Returns the additional flags of operations that move data.
    #[inline]
    pub(crate) fn cache_flags(&self) -> u32 {
        self.cache_flags.load(Ordering::Relaxed)
    }

    /// Returns whether the kernel must pass an operation that moves data to one of its threads at once, since
    /// submitting it might block, and with it this thread's other tasks.
    #[cold]
    pub(crate) fn waits_in_submission(&self) -> bool {
        self.lanes.file_system == FileSystem::Fuse && self.direct().is_none()
    }

    /// Returns whether io_uring may write a part of an operation of this kind to the wrong place, so that it must not
    /// go to a ring. A direct write may be short if a FUSE server has no asynchronous direct I/O, which cannot be
    /// queried. Since Linux 6.0 io_uring then continues by itself (`need_complete_io` in io_uring/rw.c), from the
    /// position to which the file system has advanced; `fuse_direct_IO` does not advance it (6.18), so the rest
    /// overwrites the data just written. Plain calls and AIO return the short count.
    #[inline]
    pub(super) fn is_misplaced_by_rings(&self, kind: Kind) -> bool {
        kind.is_write() && self.lanes.file_system == FileSystem::Fuse && self.direct().is_some()
    }

    /// Returns whether an operation of this kind may wait for another process or a person, and so forever.
    #[inline]
    pub(crate) fn may_wait_forever(&self, kind: Kind) -> bool {
        self.kind == FileKind::Other && kind.moves_data()
    }

    /// Returns the kind of ring that its operations of this kind go to.
    #[inline]
    pub(crate) fn ring_for(&self, kind: Kind) -> PortKind {
        if kind.moves_data() { self.ring } else { self.ring.without_data() }
    }

    /// Returns the offset of an operation for the kernel.
    #[inline]
    pub(crate) fn offset(&self, offset: u64) -> u64 {
        if self.streams { u64::MAX } else { offset }
    }

    /// Returns what waits until this target and `others` are closed: each when nothing uses it any more.
    pub(crate) fn closing<'a>(&self, others: impl Iterator<Item = &'a Target>) -> Arc<Closing> {
        // A forked child may lack the thread that gives up the last reference, and the one that makes the record: it is over.
        if !self.process.is_current() {
            return Closes::new().closing();
        }
        let closes = self.closing.get_or_init(Closes::new);
        others.for_each(|other| _ = other.closing.set(Arc::clone(closes)));
        closes.closing()
    }

    /// Closes another descriptor of the file.
    pub(crate) fn close_also(&self, fd: OwnedFd) {
        let closed = descriptor::close(fd);
        if let (Err(errno), Some(closes)) = (closed, self.closing.get()) {
            closes.note(errno.raw_os_error());
        }
    }

    /// Returns whether it has a descriptor, and is not the stand-in for a path.
    pub(crate) fn has_fd(&self) -> bool {
        self.fd.is_some()
    }

    pub(crate) fn raw_fd(&self) -> i32 {
        self.as_fd().as_raw_fd()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(file) => file.as_fd(),
            None => rustix::fs::CWD,
        }
    }

    /// Returns another open file description of the file, whose position may be moved: the program may share that of
    /// [`as_fd`](Self::as_fd). `None` if it cannot be opened, for want of `/proc` or of rights. Opened once, and kept until the
    /// file is closed: closing any descriptor of a file drops the process's record locks on it (`fcntl(2)`).
    pub(super) fn for_seeking(&self) -> Option<BorrowedFd<'_>> {
        // A forked child may lack the thread that opens it.
        let opened = match self.process.is_current() {
            true => Some(self.for_seeking.get_or_init(|| self.open_for_seeking())),
            false => self.for_seeking.get(),
        };
        opened?.as_ref().map(AsFd::as_fd)
    }

    fn open_for_seeking(&self) -> Option<OwnedFd> {
        // SAFETY: the call takes no memory.
        let lease = unsafe { libc::fcntl(self.as_fd().as_raw_fd(), libc::F_GETLEASE) };
        // A second description would break the program's write lease.
        let is_leased = lease == libc::F_WRLCK;
        let open = || descriptor::open_again(self.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK).ok();
        if is_leased { None } else { open() }
    }

    /// Returns the file's size in bytes now.
    pub(crate) fn size(&self) -> std::io::Result<u64> {
        if let Some(file) = self.simulated() {
            return crate::sim::size(file).map_err(std::io::Error::from_raw_os_error);
        }
        if let Some(namespace) = self.namespace() {
            return Ok(namespace.size());
        }
        if self.kind == FileKind::Block {
            return device_size(self.as_fd());
        }
        Ok(descriptor::status(self.as_fd())?.st_size as u64)
    }

    /// Returns whether a write that ends there stays within the file. A wrong answer only costs time, since the file
    /// may be cut at any moment. Asks the kernel if the file was shorter when it was last checked.
    pub(crate) fn reaches(&self, end: u64) -> bool {
        if self.kind == FileKind::Block || end <= self.known_size.load(Ordering::Relaxed) {
            return true;
        }
        let size = self.size().unwrap_or(0);
        self.known_size.store(size, Ordering::Relaxed);
        end <= size
    }

    /// Notes that the file may have become shorter, for instance by a truncation.
    pub(crate) fn may_be_shorter(&self) {
        self.known_size.store(0, Ordering::Relaxed);
    }

    pub(crate) fn metadata(&self) -> std::io::Result<fs::Metadata> {
        if self.simulated().is_some() {
            return Err(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        match &self.fd {
            Some(file) => file.metadata(),
            None => Err(std::io::Error::from_raw_os_error(libc::EBADF)),
        }
    }
}

impl AsFd for Target {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

impl Rules for Target {
    /// Returns where an operation continues after `done` bytes. Direct I/O that stopped inside a block continues at the
    /// start of that block, since the kernel would refuse the rest with `EINVAL`, whatever the reason for the stop: a
    /// full disk reports `ENOSPC` only for an aligned request. A read gets the same bytes again, and a write writes
    /// them to the same place; an append would write them twice.
    #[inline]
    fn goes_on_at(&self, kind: Kind, done: usize) -> usize {
        if kind.is_write() && self.appends { done } else { self.block_before(done) }
    }

    /// Returns whether an operation that stopped short after `done` bytes has ended: a read at the end of the data (for
    /// buffered reads, a read of 0 bytes shows it), or a direct append inside a block, which cannot continue.
    #[cold]
    fn is_at_end(&self, kind: Kind, offset: u64, done: usize) -> bool {
        if !kind.is_read() {
            return self.appends && self.block_before(done) != done;
        }
        if self.kind == FileKind::Other {
            return true;
        }
        match self.direct() {
            Some(direct) if !done.is_multiple_of(direct.bytes) => {
                self.size().is_ok_and(|size| offset + done as u64 >= size)
            }
            _ => false,
        }
    }

    /// Returns whether to retry an operation: because the file system does not support `RWF_DONTCACHE`, which later
    /// operations omit, or because a namespace needs other commands.
    #[cold]
    fn asks_less(&self, errno: i32, left: usize, attempts: u8) -> bool {
        if let Some(namespace) = self.namespace() {
            return namespace.asks_less(errno, left, attempts);
        }
        if errno != libc::EOPNOTSUPP || !self.must_not_cache.load(Ordering::Relaxed) {
            return false;
        }
        self.cache_flags.store(0, Ordering::Relaxed);
        true
    }

    /// Returns true for a namespace: one command deallocates, or writes zeros, only as far as the drive's limits allow.
    #[cold]
    fn is_done_in_parts(&self) -> bool {
        self.namespace().is_some()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // A namespace keeps a claim on its device.
        self.extra = None;
        drop(self.for_seeking.take());
        if let Some(fd) = self.fd.take() {
            self.close_also(fd.into());
        }
        NUMBERS.lock().0.push(self.number);
    }
}

/// Returns whether the process must not write at an offset (`RLIMIT_FSIZE`).
fn is_beyond_limit(offset: u64) -> bool {
    getrlimit(Resource::Fsize).current.is_some_and(|limit| offset >= limit)
}

/// `linux/fs.h`: `_IOR(0x12, 114, size_t)`, which gives 64 bits on every machine.
const BLKGETSIZE64: Opcode = rustix::ioctl::opcode::read::<usize>(0x12, 114);

/// Returns the size of a block device in bytes. Does not seek: that would move the user's position. Nor does it open
/// another descriptor to seek in: closing that would drop the process's record locks on the device.
fn device_size(device: BorrowedFd<'_>) -> std::io::Result<u64> {
    // SAFETY: this request fills in 64 bits, and takes nothing.
    Ok(unsafe { ioctl(device, Getter::<BLKGETSIZE64, u64>::new()) }?)
}
