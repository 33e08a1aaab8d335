//! Hard and symbolic links.

use std::future::Future;
use std::marker::PhantomPinned;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::change::{Change, on_path};
use crate::driver::Kind;
use crate::error::Result;
use crate::file::File;
use crate::file::ask::{Ask, Asked};
use crate::file::io::OperationFuture;
use crate::memory::Paths;

pin_project! {
    /// The reading of a symbolic link: see [`read_link`]. Await it, or [add](crate::Operation) it to a batch or a queue.
    ///
    /// `Send`; it borrows nothing, and works in any executor.
    #[must_use = "nothing is done until it is awaited, or added to a batch or a queue"]
    pub struct ReadLink {
        operation: OperationFuture<File>,
        #[pin]
        pinned: PhantomPinned,
    }
}

impl Ask for ReadLink {
    fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R {
        self.operation.ask(add)
    }
}

impl Future for ReadLink {
    type Output = Result<PathBuf>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.project()
            .operation
            .poll_left(context, |operation| operation.take_held().into_paths()?.take_link())
    }
}

/// Gives the file at the path `from` the name `to` too (`link`). A symbolic link at `from` gets the name itself. After a
/// crash the name is there only if its directory was [synced](super::sync_dir).
///
/// # Errors
/// Those of `link(2)`: `EEXIST` if `to` exists, which stays as it is; `EXDEV` for another file system, `ENOENT`, `EPERM`
/// for a directory and for file systems without hard links. The error's path is `from`; its text names both.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let (segment, kept) = (folder.path().join("segment"), folder.path().join("kept"));
/// std::fs::write(&segment, "content")?;
/// ringfile::block_on(ringfile::fs::hard_link(&segment, &kept))?;
/// std::fs::remove_file(&segment)?;
/// assert_eq!(std::fs::read(&kept)?, b"content");
/// # Ok(())
/// # }
/// ```
pub fn hard_link(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Change {
    Change::of_two(Kind::HardLink, 0, from.as_ref(), to.as_ref())
}

/// Creates a symbolic link at the path `link`, which points to `target` (`symlink`). The target need not exist; a relative
/// one begins at the link's directory.
///
/// # Errors
/// Those of `symlink(2)`: `EEXIST` if `link` exists, `ENOENT` if its directory does not. The error's path is `link`; its
/// text names both.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let current = folder.path().join("current");
/// use ringfile::fs;
/// ringfile::block_on(async {
///     fs::symlink("version-7", &current).await?;
///     assert_eq!(fs::read_link(&current).await?.to_str(), Some("version-7"));
///     Ok::<_, std::io::Error>(())
/// })?;
/// # Ok(())
/// # }
/// ```
pub fn symlink(target: impl AsRef<Path>, link: impl AsRef<Path>) -> Change {
    Change::of_two(Kind::Symlink, 0, link.as_ref(), target.as_ref())
}

/// Reads where a symbolic link points (`readlink`), and returns it as it was given to [`symlink`]. In a batch or a queue,
/// [`Done::into_link`](crate::Done::into_link) has it.
///
/// # Errors
/// Those of `readlink(2)`: `EINVAL` if the path is not a symbolic link, `ENOENT`, `EACCES`.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let program = ringfile::block_on(ringfile::fs::read_link("/proc/self/exe"))?;
/// assert_eq!(program, std::env::current_exe()?);
/// # Ok(())
/// # }
/// ```
pub fn read_link(path: impl AsRef<Path>) -> ReadLink {
    let path = path.as_ref();
    ReadLink { operation: on_path(Kind::ReadLink, 0, path, Paths::new(path)), pinned: PhantomPinned }
}
