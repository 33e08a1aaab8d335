//! The traits for memory on which I/O can be done.
//!
//! Knows `IoMemory`. Invariants: an implementation keeps its bytes at one address for as long as the value
//! exists, wherever the value itself is moved to.

use std::any::Any;
use std::ops::{Bound, Deref, RangeBounds};

use bytes::{Bytes, BytesMut};

use super::io_memory::{IoMemory, Part};
use ringfile_buffer::Buffer;

/// Owned memory from which a file can be written.
///
/// The library owns the value while the kernel reads from it, and returns it with the result.
///
/// # Safety
/// As long as the value exists and is only moved, [`as_ptr`](IoBuf::as_ptr) and [`len`](IoBuf::len) must return the
/// same address and number, and that many bytes there must be initialised and readable, and nothing may write to them. So a
/// `Vec`, whose bytes are on the heap, can implement it, and an array cannot. The undocumented methods belong to the
/// library; do not implement or call them.
///
/// ```
/// use ringfile::IoBuf;
/// struct Message(Box<[u8]>);
/// // SAFETY: a box's bytes stay where they are when the box is moved.
/// unsafe impl IoBuf for Message {
///     fn as_ptr(&self) -> *const u8 {
///         self.0.as_ptr()
///     }
///     fn len(&self) -> usize {
///         self.0.len()
///     }
/// }
/// assert_eq!(IoBuf::len(&Message(vec![1, 2, 3].into())), 3);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not owned memory from which a file can be written",
    label = "not an owned buffer",
    note = "an operation takes its buffer and gives it back with the result: pass a `Buffer` of a `Pool`, a `Vec<u8>`, \
            `Bytes` or a `&'static [u8]`, not borrowed memory or an array"
)]
pub unsafe trait IoBuf: Send + Sized + 'static {
    /// Returns the address of the bytes.
    fn as_ptr(&self) -> *const u8;

    /// Returns how many bytes are initialised: the length of a write.
    fn len(&self) -> usize;

    /// Returns whether there are no initialised bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a part of the memory, to write it, or to read into it: see [`Slice`]. `part` counts from the start, as an index
    /// does.
    fn slice(self, part: impl RangeBounds<usize>) -> Slice<Self> {
        Slice::new(self, part)
    }

    /// Whether it is a part of what it holds.
    #[doc(hidden)]
    const IS_PART: bool = false;

    /// Returns where the bytes to write begin in what is held, and how many there are.
    #[doc(hidden)]
    #[inline(always)]
    fn to_write(&self) -> (usize, usize) {
        (0, self.len())
    }

    #[doc(hidden)]
    fn hold(self) -> IoMemory {
        held_as_other(self)
    }

    #[doc(hidden)]
    fn release(memory: IoMemory) -> Self {
        released(memory.into_value())
    }

    /// Makes the value of what was held again; `start` and `want` are those of the request.
    #[doc(hidden)]
    #[inline(always)]
    fn release_part(memory: IoMemory, _start: usize, _want: usize) -> Self {
        Self::release(memory)
    }

    #[doc(hidden)]
    fn hold_many(all: Vec<Self>) -> IoMemory {
        let parts = all.iter().map(readable).collect();
        IoMemory::other(Box::new(all), parts, None)
    }

    #[doc(hidden)]
    fn release_many(memory: IoMemory) -> Vec<Self> {
        released(memory.into_value())
    }
}

/// Owned memory into which a file can be read.
///
/// A read fills it from the start, up to its capacity, and then sets its length.
///
/// # Safety
/// As for [`IoBuf`]: [`as_mut_ptr`](IoBufMut::as_mut_ptr) and [`capacity`](IoBufMut::capacity) don't change while the
/// value is only moved, the address is that of `as_ptr`, that many bytes there may be written to, and nothing
/// else reads or writes them. `len` is at most the capacity, or the capacity is 0.
///
/// Borrowed memory is not owned, so this does not compile:
///
/// ```compile_fail,E0277
/// # let file = ringfile::File::open_blocking("/proc/self/exe").unwrap();
/// let mut bytes = vec![0; 4096];
/// let read = file.read_at(&mut bytes, 0);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not owned memory into which a file can be read",
    label = "not an owned buffer",
    note = "an operation takes its buffer and gives it back with the result: pass a `Buffer` of a `Pool` or a `Vec<u8>`, \
            not borrowed memory or an array"
)]
pub unsafe trait IoBufMut: IoBuf {
    /// Returns the address of the bytes, for writing.
    fn as_mut_ptr(&mut self) -> *mut u8;

