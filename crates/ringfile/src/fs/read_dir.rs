//! Reads the entries of a directory.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::vec::IntoIter;

use futures_core::Stream;

use super::metadata::FileType;
use crate::driver::{Kind, Request};
use crate::error::{Error, Result};
use crate::file::File;
use crate::file::op::OperationFuture;
use crate::memory::{Found, IoMemory, Left, Paths};

/// An entry of a directory: a name in it. See [`read_dir`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DirEntry {
    /// The name within the directory, in any bytes but NUL and `/`.
    pub name: OsString,
    /// The kind of file that has the name; links are not followed. [`FileType::Unknown`] if it was removed before its kind was
    /// known, on a file system that does not report the kind together with the name.
    pub file_type: FileType,
}

/// The entries of a directory, as a stream: see [`read_dir`].
///
/// `Send` and `Unpin`; polled in any executor. An error ends the stream. It is no [`Op`](crate::Op): batches and queues do
/// not take it.
#[must_use = "nothing is read until it is polled"]
pub struct ReadDir {
    path: Cow<'static, File>,
    /// Entries that were read and not taken.
    read: IntoIter<io::Result<Found>>,
    /// The reading of those after them; `None` at the end.
    reading: Option<OperationFuture<Cow<'static, File>>>,
}

/// Reads the entries of a directory without blocking the calling thread, in no particular order, without `.` and `..`.
///
/// No ring has this operation: a [worker](crate::Route::Workers) opens the directory and reads about 1,000 entries; the
/// next ones when these have been taken. An entry that is created or removed meanwhile may be there or not; all others are
/// there once. Dropping the stream closes the directory. Dropping the future that
/// [`next`](ReadDir::next) returns loses no entry.
///
/// # Errors
/// The stream's first item has those of `open(2)`: `ENOENT`, `ENOTDIR`, `EACCES`, `EMFILE`. Later ones have those of
/// `getdents(2)`, such as `EIO`.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// use ringfile::fs::{self, FileType};
/// std::fs::write(folder.path().join("segment"), "content")?;
/// ringfile::block_on(async {
///     let mut entries = fs::read_dir(folder.path());
///     while let Some(entry) = entries.next().await {
///         let entry = entry?;
///         assert_eq!((entry.name.to_str(), entry.file_type), (Some("segment"), FileType::File));
///     }
///     Ok::<_, std::io::Error>(())
/// })?;
/// # Ok(())
/// # }
/// ```
pub fn read_dir(path: impl AsRef<Path>) -> ReadDir {
    let path = path.as_ref();
    let reading = OperationFuture::on_path(Kind::ReadDir, 0, path, Paths::new(path));
    ReadDir { path: reading.file.clone(), read: Vec::new().into_iter(), reading: Some(reading) }
}

impl ReadDir {
    /// Returns the next entry; `None` at the end, and after an error.
    pub async fn next(&mut self) -> Option<Result<DirEntry>> {
        std::future::poll_fn(|context| self.poll_entry(context)).await
    }

    fn poll_entry(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<DirEntry>>> {
        loop {
            if let Some(next) = self.read.next() {
                let entry = |Found { name, kind }| DirEntry { name, file_type: FileType::of(kind) };
                return Poll::Ready(Some(next.map(entry).map_err(|error| self.failed(&error))));
            }
            let Some(reading) = &mut self.reading else { return Poll::Ready(None) };
            let read = ready!(
                reading.poll_product(context, |product| std::mem::take(&mut product.memory).into_paths())
            );
            self.reading = None;
            match read {
                Ok(paths) => self.take(paths),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }

    /// Takes what was read, and prepares the reading of what follows.
    fn take(&mut self, mut paths: Box<Paths>) {
        let Left::Listing(listing) = &mut paths.left else { return };
        let (read, is_more) = listing.take();
        self.read = read.into_iter();
        if is_more {
            let request = Request::of(Kind::ReadDir);
            self.reading = Some(OperationFuture::new(self.path.clone(), request, IoMemory::Paths(paths)));
        }
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::from_errno(error.raw_os_error().unwrap_or(libc::EIO), "reading the directory")
            .on(self.path.path())
    }
}

impl Stream for ReadDir {
    type Item = Result<DirEntry>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_entry(context)
    }
}
