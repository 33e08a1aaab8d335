//! `IoMemory`: the driver's form of a buffer while the kernel works on it.
//!
//! Knows buffers and the `IoBuf` traits' contract. Invariants: the addresses that `parts` gives stay valid
//! until the value is dropped or released; no heap allocation for pooled buffers and `Vec`s; a user's methods run only
//! when the value is made and when it is given back, never while the driver has it.

use std::any::Any;
use std::mem::MaybeUninit;

use bytes::Bytes;

use super::destination::Destination;
use super::paths::Paths;
use ringfile_buffer::Buffer;
use ringfile_buffer::internal::{Region, region};

/// One or several buffers, with their type erased.
#[derive(Default)]
#[doc(hidden)]
pub enum IoMemory {
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
    /// Shared bytes, only for writing.
    Bytes(Bytes),
    /// Shared bytes, for vectored writes.
    ManyBytes(Vec<Bytes>),
    /// Anything else, boxed.
    Other(Box<Other>),
    /// Paths. They are not data, so there are no parts.
    Paths(Box<Paths>),
    /// Where a copy goes.
    Destination(Box<Destination>),
}

const _: () = assert!(size_of::<IoMemory>() <= 40);

/// A piece of memory to read into or to write from.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) ptr: *mut u8,
    /// Bytes that a write takes.
    pub(crate) len: usize,
    /// Bytes that a read may fill.
    pub(crate) capacity: usize,
    pub(crate) region: Option<&'a Region>,
}

/// A value of a user's type, and the addresses of its memory, which do not change.
#[doc(hidden)]
pub struct Other {
    value: Box<dyn Any + Send>,
    parts: Box<[Part<'static>]>,
    /// The function that sets the lengths after a read, if the type can be read into.
    set_len: Option<SetLen>,
    /// Whether the parts' lengths were set here but not yet in the value, whose methods may run user code.
    is_filled: bool,
    /// Whether a part whose length is fixed was not filled, which the value cannot show.
    hides_length: bool,
}

/// Sets the length of one part, and returns whether the value shows it.
///
/// Unsafe to call: the value must be of the type it was made for, and the bytes initialised.
pub(super) type SetLen = unsafe fn(&mut (dyn Any + Send), part: usize, len: usize) -> bool;

// SAFETY: the addresses are those of the value, which is Send. No part has a region.
unsafe impl Send for Other {}

impl Other {
    /// Sets the lengths of the value's parts, if a read has changed them.
    #[cold]
    fn show_lengths(&mut self) {
        let Some(set_len) = self.set_len.filter(|_| std::mem::take(&mut self.is_filled)) else { return };
        for (at, part) in self.parts.iter().enumerate() {
            // SAFETY: the function was made for the value's type; `filled` was told that these bytes are initialised.
            let shown = unsafe { set_len(&mut *self.value, at, part.len) };
            self.hides_length |= !shown;
        }
    }
}

// A load waits until the stores have reached the cache if the value was stored a moment ago in pieces of another size.
// With the piece sizes that a compiler chooses, this waiting took 20 of an operation's 90 ns, and more in a batch.

type Word = MaybeUninit<*const u8>;
const WORDS: usize = size_of::<IoMemory>() / size_of::<Word>();
const _: () = assert!(
    WORDS * size_of::<Word>() == size_of::<IoMemory>() && align_of::<IoMemory>() == align_of::<Word>()
);

/// Copies a value word by word, since no piece in which it was stored, or will be loaded, is smaller.
///
/// # Safety
/// Both are valid and do not overlap; only one of the two is used or dropped afterwards.
#[inline(always)]
pub(crate) unsafe fn copy_by_words(from: *const IoMemory, to: *mut IoMemory) {
    for at in 0..WORDS {
        // SAFETY: the word lies in the value; it may be padding, which is no matter to a `MaybeUninit`.
        unsafe { to.cast::<Word>().add(at).write(from.cast::<Word>().add(at).read_volatile()) };
    }
}

/// Copies a value: first the word with its discriminant, then the rest, which contains the buffer that will be taken
/// out.
///
/// # Safety
/// As [`copy_by_words`].
#[inline(always)]
pub(crate) unsafe fn copy_in_pieces(from: *const IoMemory, to: *mut IoMemory) {
    let (from, to) = (from.cast::<Word>(), to.cast::<Word>());
    // SAFETY: by this function's contract.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, 1);
        std::ptr::copy_nonoverlapping(from.add(1), to.add(1), WORDS - 1);
    }
}

