//! Between `Buffer` and `bytes::Bytes`, both ways, without copying.
//!
//! Knows buffers and block headers. `Bytes::from_owner` never reports itself unique, so to thaw we find the block by
//! its address, pin it, drop the `Bytes`, and see whether their owner went with them. What always holds: the bytes
//! of a frozen buffer are not written to while its owner, or a pinned view of it, is there.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::block::{self, Block};
use super::buffer::Buffer;
use super::core::Core;

/// The owner behind the `Bytes` of a frozen buffer: the only one of these bytes, apart from pinned views.
struct Frozen(ManuallyDrop<Buffer>);

/// The owner behind `Bytes` that could not be thawed: a view of bytes that others may see too.
struct Pinned {
    start: NonNull<u8>,
    len: usize,
    block: NonNull<Block>,
}

// SAFETY: bytes that nobody writes to, and a counted reference of their block.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

thread_local! {
    /// The net that a thaw on this thread holds under the `Bytes` it drops; null when there is none.
    static NET: Cell<*const Net> = const { Cell::new(ptr::null()) };
}

/// Catches the owner of `Bytes` that go: then it was the last of them.
struct Net {
    block: NonNull<Block>,
    caught: Cell<Option<Buffer>>,
    outer: *const Net,
}

pub(super) fn freeze(buffer: Buffer) -> Bytes {
    if buffer.is_empty() {
        return Bytes::new();
    }
    Bytes::from_owner(Frozen(ManuallyDrop::new(buffer)))
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // SAFETY: taken once, as the owner is dropped once.
        let buffer = unsafe { ManuallyDrop::take(&mut self.0) };
        // SAFETY: a net in the thread-local lies on this thread's stack, below us.
        if let Some(net) = unsafe { NET.get().as_ref() }
            && net.block == buffer.block()
        {
            // It may have held another part of the block before: then that one goes its way.
            drop(net.caught.replace(Some(buffer)));
        }
    }
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the pin keeps the memory, and nobody writes to bytes that a pinned view may see.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: our reference keeps the header until it is released, once.
        unsafe {
            // Release: our reads happen before what a later thaw does to the bytes.
            self.block.as_ref().pins.fetch_sub(1, Ordering::Release);
            block::release(self.block);
        }
    }
}

/// Drops `bytes`, and gives the buffer that they were made of if they were the last.
fn catch(block: NonNull<Block>, bytes: Bytes) -> Option<Buffer> {
    /// Takes the net away again, also if an owner's drop panics.
    struct Held<'a>(&'a Net);
    impl Drop for Held<'_> {
        fn drop(&mut self) {
            NET.set(self.0.outer);
        }
    }
    let net = Net { block, caught: Cell::new(None), outer: NET.get() };
    NET.set(&raw const net);
    let held = Held(&net);
    drop(bytes);
    drop(held);
    net.caught.take()
}

/// The way back: see [`Pool::thaw`](crate::Pool::thaw).
pub(super) fn thaw(core: &Core, bytes: Bytes) -> Result<Buffer, Bytes> {
    let (start, len) = (bytes.as_ptr(), bytes.len());
    if len == 0 {
        return Err(bytes);
    }
    let Some(block) = core.block_at(&core.lock(), start.addr(), len) else { return Err(bytes) };
    // SAFETY: the bytes lie in this block and are readable, so somebody holds a reference of it; then we do.
    let header = unsafe { block.as_ref() };
    header.add_ref();
    header.pins.fetch_add(1, Ordering::Relaxed);
    // From the header's pointer, which may write, unlike that of the bytes.
    let at_in_block = start.addr() - header.base().addr();
    // SAFETY: `block_at` has found the bytes to lie in the block.
    let start = unsafe { NonNull::new_unchecked(header.base().add(at_in_block)) };
    let pinned = Pinned { start, len, block };

    let caught = catch(block, bytes);
    if let Some(buffer) = caught {
        let (first, cap) = buffer.span();
        let at = start.addr().get().wrapping_sub(first.addr().get());
        // Who pinned a view of the caught owner's bytes did so while it held them, so before the owner was dropped:
        // if no pin but ours is left, no view is. Acquire: the views' reads are done.
        if at < cap && len <= cap - at && header.pins.load(Ordering::Acquire) == 1 {
            drop(pinned);
            return Ok(buffer.narrow(at, len));
        }
    }
    // Or nothing else at all refers to the block: then the pin is the whole of it.
    if header.refs.load(Ordering::Acquire) == 1 {
        header.pins.fetch_sub(1, Ordering::Relaxed);
        std::mem::forget(pinned);
        // SAFETY: the only reference of the block becomes the buffer's, over bytes that lie in it.
        return Ok(unsafe { Buffer::new(start, len, len, block) });
    }
    Err(Bytes::from_owner(pinned))
}
