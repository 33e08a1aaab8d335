//! Copying from file to file.

use std::task::{Context, Poll};

use super::File;
use super::op::{Op, OperationFuture, Output, Product};
use crate::driver::{Kind, Request};
use crate::error::Result;
use crate::memory::{Destination, IoMemory};

/// The number of bytes that were copied.
impl Output for u64 {
    type Result = Result<Self>;
    type File<'f> = &'f File;
    type State<'f> = ();

    fn poll(
        operation: &mut OperationFuture<&File>,
        (): &mut (),
        context: &mut Context<'_>,
    ) -> Poll<Result<Self>> {
        operation.poll_control(context).map(|copied| copied.map(|copied| copied as Self))
    }

    fn take(product: &mut Product) -> Option<Self> {
        product.is_empty().then_some(product.done as Self)
    }
}

impl File {
    /// Copies `len` bytes from `offset` of this file to `at` of another one, or of the same (`copy_file_range`).
    /// Returns how many were copied: fewer only if this file ends earlier. The copy is not durable: sync the other
    /// file.
    ///
    /// The data does not pass through the program, and file systems with reflinks share the blocks. Where the kernel
    /// cannot copy, as between file systems, the library reads and writes; with `O_DIRECT`, offsets and length must
    /// then fit the [alignment](Self::alignment) of both files. Holes stay holes, if `/proc` allows opening this file
    /// again. A worker makes the calls; cancelling takes effect between two of them.
    ///
    /// # Errors
    /// Those of `copy_file_range(2)`; [`done`](crate::Error::done) says how much was copied, but a hole at its end may
    /// be missing. `InvalidInput` if a range ends beyond 2^63 - 1 bytes, or the two overlap in the same file.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    /// # std::fs::write(&old, vec![7; 100_000])?;
    /// use ringfile::{File, block_on};
    /// let (table, compacted) = (File::open_blocking(&old)?, File::create_blocking(&new)?);
    /// assert_eq!(block_on(table.copy_range(4096, &compacted, 0, 8192))?, 8192);
    /// assert_eq!(std::fs::read(&new)?, [7; 8192]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy_range(&self, offset: u64, to: &File, at: u64, len: u64) -> Op<'_, u64> {
        let request = Request { offset, want: len as usize, ..Request::of(Kind::Copy) };
        let to = Destination::new(to.target().clone(), at);
        Op::new(OperationFuture::new(self, request, IoMemory::Destination(to)))
    }
}
