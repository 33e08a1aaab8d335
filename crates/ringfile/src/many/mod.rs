//! Many operations at once, from any thread and in any executor.
//!
//! [`Batch`] collects operations and carries them out together; a [`Queue`] returns results in the order in which they
//! arrive. Both use one engine, and differ in the plan that tells it what to start when. Knows files and the driver;
//! single futures of a file do not use it. Invariants: every operation has its own result; a failing operation does not
//! affect others unless that was requested.

mod batch;
mod engine;
mod entries;
mod files;
mod mailbox;
mod merge;
mod op;
mod plan;
mod queue;
mod read_many;
mod remote;
mod started;
mod sync;

use std::ops::Deref;

pub use batch::{Batch, BatchRun};
pub use entries::Token;
pub use queue::Queue;
pub use read_many::{ReadRequest, WriteRequest};
pub use started::StartedBatch;

#[cfg(feature = "config")]
pub(crate) use batch::MOST_IN_FLIGHT;

use bytes::Bytes;

use crate::error::Result;
use crate::file::File;
use crate::fs::Metadata;
use crate::memory::Buffer;

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

/// The result of one operation of a batch or a queue.
// In this order a copy of the whole, and one of the buffer out of that, are made in the same pieces, see `memory::held`.
#[derive(Debug)]
#[non_exhaustive]
#[repr(C)]
pub struct Done {
    /// The number of bytes read or written; 0 for a sync. A read that is shorter than its buffer has reached the end of
    /// the file.
    ///
    /// An error is the same as from the corresponding operation of [`File`](crate::File): it keeps the errno, the path
    /// and the offset.
    pub result: Result<usize>,
    /// The buffer, its length set to the number of bytes read; `None` for operations without a buffer or with several.
    pub buffer: Option<AnyBuffer>,
    /// The buffers of a vectored operation, their lengths set to the numbers of bytes read; otherwise empty.
    pub buffers: Vec<Buffer>,
    /// The additional result of an operation on a path. Boxed, so that results of reads and writes, which contain this
    /// field too, stay small to copy.
    on_path: Option<Box<OnPath>>,
}

/// The additional result of an operation on a path.
#[derive(Debug)]
struct OnPath {
    file: Option<File>,
    metadata: Option<Metadata>,
}

impl Done {
    const NOTHING: Self = Self { result: Ok(0), buffer: None, buffers: Vec::new(), on_path: None };

    /// Takes the file that was opened; `None` for other operations, and if opening failed. A file that is not taken is
    /// closed when the result is dropped.
    pub fn take_file(&mut self) -> Option<File> {
        self.on_path.as_mut()?.file.take()
    }

    /// Takes the metadata that was read; `None` for other operations, and if reading failed.
    pub fn take_metadata(&mut self) -> Option<Metadata> {
        self.on_path.as_mut()?.metadata.take()
    }
}
