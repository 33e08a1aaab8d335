//! The types that users hold: [`File`], its operations, and streams made of them.
//!
//! Safe code over the driver. It knows alignment and how to make an operation fit it; it does not know rings.
//! Invariants: a future does nothing before it is polled, and returns its buffer, also on error.

pub(crate) mod adaptive;
mod append;
pub(crate) mod ask;
pub(crate) mod check;
mod control;
mod copy;
mod durability;
mod durable;
mod handle;
pub(crate) mod io;
mod memory_wait;
mod open;
mod probe;
pub(crate) mod record;
mod stream;
pub(crate) mod unaligned;

use std::ops::RangeBounds;
use std::path::Path;

#[doc(hidden)]
pub use adaptive::assume_memory_is_free;
pub use append::{Append, Appender, AppenderMetrics, OpenAppender, Record, Settle, TailReader};
pub use ask::Operation;
pub use control::{Advice, AllocateMode, Control, RangeSync};
pub use copy::CopyRange;
pub use durability::Durability;
pub use durable::WriteDurable;
pub use handle::File;
pub use io::{Io, IoVectored};
pub use open::OpenOptions;
pub use stream::{Next, Pieces, Reader};

use crate::error::Result;
use crate::memory::{IoBuf, IoBufMut};

impl File {
    /// Opens a file for buffered reads. [`OpenOptions`] opens files in all other ways.
    ///
    /// # Errors
    /// Those of [`OpenOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::new().read(true).open(path)
    }

    /// Opens a file for buffered writes. The file is created, or emptied.
    ///
    /// # Errors
    /// Those of [`OpenOptions::open`].
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::new().write(true).create(true).truncate(true).open(path)
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
    pub fn read_at<B: IoBufMut>(&self, buffer: B, offset: u64) -> Io<'_, B> {
        Io::read(self, buffer, offset, false)
    }

    /// Reads as [`read_at`](Self::read_at) does, but fails if the file ends before the buffer's capacity is filled, or
    /// if a pipe, a socket or another device returns less in one read.
    ///
    /// # Errors
    /// Also `UnexpectedEof` if less was read; the error contains the buffer with those bytes.
    pub fn read_exact_at<B: IoBufMut>(&self, buffer: B, offset: u64) -> Io<'_, B> {
        Io::read(self, buffer, offset, true)
    }

    /// Reads from `offset` into several buffers in turn, each up to its capacity, with one operation. If all are parts
    /// of one registered region, the operation uses the fixed form (Linux 6.15), otherwise the plain one.
    ///
    /// # Errors
    /// Those of [`read_at`](Self::read_at).
    pub fn read_vectored_at<B: IoBufMut>(&self, buffers: Vec<B>, offset: u64) -> IoVectored<'_, B> {
        IoVectored::read(self, buffers, offset, false)
    }

    /// Reads as [`read_vectored_at`](Self::read_vectored_at) does, but fails if fewer bytes were read than all buffers can hold.
    ///
    /// # Errors
    /// As [`read_exact_at`](Self::read_exact_at).
    pub fn read_exact_vectored_at<B: IoBufMut>(&self, buffers: Vec<B>, offset: u64) -> IoVectored<'_, B> {
        IoVectored::read(self, buffers, offset, true)
    }

    /// Writes the whole buffer, up to its length, at `offset`. Short writes are continued, as by `write_all` elsewhere.
    ///
    /// Direct writes must fit the file's [alignment](Self::alignment): offset, length and memory.
    ///
    /// # Errors
    /// Any errno of `write(2)`; [`done`](crate::BufError::done) says how much was written before. `InvalidInput` for a
    /// direct write that is not aligned; it names the required alignment.
    #[doc(alias = "write_all_at")]
    #[inline]
    pub fn write_at<B: IoBuf>(&self, buffer: B, offset: u64) -> Io<'_, B> {
        Io::write(self, buffer, offset)
    }

    /// Writes the bytes of `part` at `offset`, and gives the whole buffer back: a log writes the last blocks of its buffer
    /// again without copying them to one of their own.
    ///
    /// `part` counts from the start of the buffer, as an index does, and lies within its length. Otherwise the same as
    /// [`write_at`](Self::write_at): a direct write needs a part whose start, length and offset fit the file's
    /// [alignment](Self::alignment), and a part of registered memory is written in the fixed form.
    ///
    /// # Errors
    /// Those of [`write_at`](Self::write_at), where [`done`](crate::BufError::done) counts the bytes of the part;
    /// `InvalidInput` if the part does not lie within the buffer's length, and nothing was written. The error contains
    /// the whole buffer.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("log");
    /// use ringfile::{File, Pool};
    /// let (pool, file) = (Pool::new(1 << 20), File::create(&path)?);
    /// ringfile::block_on(async {
    ///     let mut log = pool.get(8192)?;
    ///     log.extend_from_slice(&[1; 5000]);
    ///     let mut log = file.write_at(log, 0).await?;
    ///     log.extend_from_slice(&[2; 1000]);
    ///     // Only the block that has changed.
    ///     let log = file.write_part_at(log, 4096.., 4096).await?;
    ///     assert_eq!(log.len(), 6000);
    ///     std::io::Result::Ok(())
    /// })?;
    /// assert_eq!(std::fs::read(&path)?, [[1; 5000].as_slice(), &[2; 1000]].concat());
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_part_at<B: IoBuf>(
        &self,
        buffer: B,
        part: impl RangeBounds<usize>,
        offset: u64,
    ) -> Io<'_, B> {
        Io::write_part(self, buffer, part, offset)
    }

    /// Writes several buffers in turn at `offset`, with one operation.
    ///
    /// # Errors
    /// Those of [`write_at`](Self::write_at).
    pub fn write_vectored_at<B: IoBuf>(&self, buffers: Vec<B>, offset: u64) -> IoVectored<'_, B> {
        IoVectored::write(self, buffers, offset)
    }

    /// Writes the whole buffer at `offset` and waits until it is durable, in the way that [`OpenOptions::durability`]
    /// chose.
    ///
    /// # Errors
    /// Those of [`write_at`](Self::write_at) and [`sync_data`](Self::sync_data). **A failure of the write or the sync
    /// is remembered**: each later sync and durable write of this `File` and its clones fails with the same errno until
    /// the file is opened again, see [`sync_all`](Self::sync_all).
    pub fn write_durable_at<B: IoBuf>(&self, buffer: B, offset: u64) -> WriteDurable<'_, B> {
        WriteDurable::new(Io::write(self, buffer, offset))
    }

    /// Writes a part of the buffer as [`write_part_at`](Self::write_part_at) does, and waits until it is durable.
    ///
    /// # Errors
    /// Those of [`write_part_at`](Self::write_part_at) and [`write_durable_at`](Self::write_durable_at).
    pub fn write_durable_part_at<B: IoBuf>(
        &self,
        buffer: B,
        part: impl RangeBounds<usize>,
        offset: u64,
    ) -> WriteDurable<'_, B> {
        WriteDurable::new(Io::write_part(self, buffer, part, offset))
    }

    /// Writes the whole buffer at `offset` so that a power cut leaves all of it or none (`RWF_ATOMIC`, Linux 6.11): the
    /// old content is never left half overwritten, so the program need not keep a copy of it.
    ///
    /// [`Alignment::atomic`](crate::Alignment::atomic) has the limits: the length is a power of two between the shortest
    /// and the longest, the offset a multiple of the length. Direct I/O only, on file systems and devices that support
    /// it: in Linux 6.18, XFS with reflinks, from one block on, whatever the device; ext4 and block devices if the
    /// device does.
    ///
    /// The write is not durable when it returns: call [`sync_data`](Self::sync_data) afterwards. Two atomic writes
    /// together are not atomic. A concurrent read may see a part. Registered memory may be used, but is passed to the
    /// kernel in the plain form. With `O_APPEND` the kernel (6.18) puts the write at the end of the file, even if
    /// that is not a multiple of the length, so do not use it with atomic writes. Dropping the future cancels the write where the kernel
    /// still can: the file has all of it or none. Like [`write_at`](Self::write_at), it neither blocks nor allocates.
    ///
    /// # Errors
    /// Those of [`write_at`](Self::write_at); `Unsupported` if the file does not support atomic writes, and
    /// `InvalidInput` for a length or an offset that it does not accept. Both say what it accepts and what to do;
    /// nothing was written. A short write is not continued, but is an error (`WriteZero`).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("table");
    /// use ringfile::{OpenOptions, Pool};
    /// let pool = Pool::new(1 << 20);
    /// let mut options = OpenOptions::new();
    /// let file = options.read(true).write(true).create(true).direct(true).buffered_fallback(true).open(&path)?;
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
    pub fn write_atomic_at<B: IoBuf>(&self, buffer: B, offset: u64) -> Io<'_, B> {
        Io::write_atomic(self, buffer, offset)
    }

    /// Creates a stream that reads the file from front to back into buffers of `pool`, with several reads in flight.
    /// See [`Reader`] for its settings.
    #[must_use]
    pub fn reader(&self, pool: &crate::Pool) -> Reader {
        Reader::new(self.clone(), pool.clone())
    }
}
