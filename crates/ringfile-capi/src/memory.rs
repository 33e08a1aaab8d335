//! Memory for I/O, found by its address: pools' buffers, registered memory of the caller, and any other memory.
//!
//! Invariants: an owner keeps the memory that is known here; an operation on it shares the owner's buffer, so the
//! memory can be freed or unregistered only after the operation has finished. An operation whose memory lies partly
//! outside known memory, or in several pieces of it, shares every piece that it overlaps.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use libc::iovec;
use ringfile::buf::Shares;
use ringfile::{Buffer, Completion, RegisteredMemory};

use crate::error::{Fault, Result, call, done};
use crate::fork::{self, Lock};
use crate::raw;
use crate::recent;
use crate::table::Table;

/// Memory of the caller's own that is registered.
pub struct ringfile_memory {
    _opaque: [u8; 0],
}

/// The known memory, by its first address.
static KNOWN: RwLock<Pieces> = RwLock::new(BTreeMap::new());
/// The number of known pieces, so that the lock is not taken if there are none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

static REGISTERED: Table<Registered> =
    Table::new("ringfile_memory", 3, Lock::RegisteredMemory, || REGISTERED.hold());

#[derive(Clone, Copy)]
struct Registered {
    start: usize,
}

type Pieces = BTreeMap<usize, Piece>;

struct Piece {
    buffer: Buffer,
    /// Whether the caller has registered it; otherwise a pool's buffer.
    is_registered: bool,
}

fn known() -> RwLockWriteGuard<'static, Pieces> {
    KNOWN.write().unwrap_or_else(PoisonError::into_inner)
}

/// Makes operations find a buffer by its address. Returns it if a part of it is known already.
pub(crate) fn add(buffer: Buffer, is_registered: bool) -> std::result::Result<(), Buffer> {
    fork::heed(Lock::KnownMemory, || Some(Box::new(known())));
    let start = buffer.as_ptr().addr();
    let mut known = known();
    let before = known.range(..start + buffer.capacity()).next_back();
    if before.is_some_and(|(&other, of)| other + of.buffer.capacity() > start) {
        return Err(buffer);
    }
    known.insert(start, Piece { buffer, is_registered });
    COUNT.store(known.len(), Ordering::Release);
    Ok(())
}

/// Removes a buffer, so that new operations do not find it. Operations that share it keep it until they have finished.
pub(crate) fn remove(start: usize) -> Option<Buffer> {
    let mut known = known();
    let piece = known.remove(&start);
    COUNT.store(known.len(), Ordering::Release);
    piece.map(|piece| piece.buffer)
}

/// Returns the memory of an operation as a buffer with this capacity and length.
///
/// # Safety
/// As [`Span::buffer`].
#[inline(always)]
pub(crate) unsafe fn at(data: *mut c_void, len: usize) -> Result<Buffer> {
    let span = Span::new(data, len)?;
    // SAFETY: by this function's contract.
    Ok(unsafe { span.buffer() })
}

/// The address and length of an operation's memory. Invariant: an address other than null, unless the length is 0, and at
/// most `isize::MAX` bytes.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    data: *mut u8,
    len: usize,
}

// SAFETY: it is an address and a number; the caller of `buffer` promises what `buffer` needs.
unsafe impl Send for Span {}

impl Span {
    #[inline(always)]
    pub(crate) fn new(data: *const c_void, len: usize) -> Result<Self> {
        if data.is_null() && len > 0 {
            return Err(Fault::null("the memory of the operation"));
        }
        if len > isize::MAX as usize {
            return Err(Fault::invalid(format!("{len} bytes are more than any memory has")));
        }
        Ok(Self { data: data.cast_mut().cast(), len })
    }

    /// Returns whether memory may be an operation's, without saying why not. Memory of no bytes at address 0 may, but
    /// is left to [`new`](Self::new).
    #[inline(always)]
    pub(crate) fn is_possible(data: *const c_void, len: usize) -> bool {
        !data.is_null() && len <= isize::MAX as usize
    }

    /// # Safety
    /// [`is_possible`](Self::is_possible) has returned true.
    #[inline(always)]
    pub(crate) unsafe fn new_unchecked(data: *const c_void, len: usize) -> Self {
        // SAFETY: by this function's contract.
        unsafe { std::hint::assert_unchecked(Self::is_possible(data, len)) };
        Self { data: data.cast_mut().cast(), len }
    }

    /// Returns its address and its length.
    #[inline(always)]
    pub(crate) fn range(self) -> (usize, usize) {
        (self.data.addr(), self.len)
    }