    /// Returns how many bytes fit.
    fn capacity(&self) -> usize;

    /// Tells the value that its first `len` bytes are now initialised and are its content. A type of fixed length does
    /// nothing; a shorter read is then an error, since the value cannot show it.
    ///
    /// # Safety
    /// `len` is at most the capacity, and that many bytes are initialised.
    unsafe fn set_len(&mut self, len: usize);

    /// Returns where the bytes to fill begin in what is held, and how many there are.
    #[doc(hidden)]
    #[inline(always)]
    fn to_read(&self) -> (usize, usize) {
        (0, self.capacity())
    }

    #[doc(hidden)]
    fn hold_mut(self) -> IoMemory {
        held_mut_as_other(self)
    }

    #[doc(hidden)]
    fn hold_many_mut(mut all: Vec<Self>) -> IoMemory {
        let parts = all.iter_mut().map(writable).collect();
        IoMemory::other(Box::new(all), parts, Some(set_len_of::<Self>))
    }
}

fn held_as_other(buffer: impl IoBuf) -> IoMemory {
    let value = Box::new(buffer);
    let parts = Box::new([readable(&*value)]);
    IoMemory::other(value, parts, None)
}

fn held_mut_as_other<B: IoBufMut>(buffer: B) -> IoMemory {
    let mut value = Box::new(buffer);
    let parts = Box::new([writable(&mut *value)]);
    IoMemory::other(value, parts, Some(set_len_of::<B>))
}

fn readable(buffer: &impl IoBuf) -> Part<'static> {
    let len = buffer.len();
    Part { ptr: buffer.as_ptr().cast_mut(), len, capacity: len, region: None }
}

fn writable(buffer: &mut impl IoBufMut) -> Part<'static> {
    Part { len: buffer.len(), capacity: buffer.capacity(), ptr: buffer.as_mut_ptr(), region: None }
}

/// Sets the length of a buffer of this type, or of one of several.
///
/// # Safety
/// As [`super::io_memory::SetLen`].
unsafe fn set_len_of<B: IoBufMut>(value: &mut (dyn Any + Send), part: usize, len: usize) -> bool {
    let buffer = match value.downcast_mut::<Vec<B>>() {
        Some(all) => all.get_mut(part),
        None => value.downcast_mut::<B>(),
    };
    let Some(buffer) = buffer else { return false };
    // SAFETY: by this function's contract.
    unsafe { buffer.set_len(len) };
    buffer.len() == len
}

/// Unwraps a released value, which has its original type: each operation releases a value with the type with which it
/// was held.
fn released<T>(value: Option<T>) -> T {
    value.expect("a buffer is released with the type that it was held with")
}

/// The methods of a type that `IoMemory` has variants for, of one and of many: nothing is boxed.
macro_rules! held_as {
    ($one:ident, $many:ident) => {
        fn hold(self) -> IoMemory {
            IoMemory::$one(self)
        }

        #[inline]
        fn release(memory: IoMemory) -> Self {
            let IoMemory::$one(buffer) = memory else { return released(None) };
            buffer
        }

        fn hold_many(all: Vec<Self>) -> IoMemory {
            IoMemory::$many(all)
        }

        fn release_many(memory: IoMemory) -> Vec<Self> {
            let IoMemory::$many(all) = memory else { return released(None) };
            all
        }
    };
}

// SAFETY: a buffer's memory is its block's, which doesn't move, and the buffer owns its bytes alone.
unsafe impl IoBuf for Buffer {
    fn as_ptr(&self) -> *const u8 {
        Buffer::as_ptr(self)
    }

