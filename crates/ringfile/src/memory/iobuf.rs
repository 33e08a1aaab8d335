//! The traits for memory on which I/O can be done.
//!
//! Knows `Held`. Invariants: an implementation keeps its bytes at one address for as long as the value
//! exists, wherever the value itself is moved to.

use std::any::Any;

use bytes::{Bytes, BytesMut};

use super::held::{Held, Part};
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

    #[doc(hidden)]
    fn hold(self) -> Held {
        let value = Box::new(self);
        let parts = Box::new([readable(&*value)]);
        Held::other(value, parts, None)
    }

    #[doc(hidden)]
    fn release(held: Held) -> Self {
        released(held.into_value())
    }

    #[doc(hidden)]
    fn hold_many(all: Vec<Self>) -> Held {
        let parts = all.iter().map(readable).collect();
        Held::other(Box::new(all), parts, None)
    }

    #[doc(hidden)]
    fn release_many(held: Held) -> Vec<Self> {
        released(held.into_value())
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
/// # let file = ringfile::File::open("/proc/self/exe").unwrap();
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

    #[doc(hidden)]
    fn hold_mut(self) -> Held {
        let mut value = Box::new(self);
        let parts = Box::new([writable(&mut *value)]);
        Held::other(value, parts, Some(set_len_of::<Self>))
    }

    #[doc(hidden)]
    fn hold_many_mut(mut all: Vec<Self>) -> Held {
        let parts = all.iter_mut().map(writable).collect();
        Held::other(Box::new(all), parts, Some(set_len_of::<Self>))
    }
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
/// As [`super::held::SetLen`].
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

/// The methods of a type that `Held` has variants for, of one and of many: nothing is boxed.
macro_rules! held_as {
    ($one:ident, $many:ident) => {
        fn hold(self) -> Held {
            Held::$one(self)
        }

        #[inline]
        fn release(held: Held) -> Self {
            let Held::$one(buffer) = held else { return released(None) };
            buffer
        }

        fn hold_many(all: Vec<Self>) -> Held {
            Held::$many(all)
        }

        fn release_many(held: Held) -> Vec<Self> {
            let Held::$many(all) = held else { return released(None) };
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

    fn hold_mut(self) -> Held {
        Held::Pooled(self)
    }

    fn hold_many_mut(all: Vec<Self>) -> Held {
        Held::Buffers(all)
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

    fn hold_mut(self) -> Held {
        Held::Vec(self)
    }

    fn hold_many_mut(all: Vec<Self>) -> Held {
        Held::Vecs(all)
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