impl IoMemory {
    /// Makes a value of a user's type, whose parts were taken from it after it was boxed, by the `IoBuf` contract.
    pub(super) fn other(
        value: Box<dyn Any + Send>,
        parts: Box<[Part<'static>]>,
        set_len: Option<SetLen>,
    ) -> IoMemory {
        IoMemory::Other(Box::new(Other { value, parts, set_len, is_filled: false, hides_length: false }))
    }

    /// Returns the value, after setting its lengths. `None` if it is of another type.
    pub(super) fn into_value<T: 'static>(self) -> Option<T> {
        match self {
            IoMemory::Other(mut other) => {
                other.show_lengths();
                other.value.downcast().ok().map(|value| *value)
            }
            _ => None,
        }
    }

    /// Returns whether it is a value of this type.
    pub(super) fn is_value<T: 'static>(&self) -> bool {
        matches!(self, IoMemory::Other(other) if (*other.value).is::<T>())
    }

    /// Returns the paths of an operation that names some.
    pub(crate) fn paths(&mut self) -> Option<&mut Paths> {
        if let IoMemory::Paths(paths) = self { Some(paths) } else { None }
    }

    /// Returns the paths of an operation that names some.
    pub(crate) fn into_paths(self) -> Option<Box<Paths>> {
        if let IoMemory::Paths(paths) = self { Some(paths) } else { None }
    }

    /// Moves the value to a place that is usually empty, and leaves nothing here: word by word, in whatever pieces it
    /// was stored.
    #[inline(always)]
    pub(crate) fn move_to(&mut self, to: &mut IoMemory) {
        if !matches!(to, IoMemory::None) {
            *to = IoMemory::None;
        }
        let (from, to) = (std::ptr::from_mut(self), std::ptr::from_mut(to));
        // SAFETY: the two values do not overlap; the destination needs no dropping, and the source is forgotten after
        // the copy.
        unsafe {
            copy_by_words(from, to);
            from.write(IoMemory::None);
        }
    }

    /// Takes the buffer of a pool, and leaves nothing here; `None` if this is something else.
    #[inline(always)]
    pub(crate) fn take_pooled(&mut self) -> Option<Buffer> {
        let IoMemory::Pooled(buffer) = self else { return None };
        // SAFETY: the buffer is valid, and the value here is forgotten next.
        let taken = unsafe { std::ptr::read(buffer) };
        // SAFETY: as above.
        unsafe { std::ptr::write(self, IoMemory::None) };
        Some(taken)
    }

    /// Returns how many parts there are.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        match self {
            IoMemory::None | IoMemory::Paths(_) | IoMemory::Destination(_) => 0,
            IoMemory::Pooled(_) | IoMemory::Vec(_) | IoMemory::Bytes(_) => 1,
            IoMemory::Buffers(buffers) => buffers.len(),
            IoMemory::Vecs(vecs) => vecs.len(),
            IoMemory::ManyBytes(all) => all.len(),
            IoMemory::Other(other) => other.parts.len(),
        }
    }

    /// Returns one part, counted from 0.
    #[inline]
    pub(crate) fn part(&self, at: usize) -> Option<Part<'_>> {
        match self {
            IoMemory::None | IoMemory::Paths(_) | IoMemory::Destination(_) => None,
            IoMemory::Pooled(buffer) => (at == 0).then(|| of_buffer(buffer)),
            IoMemory::Vec(vec) => (at == 0).then(|| of_vec(vec)),
            IoMemory::Buffers(buffers) => buffers.get(at).map(of_buffer),
            IoMemory::Vecs(vecs) => vecs.get(at).map(of_vec),
            IoMemory::Bytes(bytes) => (at == 0).then(|| of_bytes(bytes)),
            IoMemory::ManyBytes(all) => all.get(at).map(of_bytes),
            IoMemory::Other(other) => other.parts.get(at).copied(),
        }
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        (0..self.count()).filter_map(|at| self.part(at))
    }

    /// Copies `bytes` behind the first `at` bytes, and makes all of it the parts' content. Bytes that do not fit are
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

    /// Returns whether a read filled less than the length of a value whose length is fixed. Called while no driver is
    /// borrowed and no lock is held, since it runs methods of a user's type.
    #[inline]
    pub(crate) fn hides_length(&mut self) -> bool {
        let IoMemory::Other(other) = self else { return false };
        other.show_lengths();
        other.hides_length
    }

    /// Sets the parts' lengths after a read of `n` bytes, from the front, up to their capacities. Runs no user code: a
    /// value of a user's type gets its lengths when it is released.
    ///
    /// Parts that were held only for writing keep their lengths.
    ///
    /// # Safety
    /// The first `n` bytes of the parts, capacity after capacity, are initialised.
    #[inline(always)]
    pub(crate) unsafe fn filled(&mut self, n: usize) {
        if let IoMemory::Pooled(buffer) = self {
            return buffer.set_len(n.min(buffer.capacity()));
        }
        // SAFETY: by this function's contract.
        unsafe { self.filled_in_turn(n) }
    }

    /// As `filled`.
    ///
    /// # Safety
    /// As `filled`.
    #[inline(never)]
    unsafe fn filled_in_turn(&mut self, n: usize) {
        let mut left = n;
        for at in 0..self.count() {
            let capacity = self.part(at).map_or(0, |part| part.capacity);
            let len = left.min(capacity);
            left -= len;
            match self {
                IoMemory::None
                | IoMemory::Bytes(_)
                | IoMemory::ManyBytes(_)
                | IoMemory::Paths(_)
                | IoMemory::Destination(_) => {}
                IoMemory::Pooled(buffer) => buffer.set_len(len),
                IoMemory::Buffers(buffers) => buffers[at].set_len(len),
                // SAFETY: `len` is at most the capacity, and initialised, says the caller.
                IoMemory::Vec(vec) => unsafe { vec.set_len(len) },
                // SAFETY: as above.
                IoMemory::Vecs(vecs) => unsafe { vecs[at].set_len(len) },
                IoMemory::Other(other) => {
                    other.parts[at].len = len;
                    other.is_filled = true;
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
        region: region(buffer),
    }
}

#[inline]
fn of_vec(vec: &Vec<u8>) -> Part<'_> {
    Part { ptr: vec.as_ptr().cast_mut(), len: vec.len(), capacity: vec.capacity(), region: None }
}

/// Shared bytes cannot be read into. Their region is looked up only when an entry is made for a ring, which knows the
/// regions (`index_of_bytes`).
#[inline]
fn of_bytes(bytes: &Bytes) -> Part<'_> {
    Part { ptr: bytes.as_ptr().cast_mut(), len: bytes.len(), capacity: 0, region: None }
}