    /// Returns a buffer over a part of kept memory, which this is from `at` on.
    ///
    /// # Safety
    /// As [`buffer`](Self::buffer).
    #[inline(always)]
    pub(crate) unsafe fn share_of(self, kept: &mut Shares, at: usize) -> Buffer {
        // SAFETY: by this function's contract only the operation accesses the bytes.
        unsafe { kept.share(at, self.len) }
    }

    /// Returns a buffer as [`buffer`](Self::buffer) does, and what to keep for other operations on the same memory: the
    /// memory that the caller has registered. Buffers of pools are too many.
    ///
    /// # Safety
    /// As [`buffer`](Self::buffer).
    #[inline(always)]
    pub(crate) unsafe fn look_up(self) -> (Buffer, Option<Shares>) {
        let known = Lookup::new();
        let keep = known.registered(self);
        // SAFETY: by this function's contract.
        (unsafe { known.buffer(self) }, keep)
    }

    /// Returns a buffer over this memory, with its length as capacity and length.
    ///
    /// # Safety
    /// The memory is valid, and nothing else accesses it, until the buffer is dropped; for a write others may read it.
    #[inline(always)]
    pub(crate) unsafe fn buffer(self) -> Buffer {
        // SAFETY: by this function's contract.
        unsafe { Lookup::new().buffer(self) }
    }
}

