//! Registered buffers: pinned once for the process, shared by every thread's ring.
//!
//! A *holder* ring of one entry, which any thread may register in, owns the registrations. Each thread's ring clones a
//! slot from it when it first does I/O there (`IORING_REGISTER_CLONE_BUFFERS`, Linux 6.13): which takes 1.6 µs per slot
//! and pins no more memory, while registering the same memory on two rings pins and charges it twice. If the kernel
//! cannot clone, each ring registers separately under the same index. Invariants:
//!
//! - an index names the same memory in the holder and in every ring whose `serials` entry says so;
//! - memory leaves the holder before it is unmapped, and the other rings are notified; until then they pin pages that
//!   nothing can address.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;

use bytes::Bytes;
use linux_raw_sys::io_uring as uapi;

use super::abi;
use super::refusal::{RegistrationRefused, What, refused_registration};
use super::setup;
use crate::lock::Lock;
use crate::memory::{KnownRegions, Region, Registration};
use ringfile_buffer::internal::{event, fork::Mark};

/// The number of places in every table: enough for a terabyte in regions of 1 GiB. It is not larger, since a clone
/// copies the whole table of the ring (8 bytes per place).
const SLOTS: u32 = 1024;

/// Marks a serial whose registration this ring could not share; it does not try again.
const REFUSED: u64 = 1 << 63;

/// A share that serves fewer operations costs more than it saves: taking it and giving it back are two system calls, as
/// long as the kernel needs to pin the memory of this many reads of 4 KiB.
const PAYS: u64 = 16;
/// After this many such shares in a row, a loop waits with taking one.
const WASTED: u32 = 4;

pub(crate) static HOLDER: Lock<Holder> =
    Lock::new(Holder { ring: None, free: Vec::new(), serial: 0, pinned: Vec::new(), rings: Vec::new() });
static CAN_CLONE: AtomicBool = AtomicBool::new(false);
/// Counts ended registrations: addresses remembered from before the last one are no longer valid.
static RELEASES: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Holder {
    /// `Some(None)` if it could not be created.
    ring: Option<Option<(setup::Mapping, Mark)>>,
    free: Vec<u32>,
    serial: u64,
    /// The serial that this ring pins at each index that was assigned; 0 if it pins nothing.
    pinned: Vec<u64>,
    rings: Vec<Weak<Inbox>>,
}

// SAFETY: the mapping is only used for its descriptor, in system calls that any thread may make: the holder has no
// SINGLE_ISSUER, and nothing is ever submitted to it.
unsafe impl Send for Holder {}

impl Holder {
    /// Returns the holder's descriptor, created on first use; `None` in a forked child, or if it cannot be created.
    fn fd(&mut self) -> Option<&OwnedFd> {
        let ring = self.ring.get_or_insert_with(|| {
            match setup::make_shared().and_then(|mapping| make_table(&mapping.fd).map(|()| mapping)) {
                Ok(mapping) => Some((mapping, Mark::current())),
                Err(error) => {
                    event::defer(move || {
                        tracing::debug!(%error, "no holder ring: each ring registers for itself");
                    });
                    None
                }
            }
        });
        ring.as_ref().filter(|(_, mark)| mark.is_current()).map(|(mapping, _)| &*mapping.fd)
    }

    fn take_index(&mut self) -> Option<u32> {
        if self.free.is_empty() && self.pinned.len() < SLOTS as usize {
            self.free.push(self.pinned.len() as u32);
            self.pinned.push(0);
        }
        self.free.pop()
    }
}

fn make_table(ring: &OwnedFd) -> io::Result<()> {
    abi::register_table(ring, uapi::io_uring_register_op::IORING_REGISTER_BUFFERS2, SLOTS)
}

/// Fills place `index` of a ring's table with `len` bytes at `start`, or empties it where `len` is 0.
fn set_place(ring: &OwnedFd, index: u32, start: *mut u8, len: usize) -> io::Result<()> {
    let mut memory = libc::iovec { iov_base: start.cast(), iov_len: len };
    let mut update = uapi::io_uring_rsrc_update2 {
        offset: index,
        resv: 0,
        data: (&raw mut memory).expose_provenance() as u64,
        tags: 0,
        nr: 1,
        resv2: 0,
    };
    let size = size_of_val(&update) as u32;
    let opcode = uapi::io_uring_register_op::IORING_REGISTER_BUFFERS_UPDATE as u32;
    // SAFETY: the records live through the call. The memory is a region's: it stays mapped until its `Registration`
    // was dropped, and that empties the place.
    unsafe { abi::register(ring.as_fd(), opcode, &mut update, size) }.map(drop)
}

