//! The types that users hold: [`File`], its operations, and streams made of them.
//!
//! Safe code over the driver. It knows alignment and how to make an operation fit it; it does not know rings.
//! Invariants: a future does nothing before it is polled, and returns its buffer, also on error.

pub(crate) mod adaptive;
mod append;
pub(crate) mod check;
mod control;
mod copy;
mod durability;
mod durable;
mod handle;
mod memory_wait;
pub(crate) mod op;
mod open;
mod probe;
pub(crate) mod record;
mod stream;
pub(crate) mod unaligned;

use std::path::Path;

pub use adaptive::assume_memory_is_free;
pub use append::{Appender, AppenderMetrics, OpenAppender, Reservation, TailReader};
pub use control::{Advice, AllocateMode, RangeSync};
pub use durability::Durability;
pub use durable::Durable;
pub use handle::File;
pub use op::{Op, Output};
pub use open::OpenOptions;
pub use stream::{Next, Pieces, Reader};

use crate::driver::{Kind, RWF_ATOMIC};
use crate::error::Result;
use crate::memory::{IoBuf, IoBufMut, Paths};
use op::OperationFuture;

impl OpenOptions {
    /// Opens the file without blocking the calling thread.
    ///
    /// The polling thread asks the open file for its kind and for the alignment of direct I/O: a few system calls that
    /// block only if the file system must ask a server. Truncating is a separate operation after those, so nothing is lost
    /// if opening fails. If the future is dropped, the file is closed, even if it is opened only after that.
    ///
    /// For a FIFO whose other end is not open, io_uring first tries without waiting, and succeeds (for reading) or fails with
    /// `ENXIO` (for writing), as with `O_NONBLOCK`. A worker waits for the other end, and leaving the loop then waits for
    /// the worker. With `O_NONBLOCK` among the [flags](Self::custom_flags) neither waits.
    ///
    /// # Errors
    /// Those of `open(2)`; `InvalidInput` for options that contradict each other; `Unsupported` as
    /// [`direct`](Self::direct) says, and for the character device of an NVMe namespace as
    /// [`allow_raw_nvme_writes`](Self::allow_raw_nvme_writes) says.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// let head = ringfile::block_on(async {
    ///     let file = ringfile::OpenOptions::new().read(true).open("/proc/self/exe").await?;
    ///     Ok::<_, ringfile::Error>(file.read_at(Vec::with_capacity(4), 0).await?)
    /// })?;
    /// assert_eq!(head, b"\x7fELF");
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(&self, path: impl AsRef<Path>) -> Op<'static, File> {
        let path = path.as_ref();
        let (_, flags) = self.attempt(self.first_attempt(), path);
        let paths = Paths::new(path).map(|paths| paths.with_mode(self.permissions()));
        let mut operation = OperationFuture::on_path(Kind::Open, flags, path, paths);
        operation.record.opens_with(Box::new(self.clone()));
        Op::new(operation)
    }
}