    fn len(&self) -> usize {
        Buffer::len(self)
    }

    held_as!(Pooled, Buffers);
}

// SAFETY: as above; all of the capacity is the buffer's.
unsafe impl IoBufMut for Buffer {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        Buffer::as_mut_ptr(self)
    }

    fn capacity(&self) -> usize {
        Buffer::capacity(self)
    }

    unsafe fn set_len(&mut self, len: usize) {
        Buffer::set_len(self, len);
    }

    fn hold_mut(self) -> IoMemory {
        IoMemory::Pooled(self)
    }

    fn hold_many_mut(all: Vec<Self>) -> IoMemory {
        IoMemory::Buffers(all)
    }
}

// SAFETY: a vector's bytes are on the heap and don't move with it.
unsafe impl IoBuf for Vec<u8> {
    fn as_ptr(&self) -> *const u8 {
        Vec::as_ptr(self)
    }

    fn len(&self) -> usize {
        Vec::len(self)
    }

    held_as!(Vec, Vecs);
}

// SAFETY: as above.
unsafe impl IoBufMut for Vec<u8> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        Vec::as_mut_ptr(self)
    }

    fn capacity(&self) -> usize {
        Vec::capacity(self)
    }

    unsafe fn set_len(&mut self, len: usize) {
        // SAFETY: by this function's contract.
        unsafe { Vec::set_len(self, len) }
    }

    fn hold_mut(self) -> IoMemory {
        IoMemory::Vec(self)
    }

    fn hold_many_mut(all: Vec<Self>) -> IoMemory {
        IoMemory::Vecs(all)
    }
}

// SAFETY: a box's bytes are on the heap and don't move with it.
unsafe impl IoBuf for Box<[u8]> {
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Box<[u8]> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        <[u8]>::as_mut_ptr(self)
    }

    fn capacity(&self) -> usize {
        <[u8]>::len(self)
    }

    unsafe fn set_len(&mut self, _len: usize) {}
}

// SAFETY: the bytes are on the heap, and a `BytesMut` owns them alone.
unsafe impl IoBuf for BytesMut {
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }

    fn len(&self) -> usize {
        BytesMut::len(self)
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for BytesMut {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        // Not the slice's pointer, which may be used only for the length.
        let len = BytesMut::len(self);
        self.clear();
        let start = self.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: these bytes were its content just now.
        unsafe { BytesMut::set_len(self, len) };
        start
    }

    fn capacity(&self) -> usize {
        BytesMut::capacity(self)
    }

    unsafe fn set_len(&mut self, len: usize) {
        // SAFETY: by this function's contract.
        unsafe { BytesMut::set_len(self, len) }
    }
}

// SAFETY: the bytes are owned by what all clones share, and never written to.
unsafe impl IoBuf for Bytes {
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }

    fn len(&self) -> usize {
        Bytes::len(self)
    }

    held_as!(Bytes, ManyBytes);
}

// SAFETY: static bytes don't move and are never written to.
unsafe impl IoBuf for &'static [u8] {
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}

/// A part of a buffer, on which I/O can be done as on a whole one: see [`IoBuf::slice`].
///
/// An operation gives it back, and [`into_inner`](Self::into_inner) the whole buffer. In a batch or a queue the result has
/// the whole buffer.
///
/// A write writes the bytes of the part, which must lie within the buffer's length. A read fills the part, which must begin within
/// the buffer's length and end within its capacity; then the buffer's length ends where the data ends. Otherwise the operation
/// fails with `InvalidInput`.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("log");
/// use ringfile::{IoBuf, OpenOptions, Pool};
/// let pool = Pool::new(1 << 20);
/// let file = OpenOptions::new().read(true).write(true).create(true).open_blocking(&path)?;
/// ringfile::block_on(async {
///     let mut log = pool.get(8192)?;
///     log.extend_from_slice(&[1; 5000]);
///     let mut log = file.write_at(log, 0).await?;
///     log.extend_from_slice(&[2; 1000]);
///     // Only the block that has changed.
///     let log = file.write_at(log.slice(4096..), 4096).await?.into_inner();
///     assert_eq!(log.len(), 6000);
///     // Behind what is there.
///     let log = file.read_at(log.slice(6000..), 0).await?;
///     assert_eq!((log.len(), log[0], log.into_inner().len()), (2192, 1, 8192));
///     std::io::Result::Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct Slice<B> {
    buffer: B,
    start: usize,
    /// `None`: the end of the buffer's length, or of its capacity.
    end: Option<usize>,
}

