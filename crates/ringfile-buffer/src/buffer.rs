//! `Buffer`: an owned piece of aligned memory, for I/O.
//!
//! Knows only block headers; `home.rs` has its drop, `growing.rs`, `frozen.rs` and `lend.rs` have more of its functions.
//! Invariants: a buffer exclusively owns the bytes `ptr..ptr + cap`, holds one reference of its block, and all these bytes
//! are initialised: new memory comes zeroed from the system (or initialised from its user), and used memory holds what
//! this process wrote there. So it may return `&mut [u8]` over any of it, and set its length freely.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use super::block::{self, Block};
use super::error::PoolError;

/// Owned, aligned memory for I/O, from [`Pool::get`](crate::Pool::get) or
/// [`RegisteredMemory::lend`](crate::RegisteredMemory::lend).
///
/// It has a capacity and a length, and derefs to the `[u8]` of its length. A read fills it from the start and sets the
/// length; a write writes the length. Appending beyond the capacity makes it [grow](#growing). Dropping it returns the
/// memory.
///
/// The whole capacity is always initialised, but where this buffer was not written to, it may hold data of an earlier
/// buffer of this process. Clear secrets before dropping a buffer.
///
/// # Growing
///
/// A buffer of a pool grows when more is appended than fits, unless its pool was [built](crate::PoolBuilder::growing)
/// without growing. It grows into the rest of its block, if no other part or `Bytes` shares that; where at least half of
/// what it had was taken from its front, or the pool has no more, its content moves to the front. Otherwise its content
/// is copied to a larger block of the same pool, at least twice as large if the pool has one, and its own memory is
/// returned. The new capacity is the whole block, and [`as_ptr`](Self::as_ptr) changes with the block. Copies are
/// counted ([`PoolMetrics::growths`](crate::PoolMetrics::growths)). Growing never waits for memory, whatever
/// [`WhenFull`](crate::WhenFull) says, since the waiting buffer would hold memory meanwhile.
///
/// - A part of a split or shared buffer grows into a separate block; the other parts stay as they are.
/// - A buffer without memory ([`Buffer::default`]) gets some from a pool that the whole process has for this purpose: 64 MiB,
///   not registered with the kernel, and more from the system when that is used up. So do buffers that are made of slices,
///   vectors and iterators.
/// - Lent memory, memory from [`from_raw`](Self::from_raw) (but for a part of it without any bytes), and buffers whose pool was
///   dropped do not grow.
///
/// [`std::io::Write`] never grows the buffer: it writes what fits. [`BufMut::writer`](bytes::BufMut::writer) returns a
/// writer that does.
///
/// # Example
///
/// ```
/// use std::io::Write;
/// let pool = ringfile_buffer::Pool::new(1 << 20);
/// let mut buffer = pool.get(4096)?;
/// write!(buffer, "page {}", 7)?;
/// assert_eq!(&buffer[..], b"page 7");
/// buffer.resize(4096, 0);
/// assert_eq!(buffer.len(), buffer.capacity());
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Buffer {
    ptr: NonNull<u8>,
    len: usize,
    cap: usize,
    pub(super) block: NonNull<Block>,
}

const _: () = assert!(size_of::<Buffer>() == 4 * size_of::<usize>());

