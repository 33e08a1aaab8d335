//! Memory of one of the types that batches and queues take.
//!
//! Knows buffers and the `IoBuf` traits.

use std::ops::Deref;

use bytes::Bytes;

use super::held::Held;
use super::iobuf::{IoBuf, IoBufMut};
use ringfile_buffer::Buffer;

/// The memory of one operation of a batch or a queue: a pooled buffer, a vector, or shared bytes.
///
/// ```
/// use ringfile::AnyBuffer;
/// let buffer = AnyBuffer::from(b"content".to_vec());
/// assert_eq!(&buffer[..3], b"con");
/// assert_eq!(buffer.into_vec().unwrap(), b"content");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyBuffer {
    /// From a [`Pool`](crate::Pool), or lent by [`RegisteredMemory`](crate::RegisteredMemory).
    Pooled(Buffer),
    /// A vector: a read fills its capacity, a write writes its length.
    Vec(Vec<u8>),
    /// Shared bytes, such as a frozen buffer. They can be written; a read into them fails with `InvalidInput`.
    Bytes(Bytes),
}

impl AnyBuffer {
    /// Returns the pooled buffer, if it is one.
    #[must_use]
    pub fn into_pooled(self) -> Option<Buffer> {
        if let Self::Pooled(buffer) = self { Some(buffer) } else { None }
    }

    /// Returns the vector, if it is one.
    #[must_use]
    pub fn into_vec(self) -> Option<Vec<u8>> {
        if let Self::Vec(vec) = self { Some(vec) } else { None }
    }

    /// Returns the shared bytes, if it holds them.
    #[must_use]
    pub fn into_bytes(self) -> Option<Bytes> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }
}

impl From<Bytes> for AnyBuffer {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Buffer> for AnyBuffer {
    fn from(buffer: Buffer) -> Self {
        Self::Pooled(buffer)
    }
}

impl From<Vec<u8>> for AnyBuffer {
    fn from(vec: Vec<u8>) -> Self {
        Self::Vec(vec)
    }
}

impl Deref for AnyBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Pooled(buffer) => buffer,
            Self::Vec(vec) => vec,
            Self::Bytes(bytes) => bytes,
        }
    }
}

// SAFETY: as each of the three; the value stays what it is.
unsafe impl IoBuf for AnyBuffer {
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    #[inline]
    fn hold(self) -> Held {
        match self {
            Self::Pooled(buffer) => buffer.hold(),
            Self::Vec(vec) => vec.hold(),
            Self::Bytes(bytes) => bytes.hold(),
        }
    }

    #[inline]
    fn release(held: Held) -> Self {
        match held {
            Held::Pooled(buffer) => Self::Pooled(buffer),
            Held::Vec(vec) => Self::Vec(vec),
            held => Self::Bytes(Bytes::release(held)),
        }
    }
}

// SAFETY: as each of the three. Shared bytes have no capacity, so nothing is written to them.
unsafe impl IoBufMut for AnyBuffer {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        match self {
            Self::Pooled(buffer) => buffer.as_mut_ptr(),
            Self::Vec(vec) => vec.as_mut_ptr(),
            Self::Bytes(bytes) => bytes.as_ptr().cast_mut(),
        }
    }

    fn capacity(&self) -> usize {
        match self {
            Self::Pooled(buffer) => buffer.capacity(),
            Self::Vec(vec) => vec.capacity(),
            Self::Bytes(_) => 0,
        }
    }

    unsafe fn set_len(&mut self, len: usize) {
        match self {
            Self::Pooled(buffer) => buffer.set_len(len),
            // SAFETY: by this function's contract.
            Self::Vec(vec) => unsafe { vec.set_len(len) },
            Self::Bytes(_) => {}
        }
    }

    #[inline]
    fn hold_mut(self) -> Held {
        self.hold()
    }
}