/// Known memory, locked for reading once for all operations of a loop.
pub(crate) struct Lookup(Option<RwLockReadGuard<'static, Pieces>>);

impl Lookup {
    #[inline]
    pub(crate) fn new() -> Self {
        let is_there = COUNT.load(Ordering::Acquire) > 0;
        Self(is_there.then(|| KNOWN.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// See [`at`].
    ///
    /// # Safety
    /// As [`at`].
    #[inline]
    pub(crate) unsafe fn at(&self, data: *mut c_void, len: usize) -> Result<Buffer> {
        // SAFETY: by this function's contract.
        Ok(unsafe { self.buffer(Span::new(data, len)?) })
    }

    /// Returns the means to share the registered memory that contains this, if there is some.
    #[inline(always)]
    fn registered(&self, Span { data, len }: Span) -> Option<Shares> {
        let known = self.0.as_ref().filter(|_| len > 0)?;
        let piece = last_overlapped(known, data.addr(), data.addr().saturating_add(len))?;
        // SAFETY: only operations access the bytes, each those of its own.
        piece.is_registered.then(|| unsafe { Shares::new(&piece.buffer) })
    }

    /// See [`Span::buffer`].
    ///
    /// # Safety
    /// As [`Span::buffer`].
    #[inline(always)]
    unsafe fn buffer(&self, Span { data, len }: Span) -> Buffer {
        if let Some(known) = self.0.as_ref().filter(|_| len > 0)
            && let Some(piece) = last_overlapped(known, data.addr(), data.addr().saturating_add(len))
        {
            let piece = &piece.buffer;
            // Beyond every capacity if it begins before the piece.
            let at = data.addr().wrapping_sub(piece.as_ptr().addr());
            if at <= piece.capacity() && len <= piece.capacity() - at {
                // SAFETY: by this function's contract only the operation accesses the bytes.
                return unsafe { piece.share(at, len) };
            }
            // SAFETY: by this function's contract.
            return unsafe { Buffer::from_raw_with_owner(data, len, shares(known, data.addr(), len)) };
        }
        let data = if data.is_null() { std::ptr::dangling_mut() } else { data };
        // SAFETY: by this function's contract. Memory that comes from C counts as initialised, whatever it contains.
        unsafe { Buffer::from_raw(data, len) }
    }
}

/// Returns the parts of a vectored operation.
///
/// # Safety
/// As [`raw::array`].
#[inline]
pub(crate) unsafe fn parts<'a>(parts: *const iovec, count: usize) -> Result<&'a [iovec]> {
    // SAFETY: by this function's contract.
    let parts = unsafe { raw::array(parts, count, "the parts") }?;
    let total = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.iov_len));
    total.map(|_| parts).ok_or_else(|| Fault::invalid("the parts together are longer than any file"))
}

/// The maximum number of lists that a thread keeps: as many vectored operations in flight allocate nothing.
const MOST_LISTS: usize = 256;
/// The maximum number of parts for which a list is kept.
const MOST_PARTS: usize = 64;

thread_local! {
    /// Empty lists of vectored operations whose results this thread has taken, for its next ones.
    static LISTS: Cell<Vec<Vec<Buffer>>> = const { Cell::new(Vec::new()) };
}

/// Uses this thread's lists; does nothing while the thread is ending.
fn with_lists<R: Default>(use_lists: impl FnOnce(&mut Vec<Vec<Buffer>>) -> R) -> R {
    let used = LISTS.try_with(|place| {
        let mut lists = place.take();
        let result = use_lists(&mut lists);
        place.set(lists);
        result
    });
    used.unwrap_or_default()
}

/// Returns an empty list for the parts of a vectored operation.
fn list() -> Vec<Buffer> {
    with_lists(Vec::pop).unwrap_or_default()
}

/// Keeps the list of parts of an operation that has ended, if it is a vectored one.
#[inline]
pub(crate) fn keep_list(done: &mut Completion) {
    #[cold]
    fn keep(mut list: Vec<Buffer>) {
        // Before the lists are used: dropping a buffer may run other code of the library.
        list.clear();
        if list.capacity() <= MOST_PARTS {
            with_lists(|lists| {
                if lists.len() < MOST_LISTS {
                    lists.push(list);
                }
            });
        }
    }
    if done.buffers.capacity() > 0 {
        keep(std::mem::take(&mut done.buffers));
    }
}

/// The memory of a vectored operation: buffers, or spans whose buffers are looked up later.
pub(crate) trait Parts: Sized {
    /// # Safety
    /// As [`Span::buffer`], for each part.
    unsafe fn of(parts: &[iovec]) -> Result<Self>;

    /// # Safety
    /// As [`Span::buffer`], for each part.
    unsafe fn into_buffers(self) -> Vec<Buffer>;
}

impl Parts for Vec<Buffer> {
    unsafe fn of(parts: &[iovec]) -> Result<Self> {
        let mut list = list();
        let known = Lookup::new();
        for part in parts {
            // SAFETY: by this function's contract.
            list.push(unsafe { known.at(part.iov_base, part.iov_len) }?);
        }
        Ok(list)
    }

    unsafe fn into_buffers(self) -> Vec<Buffer> {
        self
    }
}

impl Parts for Vec<Span> {
    unsafe fn of(parts: &[iovec]) -> Result<Self> {
        parts.iter().map(|part| Span::new(part.iov_base, part.iov_len)).collect()
    }

    unsafe fn into_buffers(self) -> Vec<Buffer> {
        let mut list = list();
        // SAFETY: by this function's contract.
        list.extend(self.into_iter().map(|part| unsafe { part.buffer() }));
        list
    }
}

/// Returns the last known piece that overlaps the memory from `start` to `end`. A reference, since a returned buffer
/// would be copied in other pieces than it was stored in, which takes as long as a lock.
fn last_overlapped(known: &Pieces, start: usize, end: usize) -> Option<&Piece> {
    let (first, piece) = known.range(..end).next_back()?;
    (start < first + piece.buffer.capacity()).then_some(piece)
}

/// Shares of all known memory that an operation's overlaps, so that none of it is unregistered or released meanwhile.
///
/// # Safety
/// As [`Span::buffer`], for `len` bytes from `start` on.
#[cold]
unsafe fn shares(known: &Pieces, start: usize, len: usize) -> Vec<Buffer> {
    let mut end = start.saturating_add(len);
    let mut shares = Vec::new();
    while let Some(Piece { buffer: piece, .. }) = last_overlapped(known, start, end) {
        let first = piece.as_ptr().addr();
        let (low, high) = (start.max(first), end.min(first + piece.capacity()));
        // SAFETY: by this function's contract only the operation accesses the bytes, and they lie within the piece.
        shares.push(unsafe { piece.share(low - first, high - low) });
        // Known pieces do not overlap.
        end = first;
    }
    shares
}

/// Returns whether this process has memory at an address. A length that is too large would otherwise be noticed only by
/// the kernel, after a record for each GiB was allocated.
fn is_mapped(address: usize) -> bool {
    // SAFETY: it takes only a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let start = address & !(usize::try_from(page).unwrap_or(4096) - 1);
    let mut resident = 0;
    // SAFETY: the kernel writes one byte, for the page at `start`, and does not access the page.
    let result = unsafe { libc::mincore(std::ptr::without_provenance_mut(start), 1, &raw mut resident) };
    // Where a filter refuses the call, the caller is trusted.
    result == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOMEM)
}

/// Owns nothing: the caller that registered the memory keeps it.
struct Callers;

/// Registers memory of the caller (a buffer pool, a page cache), so that operations on any part of it use io_uring's
/// fixed buffers, whichever function starts them. `*memory` gets the handle.
///
/// The `length` bytes at `data` still belong to the caller. Keep them until ringfile_memory_unregister has succeeded;
/// in between, the caller may use all parts that no operation uses. The first operation on each GiB registers it and
/// pins its pages (RLIMIT_MEMLOCK); if the kernel refuses, operations work unregistered. An operation across a multiple
/// of 1 GiB from `data` is unregistered.
///
/// Any thread. Does not block. -EEXIST: some of it is registered already, or belongs to a ringfile_buffer. -EINVAL:
/// `length` is 0, or there is no memory at its end.
///
/// Pointers: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_memory_register(
    data: *mut c_void,
    length: usize,
    memory: *mut *mut ringfile_memory,
) -> c_int {
    // SAFETY: by the contract in the header.
    done(|| unsafe { register(data, length, 0, memory) })
}

