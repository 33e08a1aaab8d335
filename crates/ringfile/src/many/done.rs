//! The result of one operation, and the token that names it.

use std::io::{self, ErrorKind};

use crate::error::{Error, Result};
use crate::file::op::{Output, Product};
use crate::memory::{AnyBuffer, Buffer, IoBuf, IoMemory};

/// Names one operation of a [`Queue`](super::Queue), until its result was taken.
///
/// ```
/// # let file = ringfile::File::open_blocking("/proc/self/exe").unwrap();
/// let mut queue = ringfile::Queue::new();
/// let token = queue.add(file.read_at(Vec::with_capacity(4), 0), 0);
/// assert_eq!(ringfile::Token::from_u64(token.to_u64()), token);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(u64);

impl Token {
    /// Names no operation.
    pub(super) const NONE: Self = Self(0);

    pub(super) fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    /// Returns the token as a number, never 0, to pass it through another language.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// Returns the token of a number. If it names no operation, using it is an error.
    #[must_use]
    pub fn from_u64(number: u64) -> Self {
        Self(number)
    }

    pub(super) fn index(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The result of one operation of a batch or a queue.
// With the fields in this order, the whole and the buffer in it are copied in the same pieces: see `memory::io_memory`.
#[derive(Debug)]
#[non_exhaustive]
#[repr(C)]
pub struct Completion {
    /// Names the operation of a queue. In a batch it names none.
    pub token: Token,
    /// The number that the caller has given the operation of a queue. In a batch it is 0: results are in the order of adding.
    pub user_data: u64,
    /// The number of bytes read or written; 0 for a sync. A read that is shorter than its buffer has reached the end of
    /// the file.
    ///
    /// An error is the same as from the corresponding operation of [`File`](crate::File): it keeps the errno, the path
    /// and the offset.
    pub result: Result<usize>,
    /// The buffer of a read or a write, its length set to the number of bytes read; `None` if it has none, several, or one of
    /// another type, which [`take`](Self::take) returns.
    pub buffer: Option<AnyBuffer>,
    /// The buffers of a vectored operation, their lengths set to the numbers of bytes read; otherwise empty.
    pub buffers: Vec<Buffer>,
    /// What else the operation has left. Boxed, so that results of reads and writes, which contain this field too, stay
    /// small to copy.
    pub(super) other: Option<Box<Product>>,
}

impl Completion {
    pub(super) const NOTHING: Self = Self {
        token: Token::NONE,
        user_data: 0,
        result: Ok(0),
        buffer: None,
        buffers: Vec::new(),
        other: None,
    };

    /// Returns what awaiting the operation would have: `T` is that of its [`Op`](crate::Op), or of the buffer in it.
    ///
    /// # Errors
    /// Gives the result back if the operation has failed, or has left no `T`. `?` makes an [`Error`] of it: that of the
    /// operation, or `InvalidInput`.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use ringfile::{Batch, Buffer, File, Pool};
    /// let (pool, file) = (Pool::new(1 << 20), File::open_blocking("/proc/self/exe")?);
    /// let mut batch = Batch::new();
    /// batch.add(file.read_exact_at(pool.get(4)?, 0));
    /// for done in batch.run() {
    ///     assert_eq!(done.take::<Buffer>()?[..], *b"\x7fELF");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn take<T: Output>(mut self) -> std::result::Result<T, Self> {
        let Ok(done) = self.result else { return Err(self) };
        let (token, user_data) = (self.token, self.user_data);
        let give_back = |result, product| Self { token, user_data, ..Self::new(result, product) };
        let mut product = self.other.take().map_or_else(Product::default, |other| *other);
        if let Some(buffer) = self.buffer.take() {
            product.memory = buffer.hold();
        } else if !self.buffers.is_empty() {
            product.memory = IoMemory::Buffers(std::mem::take(&mut self.buffers));
        }
        product.done = done;
        if product.is_short && product.memory.hides_length() {
            let short = Error::new(ErrorKind::UnexpectedEof, "reading").after(done);
            let why = "the file is too short for a buffer whose length is fixed";
            return Err(give_back(Err(short.because(why)), product));
        }
        T::take(&mut product).ok_or_else(|| give_back(Ok(done), product))
    }

    pub(super) fn new(result: Result<usize>, mut product: Product) -> Self {
        let (mut buffer, mut buffers) = (None, Vec::new());
        match std::mem::take(&mut product.memory) {
            IoMemory::Pooled(one) => buffer = Some(AnyBuffer::Pooled(one)),
            IoMemory::Vec(vec) => buffer = Some(AnyBuffer::Vec(vec)),
            IoMemory::Bytes(bytes) => buffer = Some(AnyBuffer::Bytes(bytes)),
            IoMemory::Buffers(all) => buffers = all,
            IoMemory::Paths(paths) if result.is_err() || !paths.has_some() => {}
            IoMemory::None | IoMemory::Destination(_) => {}
            memory @ (IoMemory::Paths(_)
            | IoMemory::Vecs(_)
            | IoMemory::ManyBytes(_)
            | IoMemory::Other(_)) => product.memory = memory,
        }
        let has_other = product.file.is_some() || !matches!(product.memory, IoMemory::None);
        Self { result, buffer, buffers, other: has_other.then(|| Box::new(product)), ..Self::NOTHING }
    }
}

impl Default for Completion {
    /// The result of an operation that has succeeded and left nothing.
    fn default() -> Self {
        Self::NOTHING
    }
}

impl From<Completion> for Error {
    fn from(done: Completion) -> Self {
        let none = || {
            let why = "the operation has left nothing of the type that was asked for";
            Self::new(ErrorKind::InvalidInput, "taking a result").because(why)
        };
        done.result.err().unwrap_or_else(none)
    }
}

impl From<Completion> for io::Error {
    fn from(done: Completion) -> Self {
        Error::from(done).into()
    }
}
