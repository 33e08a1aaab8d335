//! Appending to a `Buffer`, which grows if needed: into the rest of its block, or into a larger block of the same pool.
//!
//! Knows buffers, and the pool of a block. Invariants: a buffer that could not grow is unchanged; memory that other
//! parts of the same block may use is never taken.

use bytes::BufMut;
use bytes::buf::UninitSlice;

use super::buffer::Buffer;
use super::core::GONE;
use super::error::PoolError;
use super::pool::Pool;

/// How much room `chunk_mut` makes if there is none, as in `Vec`.
const LEAST_CHUNK: usize = 64;

/// Appending, and room for it: see [growing](Buffer#growing).
impl Buffer {
    /// Makes room for `additional` bytes behind the content.
    ///
    /// # Panics
    /// If [`try_reserve`](Self::try_reserve) fails.
    ///
    /// ```
    /// let pool = ringfile_buffer::Pool::new(1 << 20);
    /// let mut buffer = pool.get(4096)?;
    /// buffer.extend_from_slice(b"content");
    /// buffer.reserve(10_000);
    /// assert!(buffer.capacity() >= 10_007 && &buffer[..] == b"content");
    /// assert_eq!(pool.metrics().growths, 1);
    /// # Ok::<(), ringfile_buffer::PoolError>(())
    /// ```
    pub fn reserve(&mut self, additional: usize) {
        self.try_reserve(additional).unwrap_or_else(|error| no_room(&error));
    }

    /// Makes room for `additional` bytes behind the content, or returns an error and leaves the buffer as it is.
    ///
    /// # Errors
    /// [`PoolError::NoRoom`] if the buffer [does not grow](#growing); otherwise as [`Pool::get`](crate::Pool::get), but
    /// [`PoolError::Full`] where that would wait.
    ///
    /// ```
    /// use ringfile_buffer::{Pool, PoolError};
    /// let pool = Pool::builder().capacity(1 << 20).growing(false).build()?;
    /// let mut buffer = pool.get(512)?;
    /// assert!(buffer.try_reserve(512).is_ok());
    /// assert!(matches!(buffer.try_reserve(513), Err(PoolError::NoRoom { .. })));
    /// # Ok::<(), PoolError>(())
    /// ```
    #[inline]
    pub fn try_reserve(&mut self, additional: usize) -> Result<(), PoolError> {
        if additional <= self.capacity() - self.len() { Ok(()) } else { self.grow(additional) }
    }

    /// Appends `data`. The buffer grows if it has too little room.
    ///
    /// # Panics
    /// If [`try_extend_from_slice`](Self::try_extend_from_slice) fails.
    ///
    /// ```
    /// let mut buffer = ringfile_buffer::Pool::new(1 << 20).get(4)?;
    /// buffer.extend_from_slice(b"ab");
    /// buffer.extend_from_slice(b"cd");
    /// assert_eq!(&buffer[..], b"abcd");
    /// # Ok::<(), ringfile_buffer::PoolError>(())
    /// ```
    #[inline]
    pub fn extend_from_slice(&mut self, data: &[u8]) {
        self.try_extend_from_slice(data).unwrap_or_else(|error| no_room(&error));
    }

    /// Appends all of `data`, or returns an error and leaves the buffer as it is. The buffer grows if it has too little
    /// room.
    ///
    /// # Errors
    /// Those of [`try_reserve`](Self::try_reserve).
    ///
    /// ```
    /// let pool = ringfile_buffer::Pool::builder().capacity(64 << 10).growing(false).build()?;
    /// let mut buffer = pool.get(3)?;
    /// assert!(buffer.try_extend_from_slice(b"abcd").is_err() && buffer.is_empty());
    /// buffer.try_extend_from_slice(b"abc")?;
    /// assert_eq!(&buffer[..], b"abc");
    /// # Ok::<(), ringfile_buffer::PoolError>(())
    /// ```
    #[inline]
    pub fn try_extend_from_slice(&mut self, data: &[u8]) -> Result<(), PoolError> {
        self.try_reserve(data.len())?;
        self.append(data);
        Ok(())
    }

