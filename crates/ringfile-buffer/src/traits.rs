//! The traits that `BytesMut` has too, for `Buffer`.
//!
//! Knows buffers and pools. Left out are `Clone`, since a copy needs memory of a pool, which may be full (get a buffer and
//! append), and comparisons with `str` and `String`, which `&buffer[..] == text.as_bytes()` says as well.

use std::borrow::{Borrow, BorrowMut};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::slice;

use bytes::{Buf, Bytes};

use super::block;
use super::buffer::Buffer;
use super::error::PoolError;

/// A buffer without memory. It gets some where something is appended: see [growing](Buffer#growing).
impl Default for Buffer {
    #[inline]
    fn default() -> Buffer {
        // SAFETY: there are no bytes.
        unsafe { Buffer::new(std::ptr::NonNull::dangling(), 0, 0, block::of_nobody()) }
    }
}

/// Copies the bytes. The memory does not come from a pool of the user's, and is not registered with the kernel.
///
/// ```
/// use ringfile_buffer::Buffer;
/// let mut buffer = Buffer::from(&b"abc"[..]);
/// buffer.extend(*b"def");
/// assert_eq!(buffer, b"abcdef"[..]);
/// ```
///
/// # Panics
/// If the system has no memory.
impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::default();
        buffer.extend_from_slice(bytes);
        buffer
    }
}

/// Copies the text, as [`From<&[u8]>`](#impl-From<%26%5Bu8%5D>-for-Buffer) does.
impl From<&str> for Buffer {
    fn from(text: &str) -> Buffer {
        Buffer::from(text.as_bytes())
    }
}

/// Copies the bytes, since a vector's memory is not aligned for direct I/O; [`RegisteredMemory`](crate::RegisteredMemory)
/// makes buffers of it without a copy.
impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Buffer {
        Buffer::from(&bytes[..])
    }
}

/// [Freezes](Buffer::freeze) the buffer, without a copy.
impl From<Buffer> for Bytes {
    fn from(buffer: Buffer) -> Bytes {
        buffer.freeze()
    }
}

/// Copies the bytes.
impl From<Buffer> for Vec<u8> {
    fn from(buffer: Buffer) -> Vec<u8> {
        buffer.to_vec()
    }
}

/// Takes the content from the front. What was taken is no longer part of the capacity, and the address moves, so a buffer
/// that is used for direct I/O again should be [split](Buffer::split_to) at a multiple of what the file needs instead.
///
/// ```
/// use bytes::Buf;
/// use ringfile_buffer::Buffer;
/// let mut buffer = Buffer::from(&[0, 0, 0, 3, b'a', b'b', b'c'][..]);
/// let len = buffer.get_u32() as usize;
/// assert_eq!(buffer.copy_to_bytes(len), "abc"); // no copy, as in `BytesMut`
/// ```
impl Buf for Buffer {
    #[inline]
    fn remaining(&self) -> usize {
        self.len()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        self
    }

    #[inline]
    fn advance(&mut self, n: usize) {
        assert!(n <= self.len(), "can't advance by {n} bytes: the buffer has {}", self.len());
        self.drop_front(n);
    }

    /// Splits off the first `len` bytes and freezes them, without a copy.
    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        assert!(len <= self.len(), "can't take {len} bytes: the buffer has {}", self.len());
        self.split_to(len).freeze()
    }
}

/// Appends. The buffer grows, and panics if [`Buffer::try_reserve`] fails.
impl Extend<u8> for Buffer {
    fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
        let bytes = bytes.into_iter();
        self.reserve(bytes.size_hint().0);
        bytes.for_each(|byte| self.extend_from_slice(&[byte]));
    }
}

/// As for bytes.
impl<'a> Extend<&'a u8> for Buffer {
    fn extend<I: IntoIterator<Item = &'a u8>>(&mut self, bytes: I) {
        self.extend(bytes.into_iter().copied());
    }
}

/// As for bytes: each is copied.
impl Extend<Bytes> for Buffer {
    fn extend<I: IntoIterator<Item = Bytes>>(&mut self, all: I) {
        all.into_iter().for_each(|bytes| self.extend_from_slice(&bytes));
    }
}

/// As `From<&[u8]>`.
impl FromIterator<u8> for Buffer {
    fn from_iter<I: IntoIterator<Item = u8>>(bytes: I) -> Buffer {
        let mut buffer = Buffer::default();
        buffer.extend(bytes);
        buffer
    }
}

/// As `From<&[u8]>`.
impl<'a> FromIterator<&'a u8> for Buffer {
    fn from_iter<I: IntoIterator<Item = &'a u8>>(bytes: I) -> Buffer {
        bytes.into_iter().copied().collect()
    }
}

impl IntoIterator for Buffer {
    type Item = u8;
    type IntoIter = bytes::buf::IntoIter<Buffer>;

    fn into_iter(self) -> Self::IntoIter {
        bytes::buf::IntoIter::new(self)
    }
}

impl<'a> IntoIterator for &'a Buffer {
    type Item = &'a u8;
    type IntoIter = slice::Iter<'a, u8>;

    fn into_iter(self) -> slice::Iter<'a, u8> {
        self.iter()
    }
}

/// Appends text. The buffer grows; an error means that it could not. ([`std::io::Write`] never grows it.)
impl fmt::Write for Buffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.try_extend_from_slice(text.as_bytes()).map_err(|_: PoolError| fmt::Error)
    }
}

impl Borrow<[u8]> for Buffer {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl BorrowMut<[u8]> for Buffer {
    fn borrow_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// Compares the contents, as all comparisons do.
impl PartialEq for Buffer {
    fn eq(&self, other: &Buffer) -> bool {
        self[..] == other[..]
    }
}

impl Eq for Buffer {}

impl PartialOrd for Buffer {
    fn partial_cmp(&self, other: &Buffer) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Buffer {
    fn cmp(&self, other: &Buffer) -> Ordering {
        self[..].cmp(&other[..])
    }
}

impl Hash for Buffer {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self[..].hash(hasher);
    }
}

macro_rules! equal_as_bytes {
    ($($other:ty),*) => {$(
        impl PartialEq<$other> for Buffer {
            fn eq(&self, other: &$other) -> bool {
                let other: &[u8] = other.as_ref();
                self[..] == *other
            }
        }

        impl PartialEq<Buffer> for $other {
            fn eq(&self, other: &Buffer) -> bool {
                other == self
            }
        }
    )*};
}

equal_as_bytes!([u8], &[u8], Vec<u8>, Bytes);