// SAFETY: a buffer owns its bytes alone, and its block's counts are atomic.
unsafe impl Send for Buffer {}
// SAFETY: `&Buffer` gives only `&[u8]`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// # Safety
    /// The caller hands over one reference of `block`, and the right to `cap` initialised bytes of its memory at
    /// `ptr`, which no other buffer has; `len <= cap`.
    #[inline]
    pub(super) unsafe fn new(ptr: NonNull<u8>, len: usize, cap: usize, block: NonNull<Block>) -> Self {
        Buffer { ptr, len, cap, block }
    }

    /// Creates the first buffer over a free block, of length 0.
    ///
    /// # Safety
    /// The block has a home, is in no stack, has no references and at least `cap` bytes, and belongs to the caller.
    #[inline]
    pub(super) unsafe fn first(block: NonNull<Block>, cap: usize) -> Self {
        // SAFETY: a block with a home keeps its header.
        let header = unsafe { block.as_ref() };
        debug_assert!(cap <= header.size());
        header.refs.set_one();
        // SAFETY: the block belongs to the caller, so this buffer may use its memory, which the system has initialised.
        unsafe { Buffer::new(NonNull::new_unchecked(header.base()), 0, cap, block) }
    }

    /// Returns the number of bytes that hold data.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns how many bytes fit: exactly as many as were requested, until the buffer grows or gives up its front
    /// ([`Buf::advance`](bytes::Buf::advance)).
    #[inline]
    pub fn capacity(&self) -> usize {
        self.cap
    }

    /// Returns the address of the buffer. It stays the same until the buffer grows or gives up its front
    /// ([`Buf::advance`](bytes::Buf::advance)).
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    /// Returns the address of the buffer, for writing. See [`Buffer::as_ptr`].
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Sets the length. Bytes between the old and the new length have whatever content this memory had before.
    ///
    /// # Panics
    /// If `len` is above the capacity, where [`try_set_len`](Self::try_set_len) fails.
    ///
    /// ```
    /// let mut buffer = ringfile_buffer::Pool::new(1 << 20).get(512)?;
    /// buffer.set_len(512);
    /// buffer.fill(7);
    /// # Ok::<(), ringfile_buffer::PoolError>(())
    /// ```
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.cap, "length {len} is above the buffer's capacity {}", self.cap);
        self.len = len;
    }

    /// Sets the length as [`set_len`](Self::set_len) does, or returns an error and leaves the buffer as it is.
    ///
    /// # Errors
    /// [`PoolError::NoRoom`] if `len` is above the capacity: only [`try_reserve`](Self::try_reserve) makes room.
    #[inline]
    pub fn try_set_len(&mut self, len: usize) -> Result<(), PoolError> {
        if len > self.cap {
            return Err(PoolError::NoRoom {
                requested: len,
                capacity: self.cap,
                why: "setting the length does not reserve memory",
            });
        }
        self.len = len;
        Ok(())
    }

    /// Sets the length to 0.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Shortens the buffer to `len` bytes; does nothing if it is not longer.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Splits off the first `at` bytes of the capacity and returns them; `self` keeps the rest.
    ///
    /// Copies nothing; the memory is returned when all parts are dropped. Data stays where it is: each part's length is
    /// its share of the old length. A part is aligned as `at` is, so split at multiples of what the file needs.
    ///
    /// # Panics
    /// If `at` is above the capacity.
    ///
    /// ```
    /// let mut rest = ringfile_buffer::Pool::new(1 << 20).get(8192)?;
    /// rest.resize(5000, 1);
    /// let first = rest.split_to(4096);
    /// assert_eq!((first.len(), first.capacity()), (4096, 4096));
    /// assert_eq!((rest.len(), rest.capacity()), (904, 4096));
    /// # Ok::<(), ringfile_buffer::PoolError>(())
    /// ```
    pub fn split_to(&mut self, at: usize) -> Buffer {
        let rest = self.split_off(at);
        std::mem::replace(self, rest)
    }

    /// Splits off everything behind the first `at` bytes of the capacity and returns it; `self` keeps the first bytes.
    ///
    /// Otherwise the same as [`Buffer::split_to`].
    ///
    /// # Panics
    /// If `at` is above the capacity.
    ///
    /// ```
    /// let mut header = ringfile_buffer::Pool::new(1 << 20).get(8192)?;
    /// let body = header.split_off(4096);
    /// assert_eq!((header.capacity(), body.capacity()), (4096, 4096));
    /// # Ok::<(), ringfile_buffer::PoolError>(())
    /// ```
    pub fn split_off(&mut self, at: usize) -> Buffer {
        assert!(at <= self.cap, "can't split at {at}: the buffer's capacity is {}", self.cap);
        self.header().add_ref();
        // SAFETY: `self` gives up the bytes from `at` on, which the new part gets with a reference of its own.
        let rest =
            unsafe { Buffer::new(self.ptr.add(at), self.len.saturating_sub(at), self.cap - at, self.block) };
        self.len = self.len.min(at);
        self.cap = at;
        rest
    }

    /// Creates a buffer over memory that the caller keeps alive, with that capacity and length. I/O on it is
    /// unregistered, and dropping it does nothing. For memory that is used repeatedly,
    /// [`RegisteredMemory`](crate::RegisteredMemory) is faster.
    ///
    /// # Safety
    /// Until the buffer, all parts of it and all `Bytes` made of it are dropped, the `len` bytes at `start` must be
    /// valid and initialised, and nothing else may access them; if the buffer is only written to files, others may read
    /// them. If it is only passed to operations, which make no reference to the bytes, others may access them as they
    /// may while the kernel does. An operation holds the buffer until the kernel has answered, even if its future is dropped.
    ///
    /// ```
    /// use ringfile_buffer::Buffer;
    /// let mut memory = *b"content";
    /// // SAFETY: the memory is not touched before the buffer is gone.
    /// let mut buffer = unsafe { Buffer::from_raw((&raw mut memory).cast(), 7) };
    /// buffer[0] = b'C';
    /// drop(buffer);
    /// assert_eq!(&memory, b"Content");
    /// ```
    ///
    /// # Panics
    /// If `start` is null.
    #[inline]
    pub unsafe fn from_raw(start: *mut u8, len: usize) -> Buffer {
        let start = NonNull::new(start).expect("memory for I/O must not be at address 0");
        // SAFETY: the caller hands over the bytes; the block is never freed, and its references are not counted.
        unsafe { Buffer::new(start, len, len, block::of_nobody()) }
    }

    /// Creates a second buffer over `len` bytes of this one's capacity, starting at `at`, with that capacity and length.
    /// The memory returns to its pool when all of them are dropped. Copies nothing.
    ///
    /// # Safety
    /// Nothing else, including this buffer, may access these bytes while the new buffer exists. If the bytes are only
    /// read, or written to files, several buffers may access them.
    ///
    /// # Panics
    /// If the range is not within the capacity.
    ///
    /// ```
    /// let pool = ringfile_buffer::Pool::new(1 << 20);
    /// let mut page = pool.get(4096)?;
    /// page.resize(4096, 7);
    /// // SAFETY: both are only looked at.
    /// let part = unsafe { page.share(1024, 512) };
    /// assert_eq!((part.len(), part[0], page.is_shared()), (512, 7, true));
    /// drop(part);
    /// assert!(!page.is_shared());
    /// # Ok::<(), ringfile_buffer::PoolError>(())
    /// ```
    #[inline]
    pub unsafe fn share(&self, at: usize, len: usize) -> Buffer {
        assert!(at <= self.cap && len <= self.cap - at, "a part lies within the whole");
        self.header().add_ref();
        // SAFETY: the part has a reference of its own, and the right to its bytes by the caller's promise.
        unsafe { self.part(at, len) }
    }

    /// Creates a buffer over a part of this one's capacity, which gets a reference that the caller has.
    ///
    /// # Safety
    /// As [`share`](Self::share); the range lies within the capacity.
    #[inline]
    pub(super) unsafe fn part(&self, at: usize, len: usize) -> Buffer {
        // SAFETY: by this function's contract.
        unsafe { Buffer::new(self.ptr.add(at), len, len, self.block) }
    }

    /// Returns whether both have references of one block.
    #[inline]
    pub(super) fn is_of_block(&self, other: &Buffer) -> bool {
        self.block == other.block
    }

    /// Returns whether other buffers, or `Bytes`, refer to the same memory: parts of it, or shares. Always false for memory
    /// from [`from_raw`](Self::from_raw), whose parts are not counted.
    pub fn is_shared(&self) -> bool {
        self.header().is_shared()
    }

    #[inline]
    pub(super) fn header(&self) -> &Block {
        // SAFETY: our reference keeps the header.
        unsafe { self.block.as_ref() }
    }

    /// Returns the block with its reference, as [`Buffer::first`] takes it.
    pub(super) fn into_block(self) -> NonNull<Block> {
        ManuallyDrop::new(self).block
    }

    /// Returns the buffer's start in its block, and how many bytes it owns from there.
    pub(super) fn span(&self) -> (NonNull<u8>, usize) {
        (self.ptr, self.cap)
    }

    /// Returns its capacity including the rest of its block, if there is no other reference. The block must belong to a
    /// pool.
    pub(super) fn widest(&self) -> usize {
        let header = self.header();
        match header.is_shared() {
            true => self.cap,
            false => header.size() - (self.ptr.addr().get() - header.base().addr()),
        }
    }

    /// Takes the rest of its block, if there is no other reference. The block must belong to a pool.
    pub(super) fn widen(&mut self) {
        // A pool's memory is always initialised, and the only reference owns the whole block.
        self.cap = self.widest();
    }

    /// Appends bytes for which there is room.
    ///
    /// # Panics
    /// If there is not.
    #[inline]
    pub(super) fn append(&mut self, data: &[u8]) {
        // This checks that the new length is within the capacity.
        self.spare_mut()[..data.len()].copy_from_slice(data);
        self.len += data.len();
    }

    /// Gives up the first `n` bytes of the content.
    pub(super) fn drop_front(&mut self, n: usize) {
        debug_assert!(n <= self.len);
        // SAFETY: within our memory.
        self.ptr = unsafe { self.ptr.add(n) };
        (self.len, self.cap) = (self.len - n, self.cap - n);
    }

    /// Returns the size of its block if it has the only reference, so that all of it is free for this buffer; otherwise 0. The
    /// block must belong to a pool.
    pub(super) fn whole_block(&self) -> usize {
        if self.header().is_shared() { 0 } else { self.header().size() }
    }

    /// Returns how many bytes of its block lie before it.
    pub(super) fn front(&self) -> usize {
        self.ptr.addr().get() - self.header().base().addr()
    }

    /// Moves the content to the start of its block, and takes the whole block, to which there is no other reference. The block
    /// must belong to a pool.
    pub(super) fn move_to_front(&mut self) {
        let (base, size) = (self.header().base(), self.whole_block());
        assert!(self.cap <= size, "it has the only reference of the block");
        // SAFETY: the only reference owns the whole block, whose memory is initialised; both ranges lie in it.
        unsafe {
            base.copy_from(self.ptr.as_ptr(), self.len);
            self.ptr = NonNull::new_unchecked(base);
        }
        self.cap = size;
    }

    /// Returns the bytes between the length and the capacity.
    #[inline]
    pub(super) fn spare_mut(&mut self) -> &mut [u8] {
        // SAFETY: all of the capacity is ours and initialised.
        unsafe { slice::from_raw_parts_mut(self.ptr.as_ptr().add(self.len), self.cap - self.len) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer owns `cap >= len` initialised bytes there, and lends itself for as long.
        unsafe { slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and it is lent mutably.
        unsafe { slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("ptr", &self.ptr)
            .field("len", &self.len)
            .field("capacity", &self.cap)
            .finish_non_exhaustive()
    }
}

impl io::Write for Buffer {
    /// Appends as many bytes as fit; 0 if the buffer is full. Never grows the buffer.
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let n = data.len().min(self.cap - self.len);
        self.append(&data[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