    /// Sets the length, and fills new bytes with `byte`. The buffer grows if it has too little room.
    ///
    /// # Panics
    /// If [`try_resize`](Self::try_resize) fails.
    ///
    /// ```
    /// let mut buffer = ringfile_buffer::Pool::new(1 << 20).get(4)?;
    /// buffer.resize(4, b'x');
    /// assert_eq!(&buffer[..], b"xxxx");
    /// # Ok::<(), ringfile_buffer::PoolError>(())
    /// ```
    pub fn resize(&mut self, len: usize, byte: u8) {
        self.try_resize(len, byte).unwrap_or_else(|error| no_room(&error));
    }

    /// Sets the length as [`resize`](Self::resize) does, or returns an error and leaves the buffer as it is.
    ///
    /// # Errors
    /// Those of [`try_reserve`](Self::try_reserve).
    pub fn try_resize(&mut self, len: usize, byte: u8) -> Result<(), PoolError> {
        let old = self.len();
        let more = len.saturating_sub(old);
        self.try_reserve(more)?;
        self.spare_mut()[..more].fill(byte);
        self.set_len(len);
        Ok(())
    }

    #[cold]
    fn grow(&mut self, additional: usize) -> Result<(), PoolError> {
        let needed = self.len().saturating_add(additional);
        let no_room = |why| PoolError::NoRoom { requested: needed, capacity: self.capacity(), why };
        let core = self.may_grow().map_err(no_room)?;
        if self.core().is_some() && needed <= self.widest() {
            self.widen();
            return Ok(());
        }
        let pool = Pool::of_core(core).ok_or_else(|| no_room(GONE))?;
        let fits = self.core().is_some() && needed <= self.whole_block();
        // Moving less than was taken from the front costs no more than writing that did.
        if fits && self.front() >= self.len() {
            self.move_to_front();
            return Ok(());
        }
        let mut larger = match pool.get_to_grow(needed, self.capacity().saturating_mul(2)) {
            Ok(larger) => larger,
            Err(_) if fits => {
                self.move_to_front();
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        larger.widen();
        larger.set_len(self.len());
        larger.copy_from_slice(self);
        *self = larger;
        Ok(())
    }
}

#[cold]
fn no_room(error: &PoolError) -> ! {
    panic!("{error}")
}

/// `put_…` and `chunk_mut` grow the buffer, and panic if [`Buffer::try_reserve`] fails: call that first to get an error
/// instead.
///
/// ```
/// use bytes::BufMut;
/// let pool = ringfile_buffer::Pool::new(1 << 20);
/// let mut buffer = pool.get(6)?;
/// buffer.put_u32(0x0102_0304);
/// buffer.put_slice(b"more than there is room for");
/// assert_eq!(buffer[..6], [1, 2, 3, 4, b'm', b'o']);
/// # Ok::<(), ringfile_buffer::PoolError>(())
/// ```
// SAFETY: `chunk_mut` gives memory between the length and the capacity, which is the buffer's own, and `advance_mut` takes no
// more than that.
unsafe impl BufMut for Buffer {
    /// Returns the room behind the content; for a buffer that [grows](Buffer#growing), the largest addressable amount,
    /// as `Vec` does.
    fn remaining_mut(&self) -> usize {
        let most = if self.may_grow().is_ok() { isize::MAX as usize } else { self.capacity() };
        most - self.len()
    }

    #[inline]
    unsafe fn advance_mut(&mut self, n: usize) {
        let room = self.capacity() - self.len();
        assert!(n <= room, "can't advance by {n} bytes: there is room for {room}");
        // All of the capacity is initialised, whatever was written.
        self.set_len(self.len() + n);
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        if self.len() == self.capacity() && self.may_grow().is_ok() {
            self.reserve(LEAST_CHUNK);
        }
        UninitSlice::new(self.spare_mut())
    }

    // Inlined, so that the compiler knows the length of a number.
    #[inline]
    fn put_slice(&mut self, data: &[u8]) {
        self.extend_from_slice(data);
    }

    fn put_bytes(&mut self, byte: u8, count: usize) {
        self.resize(self.len().saturating_add(count), byte);
    }

    fn put<T: bytes::Buf>(&mut self, mut source: T) {
        self.reserve(source.remaining());
        while source.has_remaining() {
            let chunk = source.chunk();
            let n = chunk.len();
            self.extend_from_slice(chunk);
            source.advance(n);
        }
    }
}