fn clone_place(from: &OwnedFd, to: &OwnedFd, index: u32) -> io::Result<()> {
    let mut clone = uapi::io_uring_clone_buffers {
        src_fd: from.as_raw_fd() as u32,
        flags: uapi::IORING_REGISTER_DST_REPLACE as u32,
        src_off: index,
        dst_off: index,
        nr: 1,
        pad: [0; 3],
    };
    let opcode = uapi::io_uring_register_op::IORING_REGISTER_CLONE_BUFFERS as u32;
    // SAFETY: one valid record, read during the call.
    unsafe { abi::register(to.as_fd(), opcode, &mut clone, 1) }.map(drop)
}

impl Holder {
    /// Registers a region for the process, or returns why that is refused: its I/O is then unregistered.
    fn register(&mut self, start: *mut u8, len: usize) -> Result<Registration, RegistrationRefused> {
        let refused = |what, error: &io::Error| {
            let why = RegistrationRefused::new(what, error);
            refused(len, why);
            Err(why)
        };
        let Some(index) = self.take_index() else {
            return refused(What::Place, &io::Error::from_raw_os_error(libc::ENOSPC));
        };
        let pinned = match self.fd().filter(|_| can_clone()).map(|ring| set_place(ring, index, start, len)) {
            Some(Err(error)) => {
                self.free.push(index);
                return refused(What::Memory, &error);
            }
            Some(Ok(())) => true,
            None => false,
        };
        self.serial += 1;
        let serial = self.serial;
        self.pinned[index as usize] = if pinned { serial } else { 0 };
        Ok(Registration { index, serial, on_release: release })
    }
}

/// Registers a region, and pins its memory for the process, before a ring needs it. `Ok(false)` if this process has no ring that
/// can do so.
pub(crate) fn register_now(region: &Region) -> Result<bool, RegistrationRefused> {
    let (mut holder, mut asked) = (HOLDER.lock(), None);
    if !can_clone() || holder.fd().is_none() {
        return Ok(false);
    }
    let registration = region.register(|start, len| match holder.register(start, len) {
        Ok(registration) => Some(registration),
        Err(why) => {
            asked = Some(why);
            None
        }
    });
    match (registration, asked.or_else(refused_registration)) {
        (Some(registration), _) => Ok(holder.pinned[registration.index as usize] == registration.serial),
        (None, Some(why)) => Err(why),
        (None, None) => Ok(false),
    }
}

/// Records why memory is not registered, and logs one warning.
fn refused(len: usize, why: RegistrationRefused) {
    why.note();
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        event::defer(move || {
            tracing::warn!(bytes = len, %why, "could not register memory with io_uring, I/O continues with \
                unregistered memory");
        });
    }
}

/// Returns whether this kernel can clone registrations; known once a thread has a ring.
pub(crate) fn can_clone() -> bool {
    CAN_CLONE.load(Ordering::Relaxed)
}

/// The function that a [`Registration`] calls when it is dropped, just before its memory is freed.
fn release(index: u32, serial: u64) {
    // This comes before the memory is unmapped, and so before another buffer can have the same address.
    RELEASES.fetch_add(1, Ordering::Release);
    let mut holder = HOLDER.lock();
    if std::mem::take(&mut holder.pinned[index as usize]) != 0
        && let Some(ring) = holder.fd()
    {
        let _ = set_place(ring, index, std::ptr::null_mut(), 0);
    }
    holder.rings.retain(|inbox| inbox.strong_count() > 0);
    let inboxes: Vec<_> = holder.rings.iter().filter_map(Weak::upgrade).collect();
    // This runs under the lock, which a forking thread holds: a child must not find its thread's inbox locked.
    for inbox in &inboxes {
        inbox.released.lock().push((index, serial));
        inbox.pending.store(true, Ordering::Release);
    }
    holder.free.push(index);
    drop(holder);
    inboxes.iter().for_each(|inbox| inbox.waker.wake_by_ref());
}

/// The inbox that tells a ring which registrations have ended.
struct Inbox {
    /// Index and serial of each ended registration.
    released: Lock<Vec<(u32, u64)>>,
    pending: AtomicBool,
    waker: Waker,
}

