//! The result of one operation.

use std::io::ErrorKind;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::file::File;
use crate::fs::Metadata;
use crate::memory::{AnyBuffer, Buffer};

/// The result of one operation of a batch or a queue.
// With the fields in this order, the whole and the buffer in it are copied in the same pieces: see `memory::held`.
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
    pub(super) on_path: Option<Box<OnPath>>,
}

/// The additional result of an operation on a path.
#[derive(Default, Debug)]
pub(super) struct OnPath {
    pub(super) file: Option<File>,
    pub(super) metadata: Option<Metadata>,
    pub(super) link: Option<PathBuf>,
}

impl Done {
    pub(super) const NOTHING: Self = Self { result: Ok(0), buffer: None, buffers: Vec::new(), on_path: None };

    /// Returns the pooled buffer of a read or a write; its length is the number of bytes read.
    ///
    /// # Errors
    /// That of the operation, which drops the buffer: it is in [`buffer`](Self::buffer) until this is called. `InvalidInput` if
    /// the operation had no buffer of a [`Pool`](crate::Pool).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use ringfile::{Batch, File, Pool};
    /// let (pool, file) = (Pool::new(1 << 20), File::open("/proc/self/exe")?);
    /// let mut batch = Batch::new();
    /// batch.add(file.read_exact_at(pool.get(4)?, 0));
    /// for done in batch.run() {
    ///     assert_eq!(done.into_buffer()?[..], *b"\x7fELF");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_buffer(self) -> Result<Buffer> {
        self.result?;
        self.buffer
            .and_then(AnyBuffer::into_pooled)
            .ok_or_else(|| has_none("buffer of a pool; look at the fields `result` and `buffer`"))
    }

    /// Returns the file that was opened.
    ///
    /// # Errors
    /// That of the operation; `InvalidInput` if it opened none.
    pub fn into_file(mut self) -> Result<File> {
        let file = self.take_file();
        self.result.and(file.ok_or_else(|| has_none("opened file")))
    }

    /// Returns the metadata that was read.
    ///
    /// # Errors
    /// That of the operation; `InvalidInput` if it read none.
    pub fn into_metadata(mut self) -> Result<Metadata> {
        let metadata = self.take_metadata();
        self.result.and(metadata.ok_or_else(|| has_none("metadata")))
    }

    /// Returns where the symbolic link that was read points.
    ///
    /// # Errors
    /// That of the operation; `InvalidInput` if it read none.
    pub fn into_link(mut self) -> Result<PathBuf> {
        let link = self.take_link();
        self.result.and(link.ok_or_else(|| has_none("symbolic link")))
    }

    /// Takes the file that was opened; `None` for other operations, and if opening failed. A file that is not taken is
    /// closed when the result is dropped.
    pub fn take_file(&mut self) -> Option<File> {
        self.on_path.as_mut()?.file.take()
    }

    /// Takes the metadata that was read; `None` for other operations, and if reading failed.
    pub fn take_metadata(&mut self) -> Option<Metadata> {
        self.on_path.as_mut()?.metadata.take()
    }

    /// Takes where the symbolic link that was read points; `None` for other operations, and if reading failed.
    pub fn take_link(&mut self) -> Option<PathBuf> {
        self.on_path.as_mut()?.link.take()
    }
}

#[cold]
fn has_none(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "using a result").because(format!("the operation has no {what}"))
}
