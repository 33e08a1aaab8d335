//! A file as the driver sees it.
//!
//! The descriptor of a [`Target`] is private: it is never handed out, so the program cannot close or replace it.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use linux_raw_sys::general::RWF_DSYNC;
use rustix::fs::OFlags;
use rustix::ioctl::{Getter, Opcode, ioctl};

use super::alignment::Alignment;
use super::namespace::Namespace;
use super::op::{Ended, Kind, Request, Rules};
use super::ports::PortKind;
use super::route::{FileSystem, Lanes, Route};
use super::timing::{Timed, Timing};
use crate::lock::Lock;
use ringfile_buffer::internal::fork;

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
pub(crate) struct HeldOverForks(pub(super) ());

/// What few files need. It is also there, though empty, if submitting to the file may wait. One check of the pointer rules
/// out all of it for the operations of most files.
#[derive(Default)]
struct Extra {
    /// The namespace, if operations are NVMe commands.
    namespace: Option<Namespace>,
    /// How latencies are measured, if they are.
    timing: Option<Timing>,
    /// The open file of a simulation.
    #[cfg(feature = "sim")]
    simulated: Option<crate::sim::OpenRef>,
}

/// A file, shared by its handles and by the drivers that use it.
pub(crate) struct Target {
    /// `None` for operations that name the path; they begin at the working directory.
    fd: Option<fs::File>,
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
    /// Whether the last handle was dropped.
    closed: AtomicBool,
    /// The numbers of the drivers that use it.
    users: Mutex<Vec<u64>>,
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
        held: HeldOverForks,
    ) -> Self {
        let mut target = Self::unopened(path, lanes, held);
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
        held: HeldOverForks,
    ) -> Self {
        let multiples = Alignment { bytes: 1 << namespace.shift, memory: COMMAND_MEMORY, atomic: None };
        let lanes = Lanes::new(Route::Ring, FileSystem::Other);
        let mut target = Self::new(fd, FileKind::Block, Some(multiples), ring, path, lanes, held);
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
    pub(super) fn end_timed(&self, timed: Timed, request: &Request, ended: Ended, in_flight: usize) {
        // Of a cancelled one, nothing was done.
        if let Some(timing) = self.timing().filter(|_| ended.errno != libc::ECANCELED)
            && let Some(took) = timed.end(timing, in_flight)
        {
            timed.report(took, self.path(), request.offset, ended.done, ended.errno);
        }
    }

    /// Makes the target of a simulated file, which the descriptor stands for. `flags`: `O_…`, which that does not have.
    #[cfg(feature = "sim")]
    pub(crate) fn of_simulated(
        stand_in: OwnedFd,
        file: crate::sim::OpenRef,
        direct: Option<Alignment>,
        flags: i32,
        path: PathBuf,
        held: HeldOverForks,
    ) -> Self {
        let lanes = Lanes::new(Route::Workers, FileSystem::Other);
        let mut target =
            Self::new(stand_in, FileKind::Regular, direct, PortKind::Main, Some(path), lanes, held);
        target.appends = flags & libc::O_APPEND != 0;
        target.write_flags = if flags & libc::O_DSYNC != 0 { RWF_DSYNC } else { 0 };
        target.extra_mut().simulated = Some(file);
        target
    }

    /// Returns the number of the open file of a simulation, or 0 for the stand-in of a path there.
    #[cfg(feature = "sim")]
    #[inline]
    pub(crate) fn simulated(&self) -> Option<crate::sim::OpenNumber> {
        self.extra.as_deref()?.simulated.as_ref().map(|open| open.0)
    }

    /// Makes a stand-in for a path, in operations that name it.
    pub(crate) fn of_path(path: PathBuf, held: HeldOverForks) -> Self {
        #[cfg(feature = "sim")]
        if crate::sim::is_here() {
            let mut target = Self::unopened(Some(path), Lanes::new(Route::Workers, FileSystem::Other), held);
            target.extra_mut().simulated = Some(crate::sim::OpenRef::PATH);
            return target;
        }
        Self::unopened(Some(path), Lanes::new(Route::Auto, FileSystem::Other), held)
    }

    fn unopened(path: Option<PathBuf>, lanes: Lanes, _: HeldOverForks) -> Self {
        let mut numbers = NUMBERS.lock();
        let (free, never_used) = &mut *numbers;
        let number = free.pop().unwrap_or(*never_used);
        *never_used = (*never_used).max(number + 1);
        drop(numbers);
        Self {
            fd: None,
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
            closed: AtomicBool::new(false),
            users: Mutex::new(Vec::new()),
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

    /// Records the kernel's result of a sync or a durable write, and returns the result for its caller.
    ///
    /// After a failed `fsync` Linux may mark the lost pages clean, and it reports the failure once for each open file:
    /// the next `fsync` succeeds although data is lost (PostgreSQL's fsyncgate). So the first failure is kept, and is
    /// the answer to every later sync of this open file. Errnos that mean that nothing was tried (cancelled,
    /// interrupted, not possible with this file) are only passed on. Called only with the kernel's answer: an operation
    /// that was never submitted, for want of a ring for instance, has lost nothing.
    ///
    /// EPERM and EACCES, with which seccomp filters refuse calls, are not among these errnos, and neither is EFBIG: NFS
    /// reports lost pages with whatever the server has answered to their write (`nfs_mapping_set_error`). The same
    /// holds for ENOMEM, EMFILE and ENFILE in the kernel's answer to a durable write: the answer does not tell whether
    /// the write was refused or its sync has reported pages that were lost for want of memory (XFS), or of a FUSE
    /// server's descriptors.
    #[cold]
    pub(crate) fn settle_sync(&self, request: &Request, errno: i32) -> i32 {
        match errno {
            0 => self.failed_sync(),
            // A seccomp filter, or a sealed file: a write that does not sync reports no lost pages.
            libc::EPERM if request.kind.is_write() && request.op_flags & RWF_DSYNC == 0 => errno,
            libc::ECANCELED
            | libc::EINTR
            | libc::EAGAIN
            | libc::EINVAL
            | libc::EBADF
            | libc::EFAULT
            | libc::EOPNOTSUPP
            | libc::ENOSYS
            | libc::ESPIPE => errno,
            _ => {
                let first = self.failed_sync.compare_exchange(0, errno, Ordering::AcqRel, Ordering::Acquire);
                first.map_or_else(|first| first, |_| errno)
            }
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

    /// Marks the file as closed after its last handle was dropped, before the drivers that use it are notified. A
    /// driver that begins to use it later, for a remote request that was on its way, sees the mark.
    pub(crate) fn is_to_close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Returns whether it has a descriptor, and is not the stand-in for a path.
    pub(super) fn has_fd(&self) -> bool {
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

    /// Returns the file's size in bytes now.
    pub(crate) fn size(&self) -> std::io::Result<u64> {
        #[cfg(feature = "sim")]
        if let Some(file) = self.simulated() {
            return crate::sim::ask(|world| world.size(file)).map_err(std::io::Error::from_raw_os_error);
        }
        if let Some(namespace) = self.namespace() {
            return Ok(namespace.size());
        }
        if self.kind == FileKind::Block {
            return device_size(self.as_fd());
        }
        Ok(rustix::fs::fstat(self.as_fd())?.st_size as u64)
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
        #[cfg(feature = "sim")]
        if self.simulated().is_some() {
            return Err(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        match &self.fd {
            Some(file) => file.metadata(),
            None => Err(std::io::Error::from_raw_os_error(libc::EBADF)),
        }
    }

    /// Returns the drivers to notify when the last handle is dropped.
    pub(crate) fn users(&self) -> Vec<u64> {
        self.lock_users().map(|users| users.clone()).unwrap_or_default()
    }

    /// Locks the list of users; `None` in a forked child if a thread that does not exist there holds the lock.
    pub(super) fn lock_users(&self) -> Option<MutexGuard<'_, Vec<u64>>> {
        match self.users.try_lock() {
            Ok(users) => Some(users),
            Err(TryLockError::WouldBlock) if !self.process.is_current() => None,
            Err(_) => Some(self.users.lock().unwrap_or_else(PoisonError::into_inner)),
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
        NUMBERS.lock().0.push(self.number);
    }
}

/// `linux/fs.h`: `_IOR(0x12, 114, size_t)`, which gives 64 bits on every machine.
const BLKGETSIZE64: Opcode = rustix::ioctl::opcode::read::<usize>(0x12, 114);

/// Returns the size of a block device in bytes. Does not seek: that would move the user's position. Nor does it open
/// another descriptor to seek in: closing that would drop the process's record locks on the device.
fn device_size(device: BorrowedFd<'_>) -> std::io::Result<u64> {
    // SAFETY: this request fills in 64 bits, and takes nothing.
    Ok(unsafe { ioctl(device, Getter::<BLKGETSIZE64, u64>::new()) }?)
}