/// One ring's table of registered buffers. If there is none, no operation on this ring is a fixed one.
pub(crate) struct ClonedBuffers {
    ring: Arc<OwnedFd>,
    /// The serial at each index of this ring; empty if the ring has no table.
    serials: Box<[u64]>,
    /// How many of the first entries of `serials` may be other than 0: few, since indices that were given back are
    /// taken first. A loop that ends looks at these alone; all 1024 took half of the time of a `block_on` that had
    /// nothing to wait for.
    used: usize,
    inbox: Option<Arc<Inbox>>,
    recent: Recent,
    known: KnownRegions,
    /// The number of shares in a row that were given back after fewer operations than [`PAYS`].
    wasted: u32,
    /// How many operations still go unregistered before this ring takes a share.
    without_share: u64,
    /// How often registering memory was refused to this ring.
    pub(crate) refusals: u64,
    /// The reason why there is no table, which is reported when memory would be registered.
    without: Option<RegistrationRefused>,
}

/// The region of the last operation. It is found again by address, without reading the buffer's header, which the
/// copying of data has evicted from the cache.
#[derive(Default)]
struct Recent {
    base: usize,
    len: usize,
    index: u16,
    /// Whether it belongs to a pool, whose memory stays as long as there are `Bytes` in it.
    owns_memory: bool,
    releases: u64,
}

impl ClonedBuffers {
    /// Gives `ring` an empty table. `waker` makes its thread call [`Self::forget_released`].
    pub(crate) fn prepare(ring: &Arc<OwnedFd>, waker: Waker) -> Self {
        let mut buffers = Self {
            ring: Arc::clone(ring),
            serials: Box::default(),
            used: 0,
            inbox: None,
            recent: Recent::default(),
            known: KnownRegions::default(),
            wasted: 0,
            without_share: 0,
            refusals: 0,
            without: None,
        };
        if let Err(error) = make_table(ring) {
            let without = RegistrationRefused::new(What::Table, &error);
            without.note();
            event::defer(move || tracing::debug!(%error, "no table for registered buffers"));
            buffers.without = Some(without);
            return buffers;
        }
        let inbox = Arc::new(Inbox { released: Lock::default(), pending: AtomicBool::new(false), waker });
        let mut holder = HOLDER.lock();
        holder.rings.retain(|inbox| inbox.strong_count() > 0);
        holder.rings.push(Arc::downgrade(&inbox));
        if let Some(from) = holder.fd() {
            // Cloning an empty place costs nothing, and shows whether the kernel supports it.
            let can_clone = clone_place(from, ring, SLOTS - 1).is_ok();
            #[cfg(test)]
            let can_clone = can_clone && !tests::WITHOUT_CLONE.load(Ordering::Relaxed);
            CAN_CLONE.store(can_clone, Ordering::Relaxed);
        }
        drop(holder);
        buffers.serials = vec![0; SLOTS as usize].into();
        buffers.inbox = Some(inbox);
        buffers
    }

    /// As [`index_of`](Self::index_of), for memory that the last operation's region covers.
    #[inline]
    pub(crate) fn recent_index_of(&self, start: *const u8, len: usize) -> Option<u16> {
        let recent = &self.recent;
        let inside = start.addr().wrapping_sub(recent.base);
        let covered = inside < recent.len && len <= recent.len - inside;
        (covered && recent.releases == RELEASES.load(Ordering::Relaxed)).then_some(recent.index)
    }

    /// As [`index_of`](Self::index_of), for bytes whose region is not known. They are found by their address, in the
    /// region of the last operation, or among those of all pools.
    // Inlining it would make the start of every operation longer.
    #[inline(never)]
    pub(crate) fn index_of_bytes(&mut self, all: &[Bytes]) -> Option<u16> {
        let mut all = all.iter().filter(|bytes| !bytes.is_empty());
        let first = all.next()?;
        let covers = |recent: &Self, bytes: &Bytes| recent.recent_index_of(bytes.as_ptr(), bytes.len());
        // Not used for `Bytes` in lent memory, which may not keep it lent: see `memory/regions.rs`.
        if self.recent.owns_memory
            && let Some(index) = covers(self, first)
        {
            return all.all(|bytes| covers(self, bytes) == Some(index)).then_some(index);
        }
        let region = self.known.region_of(first)?;
        let index = self.index_of(region)?;
        all.all(|bytes| covers(self, bytes) == Some(index)).then_some(index)
    }

    /// As [`index_of`](Self::index_of), for borrowed memory that the last operation's region does not cover. It is
    /// found by address, among the regions of all pools.
    ///
    /// # Safety
    /// The memory is borrowed during the call.
    #[inline(never)]
    pub(crate) unsafe fn index_of_borrowed(&mut self, start: *const u8, len: usize) -> Option<u16> {
        // SAFETY: by this function's contract.
        let region = unsafe { self.known.region_at(start, len) }?;
        self.index_of(region)
    }

