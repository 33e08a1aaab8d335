//! Conversion between `Buffer` and `bytes::Bytes`, both ways, without copying.
//!
//! `Bytes::from_owner` never reports itself unique, and gives no access to its owner. So the pool tracks what is frozen
//! and how many owners of `Bytes` it has: a block that was frozen as a whole is marked in its header, whose references
//! are the owners; a part of a block is recorded under the pool's lock (`parts.rs`). To thaw, we become one more owner,
//! drop the `Bytes`, and check whether we are the only one left. Invariant: the bytes of a frozen buffer are not
//! written to while one of its owners exists.

use std::ptr::NonNull;
use std::slice;

use bytes::Bytes;

use super::block::Block;
use super::buffer::Buffer;
use super::core::Core;
use super::home;
use super::pool::Pool;

/// An owner behind `Bytes`: created by a freeze, or by a thaw that found other owners.
struct BytesOwner {
    start: NonNull<u8>,
    len: usize,
    block: NonNull<Block>,
    /// The core that counts the owners of this part of the block; if there is none, the block's references count them.
    counted_by: Option<NonNull<Core>>,
}

// SAFETY: nothing writes to the bytes, and the counted reference of their block keeps its core.
unsafe impl Send for BytesOwner {}
// SAFETY: as above.
unsafe impl Sync for BytesOwner {}

impl BytesOwner {
    fn header(&self) -> &Block {
        // SAFETY: our reference keeps the header.
        unsafe { self.block.as_ref() }
    }

    /// Returns the buffer if this is the only owner, from our first byte to the end of the frozen capacity.
    fn into_buffer(self) -> Result<Buffer, BytesOwner> {
        let at = self.start.addr().get() - self.header().base().addr();
        let end = match self.counted_by {
            // SAFETY: our reference keeps the core.
            Some(core) => unsafe { core.as_ref() }.lock().frozen.take(self.start.addr().get()),
            None => self.header().thaw(),
        };
        let (Some(end), Some(start)) = (end, NonNull::new(self.header().base().wrapping_add(at))) else {
            return Err(self);
        };
        let (len, block) = (self.len, self.block);
        std::mem::forget(self);
        // SAFETY: ours was the only owner of bytes up to `end`, which are initialised; its reference is the buffer's now.
        Ok(unsafe { Buffer::new(start, len, end - at, block) })
    }
}

impl AsRef<[u8]> for BytesOwner {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the owner keeps the memory, and nobody writes to bytes that have an owner.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for BytesOwner {
    fn drop(&mut self) {
        if let Some(core) = self.counted_by {
            // SAFETY: our reference keeps the core.
            unsafe { core.as_ref() }.lock().frozen.drop_owner(self.start.addr().get());
        }
        // SAFETY: our own reference, given up once.
        unsafe { home::release(self.block) }
    }
}

impl Buffer {
    /// Turns the buffer's data into [`Bytes`], without copying it.
    ///
    /// The memory returns to the pool when the last clone and slice is dropped, on any thread, even after the pool was
    /// dropped. [`Pool::thaw`](crate::Pool::thaw) turns them back into a buffer. Makes one small heap allocation. If
    /// the length is 0, the `Bytes` are empty, nothing is allocated, and the memory is returned at once.
    ///
    /// Writing the `Bytes`, or any part or clone of them, does not allocate, and uses the pool's registered memory,
    /// which is found by its address. `Bytes` of lent memory are written unregistered.
    ///
    /// ```
    /// let pool = ringfile_buffer::Pool::new(1 << 20);
    /// let mut buffer = pool.get(4096)?;
    /// buffer.extend_from_slice(b"shared");
    /// let bytes = buffer.freeze();
    /// drop(pool);
    /// assert_eq!(&bytes.slice(1..4)[..], b"har");
    /// # Ok::<(), ringfile_buffer::PoolError>(())
    /// ```
    pub fn freeze(self) -> Bytes {
        if self.is_empty() {
            return Bytes::new();
        }
        let ((start, capacity), len) = (self.span(), self.len());
        let header = self.header();
        let at = start.addr().get() - header.base().addr();
        // `thaw` finds no memory but that of pools.
        let shared = self.core().filter(|_| !header.freeze(at + capacity));
        let counted_by = shared
            .filter(|core| core.lock().frozen.add(start.addr().get(), capacity, at + capacity))
            .map(NonNull::from);
        Bytes::from_owner(BytesOwner { start, len, block: self.into_block(), counted_by })
    }
}

impl Pool {
    /// Turns `bytes` from [`Buffer::freeze`], or a part of them, back into a buffer, without copying.
    ///
    /// The buffer has the bytes' content and length, and the frozen buffer's capacity behind them. Takes the pool's
    /// lock for a moment. Parts that were split and frozen separately are thawed separately.
    ///
    /// # Errors
    /// Returns the bytes, at the same address and of the same length, if other clones or parts of them still exist;
    /// they can be thawed once those are dropped. Returns them unchanged if they are empty or not frozen memory of this
    /// pool, which includes `Bytes` of another owner, even one that holds a buffer of this pool.
    ///
    /// `Bytes` whose owner itself holds frozen bytes of this pool count as those: `thaw` drops its handle of that owner
    /// to see whether it held the last of them. The returned bytes then hold the pool's memory and no longer that
    /// owner, which is dropped with its other clones, or at once if there are none.
    ///
    /// ```
    /// let pool = ringfile_buffer::Pool::new(1 << 20);
    /// let mut buffer = pool.get(4096)?;
    /// buffer.extend_from_slice(b"again");
    /// let address = buffer.as_ptr();
    /// let bytes = buffer.freeze();
    /// let clone = bytes.clone();
    /// let bytes = pool.thaw(bytes).unwrap_err();
    /// drop(clone);
    /// let buffer = pool.thaw(bytes).unwrap();
    /// assert_eq!((buffer.as_ptr(), &buffer[..]), (address, &b"again"[..]));
    /// # Ok::<(), ringfile_buffer::PoolError>(())
    /// ```
    pub fn thaw(&self, bytes: Bytes) -> Result<Buffer, Bytes> {
        let Some(owner) = join(self.core(), &bytes) else { return Err(bytes) };
        // May run user code, if the owner of the bytes is a user's type that holds ours.
        drop(bytes);
        owner.into_buffer().map_err(Bytes::from_owner)
    }
}

/// Adds an owner of `bytes`. Returns `None` if they are not frozen memory of this pool, or already have several owners.
fn join(core: &Core, bytes: &Bytes) -> Option<BytesOwner> {
    let (first, len) = (bytes.as_ptr().addr(), bytes.len());
    if len == 0 {
        return None;
    }
    let mut inner = core.lock();
    let block = core.block_at(&inner, first, len)?;
    // SAFETY: the bytes lie in this block and are readable, so a reference to the block exists.
    let header = unsafe { block.as_ref() };
    // Code that can read frozen bytes holds one of their owners, which prevents thawing. Bytes that are not frozen
    // belong to a buffer, which their owner has lent.
    let is_whole = header.refs.is_frozen();
    let has_joined = if is_whole { header.refs.join() } else { inner.frozen.join(first, len) };
    if !has_joined {
        return None;
    }
    if !is_whole {
        header.add_ref();
    }
    drop(inner);
    let counted_by = (!is_whole).then(|| NonNull::from(core));
    let at = first - header.base().addr();
    // The pointer is derived from the header's, which allows writing, unlike that of the bytes. SAFETY: `block_at` has found
    // that the bytes lie in the block.
    let start = unsafe { NonNull::new_unchecked(header.base().add(at)) };
    Some(BytesOwner { start, len, block, counted_by })
}
