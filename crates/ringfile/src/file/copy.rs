//! Copying from file to file.

use std::future::Future;
use std::marker::PhantomPinned;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::File;
use super::ask::{Ask, Asked};
use super::io::OperationFuture;
use crate::driver::{Kind, Request};
use crate::error::Result;
use crate::memory::{Destination, Held};

pin_project! {
    /// A copy from one file to another: see [`File::copy_range`]. Awaited, it returns how many bytes were copied. Or
    /// [add](crate::Operation) it to a batch or a queue.
    ///
    /// `Send`. Dropping it ends the copy within 16 MiB; what was copied stays.
    #[must_use = "nothing is copied until it is awaited, or added to a batch or a queue"]
    pub struct CopyRange<'a> {
        operation: OperationFuture<&'a File>,
        #[pin]
        pinned: PhantomPinned,
    }
}

impl Ask for CopyRange<'_> {
    fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R {
        self.operation.ask(add)
    }
}

impl Future for CopyRange<'_> {
    type Output = Result<u64>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().operation.poll_control(context).map(|copied| copied.map(|copied| copied as u64))
    }
}

impl File {
    /// Copies `len` bytes from `offset` of this file to `at` of another one, or of the same (`copy_file_range`). Returns how
    /// many bytes were copied: fewer only if this file ends earlier, or after almost 2^56 bytes.
    ///
    /// The data does not pass through the program. File systems with reflinks (btrfs, XFS) share the blocks, and network file
    /// systems copy on the server. Where the kernel cannot copy between the two, as between file systems, the library
    /// reads and writes. Holes of this file become holes. The copy is not durable when it ends: sync the other file.
    ///
    /// io_uring has no such operation, so a worker makes the calls, each for at most 16 MiB. Cancelling takes effect between
    /// two of them; the error of a queue's or a batch's result then says how much was copied. With `O_DIRECT`, offsets
    /// and length must fit the [alignment](Self::alignment) of both files where the kernel cannot copy by itself. To find holes,
    /// the position of this file's descriptor is moved and restored: do not use the position of an
    /// [adopted](crate::OpenOptions::adopt) file meanwhile. Other programs may see a part of the copy.
    ///
    /// # Errors
    /// Those of `copy_file_range(2)`; [`done`](crate::Error::done) says how much was copied before. `InvalidInput` if a
    /// range ends beyond 2^63 - 1 bytes, and if the two ranges, with all of `len`, overlap in the same file. After an error the other file may
    /// end before a hole that was counted as copied.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    /// # std::fs::write(&old, vec![7; 100_000])?;
    /// use ringfile::{File, block_on};
    /// let (table, compacted) = (File::open(&old)?, File::create(&new)?);
    /// assert_eq!(block_on(table.copy_range(4096, &compacted, 0, 8192))?, 8192);
    /// assert_eq!(std::fs::read(&new)?, [7; 8192]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy_range(&self, offset: u64, to: &File, at: u64, len: u64) -> CopyRange<'_> {
        let request = Request { offset, want: len as usize, ..Request::of(Kind::Copy) };
        let to = Destination::new(to.target().clone(), at);
        CopyRange {
            operation: OperationFuture::new(self, request, Held::Destination(to)),
            pinned: PhantomPinned,
        }
    }
}
