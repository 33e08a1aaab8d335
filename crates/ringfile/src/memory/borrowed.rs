//! Memory of requests that a call only borrows, until all of its operations have ended.
//!
//! Knows buffers and block headers. Invariant: a [`Lending`] ends only when every buffer that it made of borrowed memory
//! has been dropped. It counts them, and ends the process if its call would return or unwind earlier, so that no other
//! module has to be trusted with it. A forked child may return earlier: the kernel uses its parent's memory.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::block::{Block, BlockKind};
use super::buffer::Buffer;
use super::region::Region;
use crate::ring::fork::Mark;

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
    fn take_back(&mut self, buffer: Buffer);
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
    impl Sealed for super::Buffer {}
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
        let (start, len) = buffer.span();
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
        self.buffer.map(Buffer::region)
    }
}

impl RequestMemory for Buffer {
    unsafe fn lend(&mut self, _: &mut Option<Counter>) -> Buffer {
        std::mem::replace(self, Buffer::nothing())
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
        let counter = counter.get_or_insert_with(Counter::new);
        // SAFETY: by this function's contract; the bytes are initialised.
        unsafe { counter.buffer(NonNull::from(&mut **self).cast(), len) }
    }

    fn take_back(&mut self, buffer: Buffer) {
        drop(buffer);
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
        let counter = counter.get_or_insert_with(Counter::new);
        // SAFETY: by this function's contract; the buffer is only written to a file, as a `WriteRequest` has it.
        unsafe { counter.buffer(NonNull::from(*self).cast(), self.len()) }
    }

    fn take_back(&mut self, buffer: Buffer) {
        drop(buffer);
    }
}

impl WriteMemory for &[u8] {}

/// Counts the buffers that were made of borrowed memory: a block header of its own, to which each of them refers.
pub struct Counter(NonNull<Block>);

impl Counter {
    fn new() -> Self {
        let header = Box::new(Block::new(ptr::null_mut(), 0));
        header.describe(BlockKind::Borrowed, 0, ptr::null_mut(), 0, ptr::null());
        header.refs.set_one();
        Self(NonNull::from(Box::leak(header)))
    }

    fn header(&self) -> &Block {
        // SAFETY: it is freed only when this is dropped.
        unsafe { self.0.as_ref() }
    }

    /// # Safety
    /// Until the buffer is dropped, the `len` bytes are valid and initialised, and nothing else accesses them; if the
    /// buffer is only written to files, others may read them.
    unsafe fn buffer(&self, start: NonNull<u8>, len: usize) -> Buffer {
        self.header().add_ref();
        // SAFETY: by this function's contract; the reference is the buffer's.
        unsafe { Buffer::new(start, len, len, self.0) }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // In a forked child, operations of its parent may keep buffers for ever: the header stays for them.
        if !self.header().is_shared() {
            // SAFETY: made from a box, and no buffer refers to it.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

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
        self.counter.take().filter(|counter| !counter.header().is_shared())
    }

    fn check(&self) {
        let is_lent = self.counter.as_ref().is_some_and(|counter| counter.header().is_shared());
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