    pub(crate) fn has_table(&self) -> bool {
        !self.serials.is_empty()
    }

    /// Returns the index under which this ring may do fixed I/O on `region`.
    #[inline]
    pub(crate) fn index_of(&mut self, region: &Region) -> Option<u16> {
        if self.serials.is_empty() {
            return self.refuse(region);
        }
        let registration = match region.registration() {
            Some(known) => known?,
            None if self.waits_with_sharing() => return None,
            None => self.register(region)?,
        };
        let known = *self.serials.get(registration.index as usize)?;
        if known == registration.serial | REFUSED {
            return None;
        }
        if known != registration.serial {
            if self.waits_with_sharing() {
                return None;
            }
            let shared = share(&self.ring, registration, region);
            self.serials[registration.index as usize] = shared;
            self.used = self.used.max(registration.index as usize + 1);
            self.refusals += u64::from(shared & REFUSED != 0);
        }
        let index = registration.index as u16;
        (self.serials[usize::from(index)] == registration.serial).then(|| {
            let (base, len) = (region.base().as_ptr().addr(), region.len());
            let (owns_memory, releases) = (region.owns_memory(), RELEASES.load(Ordering::Relaxed));
            self.recent = Recent { base, len, index, owns_memory, releases };
            index
        })
    }

    /// Returns whether the next operation goes unregistered, because the loops of this thread are too short for a
    /// share.
    #[cold]
    fn waits_with_sharing(&mut self) -> bool {
        let waits = self.without_share > 0;
        self.without_share = self.without_share.saturating_sub(1);
        waits
    }

    /// Reports that there is no table, for the first memory that would be registered.
    #[cold]
    fn refuse(&mut self, region: &Region) -> Option<u16> {
        if let Some(why) = self.without.take_if(|_| region.is_registrable()) {
            self.refusals += 1;
            refused(region.len(), why);
        }
        None
    }

    #[cold]
    fn register<'a>(&mut self, region: &'a Region) -> Option<&'a Registration> {
        let (mut holder, mut asked) = (HOLDER.lock(), false);
        let registration = region.register(|start, len| {
            asked = true;
            holder.register(start, len).ok()
        });
        self.refusals += u64::from(asked && registration.is_none());
        registration
    }

    /// Returns whether something was released since the last call of [`Self::forget_released`].
    #[inline]
    pub(crate) fn has_released(&self) -> bool {
        self.inbox.as_ref().is_some_and(|inbox| inbox.pending.load(Ordering::Acquire))
    }

    /// Releases registrations that ended since the last call.
    #[inline]
    pub(crate) fn forget_released(&mut self) {
        let Some(inbox) = self.inbox.as_ref().filter(|_| self.has_released()) else { return };
        let inbox = Arc::clone(inbox);
        inbox.pending.store(false, Ordering::Release);
        let released = std::mem::take(&mut *inbox.released.lock());
        for (index, serial) in released {
            if self.serials[index as usize] == serial {
                self.empty(index);
            }
        }
    }

    /// Releases everything, because the thread may be idle for a long time, and no other thread could do it then.
    /// `uses` is the number of operations since the thread entered its loop: after several short loops the next one
    /// takes its share only after its first operations.
    pub(crate) fn forget_all(&mut self, uses: u64) {
        let mut had_shares = false;
        for index in 0..std::mem::take(&mut self.used) as u32 {
            let serial = self.serials[index as usize];
            if serial != 0 {
                had_shares |= serial & REFUSED == 0;
                self.empty(index);
            }
        }
        if uses >= PAYS {
            self.wasted = 0;
        } else if had_shares {
            self.wasted = self.wasted.saturating_add(1);
        }
        self.without_share = if self.wasted >= WASTED { PAYS } else { 0 };
    }

    fn empty(&mut self, index: u32) {
        self.recent = Recent::default();
        let had = std::mem::take(&mut self.serials[index as usize]);
        if had & REFUSED == 0 {
            let _ = set_place(&self.ring, index, std::ptr::null_mut(), 0);
        }
    }
}