impl<B: IoBuf> Slice<B> {
    fn new(buffer: B, part: impl RangeBounds<usize>) -> Self {
        let start = match part.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match part.end_bound() {
            Bound::Included(&last) => Some(last.saturating_add(1)),
            Bound::Excluded(&end) => Some(end),
            Bound::Unbounded => None,
        };
        Self { buffer, start, end }
    }

    /// Returns the whole buffer.
    #[must_use]
    pub fn into_inner(self) -> B {
        self.buffer
    }

    /// Returns how many bytes there are if the buffer has `room` for so many. The length of a part that ends before it starts
    /// fits no buffer.
    fn want(&self, room: usize) -> usize {
        self.end.unwrap_or(room.max(self.start)).checked_sub(self.start).unwrap_or(usize::MAX)
    }

    /// Returns where the part begins and how many bytes it has, in the buffer, or in itself if it is held as it is.
    fn part(&self, room: usize) -> (usize, usize) {
        let want = self.want(room);
        match B::IS_PART {
            false => (self.start, want),
            true if self.start.checked_add(want).is_some_and(|end| end <= room) => (0, want),
            true => (0, usize::MAX),
        }
    }
}

impl<B: Deref<Target = [u8]>> Deref for Slice<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let end = self.end.unwrap_or(usize::MAX).min(self.buffer.len());
        self.buffer.get(self.start..end).unwrap_or_default()
    }
}

// SAFETY: the bytes are a part of the buffer's, whose address and length do not change.
unsafe impl<B: IoBuf> IoBuf for Slice<B> {
    const IS_PART: bool = true;

    fn as_ptr(&self) -> *const u8 {
        self.buffer.as_ptr().wrapping_add(self.start.min(self.buffer.len()))
    }

    fn len(&self) -> usize {
        self.end.unwrap_or(usize::MAX).min(self.buffer.len()).saturating_sub(self.start)
    }

    fn to_write(&self) -> (usize, usize) {
        self.part(self.buffer.len())
    }

    fn hold(self) -> IoMemory {
        if B::IS_PART { held_as_other(self) } else { self.buffer.hold() }
    }

    fn release_part(memory: IoMemory, start: usize, want: usize) -> Self {
        if B::IS_PART {
            return Self::release(memory);
        }
        Self { buffer: B::release(memory), start, end: Some(start.saturating_add(want)) }
    }
}

// SAFETY: as above. A part that begins behind the buffer's length has no capacity.
unsafe impl<B: IoBufMut> IoBufMut for Slice<B> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        let start = self.start.min(self.buffer.len());
        self.buffer.as_mut_ptr().wrapping_add(start)
    }

    fn capacity(&self) -> usize {
        if self.start > self.buffer.len() {
            return 0;
        }
        self.end.unwrap_or(usize::MAX).min(self.buffer.capacity()).saturating_sub(self.start)
    }

    unsafe fn set_len(&mut self, len: usize) {
        // SAFETY: the bytes before the part are content, as it has capacity, and those in it are initialised, as the caller
        // says.
        unsafe { self.buffer.set_len(self.start + len) }
    }

    fn to_read(&self) -> (usize, usize) {
        let (start, want) = self.part(self.buffer.capacity());
        if self.start > self.buffer.len() { (start, usize::MAX) } else { (start, want) }
    }

    fn hold_mut(self) -> IoMemory {
        if B::IS_PART { held_mut_as_other(self) } else { self.buffer.hold_mut() }
    }
}
