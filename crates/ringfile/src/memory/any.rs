//! Memory of one of the types that batches and queues take.
//!
//! Knows buffers and the `IoBuf` traits.

use std::any::Any;
use std::ops::Deref;

use bytes::Bytes;

use super::io_memory::IoMemory;
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

impl IoMemory {
    /// Takes the memory as a value of this type; `None`, and it stays here, if it is of another.
    pub(crate) fn take_as<T: 'static>(&mut self) -> Option<T> {
        let taken = match std::mem::take(self) {
            IoMemory::Pooled(buffer) => cast(buffer).or_else(|buffer| any_as(AnyBuffer::Pooled(buffer))),
            IoMemory::Vec(vec) => cast(vec).or_else(|vec| any_as(AnyBuffer::Vec(vec))),
            IoMemory::Bytes(bytes) => cast(bytes).or_else(|bytes| any_as(AnyBuffer::Bytes(bytes))),
            IoMemory::Buffers(all) => cast(all).map_err(IoMemory::Buffers),
            IoMemory::Vecs(all) => cast(all).map_err(IoMemory::Vecs),
            IoMemory::ManyBytes(all) => cast(all).map_err(IoMemory::ManyBytes),
            memory if memory.is_value::<T>() => memory.into_value().ok_or(IoMemory::None),
            memory => Err(memory),
        };
        taken.map_err(|memory| *self = memory).ok()
    }
}

fn any_as<T: 'static>(any: AnyBuffer) -> Result<T, IoMemory> {
    cast(any).map_err(IoBuf::hold)
}

/// Returns the value, if both types are the same.
fn cast<A: 'static, B: 'static>(value: A) -> Result<B, A> {
    let mut value = Some(value);
    match (&mut value as &mut dyn Any).downcast_mut::<Option<B>>().and_then(Option::take) {
        Some(same) => Ok(same),
        None => value.map_or_else(|| unreachable!("a value is of one type"), Err),
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
    fn hold(self) -> IoMemory {
        match self {
            Self::Pooled(buffer) => buffer.hold(),
            Self::Vec(vec) => vec.hold(),
            Self::Bytes(bytes) => bytes.hold(),
        }
    }

    #[inline]
    fn release(memory: IoMemory) -> Self {
        match memory {
            IoMemory::Pooled(buffer) => Self::Pooled(buffer),
            IoMemory::Vec(vec) => Self::Vec(vec),
            memory => Self::Bytes(Bytes::release(memory)),
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
    fn hold_mut(self) -> IoMemory {
        self.hold()
    }
}