#[cfg(test)]
mod tests {
    use super::super::iobuf::{IoBuf, IoBufMut};
    use super::*;
    use bytes::BytesMut;
    use ringfile_buffer::Pool;

    /// Acts as the kernel: writes `n` bytes, 1, 2, 3, …, into the parts, and sets their lengths.
    fn read_into(memory: &mut IoMemory, n: usize) {
        let mut next = 0_u8;
        let parts: Vec<_> = memory.parts().map(|part| (part.ptr, part.capacity)).collect();
        for (ptr, capacity) in parts {
            for at in 0..capacity.min(n - usize::from(next)) {
                next += 1;
                // SAFETY: within the part's capacity, and the value is held here.
                unsafe { ptr.add(at).write(next) };
            }
        }
        // SAFETY: just written.
        unsafe { memory.filled(n) };
    }

    fn content(memory: &IoMemory) -> Vec<u8> {
        // SAFETY: `len` bytes of each part are initialised.
        memory
            .parts()
            .flat_map(|part| unsafe { std::slice::from_raw_parts(part.ptr, part.len) }.to_vec())
            .collect()
    }

    #[test]
    fn every_kind_of_buffer_is_read_into_and_comes_back_as_it_was() {
        fn check<B: IoBufMut>(buffer: B, capacity: usize, fixed_len: bool) -> B {
            let address = IoBuf::as_ptr(&buffer);
            let mut memory = buffer.hold_mut();
            assert_eq!(memory.parts().map(|part| part.capacity).collect::<Vec<_>>(), [capacity]);
            assert!(memory.part(1).is_none());
            read_into(&mut memory, 5);
            let back = B::release(memory);
            assert_eq!(back.as_ptr(), address, "moved");
            assert_eq!(back.len(), if fixed_len { capacity } else { 5 });
            // SAFETY: five bytes were written.
            assert_eq!(unsafe { std::slice::from_raw_parts(back.as_ptr(), 5) }, [1, 2, 3, 4, 5]);
            back
        }
        let pool = Pool::new(1 << 20);
        let buffer = check(pool.get(100).unwrap(), 100, false);
        assert!(region(&buffer).is_some());
        let vec: Vec<u8> = Vec::with_capacity(100);
        let capacity = vec.capacity();
        check(vec, capacity, false);
        check(vec![9_u8; 7].into_boxed_slice(), 7, true);
        let bytes = BytesMut::with_capacity(64);
        let capacity = bytes.capacity();
        check(bytes, capacity, false);
    }