/// Gives `ring` its share of a registration. Returns the serial to record, marked if it was refused.
#[cold]
fn share(ring: &OwnedFd, registration: &Registration, region: &Region) -> u64 {
    let index = registration.index;
    let cloned = {
        let mut holder = HOLDER.lock();
        let pinned = holder.pinned[index as usize] == registration.serial;
        match holder.fd() {
            Some(from) if pinned => Some(clone_place(from, ring, index)),
            // In a forked child, the holder belongs to the parent.
            None if pinned => return registration.serial | REFUSED,
            _ => None,
        }
    };
    match cloned.unwrap_or_else(|| set_place(ring, index, region.base().as_ptr(), region.len())) {
        Ok(()) => registration.serial,
        Err(error) => {
            refused(region.len(), RegistrationRefused::new(What::Memory, &error));
            registration.serial | REFUSED
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::patience::patience;
    use crate::skip::skip;
    use crate::{File, OpenOptions, Pool, Route, block_on, thread_metrics};

    /// Whether rings behave as on a kernel before 6.13.
    pub(super) static WITHOUT_CLONE: AtomicBool = AtomicBool::new(false);

    const IN_CHILD: &str = "RINGFILE_TEST_WITHOUT_CLONE";

    fn pinned_kib() -> u64 {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse().unwrap()
    }

    /// Waits until exactly this much is pinned: before Linux 6.13 the kernel unpins released memory up to a second
    /// late.
    #[track_caller]
    fn assert_pinned(kib: u64, what: &str) {
        if kib > 0 && pinned_kib() == 0 {
            return println!("{NOT_COUNTED}");
        }
        let began = std::time::Instant::now();
        while pinned_kib() != kib {
            assert!(began.elapsed() < patience(), "{what}: {} KiB instead of {kib}", pinned_kib());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    fn open_on_ring() -> File {
        OpenOptions::new().read(true).route(Route::Ring).open_blocking("/proc/self/exe").unwrap()
    }

    /// In its own process, because pinned memory is counted for the process.
    #[test]
    fn without_cloning_each_ring_registers_for_itself() {
        if std::env::var_os(IN_CHILD).is_some() {
            return register_on_each_ring();
        }
        let name = "ring::registry::tests::without_cloning_each_ring_registers_for_itself";
        if !crate::metrics::ring_features().unwrap().iter().any(|feature| feature == "registered_buffers") {
            return skip(name, "this kernel (before 5.19) has no tables of registered memory");
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child
            .args(["--exact", name, "--nocapture"])
            .env(IN_CHILD, "1")
            .env_remove("RINGFILE_DISABLE")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        if text.contains(NOT_COUNTED) {
            skip(&format!("what is pinned, of {name}"), NOT_COUNTED);
        }
    }

    const NOT_COUNTED: &str = "this kernel counts in VmPin nothing that rings pin";

    fn register_on_each_ring() {
        WITHOUT_CLONE.store(true, Ordering::Relaxed);
        let pool = Pool::new(2 << 20);
        let file = open_on_ring();
        block_on(async {
            let before = thread_metrics();
            let buffer = file.read_exact_at(pool.get(4096).unwrap(), 0).await.unwrap();
            assert_eq!(&buffer[1..4], b"ELF");
            let counts = thread_metrics() - before;
            assert_eq!((counts.ops, counts.fixed_ops), (1, 1));
            assert!(HOLDER.lock().pinned.iter().all(|&serial| serial == 0), "the holder pins nothing");
        });
        assert!(!can_clone());
        // Each ring pins the pool's memory anew: here, this thread's ring and another thread's.
        block_on(async {
            file.read_exact_at(pool.get(4096).unwrap(), 0).await.unwrap();
            assert_pinned(2 << 10, "by this thread's ring");
            let theirs = pool.clone();
            let other = std::thread::spawn(move || {
                block_on(async {
                    file.read_exact_at(theirs.get(4096).unwrap(), 0).await.unwrap();
                    assert_eq!(thread_metrics().fixed_ops, 1);
                    assert_pinned(4 << 10, "pinned twice");
                });
            });
            other.join().unwrap();
            assert_pinned(2 << 10, "the thread that is gone has given its share back");
        });
        // A ring that finds that it can clone after all must not clone what the holder does not have.
        WITHOUT_CLONE.store(false, Ordering::Relaxed);
        let mixed = pool.clone();
        std::thread::spawn(move || {
            let file = open_on_ring();
            let buffer = block_on(file.read_exact_at(mixed.get(4096).unwrap(), 0)).unwrap();
            assert_eq!(&buffer[1..4], b"ELF");
            assert_eq!(thread_metrics().fixed_ops, 1);
        })
        .join()
        .unwrap();
    }
}