impl File {
    /// Opens a file for buffered reads, without blocking the thread. [`OpenOptions`] opens files in all other ways.
    ///
    /// # Errors
    /// Those of [`OpenOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Op<'static, Self> {
        OpenOptions::new().read(true).open(path)
    }

    /// Opens a file for buffered writes, without blocking the thread. The file is created, or emptied.
    ///
    /// # Errors
    /// Those of [`OpenOptions::open`].
    pub fn create(path: impl AsRef<Path>) -> Op<'static, Self> {
        OpenOptions::new().write(true).create(true).truncate(true).open(path)
    }

    /// Opens a file as [`open`](Self::open) does, on the calling thread: see [`OpenOptions::open_blocking`].
    ///
    /// # Errors
    /// Those of [`OpenOptions::open`].
    pub fn open_blocking(path: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::new().read(true).open_blocking(path)
    }

    /// Opens a file as [`create`](Self::create) does, on the calling thread: see [`OpenOptions::open_blocking`].
    ///
    /// # Errors
    /// Those of [`OpenOptions::open`].
    pub fn create_blocking(path: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::new().write(true).create(true).truncate(true).open_blocking(path)
    }

    /// Reads from `offset` into the buffer, from its start up to its capacity, and sets its length to the number of
    /// bytes read.
    ///
    /// The result is shorter than the capacity only at the end of the file, and for pipes and terminals. A direct read
    /// that does not fit the file's [alignment](Self::alignment) goes through aligned memory of the library. It reads
    /// whole blocks at the edges of its range, and allocates once. Other reads with pooled buffers and `Vec<u8>` do
    /// not allocate.
    ///
    /// # Errors
    /// Any errno of `read(2)`. The error says how much was read, and holds the buffer. `UnexpectedEof` if the file ends
    /// earlier and the buffer cannot show that, such as a `Box<[u8]>`, whose length is fixed.
    #[inline]
    pub fn read_at<B: IoBufMut>(&self, buffer: B, offset: u64) -> Op<'_, B> {
        Op::new(OperationFuture::read(self, buffer, offset, false))
    }

    /// Reads as [`read_at`](Self::read_at) does, but fails if the file ends before the buffer's capacity is filled, or
    /// if a pipe, a socket or another device returns less in one read.
    ///
    /// # Errors
    /// Also `UnexpectedEof` if less was read; the error contains the buffer with those bytes.
    pub fn read_exact_at<B: IoBufMut>(&self, buffer: B, offset: u64) -> Op<'_, B> {
        Op::new(OperationFuture::read(self, buffer, offset, true))
    }

    /// Reads from `offset` into several buffers in turn, each up to its capacity, with one operation. If all are parts
    /// of one registered region, the operation uses the fixed form (Linux 6.15), otherwise the plain one.
    ///
    /// # Errors
    /// Those of [`read_at`](Self::read_at).
    pub fn read_vectored_at<B: IoBufMut>(&self, buffers: Vec<B>, offset: u64) -> Op<'_, Vec<B>> {
        Op::new(OperationFuture::read_many(self, buffers, offset, false))
    }

    /// Reads as [`read_vectored_at`](Self::read_vectored_at) does, but fails if fewer bytes were read than all buffers can hold.
    ///
    /// # Errors
    /// As [`read_exact_at`](Self::read_exact_at).
    pub fn read_exact_vectored_at<B: IoBufMut>(&self, buffers: Vec<B>, offset: u64) -> Op<'_, Vec<B>> {
        Op::new(OperationFuture::read_many(self, buffers, offset, true))
    }

    /// Writes the whole buffer, up to its length, at `offset`. Short writes are continued, as by `write_all` elsewhere.
    ///
    /// Direct writes must fit the file's [alignment](Self::alignment): offset, length and memory. A log that writes the last
    /// blocks of its buffer again passes a [part](IoBuf::slice) of it.
    ///
    /// # Errors
    /// Any errno of `write(2)`; [`done`](crate::BufError::done) says how much was written before. `InvalidInput` for a
    /// direct write that is not aligned; it names the required alignment.
    #[doc(alias = "write_all_at")]
    #[inline]
    pub fn write_at<B: IoBuf>(&self, buffer: B, offset: u64) -> Op<'_, B> {
        Op::new(OperationFuture::write(self, Kind::Write, buffer, offset))
    }

    /// Writes several buffers in turn at `offset`, with one operation.
    ///
    /// # Errors
    /// Those of [`write_at`](Self::write_at).
    pub fn write_vectored_at<B: IoBuf>(&self, buffers: Vec<B>, offset: u64) -> Op<'_, Vec<B>> {
        Op::new(OperationFuture::write_many(self, buffers, offset))
    }

    /// Writes the whole buffer at `offset` and waits until it is durable, in the way that [`OpenOptions::durability`]
    /// chose.
    ///
    /// # Errors
    /// Those of [`write_at`](Self::write_at) and [`sync_data`](Self::sync_data). **A failure of the write or the sync
    /// is remembered**: each later sync and durable write of this `File` and its clones fails with the same errno until
    /// the file is opened again, see [`sync_all`](Self::sync_all).
    pub fn write_durable_at<B: IoBuf>(&self, buffer: B, offset: u64) -> Op<'_, Durable<B>> {
        Op::new(OperationFuture::write(self, Kind::Write, buffer, offset).durable())
    }

    /// Writes the whole buffer at `offset` so that a power cut leaves all of it or none (`RWF_ATOMIC`, Linux 6.11).
    /// Direct I/O only, where [`Alignment::atomic`](crate::fs::Alignment::atomic) has limits: the length is a power of
    /// two between them, the offset a multiple of the length. Do not use it with `O_APPEND`.
    ///
    /// The write is not durable when it returns: call [`sync_data`](Self::sync_data). Two atomic writes together are
    /// not atomic, and a concurrent read may see a part. Dropping the future cancels the write where the kernel still
    /// can; the file has all of it or none. Neither blocks nor allocates.
    ///
    /// # Errors
    /// Those of [`write_at`](Self::write_at); `Unsupported` if the file has no atomic writes, and `InvalidInput` for a
    /// length or an offset that it does not accept; nothing was written. A short write is an error (`WriteZero`).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("table");
    /// use ringfile::{OpenOptions, Pool};
    /// let pool = Pool::new(1 << 20);
    /// let mut options = OpenOptions::new();
    /// let file = options.read(true).write(true).create(true).direct(true).buffered_fallback(true).open_blocking(&path)?;
    /// ringfile::block_on(async {
    ///     let mut page = pool.get(16384)?;
    ///     page.resize(16384, 7);
    ///     match file.alignment().atomic {
    ///         Some(limits) if (limits.min..=limits.max).contains(&16384) => {
    ///             file.write_atomic_at(page, 0).await?; // the old page or the new one
    ///         }
    ///         _ => {
    ///             // A copy first: a power cut may leave a part.
    ///             let page = file.write_at(page, 16384).await?;
    ///             file.sync_data().await?;
    ///             file.write_at(page, 0).await?;
    ///         }
    ///     }
    ///     file.sync_data().await?;
    ///     std::io::Result::Ok(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_atomic_at<B: IoBuf>(&self, buffer: B, offset: u64) -> Op<'_, B> {
        let mut write = OperationFuture::write(self, Kind::WriteAtomic, buffer, offset);
        write.record.request.op_flags |= RWF_ATOMIC;
        Op::new(write)
    }

    /// Creates a stream that reads the file from front to back into buffers of `pool`, with several reads in flight.
    /// See [`Reader`] for its settings.
    #[must_use]
    pub fn reader(&self, pool: &crate::Pool) -> Reader {
        Reader::new(self.clone(), pool.clone())
    }
}