    #[test]
    fn memory_that_is_only_written_from_keeps_its_content() {
        fn check<B: IoBuf>(buffer: B) -> B {
            let address = buffer.as_ptr();
            let memory = buffer.hold();
            assert_eq!(content(&memory), b"content");
            let part = memory.part(0).unwrap();
            assert_eq!((part.ptr.cast_const(), part.len), (address, 7));
            B::release(memory)
        }
        assert_eq!(check(Bytes::from(b"content".to_vec())), &b"content"[..]);
        assert_eq!(check(&b"content"[..]), b"content");
        assert_eq!(check(BytesMut::from(&b"content"[..])), &b"content"[..]);
        assert_eq!(check(Box::<[u8]>::from(&b"content"[..]))[..], b"content"[..]);
        assert_eq!(check(b"content".to_vec()), b"content");
        let mut buffer = Pool::new(4096).get(7).unwrap();
        buffer.extend_from_slice(b"content");
        assert_eq!(check(buffer)[..], b"content"[..]);
    }

    #[test]
    fn a_read_over_many_fills_them_from_the_front() {
        fn check<B: IoBufMut>(all: Vec<B>) {
            let count = all.len();
            let mut memory = B::hold_many_mut(all);
            assert_eq!(memory.count(), count);
            read_into(&mut memory, 7);
            assert_eq!(content(&memory), [1, 2, 3, 4, 5, 6, 7]);
            let lens: Vec<_> = B::release_many(memory).iter().map(IoBuf::len).collect();
            assert_eq!(lens, [4, 3, 0]);
        }
        let pool = Pool::new(1 << 20);
        check((0..3).map(|_| pool.get(4).unwrap()).collect());
        check((0..3).map(|_| pool.get(8).unwrap().split_off(4)).collect());
        check((0..3).map(|_| Vec::with_capacity(4)).collect::<Vec<Vec<u8>>>());
        // Held as a value of a user's type is.
        check((0..3).map(|_| BytesMut::with_capacity(4)).collect());
        let memory = IoBuf::hold_many(vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")]);
        assert_eq!(content(&memory), b"onetwo");
        assert_eq!(Bytes::release_many(memory), [&b"one"[..], b"two"]);
        assert_eq!(IoMemory::None.count(), 0);
    }
}
