//! Memory of requests that a call only borrows, until all of its operations have ended.
//!
//! Knows buffers. Invariant: a [`Lending`] ends only when every buffer that it made of borrowed memory
//! has been dropped. It counts them, and ends the process if its call would return or unwind earlier, so that no other
//! module has to be trusted with it. A forked child may return earlier: the kernel uses its parent's memory.

use std::marker::PhantomData;
use std::ptr::NonNull;

use ringfile_buffer::Buffer;
use ringfile_buffer::internal::{Counter, Region, fork::Mark, region};

/// The memory of a request of [`Queue::read_many`](crate::Queue::read_many) or
/// [`Queue::write_many`](crate::Queue::write_many). Only this library implements it.
pub trait RequestMemory: sealed::Sealed {
    /// Returns the memory as a buffer with its length.
    ///
    /// # Safety
    /// Until the buffer is dropped, nothing accesses the memory, and its borrow does not end.
    #[doc(hidden)]
    unsafe fn lend(&mut self, counter: &mut Option<Counter>) -> Buffer;

    /// Takes back what `lend` has returned.
    #[doc(hidden)]
    fn take_back(&mut self, buffer: Buffer) {
        drop(buffer);
    }
}

/// Memory that can be read into: a [`Buffer`], all of whose capacity is filled, or a `&mut [u8]`.
pub trait ReadMemory: RequestMemory {
    #[doc(hidden)]
    fn place(&mut self) -> Borrowed<'_>;

    /// Shows how many bytes were read.
    #[doc(hidden)]
    fn set_len(&mut self, len: usize);
}

/// Memory that can be written to a file: a [`Buffer`], up to its length, or a `&[u8]`.
pub trait WriteMemory: RequestMemory {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for ringfile_buffer::Buffer {}
    impl Sealed for &mut [u8] {}
    impl Sealed for &[u8] {}
}

/// Memory that its owner lends to one read, and does not access meanwhile.
pub struct Borrowed<'a> {
    start: NonNull<u8>,
    len: usize,
    /// The buffer, if it is one. The region of other memory is found by address.
    buffer: Option<&'a Buffer>,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Borrowed<'a> {
    /// Returns all of a buffer's capacity.
    #[inline]
    pub(crate) fn of_buffer(buffer: &'a mut Buffer) -> Self {
        let len = buffer.capacity();
        // SAFETY: a buffer's address is never null.
        let start = unsafe { NonNull::new_unchecked(buffer.as_mut_ptr()) };
        Self { start, len, buffer: Some(buffer), memory: PhantomData }
    }

    #[inline]
    fn of_slice(slice: &'a mut [u8]) -> Self {
        let len = slice.len();
        Self { start: NonNull::from(slice).cast(), len, buffer: None, memory: PhantomData }
    }

    #[inline]
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the region of a buffer; the outer `None` means that it can only be found by address.
    #[inline]
    pub(crate) fn region(&self) -> Option<Option<&'a Region>> {
        self.buffer.map(region)
    }
}

impl RequestMemory for Buffer {
    unsafe fn lend(&mut self, _: &mut Option<Counter>) -> Buffer {
        std::mem::take(self)
    }

    fn take_back(&mut self, buffer: Buffer) {
        *self = buffer;
    }
}

impl ReadMemory for Buffer {
    #[inline]
    fn place(&mut self) -> Borrowed<'_> {
        Borrowed::of_buffer(self)
    }

    #[inline]
    fn set_len(&mut self, len: usize) {
        Buffer::set_len(self, len);
    }
}

impl WriteMemory for Buffer {}

impl RequestMemory for &mut [u8] {
    unsafe fn lend(&mut self, counter: &mut Option<Counter>) -> Buffer {
        let len = self.len();
        let counter = counter.get_or_insert_default();
        // SAFETY: by this function's contract; the bytes are initialised.
        unsafe { counter.buffer(NonNull::from(&mut **self).cast(), len) }
    }
}

impl ReadMemory for &mut [u8] {
    #[inline]
    fn place(&mut self) -> Borrowed<'_> {
        Borrowed::of_slice(self)
    }

    fn set_len(&mut self, _: usize) {}
}

impl RequestMemory for &[u8] {
    unsafe fn lend(&mut self, counter: &mut Option<Counter>) -> Buffer {
        let counter = counter.get_or_insert_default();
        // SAFETY: by this function's contract; the buffer is only written to a file, as a `WriteRequest` has it.
        unsafe { counter.buffer(NonNull::from(*self).cast(), self.len()) }
    }
}

impl WriteMemory for &[u8] {}

/// The requests of a call, whose memory it lends to operations.
pub(crate) struct Lending<'r, R> {
    requests: &'r mut [R],
    counter: Option<Counter>,
    process: Mark,
}

impl<'r, R> Lending<'r, R> {
    /// `counter` is that of an earlier call, to be used again.
    pub(crate) fn new(requests: &'r mut [R], counter: Option<Counter>) -> Self {
        Self { requests, counter, process: Mark::current() }
    }

    /// Returns the requests. The memory of those that were lent and not taken back must not be accessed.
    pub(crate) fn requests(&mut self) -> &mut [R] {
        self.requests
    }

    /// Lends the memory of one request.
    pub(crate) fn lend<M: RequestMemory>(
        &mut self,
        at: usize,
        memory: impl FnOnce(&mut R) -> &mut M,
    ) -> Buffer {
        // SAFETY: the memory is borrowed for longer than this exists, which is until the buffer was dropped.
        unsafe { memory(&mut self.requests[at]).lend(&mut self.counter) }
    }

    /// Ends, and returns the counter for a later call.
    pub(crate) fn end(mut self) -> Option<Counter> {
        self.check();
        // One whose buffers a forked child can not wait for is given up.
        self.counter.take().filter(|counter| !counter.is_in_use())
    }

    fn check(&self) {
        let is_lent = self.counter.as_ref().is_some_and(|counter| counter.is_in_use());
        if is_lent && self.process.is_current() {
            // The kernel may still write there.
            std::process::abort();
        }
    }
}

impl<R> Drop for Lending<'_, R> {
    fn drop(&mut self) {
        self.check();
    }
}
