//! `Held`: what the driver owns of a buffer while the kernel works on it.
//!
//! Knows buffers and the `IoBuf` traits' contract. What always holds: the addresses that `parts` gives stay valid
//! until the value is dropped or released; no heap allocation for pooled buffers and `Vec`s.

use std::any::Any;

use super::buffer::Buffer;
use super::region::Region;

/// A buffer or several, of any type, with the type put aside.
#[derive(Debug, Default)]
#[doc(hidden)]
pub enum Held {
    /// Nothing.
    #[default]
    None,
    /// A pooled or lent buffer.
    Pooled(Buffer),
    /// A vector.
    Vec(Vec<u8>),
    /// Pooled buffers, for vectored I/O.
    Buffers(Vec<Buffer>),
    /// Vectors, for vectored I/O.
    Vecs(Vec<Vec<u8>>),
    /// Anything else, boxed.
    Other(Box<Other>),
}

const _: () = assert!(size_of::<Held>() <= 40);

/// A piece of memory to read into or write from.
pub(crate) struct Part<'a> {
    pub(crate) ptr: *mut u8,
    /// Bytes that a write takes.
    pub(crate) len: usize,
    /// Bytes that a read may fill.
    pub(crate) capacity: usize,
    pub(crate) region: Option<&'a Region>,
}

/// A value of a type that the driver doesn't know, and its addresses, which don't change.
#[doc(hidden)]
pub struct Other {
    value: Box<dyn Any + Send>,
    parts: Box<[Raw]>,
    /// How to set the lengths after a read, if it may be read into.
    set_len: Option<SetLen>,
    /// A part was filled less than its length says, which does not change.
    hides_length: bool,
}

/// Sets the length of one part, and tells whether the value shows it.
///
/// Unsafe to call: the value must be of the type it was made for, and the bytes initialised.
pub(super) type SetLen = unsafe fn(&mut (dyn Any + Send), part: usize, len: usize) -> bool;

/// Address, bytes to write, bytes to fill.
#[derive(Clone, Copy)]
pub(super) struct Raw {
    pub(super) ptr: *mut u8,
    pub(super) len: usize,
    pub(super) capacity: usize,
}

// SAFETY: the addresses are those of the value, which is Send.
unsafe impl Send for Other {}

impl std::fmt::Debug for Other {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Other").field("parts", &self.parts.len()).finish_non_exhaustive()
    }
}

impl Held {
    /// The parts were taken from the value, after it was boxed, by the `IoBuf` contract.
    pub(super) fn other(value: Box<dyn Any + Send>, parts: Box<[Raw]>, set_len: Option<SetLen>) -> Held {
        Held::Other(Box::new(Other { value, parts, set_len, hides_length: false }))
    }

    /// The value again. None if it is of another type.
    pub(super) fn into_value<T: 'static>(self) -> Option<T> {
        match self {
            Held::Other(other) => other.value.downcast().ok().map(|value| *value),
            _ => None,
        }
    }

    /// How many parts there are.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        match self {
            Held::None => 0,
            Held::Pooled(_) | Held::Vec(_) => 1,
            Held::Buffers(buffers) => buffers.len(),
            Held::Vecs(vecs) => vecs.len(),
            Held::Other(other) => other.parts.len(),
        }
    }

    /// One part, counted from 0.
    #[inline]
    pub(crate) fn part(&self, at: usize) -> Option<Part<'_>> {
        match self {
            Held::None => None,
            Held::Pooled(buffer) => (at == 0).then(|| of_buffer(buffer)),
            Held::Vec(vec) => (at == 0).then(|| of_vec(vec)),
            Held::Buffers(buffers) => buffers.get(at).map(of_buffer),
            Held::Vecs(vecs) => vecs.get(at).map(of_vec),
            Held::Other(other) => {
                let part = other.parts.get(at)?;
                Some(Part { ptr: part.ptr, len: part.len, capacity: part.capacity, region: None })
            }
        }
    }

    /// All parts, in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        (0..self.count()).filter_map(|at| self.part(at))
    }

    /// Copies `bytes` to where the first `at` bytes end, and makes all of it the parts' content. What does not fit is
    /// left out. The first `at` bytes must be content already.
    pub(crate) fn copy_in(&mut self, at: usize, bytes: &[u8]) {
        let (mut skip, mut rest) = (at, bytes);
        for part in self.parts() {
            let skipped = skip.min(part.capacity);
            skip -= skipped;
            let (now, later) = rest.split_at(rest.len().min(part.capacity - skipped));
            // SAFETY: `now` fits between `skipped` and the capacity of memory that this value owns alone, and `bytes`
            // is borrowed from elsewhere.
            unsafe { part.ptr.add(skipped).copy_from_nonoverlapping(now.as_ptr(), now.len()) };
            rest = later;
        }
        // SAFETY: what comes before `at` is content, as the caller says, and the rest was just written.
        unsafe { self.filled(at + bytes.len() - rest.len()) };
    }

    /// Whether a read filled less than the length says: its value is of a type of fixed length.
    #[inline]
    pub(crate) fn hides_length(&self) -> bool {
        matches!(self, Held::Other(other) if other.hides_length)
    }

    /// After a read of `n` bytes: fills the parts' lengths from the front, up to their capacities.
    ///
    /// Parts that were held for writing alone keep their lengths.
    ///
    /// # Safety
    /// The first `n` bytes of the parts, capacity after capacity, are initialised.
    #[inline]
    pub(crate) unsafe fn filled(&mut self, n: usize) {
        if let Held::Pooled(buffer) = self {
            return buffer.set_len(n.min(buffer.capacity()));
        }
        // SAFETY: as the caller says.
        unsafe { self.filled_in_turn(n) }
    }

    /// As `filled`.
    ///
    /// # Safety
    /// As `filled`.
    unsafe fn filled_in_turn(&mut self, n: usize) {
        let mut left = n;
        for at in 0..self.count() {
            let capacity = self.part(at).map_or(0, |part| part.capacity);
            let len = left.min(capacity);
            left -= len;
            match self {
                Held::None => {}
                Held::Pooled(buffer) => buffer.set_len(len),
                Held::Buffers(buffers) => buffers[at].set_len(len),
                // SAFETY: `len` is at most the capacity, and initialised, says the caller.
                Held::Vec(vec) => unsafe { vec.set_len(len) },
                // SAFETY: as above.
                Held::Vecs(vecs) => unsafe { vecs[at].set_len(len) },
                Held::Other(other) => {
                    other.parts[at].len = len;
                    if let Some(set_len) = other.set_len {
                        // SAFETY: `other` was made with the function for its value's type; the bytes as above.
                        let shown = unsafe { set_len(&mut *other.value, at, len) };
                        other.hides_length |= !shown;
                    }
                }
            }
        }
    }
}

#[inline]
fn of_buffer(buffer: &Buffer) -> Part<'_> {
    Part {
        ptr: buffer.as_ptr().cast_mut(),
        len: buffer.len(),
        capacity: buffer.capacity(),
        region: buffer.region(),
    }
}

#[inline]
fn of_vec(vec: &Vec<u8>) -> Part<'_> {
    Part { ptr: vec.as_ptr().cast_mut(), len: vec.len(), capacity: vec.capacity(), region: None }
}