/// ringfile_memory_register_with: registers and pins the memory before the call returns.
pub const RINGFILE_MEMORY_NOW: u32 = 1;

/// As ringfile_memory_register, with flags.
///
/// RINGFILE_MEMORY_NOW: the kernel registers all of the memory and pins its pages before this returns, instead of at the
/// first operation on each GiB; for 1 GiB that takes tens of milliseconds. The pages are pinned once for the process, and
/// each ring gets a share at its first operation, which is quick. If the kernel refuses, the call fails with its errno
/// (-ENOMEM: RLIMIT_MEMLOCK is too low; -EOPNOTSUPP before Linux 6.13, where each ring pins the pages for itself), and
/// nothing is registered: without the flag, operations on the memory still work.
///
/// Any thread. Blocks with RINGFILE_MEMORY_NOW only. Errors of ringfile_memory_register; -EINVAL: `flags` are unknown.
///
/// Pointers: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_memory_register_with(
    data: *mut c_void,
    length: usize,
    flags: u32,
    memory: *mut *mut ringfile_memory,
) -> c_int {
    // SAFETY: by the contract in the header.
    done(|| unsafe { register(data, length, flags, memory) })
}

/// # Safety
/// The contract of `ringfile_memory_register_with`.
unsafe fn register(
    data: *mut c_void,
    length: usize,
    flags: u32,
    memory: *mut *mut ringfile_memory,
) -> Result<()> {
    if flags & !RINGFILE_MEMORY_NOW != 0 {
        return Err(Fault::invalid(format!("unknown flags {flags:#x}: use 0 or RINGFILE_MEMORY_NOW")));
    }
    if data.is_null() || memory.is_null() {
        return Err(Fault::null(if data.is_null() {
            "the memory to register"
        } else {
            "the pointer to the handle"
        }));
    }
    let last = length.checked_sub(1).and_then(|last| data.addr().checked_add(last));
    if length > isize::MAX as usize || !last.is_some_and(is_mapped) {
        let why = if length == 0 { "" } else { ": there is no memory at their end" };
        return Err(Fault::invalid(format!("cannot register {length} bytes at {data:p}{why}")));
    }
    // SAFETY: the caller keeps the memory until it is unregistered, and an operation has its part alone.
    let whole = unsafe { RegisteredMemory::from_raw(data.cast(), length, Callers) };
    let start = data.addr();
    if add(whole.lend(..)?, true).is_err() {
        return Err(Fault::new(
            libc::EEXIST,
            "a part of this memory is registered already, or belongs to a ringfile_buffer",
        ));
    }
    if flags & RINGFILE_MEMORY_NOW != 0 {
        ringfile::buf::register(&whole).inspect_err(|_| drop(remove(start)))?;
    }
    let handle = REGISTERED.add(Registered { start }).inspect_err(|_| drop(remove(start)))?;
    // SAFETY: it is not null, and may be written to by the contract in the header.
    unsafe { raw::put(memory, handle, "the pointer to the handle") }
}

/// Unregisters memory, and closes the handle. After success the memory may be freed.
///
/// Any thread. Does not block. -EBUSY, without effect, while an operation uses some of it: take its result, or cancel
/// it, and call again.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_memory_unregister(memory: *mut ringfile_memory) -> c_int {
    done(|| {
        let Registered { start } = REGISTERED.get(memory)?;
        drop(recent::forget_memory(start));
        let mut known = known();
        let in_use = known.get(&start).is_some_and(|piece| piece.buffer.is_shared());
        if in_use {
            return Err(Fault::new(
                libc::EBUSY,
                "an operation on this memory has not finished: take its result, or cancel it and wait, before \
                 unregistering",
            ));
        }
        REGISTERED.remove(memory)?;
        let gone = known.remove(&start);
        COUNT.store(known.len(), Ordering::Release);
        drop(known);
        // Unregistering is a system call, so it is done without the lock.
        drop(gone);
        Ok(())
    })
}

/// Returns whether an operation uses some of the registered memory: 1 or 0. Any thread; does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_memory_is_in_use(memory: *const ringfile_memory) -> c_int {
    call(|| {
        let Registered { start } = REGISTERED.get(memory)?;
        drop(recent::forget_memory(start));
        let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
        let in_use = known.get(&start).is_some_and(|piece| piece.buffer.is_shared());
        Ok(i64::from(in_use))
    }) as c_int
}
